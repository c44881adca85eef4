#include "daemon/engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace xp {
namespace {

std::map<TokenId, int> draw(const SamplingOptions& options, std::span<const float> logits, int n) {
    Sampler sampler(options);
    std::map<TokenId, int> counts;
    for (int i = 0; i < n; ++i) ++counts[*sampler.sample(logits)];
    return counts;
}

TEST(Sampler, GreedyTakesTheLargestAndTheLowestIdAmongEquals) {
    const std::vector<float> logits = {1, 3, NAN, 3, -INFINITY, 2};
    EXPECT_EQ(*Sampler({.temperature = 0}).sample(logits), 1);
}

TEST(Sampler, FrequenciesFollowTheSoftmax) {
    const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.2f)};
    const auto counts = draw({.seed = 42}, logits, 20000);
    // Three standard deviations of a binomial with n = 20,000 are below 220.
    EXPECT_NEAR(counts.at(0), 10000, 220);
    EXPECT_NEAR(counts.at(1), 6000, 220);
    EXPECT_NEAR(counts.at(2), 4000, 220);
    const auto cold = draw({.temperature = 0.5f, .seed = 42}, logits, 20000);
    EXPECT_NEAR(cold.at(0), 20000 * 0.25 / 0.38, 220);
}

TEST(Sampler, SeedDecidesAndRepeats) {
    std::vector<float> logits(100);
    for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 7);
    const auto stream = [&](uint64_t seed) {
        Sampler sampler({.seed = seed});
        std::vector<TokenId> ids;
        for (int i = 0; i < 50; ++i) ids.push_back(*sampler.sample(logits));
        return ids;
    };
    EXPECT_EQ(stream(1), stream(1));
    EXPECT_NE(stream(1), stream(2));
}

TEST(Sampler, CutsKeepWhatTheyPromise) {
    // Probabilities 0.4, 0.3, 0.2, 0.1.
    const std::vector<float> logits = {std::log(0.1f), std::log(0.4f), std::log(0.2f),
                                       std::log(0.3f)};
    const auto kept = [&](const SamplingOptions& options) {
        std::vector<TokenId> ids;
        for (const auto& [id, count] : draw(options, logits, 4000)) ids.push_back(id);
        return ids;
    };
    EXPECT_EQ(kept({.top_k = 2}), (std::vector<TokenId>{1, 3}));
    EXPECT_EQ(kept({.top_k = 9}), (std::vector<TokenId>{0, 1, 2, 3}));
    EXPECT_EQ(kept({.top_p = 0.65f}), (std::vector<TokenId>{1, 3}));
    EXPECT_EQ(kept({.top_p = 0.75f}), (std::vector<TokenId>{1, 2, 3}));
    EXPECT_EQ(kept({.top_p = 0.01f}), (std::vector<TokenId>{1}));
    EXPECT_EQ(kept({.min_p = 0.45f}), (std::vector<TokenId>{1, 2, 3}));
    EXPECT_EQ(kept({.min_p = 0.7f}), (std::vector<TokenId>{1, 3}));
    EXPECT_EQ(kept({.min_p = 1}), (std::vector<TokenId>{1}));
}

TEST(Sampler, RefusesWorthlessLogits) {
    const std::vector<float> nothing = {NAN, NAN};
    EXPECT_FALSE(Sampler({.temperature = 0}).sample(nothing));
    EXPECT_FALSE(Sampler({}).sample(nothing));
    const std::vector<float> infinite = {0, INFINITY};
    EXPECT_FALSE(Sampler({}).sample(infinite));
}

TEST(Sampler, RefusesOptionsOutOfRange) {
    EXPECT_TRUE(check_sampling({}));
    EXPECT_TRUE(check_sampling({.temperature = 0}));
    for (const SamplingOptions& bad :
         {SamplingOptions{.temperature = -1}, SamplingOptions{.temperature = NAN},
          SamplingOptions{.top_p = 0}, SamplingOptions{.top_p = 1.5f},
          SamplingOptions{.top_p = NAN}, SamplingOptions{.min_p = -0.1f},
          SamplingOptions{.min_p = 1.1f}}) {
        EXPECT_FALSE(check_sampling(bad));
    }
}

TEST(Sampler, LogprobsAreOfTheWholeDistribution) {
    const std::vector<float> logits = {std::log(0.1f), std::log(0.4f), std::log(0.2f),
                                       std::log(0.3f)};
    const auto top = top_logprobs(logits, 2);
    ASSERT_EQ(top.size(), 2u);
    EXPECT_EQ(top[0].id, 1);
    EXPECT_NEAR(top[0].logprob, std::log(0.4), 1e-6);
    EXPECT_EQ(top[1].id, 3);
    EXPECT_NEAR(logprob_of(logits, 2), std::log(0.2), 1e-6);
    EXPECT_EQ(top_logprobs(logits, 50).size(), 4u);
}

}  // namespace
}  // namespace xp
