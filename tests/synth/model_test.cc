// The models compute: on the CPU backend activations stay of order one and experts have their turn.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "tests/engine/model_fixture.h"
#include "tools/synth/write.h"

namespace xp::test {
namespace {

double rms(std::span<const float> values) {
    double squares = 0;
    for (const float value : values) squares += double{value} * value;
    return std::sqrt(squares / static_cast<double>(values.size()));
}

struct Health {
    std::vector<double> residual_rms;       // per layer, of the last chunk
    std::vector<std::vector<int>> chosen;   // per layer and expert
    std::vector<float> logits;
};

Health run_model(const std::string& text, const PresetOptions& options, size_t n_tokens) {
    TemporaryDirectory directory;
    const Path pack = directory.path() / "m.xpack";
    const auto preset = parse_preset(text, options);
    EXPECT_TRUE(preset) << preset.error().message;
    const auto made = write_synth_pack(*preset, pack, {.threads = 2});
    EXPECT_TRUE(made) << made.error().message;
    LoadedModel loaded = load(pack, {.model = {.context = 512}});
    if (!loaded.model) return {};
    const ModelInfo& info = loaded.model->info();
    Health health;
    health.residual_rms.resize(info.n_layers);
    health.chosen.assign(info.n_layers, std::vector<int>(info.n_experts));
    PassObserver observer;
    observer.routed = [&](uint32_t layer, uint32_t, std::span<const uint32_t> experts,
                          std::span<const float>) {
        for (const uint32_t expert : experts) ++health.chosen[layer][expert];
    };
    observer.layer_done = [&](uint32_t layer, std::span<const float> state) {
        health.residual_rms[layer] = rms(state);
    };
    std::vector<TokenId> tokens;
    for (size_t i = 0; i < n_tokens; ++i) {
        tokens.push_back(static_cast<TokenId>((31 * i * i + 17 * i + 5) % info.n_vocab));
    }
    auto sequence = loaded.model->create_sequence();
    EXPECT_TRUE(sequence) << sequence.error().message;
    health.logits = run(*loaded.model, **sequence, tokens, 64, &observer);
    EXPECT_EQ(health.logits.size(), n_tokens * info.n_vocab);
    return health;
}

void expect_healthy(const Health& health, size_t n_tokens, size_t top_k) {
    for (const float logit : health.logits) ASSERT_TRUE(std::isfinite(logit));
    EXPECT_GT(rms(health.logits), 0.5);
    EXPECT_LT(rms(health.logits), 2);
    for (size_t layer = 0; layer < health.chosen.size(); ++layer) {
        // Each of two sublayers adds something of order one and of no particular direction.
        const double depth = std::sqrt(static_cast<double>(layer + 1));
        EXPECT_GT(health.residual_rms[layer], 0.5 * depth) << "layer " << layer;
        EXPECT_LT(health.residual_rms[layer], 1.5 * depth) << "layer " << layer;
        const std::vector<int>& chosen = health.chosen[layer];
        const double mean = static_cast<double>(n_tokens * top_k) / chosen.size();
        EXPECT_LT(*std::ranges::max_element(chosen), 4 * mean) << "layer " << layer;
        EXPECT_LE(std::ranges::count(chosen, 0), static_cast<long>(chosen.size() / 8))
            << "layer " << layer;
    }
}

// 160 tokens: one row of a layer of ratio 128, 40 of one of ratio 4, and the window wraps.
TEST(SynthModel, FlashIsHealthyInAllKindsOfLayers) {
    constexpr size_t kTokens = 160;
    expect_healthy(run_model("flash:5:32", {.vocab = 512, .scale = 16}, kTokens), kTokens, 6);
}

TEST(SynthModel, FlashIsHealthyAtThePublishedDepth) {
    constexpr size_t kTokens = 96;
    expect_healthy(run_model("flash:43:24", {.vocab = 512, .scale = 32}, kTokens), kTokens, 6);
}

TEST(SynthModel, DemoIsHealthy) {
    constexpr size_t kTokens = 160;
    expect_healthy(run_model("demo", {}, kTokens), kTokens, 4);
}

}  // namespace
}  // namespace xp::test
