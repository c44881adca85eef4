// What of the memory of expert slots needs no device: into how many arenas they go, and what a
// program that was built with CUDA says where there is no driver.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "cuda/arena_plan.h"
#if defined(XP_HAS_CUDA)
#include "cuda/arena.h"
#include "cuda/pinned_file.h"
#endif

namespace xp::cuda {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST(ArenaPlan, SlotsGoIntoAsFewArenasAsCanHoldThemAndEvenly) {
    EXPECT_THAT(slots_of_arenas(256 * kMiB, 1), ElementsAre(1));
    EXPECT_THAT(slots_of_arenas(4 * kMiB, 64), ElementsAre(64));     // 256 MiB are one arena
    EXPECT_THAT(slots_of_arenas(4 * kMiB, 256), ElementsAre(256));   // and so is 1 GiB
    EXPECT_THAT(slots_of_arenas(4 * kMiB, 257), ElementsAre(129, 128));
    EXPECT_THAT(slots_of_arenas(96 * kMiB, 23), ElementsAre(8, 8, 7));
    EXPECT_THAT(slots_of_arenas(4096, 3), ElementsAre(3));
    EXPECT_THAT(slots_of_arenas(3 * kArenaBytesMax, 2), ElementsAre(1, 1));  // larger than one
    EXPECT_THAT(slots_of_arenas(4 * kMiB, 0), IsEmpty());
}

TEST(ArenaPlan, ArenasOfLargeClassesHave256MiBTo1GiB) {
    for (const uint64_t stride : {1 * kMiB + 4096, 12 * kMiB + 8192, 96 * kMiB, 250 * kMiB}) {
        for (const uint64_t slots : {300u, 301u, 999u, 10'001u}) {
            const std::vector<uint64_t> arenas = slots_of_arenas(stride, slots);
            EXPECT_EQ(std::accumulate(arenas.begin(), arenas.end(), uint64_t{0}), slots);
            for (const uint64_t n : arenas) {
                EXPECT_LE(n * stride, 1024 * kMiB) << stride << " x " << slots;
                EXPECT_GE(n * stride, 256 * kMiB) << stride << " x " << slots;
            }
        }
    }
}

#if defined(XP_HAS_CUDA)
TEST(WithoutADriver, ArenasAndPinnedMemorySayThatThereIsNoDevice) {
    int n_devices = 0;
    if (cudaGetDeviceCount(&n_devices) == cudaSuccess && n_devices > 0) {
        GTEST_SKIP() << "there is a device";
    }
    const uint64_t before = device_meter().now();
    const auto expect_no_device = [](const Error& error) {
        EXPECT_EQ(error.code, ErrorCode::kNotFound) << error.message;
        EXPECT_THAT(error.message, AllOf(HasSubstr("no CUDA device"), Not(HasSubstr("MEMLOCK"))));
    };
    expect_no_device(Arena::check_export().error());
    expect_no_device(Arena::create(2 * kMiB).error());
    expect_no_device(Arena::create_private(2 * kMiB).error());
    expect_no_device(Arena::import(0, 2 * kMiB).error());
    const auto pinned = PinnedFile::create(64 * kMiB, "reads of experts");
    ASSERT_FALSE(pinned);
    expect_no_device(pinned.error());
    EXPECT_THAT(pinned.error().message, HasSubstr("64.0 MiB of host memory for reads of experts"));
    EXPECT_EQ(device_meter().now(), before);
    // An empty one is no error, and gives nothing back.
    EXPECT_FALSE(Arena().export_fd());
    EXPECT_EQ(PinnedFile().data(), nullptr);
}
#endif

}  // namespace
}  // namespace xp::cuda
