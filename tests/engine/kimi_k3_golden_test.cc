// Tiny random Kimi-K3 models against a reference in float64 on the same stored weights: float32
// weights, types as in files of about two bits per weight, and the latter with gains that do not
// magnify rounding. Five prompts of 1 to 200 tokens and 32 greedy tokens after each.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/engine/tiny_kimi_k3.h"

namespace xp::test {
namespace {

constexpr size_t kK3Dim = 256;
const Path kK3Data = Path(XP_TEST_DATA) / "kimi-k3-tiny";

class KimiK3Golden : public testing::TestWithParam<std::string> {
protected:
    void SetUp() override {
        golden_ = read_json(kK3Data / fmt::format("golden-{}.json", GetParam()));
        loaded_ = load(pack_of(tiny_kimi_k3(GetParam())));
        ASSERT_NE(loaded_.model, nullptr);
    }
    bool calm() const { return GetParam() == "calm-q2k"; }
    // Of a logit or a value of the stream; plain models magnify rounding.
    double largest() const { return calm() ? 2e-4 : 1e-2; }
    std::vector<float> rows_of(const char* kind) const {
        return read_floats(kK3Data / fmt::format("golden-{}.{}.f32", GetParam(), kind));
    }

    nlohmann::json golden_;
    LoadedModel loaded_;
};
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
const std::string kGoldenModels[] = {"calm-q2k"};  // ten times slower, and the same code
#else
const std::string kGoldenModels[] = {"f32", "q2k", "calm-q2k"};
#endif
INSTANTIATE_TEST_SUITE_P(, KimiK3Golden, testing::ValuesIn(kGoldenModels),
                         [](const auto& info) {
                             return info.param == "calm-q2k" ? "calm" : info.param;
                         });

struct Differences {
    double largest = 0, squares = 0;
    size_t n = 0;
    void add(std::span<const float> ours, std::span<const float> theirs) {
        for (size_t i = 0; i < ours.size(); ++i) {
            const double difference = std::fabs(double{ours[i]} - theirs[i]);
            largest = std::isnan(difference) ? INFINITY : std::max(largest, difference);
            squares += difference * difference;
            ++n;
        }
    }
    double rms() const { return std::sqrt(squares / static_cast<double>(n)); }
};

TEST_P(KimiK3Golden, LogitsAndGreedyTextAreTheReferences) {
    const std::vector<float> rows = rows_of("logits");
    ASSERT_EQ(rows.size(), 75 * kTinyVocab);
    const auto row_at = [&](const nlohmann::json& index) {
        return std::span(rows).subspan(index.get<size_t>() * kTinyVocab, kTinyVocab);
    };
    Differences differences;
    size_t compared = 0;
    for (const auto& [name, prompt] : golden_["prompts"].items()) {
        SCOPED_TRACE(name);
        const auto ids = prompt["ids"].get<std::vector<TokenId>>();
        auto sequence = *loaded_.model->create_sequence();
        const std::vector<float> logits = run(*loaded_.model, *sequence, ids, ids.size());
        ASSERT_EQ(logits.size(), ids.size() * kTinyVocab);
        const auto ours_at = [&](size_t p) {
            return std::span(logits).subspan(p * kTinyVocab, kTinyVocab);
        };
        for (size_t p = 0; p < ids.size(); ++p) {
            if (!calm() && prompt["argmax_gap"][p].get<double>() <= 0.02) continue;
            EXPECT_EQ(argmax(ours_at(p)), prompt["argmax"][p].get<size_t>()) << "position " << p;
        }
        for (const auto& [position, index] : prompt["logits_rows"].items()) {
            differences.add(ours_at(std::stoul(position)), row_at(index));
            ++compared;
        }
        const auto greedy = prompt["greedy"].get<std::vector<TokenId>>();
        std::vector<float> row(ours_at(ids.size() - 1).begin(), ours_at(ids.size() - 1).end());
        for (size_t i = 0; i < greedy.size(); ++i) {
            const std::string step = std::to_string(i);
            if (prompt["decode_rows"].contains(step)) {
                differences.add(row, row_at(prompt["decode_rows"][step]));
                ++compared;
            }
            if (!calm() && prompt["greedy_gap"][i].get<double>() < 0.01) break;
            ASSERT_EQ(static_cast<TokenId>(argmax(row)), greedy[i]) << "token " << i;
            row = run(*loaded_.model, *sequence, std::span(greedy).subspan(i, 1), 1);
        }
    }
    EXPECT_GT(compared, 60u);
    EXPECT_LE(differences.largest, largest());
    EXPECT_LE(differences.rms(), 5e-4);
    std::printf("%zu rows: largest difference %.2e, rms %.2e\n", compared, differences.largest,
                differences.rms());
}

TEST_P(KimiK3Golden, ExpertsAndStreamsAreTheReferences) {
    const std::vector<float> streams = rows_of("resid");
    Differences differences;
    size_t chosen = 0, layers = 0;
    for (const auto& [name, prompt] : golden_["prompts"].items()) {
        SCOPED_TRACE(name);
        const auto ids = prompt["ids"].get<std::vector<TokenId>>();
        const uint32_t last = static_cast<uint32_t>(ids.size()) - 1;
        const size_t first_stream = prompt["residual_row"].get<size_t>();
        PassObserver observer;
        observer.routed = [&](uint32_t layer, uint32_t row, std::span<const uint32_t> experts,
                              std::span<const float> weights) {
            if (row != last) return;
            const nlohmann::json& expected = prompt["experts"][std::to_string(layer)];
            // Nearer than this to the next expert, rounding may choose.
            if (expected["selection_margin"].get<double>() < 1e-4) return;
            ++chosen;
            const auto theirs = expected["ids"].get<std::vector<uint32_t>>();
            auto sorted = theirs;
            std::vector<uint32_t> ours(experts.begin(), experts.end());
            std::sort(ours.begin(), ours.end());
            std::sort(sorted.begin(), sorted.end());
            EXPECT_EQ(ours, sorted) << "layer " << layer;
            for (size_t j = 0; j < theirs.size(); ++j) {
                const auto at = std::find(experts.begin(), experts.end(), theirs[j]);
                if (at == experts.end()) continue;
                EXPECT_NEAR(weights[static_cast<size_t>(at - experts.begin())],
                            expected["weights"][j].get<double>(), calm() ? 1e-5 : 1e-3)
                    << "layer " << layer;
            }
        };
        observer.layer_done = [&](uint32_t layer, std::span<const float> state) {
            differences.add(state.subspan(last * kK3Dim, kK3Dim),
                            std::span(streams).subspan((first_stream + layer) * kK3Dim, kK3Dim));
            ++layers;
        };
        auto sequence = *loaded_.model->create_sequence();
        ASSERT_FALSE(run(*loaded_.model, *sequence, ids, ids.size(), &observer).empty());
    }
    EXPECT_EQ(layers, 5u * 13);
    EXPECT_GT(chosen, 5u * 12 - 5);
    EXPECT_LE(differences.largest, largest());
    std::printf("streams: largest difference %.2e, rms %.2e; %zu choices of experts\n",
                differences.largest, differences.rms(), chosen);
}

}  // namespace
}  // namespace xp::test
