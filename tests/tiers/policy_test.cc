#include "daemon/tiers/policy.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>

namespace xp {
namespace {

using testing::HasSubstr;

std::unique_ptr<CachePolicy> make(std::string_view name, uint32_t n_slots = 1000) {
    Result<std::unique_ptr<CachePolicy>> policy = make_policy(name, 100, n_slots);
    EXPECT_TRUE(policy);
    return std::move(*policy);
}

void request(CachePolicy& policy, std::initializer_list<ExpertNumber> experts) {
    for (const ExpertNumber expert : experts) policy.on_request(expert);
}

// Evicts them all, one after another.
std::vector<ExpertNumber> eviction_order(CachePolicy& policy, std::vector<ExpertNumber> experts) {
    std::vector<ExpertNumber> order;
    while (!experts.empty()) {
        const size_t victim = policy.choose_victim(experts);
        order.push_back(experts.at(victim));
        experts.erase(experts.begin() + static_cast<ptrdiff_t>(victim));
    }
    return order;
}

TEST(PolicyTest, LruEvictsWhatWasAskedForLongestAgo) {
    const auto policy = make("lru");
    EXPECT_STREQ(policy->name(), "lru");
    request(*policy, {1, 2, 3, 1, 1, 4, 2});
    EXPECT_THAT(eviction_order(*policy, {4, 3, 2, 1}), testing::ElementsAre(3, 1, 4, 2));
}

TEST(PolicyTest, LfuEvictsWhatWasAskedForLeastAndOfThoseTheOldest) {
    const auto policy = make("lfu");
    EXPECT_STREQ(policy->name(), "lfu");
    request(*policy, {1, 1, 1, 2, 2, 3, 3, 4, 2, 5, 3});  // 1, 2, 3: three each; 4, 5: one each
    EXPECT_THAT(eviction_order(*policy, {5, 4, 3, 2, 1}), testing::ElementsAre(4, 5, 1, 2, 3));
}

TEST(PolicyTest, WhatNobodyAskedForGoesFirstAndTiesGoToTheSmallerNumber) {
    for (const char* name : {"lfu", "lru"}) {
        const auto policy = make(name);
        request(*policy, {7});
        EXPECT_THAT(eviction_order(*policy, {7, 30, 20, 25}),
                    testing::ElementsAre(20, 25, 30, 7));
    }
}

TEST(PolicyTest, TheChoiceDoesNotDependOnTheOrderOfCandidates) {
    const uint64_t seed = 20;
    std::mt19937_64 random(seed);
    for (const char* name : {"lfu", "lru"}) {
        const auto policy = make(name);
        for (int i = 0; i < 300; ++i) policy->on_request(static_cast<uint32_t>(random() % 50));
        std::vector<ExpertNumber> candidates(60);
        for (uint32_t i = 0; i < 60; ++i) candidates[i] = i;
        const auto order = eviction_order(*policy, candidates);
        for (int i = 0; i < 5; ++i) {
            std::shuffle(candidates.begin(), candidates.end(), random);
            EXPECT_EQ(eviction_order(*policy, candidates), order) << name << " seed " << seed;
        }
    }
}

// An expert that was hot long ago must not stay for ever.
TEST(PolicyTest, LfuForgetsOldPopularity) {
    const uint32_t n_slots = 5;
    const auto policy = make("lfu", n_slots);
    for (int i = 0; i < 16; ++i) policy->on_request(1);
    // Three halvings later, 16 (halved itself on the way) is below 3 recent requests.
    for (uint32_t i = 0; i < 5 * kLfuAgeingSlots * n_slots; ++i) policy->on_request(90);
    request(*policy, {2, 2, 2});
    const ExpertNumber candidates[] = {1, 2};
    EXPECT_EQ(policy->choose_victim(candidates), 0u);

    const auto patient = make("lfu", 1000);  // the same requests are within its first period
    for (int i = 0; i < 16; ++i) patient->on_request(1);
    for (uint32_t i = 0; i < 5 * kLfuAgeingSlots * n_slots; ++i) patient->on_request(90);
    request(*patient, {2, 2, 2});
    EXPECT_EQ(patient->choose_victim(candidates), 1u);
}

TEST(PolicyTest, AnUnknownNameIsRefusedWithTheKnownOnes) {
    const auto policy = make_policy("fifo", 10, 5);
    ASSERT_FALSE(policy);
    EXPECT_EQ(policy.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(policy.error().message, HasSubstr("\"fifo\""));
    EXPECT_THAT(policy.error().message, HasSubstr("\"lfu\" and \"lru\""));
}

}  // namespace
}  // namespace xp
