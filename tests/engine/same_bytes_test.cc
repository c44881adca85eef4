// The same tokens give the same logits, bit for bit, whatever else differs: how many experts are in
// slots, and behind them in RAM; what is hit and what is missed; how a prompt is cut; which other
// sequences are in a pass; how often it was asked for; how many threads compute.
#include <gtest/gtest.h>

#include "tests/engine/model_fixture.h"
#include "tests/engine/tiny_kimi_k3.h"

namespace xp::test {
namespace {

const Path& tiny() { return kTinyDeepSeek4; }
const Path& demo() { return kDemoDeepSeek4; }
const Path& k3_small() { return tiny_kimi_k3("small"); }

// Prompts of DeepSeek-V4 go beyond the window and borders of compressors.
constexpr const char* kDeepSeek4 = "deepseek4";
constexpr const char* kKimiK3 = "kimi-k3";

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// Ten times slower, and the same code.
const ModelUnderTest kModels[] = {{"tiny", kDeepSeek4, tiny, KvType::kF32, 140},
                                  {"demo", kDeepSeek4, demo, KvType::kF32, 70},
                                  {"k3", kKimiK3, k3_small, KvType::kF32, 70}};
#else
const Path& k3_q2k() { return tiny_kimi_k3("q2k"); }
const Path& k3_demo() { return kDemoKimiK3; }
const ModelUnderTest kModels[] = {{"tiny", kDeepSeek4, tiny, KvType::kF32, 280},
                                  {"tiny_f16", kDeepSeek4, tiny, KvType::kF16, 280},
                                  {"twin", kDeepSeek4, tiny_twin, KvType::kF32, 280},
                                  {"demo", kDeepSeek4, demo, KvType::kF32, 150},
                                  {"k3", kKimiK3, k3_small, KvType::kF32, 220},
                                  {"k3_f16", kKimiK3, k3_small, KvType::kF16, 220},
                                  {"k3_q2k", kKimiK3, k3_q2k, KvType::kF32, 70},
                                  {"k3_demo", kKimiK3, k3_demo, KvType::kF32, 150}};
#endif

class SameBytes : public testing::TestWithParam<ModelUnderTest> {
protected:
    void SetUp() override {
        all_ = load_with({});
        ASSERT_NE(all_.model, nullptr);
        whole_ = logits(all_, positions());
        ASSERT_EQ(whole_.size(), positions() * vocab());
    }

    static size_t positions() { return GetParam().positions; }
    size_t vocab() const { return all_.model->info().n_vocab; }
    CacheStats slots() const { return all_.cache->stats(); }
    uint64_t bytes_of(uint64_t n_slots) const {
        return n_slots * (slots().slot_bytes / slots().slots);
    }

    static LoadedModel load_with(LoadOptions options) {
        options.model = {.context = 512, .kv = GetParam().kv};
        return load(pack_of(GetParam().gguf()), options);
    }
    // Of the prompt, as a sequence of its own.
    std::vector<float> logits(const LoadedModel& loaded, size_t chunk, uint64_t salt = 0) const {
        auto sequence = loaded.model->create_sequence();
        EXPECT_TRUE(sequence) << sequence.error().message;
        return run(*loaded.model, **sequence, prompt(positions(), salt, vocab()), chunk);
    }

    LoadedModel all_;           // every expert in a slot
    std::vector<float> whole_;  // all of the prompt in one pass
};
INSTANTIATE_TEST_SUITE_P(, SameBytes,
                         testing::ValuesIn(runnable({std::begin(kModels), std::end(kModels)})),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(SameBytes, CacheAtTheHardFloorHalfAndAll) {
    for (const uint64_t n : {slots().floor_slots, slots().n_objects / 2, slots().n_objects}) {
        for (const IoBackendKind io : {IoBackendKind::kAuto, IoBackendKind::kPread}) {
            const LoadedModel loaded = load_with({.cache_bytes = bytes_of(n), .io = io});
            ASSERT_NE(loaded.model, nullptr);
            EXPECT_EQ(loaded.cache->stats().slots, n);
            expect_identical(whole_, logits(loaded, 100), fmt::format("{} slots", n));
        }
    }
}

TEST_P(SameBytes, ThroughTheRamTier) {
    const uint64_t n = slots().n_objects, floor = slots().floor_slots;
    for (const uint64_t in_slots : {floor, n / 2}) {
        const LoadedModel loaded = load_with(
            {.cache_bytes = bytes_of(in_slots), .ram_bytes = bytes_of(std::max(floor, n / 3))});
        ASSERT_NE(loaded.model, nullptr);
        for (const size_t chunk : {size_t{1}, size_t{100}}) {
            const CacheStats before = loaded.cache->stats();
            EXPECT_GE(before.ram_slots, floor);
            expect_identical(whole_, logits(loaded, chunk),
                             fmt::format("{} slots, chunks of {}", in_slots, chunk));
            const CacheStats after = loaded.cache->stats();
            EXPECT_GT(after.ram_hits, before.ram_hits);
            EXPECT_GT(after.saved_bytes, before.saved_bytes);
        }
    }
}

TEST_P(SameBytes, AloneOrInABatchOfEight) {
    constexpr size_t kSequences = 8;
    std::vector<std::vector<float>> alone;
    std::vector<std::vector<TokenId>> prompts;
    std::vector<std::unique_ptr<Sequence>> together;
    for (uint64_t s = 0; s < kSequences; ++s) {
        alone.push_back(logits(all_, positions(), s + 1));
        prompts.push_back(prompt(positions(), s + 1, vocab()));
        auto sequence = all_.model->create_sequence();
        ASSERT_TRUE(sequence) << sequence.error().message;
        together.push_back(*std::move(sequence));
    }
    // A token of each in every pass; in eight of nine passes one of them has a chunk instead.
    std::vector<size_t> done(kSequences);
    const auto left = [&](size_t s) { return positions() - done[s]; };
    for (size_t turn = 0; std::ranges::any_of(done, [](size_t d) { return d < positions(); });
         ++turn) {
        std::vector<Row> rows;
        std::vector<std::pair<size_t, size_t>> owners;
        for (size_t s = 0; s < kSequences; ++s) {
            const size_t n = std::min(left(s), turn % 9 == s ? size_t{33} : size_t{1});
            for (size_t i = 0; i < n; ++i, ++done[s]) {
                rows.push_back({together[s].get(), prompts[s][done[s]], true});
                owners.emplace_back(s, done[s]);
            }
        }
        auto pass = all_.model->forward(rows);
        ASSERT_TRUE(pass) << pass.error().message;
        ASSERT_TRUE(run_to_end(**pass));
        for (size_t r = 0; r < rows.size(); ++r) {
            const auto [s, position] = owners[r];
            expect_identical(std::span(alone[s]).subspan(position * vocab(), vocab()),
                             (*pass)->logits(r),
                             fmt::format("sequence {}, position {}", s, position));
        }
    }
}

TEST_P(SameBytes, AnyChunking) {
    // Also around the window's border.
    for (const size_t chunk : {1, 7, 16, 64, 127, 128, 129, 200}) {
        expect_identical(whole_, logits(all_, chunk), fmt::format("chunks of {}", chunk));
    }
}

TEST_P(SameBytes, HitsOrMisses) {
    const LoadedModel cold = load_with({});
    ASSERT_NE(cold.model, nullptr);
    EXPECT_EQ(cold.cache->stats().slots_used, 0u);
    expect_identical(whole_, logits(cold, 64), "cold");
    const uint64_t misses = cold.cache->stats().misses;
    EXPECT_GT(misses, 0u);
    expect_identical(whole_, logits(cold, 64), "warm");
    EXPECT_EQ(cold.cache->stats().misses, misses) << "nothing is missed the second time";
}

TEST_P(SameBytes, TwiceInARow) {
    // With what the first time left in the slots, and other tokens in between.
    const LoadedModel half = load_with({.cache_bytes = bytes_of(slots().n_objects / 2)});
    ASSERT_NE(half.model, nullptr);
    for (const char* time : {"first", "second", "third"}) {
        expect_identical(whole_, logits(half, positions()), time);
        if (*time == 's') logits(half, 50, 9);
    }
}

TEST_P(SameBytes, AnyNumberOfThreads) {
    for (const unsigned threads : {1u, 3u}) {
        expect_identical(whole_, logits(load_with({.threads = threads}), 64),
                         fmt::format("{} threads", threads));
    }
}

}  // namespace
}  // namespace xp::test
