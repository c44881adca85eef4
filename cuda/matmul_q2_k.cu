#include "cuda/matmul_launch.cuh"

namespace xp::cuda {

void launch_q2_k(const MatmulArgs& args, cudaStream_t stream) {
    launch_form<Q2_KReader>(args, stream);
}

}  // namespace xp::cuda
