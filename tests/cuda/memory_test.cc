// What the memory plan relies on: device memory is counted, and errors say whether the device is
// lost. And arguments on their way to kernels.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "cuda/backend.h"
#include "cuda/operators.h"
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

// Several times around the ring, while the host's copy is overwritten at once.
TEST(ArgumentRingTest, WhatWasPushedIsThereForWhatFollowsInTheStream) {
    const unsigned seed = std::random_device{}();
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto stream = make_stream("a test");
    ASSERT_TRUE(stream) << stream.error().message;
    auto ring = ArgumentRing::create(stream->get());
    ASSERT_TRUE(ring) << ring.error().message;
    constexpr size_t kPushes = 300;
    const auto memory = Memory::pinned(kPushes * 2 * sizeof(uint32_t), "a test");
    ASSERT_TRUE(memory) << memory.error().message;
    auto* seen = reinterpret_cast<uint32_t*>(memory->data());
    std::vector<uint32_t> expected;
    std::vector<uint32_t> host;
    std::optional<Error> error;
    const uint64_t sizes[] = {64, 8 << 10, 100 << 10, kMiB, ArgumentRing::kPartBytes};
    for (uint32_t i = 0; i < kPushes; ++i) {
        host.assign(sizes[random() % std::size(sizes)] / sizeof(uint32_t), i + 1);
        const std::byte* there = ring->push(std::as_bytes(std::span(host)), error);
        ASSERT_FALSE(error) << error->message;
        const uint64_t last = (host.size() - 1) * sizeof(uint32_t);
        std::fill(host.begin(), host.end(), 0u);
        for (const uint64_t at : {uint64_t{0}, last}) {
            cudaMemcpyAsync(&seen[expected.size()], there + at, sizeof(uint32_t),
                            cudaMemcpyDeviceToHost, stream->get());
            expected.push_back(i + 1);
        }
    }
    ASSERT_EQ(cudaStreamSynchronize(stream->get()), cudaSuccess);
    EXPECT_EQ(std::vector<uint32_t>(seen, seen + expected.size()), expected);
    host.resize(ArgumentRing::kPartBytes / sizeof(uint32_t) + 1);
    EXPECT_EQ(ring->push(std::as_bytes(std::span(host)), error), nullptr);
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code, ErrorCode::kLimit);
}

}  // namespace
}  // namespace xp::cuda
