// The program's main: without a device there is nothing to test, which is told by exit status 77.
// Tests that need a process of their own start the program again.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "cuda/backend.h"
#include "tests/cuda/arena_child.h"

int main(int argc, char** argv) {
    using xp::cuda::test::kArenaChild;
    if (std::string_view role = argc == 3 ? argv[1] : ""; role.starts_with(kArenaChild)) {
        role.remove_prefix(kArenaChild.size());
        return xp::cuda::test::run_arena_child(role, std::atoi(argv[2]));
    }
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
