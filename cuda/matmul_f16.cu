#include "cuda/matmul_launch.cuh"

namespace xp::cuda {

void launch_f16(const MatmulArgs& args, bool aligned, cudaStream_t stream) {
    aligned ? launch_form<F16Reader>(args, stream)
            : launch_form<LooseReader<__half, F16Reader::kElements>>(args, stream);
}

}  // namespace xp::cuda
