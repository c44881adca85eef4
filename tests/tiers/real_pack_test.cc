// The cache on a real model's pack and real read backends, and on recorded routing.
#include <fstream>

#include <nlohmann/json.hpp>

#include "tests/tiers/cache_fixture.h"

namespace xp {
namespace {

// Every expert of a model that was packed as users do, through each backend, all bytes verified.
TEST(RealPackTest, EveryExpertOfAModelComesThroughEitherBackend) {
    std::string pattern = testing::TempDir() + "xp-tiers-XXXXXX";
    const Path directory = mkdtemp(pattern.data());
    const Path destination = directory / "tiny.xpack";
    const auto built =
        build_pack(XP_TEST_DATA "/deepseek-v4-tiny/tiny_deepseek4.gguf", destination, {});
    ASSERT_TRUE(built) << built.error().message;
    for (const IoBackendKind kind : {IoBackendKind::kAuto, IoBackendKind::kPread}) {
        for (const bool direct : {true, false}) {
            auto pack = Pack::open(destination, {.direct = direct});
            if (!pack && direct) {
                std::cout << "O_DIRECT is refused here: " << pack.error().message << "\n";
                continue;
            }
            ASSERT_TRUE(pack) << pack.error().message;
            const auto backend = make_read_backend({.backend = kind, .direct = direct});
            ASSERT_TRUE(backend);
            uint64_t bytes = 0;
            for (const PackLayer& layer : (*pack)->manifest().layers) {
                bytes = std::max(bytes, layer.stride);
            }
            const auto cache = ExpertCache::create(
                **pack, **backend, make_host_slot_memory(),
                {.bytes = 6 * bytes, .verify = VerifyMode::kRead, .top_k = 2});
            ASSERT_TRUE(cache) << cache.error().message;
            uint64_t seen = 0;
            for (const PackLayer& layer : (*pack)->manifest().layers) {
                auto acquisition = (*cache)->acquire(layer.layer, all_experts(layer.n_experts));
                for (;;) {
                    const auto group = acquisition.next();
                    ASSERT_TRUE(group) << group.error().message;
                    if (group->empty()) break;
                    for (const ReadyExpert& ready : *group) {
                        EXPECT_EQ(stored_checksum(layer, {ready.data, layer.stride}),
                                  (*pack)->digest(layer, ready.expert).stored_xxh3);
                        ++seen;
                    }
                }
            }
            EXPECT_EQ(seen, (*pack)->manifest().n_objects);
            EXPECT_EQ((*cache)->stats().verified, seen);
            EXPECT_EQ((*backend)->stats().in_flight, 0u);
            EXPECT_EQ((*backend)->stats().errors, 0u);
        }
    }
    std::filesystem::remove_all(directory);
}

// Completes at once and reads nothing: for counting only.
class InstantBackend final : public ReadBackend {
public:
    void submit(std::span<const ReadRequest> requests) override {
        for (const ReadRequest& request : requests) request.queue->push({request.tag, {}});
    }
    uint64_t alignment() const override { return 4096; }
    IoStats stats() const override { return {}; }
};

using Trace = std::vector<std::vector<std::vector<uint32_t>>>;  // token, layer, experts

Trace read_trace(const Path& path) {
    Trace trace;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        trace.push_back(nlohmann::json::parse(line).at("layers"));
    }
    return trace;
}

CacheStats replay(const Trace& trace, const TestPack& pack, double share, const char* policy) {
    InstantBackend backend;
    const auto slots = static_cast<uint64_t>(share * static_cast<double>(pack.n_objects()));
    const auto top_k = static_cast<uint32_t>(trace[0][0].size());
    auto cache = ExpertCache::create(pack.pack(), backend, make_host_slot_memory(),
                                     {.bytes = slots * pack.stride(), .policy = policy,
                                      .verify = VerifyMode::kOff, .top_k = top_k});
    EXPECT_TRUE(cache);
    uint64_t requested = 0, handed_out = 0;
    for (const auto& token : trace) {
        for (uint32_t layer = 0; layer < token.size(); ++layer) {
            requested += token[layer].size();
            auto acquisition = (*cache)->acquire(layer, token[layer]);
            for (auto group = *acquisition.next(); !group.empty(); group = *acquisition.next()) {
                handed_out += group.size();
            }
        }
    }
    const CacheStats stats = (*cache)->stats();
    EXPECT_EQ(stats.slots, slots);
    EXPECT_EQ(stats.hits + stats.misses, requested);
    EXPECT_EQ(handed_out, requested);
    EXPECT_EQ(stats.read_bytes, stats.misses * pack.stride());
    EXPECT_EQ(stats.evictions, stats.misses - stats.slots_used);
    return stats;
}

TEST(ReplayTest, RecordedRoutingAddsUpUnderEitherPolicy) {
    const char* shared = std::getenv("XP_SHARED");
    const Path path = Path(shared != nullptr ? shared : XP_SHARED_DIR) / "traces/olmoe-299.jsonl";
    if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not here";
    const Trace trace = read_trace(path);
    ASSERT_FALSE(trace.empty());
    std::vector<TestLayer> layers;
    for (uint32_t layer = 0; layer < trace[0].size(); ++layer) {
        layers.push_back({.block = layer, .n_experts = 64, .rows = 8});
    }
    const TestPack pack(layers);
    for (const double share : {0.1, 0.2, 0.5}) {
        for (const char* policy : {"lfu", "lru"}) {
            const CacheStats stats = replay(trace, pack, share, policy);
            fmt::print("{:3.0f} % of the experts, {}: {:5.2f} % hits\n", share * 100, policy,
                       100.0 * static_cast<double>(stats.hits) /
                           static_cast<double>(stats.hits + stats.misses));
        }
    }
}

}  // namespace
}  // namespace xp
