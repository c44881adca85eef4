// In builds without CUDA.
#include "cuda/backend.h"

namespace xp {

Result<Backend> open_cuda_backend(const CudaOptions&) {
    return make_error(ErrorCode::kUnsupported, "this build has no CUDA");
}

Result<Backend> open_measured_cuda_backend(const CudaOptions& options, CudaMeasurements&) {
    return open_cuda_backend(options);
}

}  // namespace xp
