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
        for (const ReadRequest& request : requests) {
            if (request.sink != nullptr) request.sink->on_piece(request.buffer, request.bytes);
            request.queue->push({request.tag, {}});
        }
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

// As many small experts as the trace's model has.
std::vector<TestLayer> layers_of(const Trace& trace, uint64_t n_experts) {
    std::vector<TestLayer> layers;
    for (uint32_t layer = 0; layer < trace.at(0).size(); ++layer) {
        layers.push_back({.block = layer, .n_experts = n_experts, .rows = 8});
    }
    return layers;
}

// `ram_share` is of the slots.
CacheStats replay(const Trace& trace, const TestPack& pack, double share, const char* policy,
                  double ram_share = 0) {
    InstantBackend backend;
    const auto slots = static_cast<uint64_t>(share * static_cast<double>(pack.n_objects()));
    const auto top_k = static_cast<uint32_t>(trace[0][0].size());
    const auto ram_slots = static_cast<uint64_t>(ram_share * static_cast<double>(slots));
    std::unique_ptr<SlotMemory> memory = make_host_slot_memory();
    if (ram_slots > 0) memory = std::make_unique<FakeDeviceMemory>(1);
    auto cache = ExpertCache::create(pack.pack(), backend, std::move(memory),
                                     {.bytes = slots * pack.stride(),
                                      .ram_bytes = ram_slots * pack.stride(), .policy = policy,
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
    EXPECT_EQ(stats.ram_slots, ram_slots);
    EXPECT_EQ(stats.read_bytes, (stats.misses - stats.ram_hits) * pack.stride());
    EXPECT_EQ(stats.evictions, stats.misses - stats.slots_used);
    return stats;
}

TEST(ReplayTest, RecordedRoutingAddsUpUnderEitherPolicy) {
    const Trace trace = read_trace(Path(XP_TRACES) / "olmoe-299.jsonl");
    const TestPack pack(layers_of(trace, 64));
    for (const double share : {0.1, 0.2, 0.5}) {
        for (const char* policy : {"lfu", "lru"}) {
            const CacheStats stats = replay(trace, pack, share, policy);
            fmt::print("{:3.0f} % of the experts, {}: {:5.2f} % hits\n", share * 100, policy,
                       100.0 * static_cast<double>(stats.hits) /
                           static_cast<double>(stats.hits + stats.misses));
        }
    }
}

// What a published runtime's policy reads: least frequently used by counts up to 255 that never
// age, ties to the least recently used.
uint64_t reads_of_reference_policy(const Trace& trace, uint64_t n_experts, uint64_t slots) {
    struct Use {
        uint32_t count = 0;
        uint64_t last = 0;
        auto operator<=>(const Use&) const = default;
    };
    std::vector<Use> uses(trace[0].size() * n_experts);
    std::set<std::pair<Use, uint64_t>> resident;
    uint64_t reads = 0, clock = 0;
    for (const auto& token : trace) {
        for (uint64_t layer = 0; layer < token.size(); ++layer) {
            std::vector<uint64_t> missing;
            for (const uint32_t expert : token[layer]) {
                const uint64_t number = layer * n_experts + expert;
                const bool hit = resident.erase({uses[number], number}) > 0;
                uses[number] = {std::min(uses[number].count + 1, 255u), ++clock};
                if (hit) resident.insert({uses[number], number});
                if (!hit) missing.push_back(number);
            }
            for (const uint64_t number : missing) {
                ++reads;
                if (resident.size() >= slots) {
                    const auto is_other = [&](const auto& entry) {
                        return entry.second / n_experts != layer ||
                               clock - entry.first.last >= token[layer].size();
                    };
                    resident.erase(std::find_if(resident.begin(), resident.end(), is_other));
                }
                resident.insert({uses[number], number});
            }
        }
    }
    return reads;
}

// Below what one token asks for (12.5 % of this model's experts) LRU finds nothing.
TEST(ReplayTest, ACacheFarSmallerThanATokensWorkingSetStillHits) {
    const Trace trace = read_trace(Path(XP_TRACES) / "olmoe-299.jsonl");
    const TestPack pack(layers_of(trace, 64));
    for (const double share : {0.01, 0.03, 0.05, 0.1}) {
        const CacheStats lfu = replay(trace, pack, share, "lfu");
        const uint64_t reference = reads_of_reference_policy(trace, 64, lfu.slots);
        fmt::print("{:3.0f} %: {:.3f} of the reference's {} reads\n", 100 * share,
                   static_cast<double>(lfu.misses) / static_cast<double>(reference), reference);
        EXPECT_LT(lfu.misses, reference) << share;
        EXPECT_EQ(replay(trace, pack, share, "lru").hits, 0u) << share;
    }
}

TEST(ReplayTest, ARamTierOfTwoThirdsOfTheSlotsSavesAThirdOfTheReads) {
    Trace trace = read_trace(Path(XP_TRACES) / "kimi-linear-48b-300.jsonl");
    // Of its 26 layers some: most of the time goes into their pack.
    for (auto& token : trace) token.resize(8);
    const TestPack pack(layers_of(trace, 256));
    const CacheStats plain = replay(trace, pack, 0.15, "lfu");
    const CacheStats tiered = replay(trace, pack, 0.15, "lfu", 2.0 / 3);
    EXPECT_EQ(replay(trace, pack, 0.15, "lfu-unaged").misses,
              reads_of_reference_policy(trace, 256, plain.slots));
    const auto reference =
        static_cast<double>(reads_of_reference_policy(trace, 256, plain.slots));
    const double with_ram = static_cast<double>(tiered.misses - tiered.ram_hits) / reference;
    const double without = static_cast<double>(plain.misses) / reference;
    fmt::print("of the reference's {} reads: {:.3f} without a RAM tier, {:.3f} with {} RAM slots "
               "behind {}\n", reference, without, with_ram, tiered.ram_slots, tiered.slots);
    EXPECT_LE(without, 0.92);
    EXPECT_LE(with_ram, 0.66);
}

}  // namespace
}  // namespace xp
