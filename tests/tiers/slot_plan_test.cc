#include "daemon/tiers/slot_plan.h"

#include <gmock/gmock.h>


namespace xp {
namespace {

using testing::HasSubstr;

constexpr uint64_t kInFlight = 2;

// Layers as (experts, stride).
Manifest manifest(std::initializer_list<std::pair<uint32_t, uint64_t>> layers) {
    Manifest manifest;
    for (const auto& [n_experts, stride] : layers) {
        PackLayer layer;
        layer.layer = static_cast<uint32_t>(manifest.layers.size());
        layer.n_experts = n_experts;
        layer.stride = stride;
        manifest.layers.push_back(layer);
    }
    return manifest;
}

TEST(SlotPlanTest, NothingAskedOrMoreThanEverythingGivesEveryExpertASlot) {
    const Manifest m = manifest({{16, 8192}, {16, 8192}});
    for (const uint64_t bytes : {uint64_t{0}, 32 * uint64_t{8192}, UINT64_MAX}) {
        const auto plan = plan_slots(m, bytes, 4, kInFlight);
        ASSERT_TRUE(plan);
        EXPECT_EQ(plan->slots(), 32u);
        EXPECT_EQ(plan->bytes(), 32u * 8192);
        EXPECT_EQ(working_set_warning(*plan, 4), "");
    }
}

TEST(SlotPlanTest, BytesAreRoundedDownToWholeSlots) {
    const Manifest m = manifest({{16, 8192}, {16, 8192}});
    const auto plan = plan_slots(m, 10 * 8192 + 8191, 4, kInFlight);
    ASSERT_TRUE(plan);
    EXPECT_EQ(plan->slots(), 10u);
    EXPECT_EQ(plan->floor_slots(), 6u);
}

TEST(SlotPlanTest, TheHardFloorIsAcceptedAndOneByteLessRefusedWithTheNumbers) {
    const Manifest m = manifest({{16, 8192}, {16, 8192}});
    ASSERT_TRUE(plan_slots(m, 6 * 8192, 4, kInFlight));
    const auto plan = plan_slots(m, 6 * 8192 - 1, 4, kInFlight);
    ASSERT_FALSE(plan);
    EXPECT_EQ(plan.error().code, ErrorCode::kNoMemory);
    EXPECT_THAT(plan.error().message, HasSubstr("49151 bytes"));
    EXPECT_THAT(plan.error().message, HasSubstr("hard floor of 49152 bytes"));
    EXPECT_THAT(plan.error().message, HasSubstr("6 slots"));
}

TEST(SlotPlanTest, TheFloorIsNeverMoreThanThereAreExperts) {
    const auto plan = plan_slots(manifest({{4, 8192}}), 4 * 8192, 4, kInFlight);
    ASSERT_TRUE(plan);
    EXPECT_EQ(plan->floor_slots(), 4u);
    EXPECT_EQ(plan->slots(), 4u);
}

TEST(SlotPlanTest, EveryObjectSizeHasItsFloorAndAShareOfTheRest) {
    const Manifest m = manifest({{32, 4096}, {32, 16384}, {32, 4096}});
    for (uint64_t bytes = 6 * 4096 + 6 * 16384; bytes < 64 * 4096 + 32 * 16384; bytes += 4096) {
        const auto plan = plan_slots(m, bytes, 4, kInFlight);
        ASSERT_TRUE(plan) << bytes;
        ASSERT_EQ(plan->classes.size(), 2u);
        const SlotClass& small = plan->classes[0];
        const SlotClass& large = plan->classes[1];
        EXPECT_EQ(small.stride, 4096u);
        EXPECT_EQ(small.n_layers, 2u);
        EXPECT_EQ(large.stride, 16384u);
        EXPECT_GE(small.slots, 6u);
        EXPECT_GE(large.slots, 6u);
        EXPECT_LE(small.slots, 64u);
        EXPECT_LE(large.slots, 32u);
        EXPECT_LE(plan->bytes(), bytes);
        EXPECT_GT(plan->bytes() + 16384, bytes) << "less than the largest slot is left over";
        // In proportion: within one slot of the same share of what each class lacks.
        const double share_small = (small.slots - 6.0) / 58, share_large = (large.slots - 6.0) / 26;
        EXPECT_NEAR(share_small, share_large, 1.0 / 26 + 4.0 / 58) << bytes;
    }
    EXPECT_FALSE(plan_slots(m, 6 * 4096 + 6 * 16384 - 1, 4, kInFlight));
}

TEST(SlotPlanTest, FewerSlotsThanOneTokenUsesIsAWarningWithTheNumbers) {
    const Manifest m = manifest({{16, 8192}, {16, 8192}, {16, 8192}});
    EXPECT_EQ(working_set_warning(*plan_slots(m, 12 * 8192, 4, kInFlight), 4), "");
    const std::string warning = working_set_warning(*plan_slots(m, 11 * 8192, 4, kInFlight), 4);
    EXPECT_THAT(warning, HasSubstr("11 slots"));
    EXPECT_THAT(warning, HasSubstr("12 experts"));
    EXPECT_THAT(warning, HasSubstr("98304 bytes"));
}

TEST(SlotPlanTest, ATokenCannotUseNoneOrMoreExpertsThanALayerHas) {
    const Manifest m = manifest({{16, 8192}, {8, 8192}});
    EXPECT_EQ(plan_slots(m, 0, 0, kInFlight).error().code, ErrorCode::kInvalidArgument);
    const auto plan = plan_slots(m, 0, 9, kInFlight);
    ASSERT_FALSE(plan);
    EXPECT_THAT(plan.error().message, HasSubstr("layer 1 has 8 experts"));
    EXPECT_FALSE(plan_slots(manifest({}), 0, 1, kInFlight));
}

}  // namespace
}  // namespace xp
