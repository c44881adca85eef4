// Which experts the RAM tier keeps and where.
#include "daemon/tiers/ram_tier.h"

#include <gmock/gmock.h>

#include <random>
#include <set>

namespace xp {
namespace {

constexpr uint32_t kExperts = 40;

std::unique_ptr<CachePolicy> make_lfu() {
    auto policy = make_policy("lfu", {.layers = {kExperts}, .top_k = 8});
    EXPECT_TRUE(policy);
    return std::move(*policy);
}

SlotPlan plan_of(std::vector<uint64_t> slots) {
    SlotPlan plan;
    for (const uint64_t n : slots) {
        plan.classes.push_back({.stride = 4096 * (plan.classes.size() + 1), .slots = n});
    }
    return plan;
}

void request(CachePolicy& policy, ExpertNumber expert, int times) {
    for (int i = 0; i < times; ++i) policy.on_request(expert);
}

TEST(RamTierTest, KeepsWhatIsAskedForMoreThanTheLeastThatItHolds) {
    const auto policy = make_lfu();
    RamTier tier(plan_of({3}), kExperts, *policy);
    for (const ExpertNumber expert : {1u, 2u, 3u}) request(*policy, expert, 3 + expert);
    request(*policy, 4, 2);
    request(*policy, 5, 9);
    std::set<SlotNumber> slots;
    for (const ExpertNumber expert : {1u, 2u, 3u}) slots.insert(*tier.keep(expert, 0));
    EXPECT_THAT(slots, testing::ElementsAre(0u, 1u, 2u));
    EXPECT_EQ(tier.keep(4, 0), std::nullopt) << "asked for less than 1";
    EXPECT_FALSE(tier.holds(4));
    EXPECT_EQ(tier.evictions(), 0u);
    ASSERT_TRUE(tier.keep(5, 0));
    EXPECT_FALSE(tier.holds(1)) << "the least of them makes room";
    for (const ExpertNumber expert : {2u, 3u, 5u}) EXPECT_TRUE(tier.holds(expert)) << expert;
    EXPECT_EQ(tier.held(), 3u);
    EXPECT_EQ(tier.evictions(), 1u);
}

TEST(RamTierTest, ASlotIsNotUsedAgainBeforeItIsPutBack) {
    const auto policy = make_lfu();
    RamTier tier(plan_of({2}), kExperts, *policy);
    const SlotNumber slot = *tier.keep(1, 0);
    ASSERT_TRUE(tier.keep(2, 0));
    EXPECT_EQ(tier.take(1), slot);
    EXPECT_FALSE(tier.holds(1));
    EXPECT_EQ(tier.held(), 1u);
    request(*policy, 2, 5);
    EXPECT_EQ(tier.keep(3, 0), std::nullopt) << "no slot, and 2 is asked for more";
    tier.put_back(slot);
    EXPECT_EQ(tier.keep(3, 0), slot);
}

TEST(RamTierTest, SomeSlotsStayFreeAndTheOneThatIsFreeLongestGoesFirst) {
    const auto policy = make_lfu();
    RamTier tier(plan_of({16}), kExperts, *policy);
    std::vector<SlotNumber> slots;
    for (ExpertNumber expert = 0; expert < 16; ++expert) {
        request(*policy, expert, 1 + expert);
        slots.push_back(*tier.keep(expert, 0));
    }
    EXPECT_EQ(tier.held(), 12u);
    for (ExpertNumber expert = 0; expert < 4; ++expert) EXPECT_FALSE(tier.holds(expert));
    // 0's slot is free longest, 12's is only now.
    tier.put_back(tier.take(12));
    request(*policy, 20, 30);
    EXPECT_EQ(tier.keep(20, 0), slots[0]);
}

TEST(RamTierTest, ClassesHaveSlotsOfTheirOwnAndSomeHaveNone) {
    const auto policy = make_lfu();
    RamTier tier(plan_of({2, 0, 3}), kExperts, *policy);
    EXPECT_EQ(tier.keep(1, 1), std::nullopt);
    for (const ExpertNumber expert : {10u, 11u, 12u}) {
        EXPECT_THAT(tier.keep(expert, 2), testing::Optional(testing::AllOf(testing::Ge(2u),
                                                                           testing::Lt(5u))));
    }
    for (const ExpertNumber expert : {1u, 2u}) {
        EXPECT_THAT(tier.keep(expert, 0), testing::Optional(testing::Lt(2u)));
    }
    EXPECT_EQ(tier.held(), 5u);
}

TEST(RamTierTest, NoTwoExpertsEverShareASlot) {
    const uint64_t seed = std::random_device{}();
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    for (const uint64_t n_slots : {1, 3, 9, 20}) {
        const auto policy = make_lfu();
        RamTier tier(plan_of({n_slots}), kExperts, *policy);
        std::vector<SlotNumber> slot_of(kExperts, kNoSlot);  // as the tier said
        std::set<SlotNumber> leaving;
        uint64_t kept = 0, took = 0;
        for (int i = 0; i < 3000; ++i) {
            const auto expert = static_cast<ExpertNumber>(random() % kExperts);
            policy->on_request(expert);
            if (!leaving.empty() && random() % 2 == 0) {
                tier.put_back(*leaving.begin());
                leaving.erase(leaving.begin());
            } else if (tier.holds(expert)) {
                EXPECT_EQ(tier.take(expert), slot_of[expert]);
                leaving.insert(slot_of[expert]);
                ++took;
            } else if (const auto slot = tier.keep(expert, 0)) {
                ++kept;
                ASSERT_LT(*slot, n_slots);
                ASSERT_FALSE(leaving.contains(*slot));
                slot_of[expert] = *slot;
            }
            std::set<SlotNumber> used;
            for (ExpertNumber e = 0; e < kExperts; ++e) {
                if (!tier.holds(e)) continue;
                ASSERT_TRUE(used.insert(slot_of[e]).second);
            }
            ASSERT_EQ(used.size(), tier.held());
            ASSERT_EQ(kept, took + tier.evictions() + tier.held());
        }
        EXPECT_GT(took, 20u);
    }
}

}  // namespace
}  // namespace xp
