// What the memory plan relies on: device memory is counted, and errors say whether the device is
// lost.
#include <gtest/gtest.h>

#include "cuda/backend.h"
#include "cuda/runtime.h"

namespace xp::cuda {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST(DeviceMemoryTest, WhatIsHeldIsCountedInTheDriversPieces) {
    MemoryMeter& meter = device_meter();
    const uint64_t before = meter.now();
    {
        const auto large = Memory::device(64 * kMiB + 1, "a test");
        ASSERT_TRUE(large.ok()) << large.error().message;
        EXPECT_EQ(meter.now() - before, 66 * kMiB);
        const auto small = Memory::device(100, "a test");
        ASSERT_TRUE(small.ok()) << small.error().message;
        EXPECT_EQ(meter.now() - before, 66 * kMiB + 512);
        // Pinned memory is the host's.
        const auto pinned = Memory::pinned(kMiB, "a test");
        ASSERT_TRUE(pinned.ok()) << pinned.error().message;
        EXPECT_EQ(meter.now() - before, 66 * kMiB + 512);
    }
    EXPECT_EQ(meter.now(), before);
    EXPECT_GE(meter.most(), before + 66 * kMiB + 512);
}

TEST(DeviceMemoryTest, TheDeviceTellsWhatIsFree) {
    const auto backend = open_cuda_backend({});
    ASSERT_TRUE(backend.ok()) << backend.error().message;
    const auto before = backend->memory();
    ASSERT_TRUE(before.ok()) << before.error().message;
    EXPECT_GT(before->total, before->free);
    const auto held = Memory::device(256 * kMiB, "a test");
    ASSERT_TRUE(held.ok()) << held.error().message;
    const auto after = backend->memory();
    ASSERT_TRUE(after.ok());
    EXPECT_LE(after->free + 256 * kMiB, before->free + 2 * kMiB);
    EXPECT_EQ(after->total, before->total);
}

TEST(DeviceMemoryTest, ErrorsSayWhetherTheDeviceIsLost) {
    EXPECT_EQ(cuda_error(cudaErrorIllegalAddress, "x").code, ErrorCode::kDeviceLost);
    EXPECT_EQ(cuda_error(cudaErrorLaunchFailure, "x").code, ErrorCode::kDeviceLost);
    EXPECT_EQ(cuda_error(cudaErrorMemoryAllocation, "x").code, ErrorCode::kNoMemory);
    EXPECT_EQ(cuda_error(cudaErrorInvalidValue, "x").code, ErrorCode::kInternal);
}

}  // namespace
}  // namespace xp::cuda
