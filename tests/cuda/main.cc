// The program's main: without a device there is nothing to test, which is told by exit status 77.
#include <gtest/gtest.h>

#include <cstdio>

#include "cuda/backend.h"

int main(int argc, char** argv) {
    testing::InitGoogleTest(&argc, argv);
    if (!testing::GTEST_FLAG(list_tests)) {
        const auto backend = xp::open_cuda_backend({});
        if (!backend && backend.error().code == xp::ErrorCode::kNotFound) {
            std::printf("skipped: %s\n", backend.error().message.c_str());
            return 77;
        }
        if (!backend) {
            std::printf("the CUDA backend cannot be opened: %s\n", backend.error().message.c_str());
            return 1;
        }
        std::printf("%s\n", backend->operators->describe().c_str());
    }
    return RUN_ALL_TESTS();
}
