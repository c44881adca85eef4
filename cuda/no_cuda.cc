// In builds without CUDA.
#include "cuda/backend.h"

namespace xp {

Result<Backend> open_cuda_backend(const CudaOptions&) {
    return make_error(ErrorCode::kUnsupported, "this build has no CUDA");
}

}  // namespace xp
