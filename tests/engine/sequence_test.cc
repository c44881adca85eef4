// Sequences: exact snapshots at any position, passes that interleave at wave boundaries.
#include <gtest/gtest.h>

#include "tests/engine/model_fixture.h"
#include "tests/engine/tiny_kimi_k3.h"

namespace xp::test {
namespace {

const Path& sequence_deepseek4() { return kTinyDeepSeek4; }
const Path& sequence_kimi_k3() { return tiny_kimi_k3("small"); }

class SequenceTest : public testing::TestWithParam<ModelUnderTest> {
protected:
    void SetUp() override {
        loaded_ = load_with(1024);
        ASSERT_NE(loaded_.model, nullptr);
    }
    static LoadedModel load_with(uint64_t context, uint64_t cache_bytes = 0) {
        return load(pack_of(GetParam().gguf()),
                    {.cache_bytes = cache_bytes,
                     .model = {.context = context, .kv = GetParam().kv}});
    }
    std::unique_ptr<Sequence> sequence() const {
        auto sequence = loaded_.model->create_sequence();
        EXPECT_TRUE(sequence) << sequence.error().message;
        return *std::move(sequence);
    }
    LoadedModel loaded_;
};
INSTANTIATE_TEST_SUITE_P(
    , SequenceTest,
    testing::ValuesIn(runnable({{"f32", "deepseek4", sequence_deepseek4, KvType::kF32, 300},
                                {"f16", "deepseek4", sequence_deepseek4, KvType::kF16, 300},
                                {"k3_f32", "kimi-k3", sequence_kimi_k3, KvType::kF32, 300},
                                {"k3_f16", "kimi-k3", sequence_kimi_k3, KvType::kF16, 300}})),
    [](const auto& info) { return std::string(info.param.name); });

// Positions around window, compressor and indexer borders, and in between.
TEST_P(SequenceTest, RestoredSnapshotContinuesToTheSameBytes) {
    const std::vector<TokenId> tokens = prompt(300);
    const auto whole = run(*loaded_.model, *sequence(), tokens, 300);
#ifdef __SANITIZE_ADDRESS__
    const size_t cuts[] = {3, 16, 128, 299};  // ten times slower, and the same code
#else
    const size_t cuts[] = {1, 2, 3, 4, 15, 16, 17, 35, 63, 127, 128, 129, 200, 255, 256, 299};
#endif
    for (const size_t cut : cuts) {
        const auto first = sequence();
        run(*loaded_.model, *first, std::span(tokens).first(cut), 50);
        const std::vector<std::byte> snapshot = first->snapshot();
        // Into a fresh sequence, and into one that has seen something else.
        const auto fresh = sequence();
        const auto used = sequence();
        run(*loaded_.model, *used, prompt(270, 7), 90);
        for (Sequence* target : {fresh.get(), used.get()}) {
            const Result<void> restored = target->restore(snapshot);
            ASSERT_TRUE(restored) << restored.error().message;
            EXPECT_EQ(target->position(), cut);
            const auto rest = run(*loaded_.model, *target, std::span(tokens).subspan(cut), 37);
            expect_identical(std::span(whole).subspan(cut * kTinyVocab), rest,
                             fmt::format("cut at {}", cut));
        }
    }
}

// At the hard floor of slots, so that the two passes fight for them.
TEST_P(SequenceTest, PassesInterleaveAtWaveBoundaries) {
    const uint64_t slot = loaded_.cache->stats().slot_bytes / loaded_.cache->stats().slots;
    const LoadedModel small = load_with(1024, loaded_.cache->stats().floor_slots * slot);
    ASSERT_NE(small.model, nullptr);
    const std::vector<TokenId> long_prompt = prompt(200, 1);
    const std::vector<TokenId> short_prompt = prompt(40, 2);
    const auto long_alone = run(*loaded_.model, *sequence(), long_prompt, 200);
    const auto short_alone = run(*loaded_.model, *sequence(), short_prompt, 40);

    auto first = *small.model->create_sequence();
    auto second = *small.model->create_sequence();
    std::vector<Row> rows;
    for (const TokenId token : long_prompt) rows.push_back({first.get(), token, true});
    auto prefill = *small.model->forward(rows);
    size_t decoded = 0;
    size_t waves = 0;
    for (bool complete = false; !complete;) {
        const auto step = prefill->step();
        ASSERT_TRUE(step) << step.error().message;
        complete = *step;
        ++waves;
        if (decoded == short_prompt.size()) continue;
        const Row row{second.get(), short_prompt[decoded], true};
        auto pass = *small.model->forward({&row, 1});
        const auto end = run_to_end(*pass);
        ASSERT_TRUE(end) << end.error().message;
        expect_identical(std::span(short_alone).subspan(decoded * kTinyVocab, kTinyVocab),
                         pass->logits(0), fmt::format("decoded token {}", decoded));
        ++decoded;
    }
    EXPECT_GT(waves, 12u) << "layers in more than one wave each";
    EXPECT_GT(decoded, 5u);
    for (size_t i = 0; i < long_prompt.size(); ++i) {
        expect_identical(std::span(long_alone).subspan(i * kTinyVocab, kTinyVocab),
                         prefill->logits(i), fmt::format("position {}", i));
    }
}

TEST_P(SequenceTest, RestoreRefusesWhatIsNotItsOwn) {
    const auto original = sequence();
    run(*loaded_.model, *original, prompt(50), 50);
    const std::vector<std::byte> snapshot = original->snapshot();
    const auto other = sequence();
    for (const size_t size : {size_t{0}, size_t{10}, size_t{63}, snapshot.size() - 1}) {
        EXPECT_EQ(other->restore(std::span(snapshot).first(size)).error().code,
                  ErrorCode::kCorrupt);
    }
    std::vector<std::byte> longer = snapshot;
    longer.push_back(std::byte{0});
    EXPECT_FALSE(other->restore(longer));
    std::vector<std::byte> other_model = snapshot;
    other_model[8] ^= std::byte{1};
    EXPECT_NE(other->restore(other_model).error().message.find("another model"), std::string::npos);
    const LoadedModel longer_context = load_with(2048);
    EXPECT_FALSE((*longer_context.model->create_sequence())->restore(snapshot));
    EXPECT_EQ(other->position(), 0u) << "a refused restore changes nothing";
}

TEST_P(SequenceTest, AbandonedPassLeavesTheSequenceToRestoreOnly) {
    const auto abandoned = sequence();
    run(*loaded_.model, *abandoned, prompt(20), 20);
    const std::vector<std::byte> snapshot = abandoned->snapshot();
    const Row row{abandoned.get(), 3, false};
    {
        auto pass = *loaded_.model->forward({&row, 1});
        ASSERT_TRUE(pass->step());
    }
    const auto refused = loaded_.model->forward({&row, 1});
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find("restore"), std::string::npos);
    ASSERT_TRUE(abandoned->restore(snapshot));
    const std::vector<TokenId> tokens = prompt(40);
    const auto whole = run(*loaded_.model, *sequence(), tokens, 40);
    expect_identical(std::span(whole).subspan(20 * kTinyVocab),
                     run(*loaded_.model, *abandoned, std::span(tokens).subspan(20), 9),
                     "after restore");
}

TEST_P(SequenceTest, ForwardRefusesImpossibleRows) {
    const auto a = sequence();
    const auto b = sequence();
    const auto code = [&](std::vector<Row> rows) {
        auto pass = loaded_.model->forward(rows);
        EXPECT_FALSE(pass);
        return pass ? ErrorCode::kInternal : pass.error().code;
    };
    EXPECT_EQ(code({}), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code({{a.get(), -1, false}}), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code({{a.get(), 512, false}}), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code({{nullptr, 1, false}}), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code({{a.get(), 1, false}, {b.get(), 1, false}, {a.get(), 1, false}}),
              ErrorCode::kInvalidArgument);
    EXPECT_EQ(code(std::vector<Row>(1025, Row{a.get(), 1, false})), ErrorCode::kLimit);
    EXPECT_FALSE(run(*loaded_.model, *a, prompt(3), 3).empty()) << "refusals cost nothing";
}

}  // namespace
}  // namespace xp::test
