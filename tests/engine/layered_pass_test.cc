// A chunk of many rows begins each layer in parts where operators run behind the caller, with reads
// for the first ones under way while the next ones attend: the same bytes as in one part.
#include <gtest/gtest.h>

#include "tests/engine/model_fixture.h"

namespace xp::test {
namespace {

// Beyond two parts, and no multiple of one.
constexpr size_t kPositions = 1100;

// Of every position after the other, passes of at most `chunk` rows; of all in the last pass.
std::vector<float> last_logits(const LoadedModel& loaded, size_t chunk, CacheStats* cache) {
    auto sequence = loaded.model->create_sequence();
    EXPECT_TRUE(sequence) << sequence.error().message;
    const std::vector<TokenId> tokens = prompt(kPositions, 0, loaded.model->info().n_vocab);
    std::vector<float> logits;
    for (size_t done = 0; done < kPositions; done += chunk) {
        std::vector<Row> rows;
        for (size_t i = done; i < std::min(done + chunk, kPositions); ++i) {
            rows.push_back({sequence->get(), tokens[i], i % 100 == 99});
        }
        auto pass = loaded.model->forward(rows);
        EXPECT_TRUE(pass) << pass.error().message;
        const Result<void> end = run_to_end(**pass);
        EXPECT_TRUE(end) << end.error().message;
        if (!end) return {};
        for (size_t r = 0; r < rows.size(); ++r) {
            if (!rows[r].logits) continue;
            const std::span<const float> row = (*pass)->logits(r);
            logits.insert(logits.end(), row.begin(), row.end());
        }
    }
    if (cache != nullptr) *cache = loaded.cache->stats();
    return logits;
}

TEST(LayeredPassTest, InPartsOrNotTheSameBytes) {
    const LoadedModel whole = load(pack_of(kDemoDeepSeek4));
    ASSERT_NE(whole.model, nullptr);
    const std::vector<float> want = last_logits(whole, 100, nullptr);
    ASSERT_EQ(want.size(), kPositions / 100 * whole.model->info().n_vocab);
    const CacheStats all = whole.cache->stats();
    for (const uint64_t slots : {all.floor_slots, all.n_objects / 2, all.n_objects}) {
        const LoadedModel behind = load(pack_of(kDemoDeepSeek4),
                                        {.cache_bytes = slots * (all.slot_bytes / all.slots),
                                         .runs_behind = true});
        ASSERT_NE(behind.model, nullptr);
        CacheStats cache;
        expect_identical(want, last_logits(behind, kPositions, &cache),
                         fmt::format("{} slots", slots));
        if (slots > all.floor_slots) {
            EXPECT_GT(cache.prefetches, 0u);
        }
    }
}

}  // namespace
}  // namespace xp::test
