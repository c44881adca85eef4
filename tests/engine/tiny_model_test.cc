// A tiny random DeepSeek-V4 with every kind of layer (window, hash routing, indexed and full
// compressed attention), against the logits of a float64 oracle for all 300 positions of a prompt,
// and the twin with 16 indexer heads, whose indexer scores have no ties.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/engine/model_fixture.h"

namespace xp::test {
namespace {

constexpr size_t kPositions = 300;
const Path kData = Path(XP_TEST_DATA) / "deepseek-v4-tiny";

struct Case {
    const char* name;
    Path gguf;
    Path golden;
    Path logits;
};

class TinyModel : public testing::TestWithParam<const char*> {
protected:
    Case the_case() const {
        if (std::string(GetParam()) == "tiny") {
            return {"tiny", kTinyDeepSeek4, kData / "golden.json", kData / "golden_logits.f32"};
        }
        return {"ih16", tiny_twin(), kData / "ih16_golden.json", kData / "ih16_logits.f32"};
    }
    std::vector<TokenId> tokens() const {
        return read_json(the_case().golden)["tokens"].get<std::vector<TokenId>>();
    }
    std::vector<float> prefill(const LoadedModel& loaded, size_t chunk,
                               const PassObserver* observer = nullptr) const {
        auto sequence = loaded.model->create_sequence();
        EXPECT_TRUE(sequence) << sequence.error().message;
        return run(*loaded.model, **sequence, tokens(), chunk, observer);
    }
};
INSTANTIATE_TEST_SUITE_P(, TinyModel, testing::Values("tiny", "ih16"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(TinyModel, LogitsOfAllPositionsAreTheOracles) {
    const std::vector<float> golden = read_floats(the_case().logits);
    ASSERT_EQ(golden.size(), kPositions * kTinyVocab);
    const LoadedModel loaded = load(pack_of(the_case().gguf));
    const std::vector<float> logits = prefill(loaded, kPositions);
    ASSERT_EQ(logits.size(), golden.size());
    std::vector<float> differences;
    for (size_t p = 0; p < kPositions; ++p) {
        const auto ours = std::span(logits).subspan(p * kTinyVocab, kTinyVocab);
        const auto theirs = std::span(golden).subspan(p * kTinyVocab, kTinyVocab);
        EXPECT_EQ(argmax(ours), argmax(theirs)) << "position " << p;
        for (size_t i = 0; i < kTinyVocab; ++i) {
            differences.push_back(std::fabs(ours[i] - theirs[i]));
        }
    }
    std::sort(differences.begin(), differences.end());
    EXPECT_LT(differences.back(), 1e-3f);
    EXPECT_LT(differences[differences.size() / 2], 1e-4f);
    RecordProperty("largest_difference", fmt::format("{:.2e}", differences.back()));
    RecordProperty("median_difference", fmt::format("{:.2e}", differences[differences.size() / 2]));
    std::printf("largest difference %.2e, median %.2e\n", differences.back(),
                differences[differences.size() / 2]);
}

TEST_P(TinyModel, ExpertsAndIndexerPicksAreTheOracles) {
    const nlohmann::json golden = read_json(the_case().golden);
    const LoadedModel loaded = load(pack_of(the_case().gguf));
    std::map<std::pair<uint32_t, uint32_t>, std::vector<uint32_t>> experts, picks;
    std::map<uint32_t, std::vector<float>> states;
    PassObserver observer;
    observer.routed = [&](uint32_t layer, uint32_t row, std::span<const uint32_t> ids,
                          std::span<const float> weights) {
        experts[{layer, row}].assign(ids.begin(), ids.end());
        float sum = 0;
        for (const float weight : weights) sum += weight;
        EXPECT_NEAR(sum, 1.5f, 1e-5f);
    };
    observer.indexed = [&](uint32_t layer, uint32_t row, std::span<const uint32_t> rows) {
        picks[{layer, row}].assign(rows.begin(), rows.end());
    };
    observer.layer_done = [&](uint32_t layer, std::span<const float> state) {
        states[layer].assign(state.begin(), state.end());
    };
    ASSERT_FALSE(prefill(loaded, kPositions, &observer).empty());
    int compared = 0;
    for (const auto& [layer, rows] : golden["experts"].items()) {
        for (const auto& [row, ids] : rows.items()) {
            const auto key = std::pair<uint32_t, uint32_t>(std::stoul(layer), std::stoul(row));
            EXPECT_EQ(experts[key], ids.get<std::vector<uint32_t>>()) << layer << ", " << row;
            ++compared;
        }
    }
    for (const auto& [layer, rows] : golden["indexer_selected"].items()) {
        for (const auto& [row, ids] : rows.items()) {
            const auto key = std::pair<uint32_t, uint32_t>(std::stoul(layer), std::stoul(row));
            EXPECT_EQ(picks[key], ids.get<std::vector<uint32_t>>()) << layer << ", " << row;
            ++compared;
        }
    }
    EXPECT_EQ(compared, 6 * 4 + 2 * 7);
    for (const auto& [layer, streams] : golden["hc_after_layer_pos299"].items()) {
        const std::vector<float>& state = states[static_cast<uint32_t>(std::stoul(layer))];
        ASSERT_EQ(state.size(), kPositions * 4 * 256);
        for (size_t s = 0; s < 4; ++s) {
            for (size_t d = 0; d < 4; ++d) {
                EXPECT_NEAR(state[(299 * 4 + s) * 256 + d], streams[s][d].get<float>(), 1e-4f)
                    << "layer " << layer << ", stream " << s;
            }
        }
    }
}

TEST_P(TinyModel, ChosenExpertsTakeThePlaceOfTheRoutersAndTheTokens) {
    const LoadedModel loaded = load(pack_of(the_case().gguf));
    std::map<std::pair<uint32_t, uint32_t>, std::vector<uint32_t>> natural, seen;
    const auto record = [](auto& into) {
        return [&into](uint32_t layer, uint32_t row, std::span<const uint32_t> ids,
                       std::span<const float>) {
            into[{layer, row}].assign(ids.begin(), ids.end());
        };
    };
    PassObserver observer;
    observer.routed = record(natural);
    const std::vector<float> expected = prefill(loaded, kPositions, &observer);
    uint32_t turn = 0;
    observer.routed = record(seen);
    observer.choose = [&](uint32_t layer, uint32_t row, std::span<uint32_t> experts) {
        const std::vector<uint32_t>& ids = natural.at({layer, row});
        ASSERT_EQ(experts.size(), ids.size());
        const uint32_t n = loaded.model->info().n_experts;
        for (size_t i = 0; i < ids.size(); ++i) experts[i] = (ids[i] + turn) % n;
    };
    expect_identical(expected, prefill(loaded, kPositions, &observer), "the same experts");
    turn = 1;
    EXPECT_NE(expected, prefill(loaded, kPositions, &observer));
    ASSERT_EQ(seen.size(), natural.size());
    for (const auto& [key, ids] : natural) {
        EXPECT_EQ(seen[key].front(), (ids.front() + 1) % loaded.model->info().n_experts);
    }
}

}  // namespace
}  // namespace xp::test
