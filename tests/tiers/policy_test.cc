#include "daemon/tiers/policy.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace xp {
namespace {

using testing::HasSubstr;

constexpr const char* kPolicies[] = {"lfu", "lru", "lfu-unaged"};

std::unique_ptr<CachePolicy> make(std::string_view name,
                                  const PolicyShape& shape = {.layers = {100}, .top_k = 8}) {
    Result<std::unique_ptr<CachePolicy>> policy = make_policy(name, shape);
    EXPECT_TRUE(policy);
    EXPECT_EQ((*policy)->name(), name);
    return std::move(*policy);
}

void request(CachePolicy& policy, std::initializer_list<ExpertNumber> experts) {
    for (const ExpertNumber expert : experts) policy.on_request(expert);
}

// Evicts them all, one after another.
std::vector<ExpertNumber> eviction_order(CachePolicy& policy, std::vector<ExpertNumber> experts) {
    std::vector<ExpertNumber> order;
    while (!experts.empty()) {
        const size_t victim = choose_victim(policy, experts);
        order.push_back(experts.at(victim));
        experts.erase(experts.begin() + static_cast<ptrdiff_t>(victim));
    }
    return order;
}

TEST(PolicyTest, LruEvictsWhatWasAskedForLongestAgo) {
    const auto policy = make("lru");
    request(*policy, {1, 2, 3, 1, 1, 4, 2});
    EXPECT_THAT(eviction_order(*policy, {4, 3, 2, 1}), testing::ElementsAre(3, 1, 4, 2));
}

TEST(PolicyTest, LfuEvictsWhatWasAskedForLeastAndOfThoseTheOldest) {
    for (const char* name : {"lfu", "lfu-unaged"}) {
        const auto policy = make(name);
        // 1, 2, 3: three each; 4, 5: one each.
        request(*policy, {1, 1, 1, 2, 2, 3, 3, 4, 2, 5, 3});
        EXPECT_THAT(eviction_order(*policy, {5, 4, 3, 2, 1}), testing::ElementsAre(4, 5, 1, 2, 3))
            << name;
    }
}

TEST(PolicyTest, WhatNobodyAskedForGoesFirstAndTiesGoToTheSmallerNumber) {
    for (const char* name : kPolicies) {
        const auto policy = make(name);
        request(*policy, {7});
        EXPECT_THAT(eviction_order(*policy, {7, 30, 20, 25}),
                    testing::ElementsAre(20, 25, 30, 7)) << name;
    }
}

TEST(PolicyTest, TheChoiceDoesNotDependOnTheOrderOfCandidates) {
    const uint64_t seed = 20;
    std::mt19937_64 random(seed);
    for (const char* name : kPolicies) {
        const auto policy = make(name, {.layers = {20, 50, 30}, .top_k = 4});
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

// The formula of the header, computed from the history, over more requests than it takes to scale
// the sums down.
TEST(PolicyTest, LfuIsWhatItsFormulaSays) {
    const uint64_t seed = 7;
    std::mt19937_64 random(seed);
    const PolicyShape shape{.layers = {3, 5, 2, 4}, .top_k = 2};
    const std::vector<uint32_t> layer_of = {0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 3, 3, 3, 3};
    const double per_token = 8;  // requests
    const auto policy = make("lfu", shape);
    std::vector<ExpertNumber> history;
    for (int i = 0; i < 30'000; ++i) {
        history.push_back(static_cast<ExpertNumber>(random() % shape.n_experts()));
        policy->on_request(history.back());
        if (i % 2500 != 2499) continue;
        for (ExpertNumber expert = 0; expert < shape.n_experts(); ++expert) {
            double rate = 0;
            for (size_t h = 0; h < history.size(); ++h) {
                if (history[h] != expert) continue;
                const double age = static_cast<double>(history.size() - 1 - h) / per_token;
                rate += std::exp2(-age / kSlowHalfLife) / kSlowHalfLife +
                        kFastWeight * std::exp2(-age / kFastHalfLife) / kFastHalfLife;
            }
            uint32_t wait = (layer_of[expert] + 4 - layer_of[history.back()]) % 4;
            if (wait == 0) wait = 4;
            const double expected = rate / (wait + 4 / 2.0);
            EXPECT_NEAR(policy->worth(expert), expected, 1e-9 * expected) << "seed " << seed;
        }
    }
}

// An expert that was hot long ago must not stay for ever.
TEST(PolicyTest, LfuForgetsOldPopularity) {
    const PolicyShape shape{.layers = {100}, .top_k = 1};  // a request is a token
    const auto policy = make("lfu", shape);
    const auto unaged = make("lfu-unaged", shape);
    for (CachePolicy* p : {policy.get(), unaged.get()}) {
        for (int i = 0; i < 16; ++i) p->on_request(1);
        for (uint32_t i = 0; i < 4 * kSlowHalfLife; ++i) p->on_request(90);
        request(*p, {2, 2, 2});
    }
    const ExpertNumber candidates[] = {1, 2};
    EXPECT_EQ(choose_victim(*policy, candidates), 0u);
    EXPECT_EQ(choose_victim(*unaged, candidates), 1u);
}

// Layers take turns: of experts that are equally likely to be asked for, the one whose layer has
// the longest time to go is the least worth its slot.
TEST(PolicyTest, LfuKeepsWhatIsNeededSooner) {
    const auto policy = make("lfu", {.layers = std::vector<uint32_t>(10, 5), .top_k = 1});
    for (int token = 0; token < 3; ++token) {
        for (uint32_t layer = 0; layer < 10; ++layer) policy->on_request(layer * 5);
    }
    for (uint32_t layer = 0; layer < 4; ++layer) policy->on_request(layer * 5 + 1);
    // Layer 3 asked last, for its expert 1 among others.
    EXPECT_THAT(eviction_order(*policy, {16, 15, 20, 45}), testing::ElementsAre(16, 15, 45, 20));
}

TEST(PolicyTest, AnUnknownNameIsRefusedWithTheKnownOnes) {
    const auto policy = make_policy("fifo", {.layers = {10}});
    ASSERT_FALSE(policy);
    EXPECT_EQ(policy.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(policy.error().message, HasSubstr("\"fifo\""));
    EXPECT_THAT(policy.error().message, HasSubstr("\"lfu\", \"lru\""));
}

}  // namespace
}  // namespace xp
