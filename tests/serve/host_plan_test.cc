// Host memory beside a device: read buffers and RAM tiers are planned, cut or refused with the
// numbers before anything is pinned.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/serve/model_host.h"
#include "tests/support/demo_daemon.h"
#include "tests/support/fake_device.h"
#include "tests/tiers/fake_device_memory.h"

namespace xp {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kMega = uint64_t{1} << 20;
constexpr uint32_t kBuffers = 4;

// The demo model on a device that leaves half the experts to a RAM tier, which may have as much of
// the host's memory as `usable`; `copies` times.
HostOptions host_options(uint64_t usable, std::optional<uint64_t> ram_bytes, int copies = 1) {
    HostOptions options;
    for (int i = 0; i < copies; ++i) {
        options.models.push_back({"demo" + std::to_string(i), support::demo_pack(), std::nullopt,
                                  5 * kMega});
    }
    options.io.direct = false;
    options.threads = 1;
    options.chunk_rows = 32;
    options.ram_bytes = ram_bytes;
    options.open_device = [usable]() -> Result<Backend> {
        XP_TRY(Backend backend, support::open_fake_device());
        backend.make_slot_memory = [usable]() -> Result<std::unique_ptr<SlotMemory>> {
            return std::unique_ptr<SlotMemory>(std::make_unique<FakeDeviceMemory>(
                1, xp::FakeDeviceOptions{.usable_ram = usable, .n_buffers = kBuffers}));
        };
        return backend;
    };
    return options;
}

Result<std::unique_ptr<ModelHost>> open_host(const HostOptions& options) {
    return ModelHost::open(options, [](const std::string&) {});
}

TEST(HostPlan, BuffersAndTheRamTierAreInThePlanAndItsLines) {
    const auto host = open_host(host_options(64 * kMega, kMega));
    ASSERT_TRUE(host.ok()) << host.error().message;
    const MemoryPlan& plan = (*host)->memory_plan();
    const CacheStats stats = (*host)->models().front()->cache->stats();
    const uint64_t stride = stats.slot_bytes / stats.slots;
    EXPECT_EQ(plan.host_usable, 64 * kMega);
    EXPECT_EQ(plan.buffers, kBuffers * stride);
    const uint64_t embeddings = (*host)->models().front()->pack->resident()
                                    .find_tensor("token_embd.weight")->bytes;
    EXPECT_EQ(plan.host_weights, embeddings);
    EXPECT_LT(plan.weights + embeddings,
              (*host)->models().front()->model->info().weight_bytes + 4 * kMega);
    EXPECT_EQ(plan.ram, stats.ram_slot_bytes);
    EXPECT_GT(plan.ram, kMega - stride);
    EXPECT_LE(plan.ram, kMega);
    const std::vector<std::string> lines = plan.lines("a device");
    EXPECT_THAT(lines, Contains("host memory plan: 64.0 MiB are usable"));
    EXPECT_THAT(lines, Contains(HasSubstr("  embeddings ")));
    EXPECT_THAT(lines, Contains(AllOf(HasSubstr("  read buffers "), HasSubstr("pinned"))));
    EXPECT_THAT(lines, Contains(AllOf(HasSubstr("  RAM tier "), HasSubstr("pinned"))));
}

TEST(HostPlan, WhatIsNotThereIsCutWithTheNumbers) {
    const auto whole = open_host(host_options(64 * kMega, 2 * kMega));
    ASSERT_TRUE(whole.ok()) << whole.error().message;
    EXPECT_THAT((*whole)->warnings(), Not(Contains(HasSubstr("RAM tier was cut"))));
    const MemoryPlan& plan = (*whole)->memory_plan();
    const uint64_t half = plan.host_fixed() + plan.ram / 2;
    const auto cut = open_host(host_options(half, 2 * kMega));
    ASSERT_TRUE(cut.ok()) << cut.error().message;
    EXPECT_LE((*cut)->memory_plan().ram, plan.ram / 2);
    EXPECT_GE((*cut)->memory_plan().ram, plan.ram / 3);
    EXPECT_THAT((*cut)->warnings(), Contains(AllOf(HasSubstr("model demo0: the RAM tier was cut"),
                                                   HasSubstr("and read buffers"))));
}

// What one asks for does not take the floor of the other, nor its buffers.
TEST(HostPlan, ModelsShareTheHostsMemory) {
    const auto one = open_host(host_options(64 * kMega, 2 * kMega));
    ASSERT_TRUE(one.ok()) << one.error().message;
    const MemoryPlan& plan = (*one)->memory_plan();
    const uint64_t usable = 2 * plan.host_fixed() + plan.ram * 3 / 2;
    const auto both = open_host(host_options(usable, 2 * kMega, 2));
    ASSERT_TRUE(both.ok()) << both.error().message;
    const auto ram_of = [&](size_t i) {
        return (*both)->models()[i]->cache->stats().ram_slot_bytes;
    };
    EXPECT_EQ(ram_of(0), plan.ram);
    EXPECT_GT(ram_of(1), plan.ram / 3);
    EXPECT_LE((*both)->memory_plan().host_fixed() + (*both)->memory_plan().ram, usable);
}

TEST(HostPlan, BelowBuffersOrTheFloorTheStartIsRefused) {
    const auto whole = open_host(host_options(64 * kMega, 2 * kMega));
    ASSERT_TRUE(whole.ok()) << whole.error().message;
    const MemoryPlan& plan = (*whole)->memory_plan();
    const uint64_t least = plan.host_fixed() + plan.ram_floor;
    EXPECT_TRUE(open_host(host_options(least, 2 * kMega)).ok());
    const auto floor = open_host(host_options(least - 1, 2 * kMega));
    ASSERT_FALSE(floor);
    EXPECT_EQ(floor.error().code, ErrorCode::kNoMemory);
    EXPECT_THAT(floor.error().message,
                AllOf(HasSubstr("embeddings "), HasSubstr(" + read buffers "),
                      HasSubstr(" + floor of "),
                      HasSubstr("of host memory are usable"), HasSubstr("ram_tier of [cache]")));
    EXPECT_TRUE(open_host(host_options(plan.host_fixed(), std::nullopt)).ok());
    const auto buffers = open_host(host_options(plan.host_fixed() - 1, std::nullopt));
    ASSERT_FALSE(buffers);
    EXPECT_THAT(buffers.error().message,
                AllOf(HasSubstr("read buffers "), HasSubstr("control group"),
                      Not(HasSubstr("ram_tier"))));
}

}  // namespace
}  // namespace xp
