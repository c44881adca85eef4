#include "cuda/matmul_launch.cuh"

namespace xp::cuda {

void launch_q8_0(const MatmulArgs& args, bool aligned, cudaStream_t stream) {
    if (args.form == RowForm::kQ8_0) return launch_form<Q8_0LooseReader<false>>(args, stream);
    aligned ? launch_form<Q8_0SplitReader>(args, stream)
            : launch_form<Q8_0LooseReader<true>>(args, stream);
}

}  // namespace xp::cuda
