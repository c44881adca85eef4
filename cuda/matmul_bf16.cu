#include "cuda/matmul_launch.cuh"

namespace xp::cuda {

void launch_bf16(const MatmulArgs& args, bool aligned, cudaStream_t stream) {
    aligned ? launch_form<BF16Reader>(args, stream)
            : launch_form<LooseReader<Bfloat, BF16Reader::kElements>>(args, stream);
}

}  // namespace xp::cuda
