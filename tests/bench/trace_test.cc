// Traces mapped to other models: hit rates of caches stay, whatever the model's counts are.
#include "tools/bench/trace.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

namespace xp {
namespace {

using testing::HasSubstr;

const Path kKimi = Path(XP_TRACES) / "kimi-linear-48b-300.jsonl";

Routing kimi() {
    auto trace = read_trace(kKimi);
    EXPECT_TRUE(trace) << trace.error().message;
    return *std::move(trace);
}

// As many tokens as hold the trace's requests once.
Routing mapped(const Routing& trace, const RoutingShape& shape) {
    auto routing = map_trace(trace, shape, trace.n_tokens() * trace.top_k / shape.top_k);
    EXPECT_TRUE(routing) << routing.error().message;
    return *std::move(routing);
}

TEST(TraceTest, IsReadAsRecorded) {
    const Routing trace = kimi();
    EXPECT_EQ(trace.n_layers, 26u);
    EXPECT_EQ(trace.n_experts, 256u);
    EXPECT_EQ(trace.top_k, 8u);
    EXPECT_EQ(trace.n_tokens(), 300u);
    EXPECT_THAT(trace.experts(0, 0), testing::ElementsAre(36, 38, 85, 103, 116, 133, 138, 255));
    EXPECT_THAT(trace.experts(1, 1), testing::ElementsAre(12, 20, 32, 41, 177, 200, 204, 214));
}

TEST(TraceTest, WhatIsNoTraceIsNamedWithItsLine) {
    const Path path = Path(testing::TempDir()) / fmt::format("xp-trace-{}", ::getpid());
    const std::pair<const char*, const char*> cases[] = {
        {"", "is empty"},
        {"what\n", "line 1: there is no list"},
        {"{\"layers\": 3}\n", "line 1: there is no list"},
        {"{\"layers\": []}\n", "line 1: another number of layers"},
        {"{\"layers\": [[]]}\n", "line 1: another number of layers"},
        {"{\"layers\": [[1]]}\n{\"layers\": [[1], [2]]}\n", "line 2: another number of layers"},
        {"{\"layers\": [[1], [2, 3]]}\n", "line 1: another number of experts"},
        {"{\"layers\": [[-1]]}\n", "line 1: an expert that is no small number"},
        {"{\"layers\": [[4096]]}\n", "line 1: an expert that is no small number"},
        {"{\"layers\": [[\"1\"]]}\n", "line 1: an expert that is no small number"},
    };
    for (const auto& [text, message] : cases) {
        std::ofstream(path) << text;
        const auto trace = read_trace(path);
        ASSERT_FALSE(trace) << text;
        EXPECT_EQ(trace.error().code, ErrorCode::kCorrupt);
        EXPECT_THAT(trace.error().message, HasSubstr(message));
        EXPECT_THAT(trace.error().message, HasSubstr(path.string()));
    }
    std::filesystem::remove(path);
    const auto none = read_trace(path);
    ASSERT_FALSE(none);
    EXPECT_EQ(none.error().code, ErrorCode::kNotFound);
}

TEST(TraceTest, LruHitsAreThoseOfASmallCaseByHand) {
    // One layer of four experts. With two slots: 0 1 miss; 1 0 hit; 2 misses, for 1; 0 hits.
    const Routing routing{1, 4, 2, {0, 1, 0, 1, 0, 2}};
    const double shares[] = {0.25, 0.5, 1};
    EXPECT_THAT(lru_hits(routing, shares), testing::ElementsAre(0, 3 / 6.0, 3 / 6.0));
}

struct Model {
    const char* name;
    RoutingShape shape;
};
class MappedTrace : public testing::TestWithParam<Model> {};
INSTANTIATE_TEST_SUITE_P(, MappedTrace,
                         testing::Values(Model{"flash_8", {8, 256, 6}},
                                         Model{"flash_43_64", {43, 64, 6}},
                                         Model{"flash_43", {43, 256, 6}},
                                         Model{"few_of_few", {6, 96, 3}},
                                         Model{"the_recordings_own", {26, 256, 8}}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(MappedTrace, HasHitRatesWithinThreePointsOfTheRecordings) {
    const Routing trace = kimi();
    const Routing routing = mapped(trace, GetParam().shape);
    const double shares[] = {0.12, 0.15, 0.2, 0.25, 0.35, 0.5, 0.75};
    const std::vector<double> recorded = lru_hits(trace, shares);
    const std::vector<double> ours = lru_hits(routing, shares);
    for (size_t i = 0; i < std::size(shares); ++i) {
        std::printf("%2.0f %%: %.1f %% hits, recorded %.1f %%\n", shares[i] * 100, ours[i] * 100,
                    recorded[i] * 100);
        EXPECT_NEAR(ours[i], recorded[i], 0.03) << shares[i];
    }
}

TEST_P(MappedTrace, GivesEveryTokenDistinctExpertsInRangeAndTheSameEveryTime) {
    const Routing trace = kimi();
    const RoutingShape& shape = GetParam().shape;
    const auto routing = map_trace(trace, shape, 1000);  // longer than the recording
    ASSERT_TRUE(routing);
    ASSERT_EQ(routing->n_tokens(), 1000u);
    for (uint64_t token = 0; token < 1000; ++token) {
        for (uint32_t layer = 0; layer < shape.n_layers; ++layer) {
            const auto experts = routing->experts(token, layer);
            ASSERT_TRUE(std::is_sorted(experts.begin(), experts.end(), std::less_equal<>()))
                << token << ", " << layer;
            ASSERT_LT(experts.back(), shape.n_experts);
        }
    }
    EXPECT_EQ(map_trace(trace, shape, 1000)->ids, routing->ids);
}

// With the recording's own counts only the experts' numbers change.
TEST(TraceTest, MappedToItsOwnCountsItIsTheSameUnderOtherNumbers) {
    const Routing trace = kimi();
    const Routing routing = mapped(trace, {26, 256, 8});
    for (uint32_t layer = 0; layer < 26; ++layer) {
        std::map<uint32_t, uint32_t> asked, recorded;
        for (uint64_t token = 0; token < 300; ++token) {
            for (const uint32_t expert : routing.experts(token, layer)) ++asked[expert];
            for (const uint32_t expert : trace.experts(token, layer)) ++recorded[expert];
        }
        std::multiset<uint32_t> a, b;
        for (const auto& [expert, count] : asked) a.insert(count);
        for (const auto& [expert, count] : recorded) b.insert(count);
        EXPECT_EQ(a, b) << layer;
    }
}

TEST(TraceTest, AModelThatUsesMoreExpertsThanItHasIsRefused) {
    const auto routing = map_trace(kimi(), {2, 4, 5}, 10);
    ASSERT_FALSE(routing);
    EXPECT_THAT(routing.error().message, HasSubstr("5 of 4 experts"));
}

}  // namespace
}  // namespace xp
