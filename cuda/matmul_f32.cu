#include "cuda/matmul_launch.cuh"

namespace xp::cuda {

bool has_kernels() {
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes,
                                 few_columns<F32Reader, 4, 1, false>) == cudaSuccess;
}

void launch_f32(const MatmulArgs& args, bool aligned, cudaStream_t stream) {
    aligned ? launch_form<F32Reader>(args, stream)
            : launch_form<LooseReader<float, F32Reader::kElements>>(args, stream);
}

}  // namespace xp::cuda
