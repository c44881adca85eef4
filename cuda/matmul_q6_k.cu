#include "cuda/matmul_launch.cuh"

namespace xp::cuda {

void launch_q6_k(const MatmulArgs& args, cudaStream_t stream) {
    launch_form<Q6_KReader>(args, stream);
}

}  // namespace xp::cuda
