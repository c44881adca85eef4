#include "cuda/matmul_launch.cuh"

namespace xp::cuda {

void launch_mxfp4(const MatmulArgs& args, bool aligned, cudaStream_t stream) {
    if (args.form == RowForm::kMxfp4) return launch_form<Mxfp4LooseReader<false>>(args, stream);
    aligned ? launch_form<Mxfp4SplitReader>(args, stream)
            : launch_form<Mxfp4LooseReader<true>>(args, stream);
}

}  // namespace xp::cuda
