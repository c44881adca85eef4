// Opening the demo model on a device whose memory is counted: what the plan says, what it refuses,
// and which backend is taken.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/serve/model_host.h"
#include "tests/support/demo_daemon.h"
#include "tests/support/fake_device.h"

namespace xp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using support::demo_pack;
using support::open_fake_device;

constexpr uint64_t kMiB = uint64_t{1} << 20;

HostOptions options_for(const support::FakeDeviceOptions& device = {}) {
    HostOptions options;
    options.models.push_back({"demo", demo_pack(), std::nullopt, std::nullopt});
    options.io.direct = false;
    options.threads = 1;
    options.chunk_rows = 32;
    options.open_device = [device] { return open_fake_device(device); };
    return options;
}

Result<std::unique_ptr<ModelHost>> open(const HostOptions& options) {
    return ModelHost::open(options, [](const std::string&) {});
}

MemoryPlan plan_of(const HostOptions& options) {
    const auto host = open(options);
    EXPECT_TRUE(host.ok()) << host.error().message;
    return host ? (*host)->memory_plan() : MemoryPlan();
}

TEST(DevicePlan, PartsAreMeasuredAndSlotsGetTheRest) {
    const auto host = open(options_for());
    ASSERT_TRUE(host.ok()) << host.error().message;
    const MemoryPlan& plan = (*host)->memory_plan();
    const ModelInfo& info = (*host)->models().front()->model->info();
    EXPECT_TRUE(plan.device);
    EXPECT_EQ((*host)->backend(), support::kFakeDeviceName);
    // Pages round each of some hundred tensors up; embeddings are not on the device.
    EXPECT_GE(plan.weights + plan.host_weights, info.weight_bytes);
    EXPECT_LT(plan.weights + plan.host_weights, info.weight_bytes + 4 * kMiB);
    EXPECT_GT(plan.host_weights, 0u);
    EXPECT_EQ(plan.state, 5 * info.sequence_bytes);
    EXPECT_GT(plan.workspace, uint64_t{32} * info.n_vocab * sizeof(float));
    EXPECT_EQ(plan.slots, (*host)->models().front()->cache->stats().slot_bytes);
    EXPECT_EQ((*host)->models().front()->cache->stats().slots,
              (*host)->models().front()->cache->stats().n_objects);  // 4 GiB are enough for all
}

TEST(DevicePlan, MoreRowsAndMoreContextTakeMore) {
    const MemoryPlan small = plan_of(options_for());
    HostOptions options = options_for();
    options.chunk_rows = 64;
    options.models.front().context = 8192;
    const MemoryPlan large = plan_of(options);
    EXPECT_GT(large.workspace, small.workspace * 3 / 2);
    EXPECT_GT(large.state, small.state);
    EXPECT_EQ(large.weights, small.weights);
}

// Down to the byte below which nothing fits.
TEST(DevicePlan, ALimitCutsTheSlotsAndRefusesBelowTheFloor) {
    HostOptions options = options_for();
    const MemoryPlan free = plan_of(options);
    options.vram_limit = free.fixed() + free.floor + (free.slots - free.floor) / 2;
    const MemoryPlan half = plan_of(options);
    EXPECT_LE(half.planned(), *options.vram_limit);
    EXPECT_LT(half.slots, free.slots);
    EXPECT_GT(half.slots, free.slots / 3);
    options.vram_limit = free.fixed() + free.floor;
    EXPECT_EQ(plan_of(options).slots, free.floor);
    --*options.vram_limit;
    const auto refused = open(options);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(refused.error().message,
                AllOf(HasSubstr("weights "), HasSubstr(" + workspace "), HasSubstr(" + state of 5"),
                      HasSubstr(" + floor of "), HasSubstr("but [cache] vram_limit is ")));
}

TEST(DevicePlan, WithoutALimitSlotsTakeAllThatIsFreeButTheReserve) {
    HostOptions options = options_for();
    const MemoryPlan all = plan_of(options);
    support::FakeDeviceOptions device;
    device.reserve = 3 * kMiB;
    device.memory = device.reserve + all.fixed() + all.slots * 3 / 4;
    options = options_for(device);
    const MemoryPlan plan = plan_of(options);
    EXPECT_LE(plan.planned() + device.reserve, device.memory);
    EXPECT_GT(plan.slots, all.slots * 2 / 3);
    device.memory = device.reserve + all.weights;
    options = options_for(device);
    const auto refused = open(options);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kNoMemory);
    EXPECT_THAT(refused.error().message, HasSubstr("are to stay so"));
}

TEST(DevicePlan, ACacheThatWasAskedForIsCutWithAWarning) {
    HostOptions options = options_for();
    const MemoryPlan all = plan_of(options);
    options.cache_bytes = all.slots;
    options.vram_limit = all.fixed() + all.slots / 2;
    const auto host = open(options);
    ASSERT_TRUE(host.ok()) << host.error().message;
    EXPECT_THAT((*host)->warnings(),
                ::testing::Contains(HasSubstr("what the memory plan leaves")));
}

TEST(DevicePlan, TheComparisonTellsBothFiguresWhenMoreWasTaken) {
    const auto host = open(options_for());
    ASSERT_TRUE(host.ok()) << host.error().message;
    EXPECT_EQ((*host)->measured_memory(), std::nullopt);
    EXPECT_EQ((*host)->compare_memory(), "");
    ASSERT_TRUE((*host)->measured_memory());
    EXPECT_GE(*(*host)->measured_memory(), (*host)->memory_plan().weights);
}

TEST(DevicePlan, ADeviceLostWhileItIsMeasuredStopsTheStart) {
    support::FakeDeviceOptions device;
    device.lost_after = 3;
    const auto host = open(options_for(device));
    ASSERT_FALSE(host);
    EXPECT_EQ(host.error().code, ErrorCode::kDeviceLost);
    EXPECT_THAT(host.error().message, AllOf(HasSubstr("model \"demo\""), HasSubstr("chunk_rows"),
                                            HasSubstr("fakeErrorFellOffTheBus")));
}

TEST(BackendChoice, AutoWithoutADeviceIsTheCpuAndSaysSo) {
    HostOptions options = options_for();
    options.open_device = []() -> Result<Backend> {
        return make_error(ErrorCode::kNotFound, "no device at all");
    };
    options.vram_limit = kMiB;
    const auto host = open(options);
    ASSERT_TRUE(host.ok()) << host.error().message;
    EXPECT_THAT((*host)->backend(), ::testing::StartsWith("cpu ("));
    EXPECT_THAT((*host)->warnings(),
                ::testing::IsSupersetOf({HasSubstr("computing on the CPU: no device at all"),
                                         HasSubstr("vram_limit has no effect")}));
    EXPECT_FALSE((*host)->memory_plan().device);
    EXPECT_GT((*host)->memory_plan().weights, 0u);
    EXPECT_GT((*host)->memory_plan().workspace, 0u);
}

TEST(BackendChoice, CudaWithoutADeviceIsRefused) {
    HostOptions options = options_for();
    options.backend = EngineBackend::kCuda;
    options.open_device = []() -> Result<Backend> {
        return make_error(ErrorCode::kNotFound, "no device at all");
    };
    const auto host = open(options);
    ASSERT_FALSE(host);
    EXPECT_THAT(host.error().message,
                AllOf(HasSubstr("[engine] backend is \"cuda\""), HasSubstr("no device at all")));
}

TEST(BackendChoice, TheCpuIsTakenWhenAskedForWhateverDeviceThereIs) {
    HostOptions options = options_for();
    options.backend = EngineBackend::kCpu;
    const auto host = open(options);
    ASSERT_TRUE(host.ok()) << host.error().message;
    EXPECT_THAT((*host)->backend(), ::testing::StartsWith("cpu ("));
    EXPECT_EQ((*host)->compare_memory(), "");
}

}  // namespace
}  // namespace xp
