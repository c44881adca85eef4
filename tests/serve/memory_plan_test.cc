// The arithmetic of the memory plan: what fits, what is refused and how, and who gets which slots.
#include "daemon/serve/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace xp {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kGiB = uint64_t{1} << 30;

MemoryPlan device_plan() {
    MemoryPlan plan;
    plan.device = true;
    plan.total = 32 * kGiB;
    plan.free = 30 * kGiB;
    plan.reserve = kGiB;
    plan.weights = 10 * kGiB;
    plan.workspace = 2 * kGiB;
    plan.state = 5 * kGiB;
    plan.sequences = 5;
    plan.floor = 3 * kGiB;
    plan.floor_slots = 8;
    return plan;
}

TEST(MemoryPlan, SlotsGetWhatIsLeftOfWhatIsFreeOrOfTheLimit) {
    MemoryPlan plan = device_plan();
    EXPECT_EQ(plan.usable(), 29 * kGiB);
    EXPECT_EQ(plan.rest(), 12 * kGiB);
    plan.limit = 24 * kGiB;
    EXPECT_EQ(plan.rest(), 7 * kGiB);
    plan.limit = 31 * kGiB;  // more than there is
    EXPECT_EQ(plan.rest(), 12 * kGiB);
    plan.limit = 16 * kGiB;  // less than what is not slots
    EXPECT_EQ(plan.rest(), 0u);
}

TEST(MemoryPlan, TheFloorHasToFitExactly) {
    MemoryPlan plan = device_plan();
    plan.limit = 20 * kGiB;
    EXPECT_TRUE(plan.check().ok());
    --*plan.limit;
    EXPECT_FALSE(plan.check().ok());
}

TEST(MemoryPlan, ALimitIsRefusedWithTheNumbersAndTheKeys) {
    MemoryPlan plan = device_plan();
    plan.limit = 18 * kGiB;
    const Result<void> checked = plan.check();
    ASSERT_FALSE(checked);
    EXPECT_EQ(checked.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(checked.error().message,
              "weights 10.0 GiB + workspace 2.00 GiB + state of 5 sequences 5.00 GiB + floor of 8 "
              "expert slots 3.00 GiB = 20.0 GiB, but [cache] vram_limit is 18.0 GiB: lower context "
              "of [[model]] or chunk_rows of [engine], or raise it");
}

TEST(MemoryPlan, ADeviceThatIsTooSmallIsNoFaultOfTheConfiguration) {
    MemoryPlan plan = device_plan();
    plan.free = 12 * kGiB;
    plan.limit = 30 * kGiB;
    const Result<void> checked = plan.check();
    ASSERT_FALSE(checked);
    EXPECT_EQ(checked.error().code, ErrorCode::kNoMemory);
    EXPECT_THAT(checked.error().message,
                AllOf(HasSubstr("= 20.0 GiB"), HasSubstr("of the device's 32.0 GiB only 12.0 GiB"),
                      HasSubstr("1.00 GiB are to stay so"), Not(HasSubstr("vram_limit"))));
    plan.device = false;  // host memory is taken as it is used
    EXPECT_TRUE(plan.check().ok());
}

TEST(MemoryPlan, WhatIsNotKnownYetIsNotInTheRefusal) {
    MemoryPlan plan = device_plan();
    plan.workspace = plan.state = 0;
    plan.limit = 12 * kGiB;
    const Result<void> checked = plan.check();
    ASSERT_FALSE(checked);
    EXPECT_THAT(checked.error().message,
                AllOf(HasSubstr("weights 10.0 GiB + floor of 8"), Not(HasSubstr("workspace")),
                      Not(HasSubstr("state"))));
}

TEST(DivideSlots, EveryoneGetsTheFloorThenWhatWasAskedThenEvenShares) {
    const auto none = std::nullopt;
    EXPECT_THAT(divide_slots(100, std::vector<SlotWish>{{none, 10, 500}}), ElementsAre(100));
    EXPECT_THAT(divide_slots(100, std::vector<SlotWish>{{none, 10, 60}}), ElementsAre(60));
    EXPECT_THAT(divide_slots(100, std::vector<SlotWish>{{none, 10, 500}, {none, 30, 500}}),
                ElementsAre(40, 60));
    // The small one leaves the rest to the large one, in any order.
    EXPECT_THAT(divide_slots(100, std::vector<SlotWish>{{none, 10, 500}, {none, 5, 20}}),
                ElementsAre(80, 20));
    EXPECT_THAT(divide_slots(100, std::vector<SlotWish>{{70, 10, 500}, {none, 10, 500}}),
                ElementsAre(70, 30));
    EXPECT_THAT(divide_slots(100, std::vector<SlotWish>{{70, 10, 50}, {none, 10, 500}}),
                ElementsAre(50, 50));
    // Nobody loses the floor to what another one asked for.
    EXPECT_THAT(divide_slots(100, std::vector<SlotWish>{{400, 10, 500}, {none, 10, 500}}),
                ElementsAre(90, 10));
}

TEST(DivideSlots, WhoAsksForLessThanTheFloorGetsWhatWasAsked) {
    EXPECT_THAT(divide_slots(100, std::vector<SlotWish>{{3, 10, 500}}), ElementsAre(3));
}

}  // namespace
}  // namespace xp
