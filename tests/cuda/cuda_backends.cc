// The CUDA backend, for the suites that run on every backend.
#include "cuda/backend.h"
#include "tests/engine/backends.h"

namespace xp::test {

std::vector<BackendUnderTest> backends_under_test() {
    // Operators need their stream for as long as they live: all backends stay open.
    static std::vector<Backend> opened;
    return {{"cuda", []() -> Result<std::unique_ptr<Operators>> {
                 XP_TRY(Backend backend, open_cuda_backend({}));
                 std::unique_ptr<Operators> operators = std::move(backend.operators);
                 opened.push_back(std::move(backend));
                 return operators;
             }}};
}

std::vector<std::string> architectures_under_test() { return {"deepseek4"}; }

Result<Backend> open_model_backend(unsigned) { return open_cuda_backend({}); }

}  // namespace xp::test
