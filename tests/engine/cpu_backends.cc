// The CPU backend on one thread and on several: three do not divide most sizes.
#include "tests/engine/backends.h"

namespace xp::test {

std::vector<BackendUnderTest> backends_under_test() {
    std::vector<BackendUnderTest> backends;
    for (const unsigned threads : {1u, 3u}) {
        backends.push_back({"cpu" + std::to_string(threads),
                            [threads] { return make_cpu_operators(threads); }});
    }
    return backends;
}

std::vector<std::string> architectures_under_test() { return {"deepseek4", "kimi-k3"}; }

Result<Backend> open_model_backend(unsigned threads) { return open_cpu_backend(threads); }

}  // namespace xp::test
