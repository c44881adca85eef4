// The trained demo models against independent implementations on the same weights: for prompts of
// up to 1,403 tokens the most likely token at every position, the log-likelihood, the last logits
// and the greedy continuation.
#include <gtest/gtest.h>

#include <cmath>

#include "daemon/engine/sampler.h"
#include "tests/engine/model_fixture.h"

namespace xp::test {
namespace {

constexpr size_t kDemoVocab = 4096;

const Path& trained_deepseek4() { return kDemoDeepSeek4; }
const Path& trained_kimi_k3() { return kDemoKimiK3; }

// `positions` of these is how many prompts there are.
class DemoModel : public testing::TestWithParam<ModelUnderTest> {
protected:
    void SetUp() override { loaded_ = load(pack_of(GetParam().gguf())); }
    LoadedModel loaded_;
};
INSTANTIATE_TEST_SUITE_P(
    , DemoModel,
    testing::ValuesIn(runnable({{"deepseek4", "deepseek4", trained_deepseek4, KvType::kF32, 15},
                                {"kimi_k3", "kimi-k3", trained_kimi_k3, KvType::kF32, 13}})),
    [](const auto& info) { return std::string(info.param.name); });

// Natural logarithm of the softmax at `id`, in double.
double logprob(std::span<const float> logits, TokenId id) {
    double max = -INFINITY;
    for (const float logit : logits) max = std::max<double>(max, logit);
    double sum = 0;
    for (const float logit : logits) sum += std::exp(logit - max);
    return logits[static_cast<size_t>(id)] - max - std::log(sum);
}

TEST_P(DemoModel, AgreesWithTheReferenceOnEveryPrompt) {
    ASSERT_NE(loaded_.model, nullptr);
    const nlohmann::json golden =
        read_json(Path(XP_TEST_DATA) / GetParam().gguf().stem() / "golden.json");
    ASSERT_EQ(golden.size(), GetParam().positions);
    double largest = 0;
    for (const nlohmann::json& entry : golden) {
        const auto ids = entry["ids"].get<std::vector<TokenId>>();
        SCOPED_TRACE(entry["prompt"].get<std::string>().substr(0, 80));
        auto sequence = *loaded_.model->create_sequence();
        const std::vector<float> logits = run(*loaded_.model, *sequence, ids, 512);
        ASSERT_EQ(logits.size(), ids.size() * kDemoVocab);
        double nll = 0;
        const auto expected = entry["argmax"].get<std::vector<size_t>>();
        for (size_t p = 0; p < ids.size(); ++p) {
            const auto row = std::span(logits).subspan(p * kDemoVocab, kDemoVocab);
            if (p + 1 < ids.size()) nll -= logprob(row, ids[p + 1]);
            const size_t best = argmax(row);
            if (best == expected[p]) continue;
            // Another winner is a fault unless the two were too close to call.
            EXPECT_LE(row[best] - row[expected[p]], 1e-3f) << "position " << p;
        }
        EXPECT_NEAR(nll / entry["nll_sum"].get<double>(), 1, 1e-3);
        const auto last = std::span(logits).last(kDemoVocab);
        for (size_t i = 0; i < kDemoVocab; ++i) {
            const double difference = std::fabs(last[i] - entry["last_logits"][i].get<double>());
            largest = std::max(largest, difference);
            ASSERT_LE(difference, 2e-3) << "logit " << i;
        }
        // Greedy continuation, token by token.
        std::vector<TokenId> continuation;
        std::vector<float> row(last.begin(), last.end());
        auto greedy = entry["greedy"].get<std::vector<TokenId>>();
        if (entry.contains("greedy_gap")) {
            // From where two tokens are too close to call on, another continuation is no fault.
            const auto gaps = entry["greedy_gap"].get<std::vector<double>>();
            const auto close = std::ranges::find_if(gaps, [](double gap) { return gap < 0.01; });
            greedy.resize(std::min(greedy.size(), static_cast<size_t>(close - gaps.begin())));
        }
        while (continuation.size() < greedy.size()) {
            continuation.push_back(static_cast<TokenId>(argmax(row)));
            row = run(*loaded_.model, *sequence, std::span(continuation).last(1), 1);
        }
        EXPECT_EQ(continuation, greedy);
    }
    std::printf("largest difference of a last logit %.2e\n", largest);
}

}  // namespace
}  // namespace xp::test
