// A pass on made-up experts before there are real ones: it takes all memory that later passes want,
// and leaves no trace in what they compute.
#include "daemon/engine/rehearsal.h"

#include <gtest/gtest.h>

#include "tests/engine/backends.h"
#include "tests/engine/model_fixture.h"
#include "tests/engine/tiny_kimi_k3.h"

namespace xp::test {
namespace {

const std::vector<TokenId> kPrompt = {1, 77, 310, 5, 99, 204, 441, 12, 300, 7, 8, 9, 10};

std::vector<float> logits_of(Model& model) {
    auto sequence = model.create_sequence();
    EXPECT_TRUE(sequence.ok());
    return sequence ? run(model, **sequence, kPrompt, kPrompt.size()) : std::vector<float>();
}

const Path& rehearsed_deepseek4() { return kTinyDeepSeek4; }
const Path& rehearsed_kimi_k3() { return tiny_kimi_k3("small"); }

class Rehearsal : public testing::TestWithParam<ModelUnderTest> {};
INSTANTIATE_TEST_SUITE_P(
    , Rehearsal,
    testing::ValuesIn(runnable({{"deepseek4", "deepseek4", rehearsed_deepseek4, KvType::kF32, 13},
                                {"kimi_k3", "kimi-k3", rehearsed_kimi_k3, KvType::kF32, 13}})),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(Rehearsal, ARehearsedModelComputesTheSameAndAllocatesNothingMore) {
    LoadedModel loaded = load(pack_of(GetParam().gguf()));
    ASSERT_TRUE(loaded.model);
    Model& model = *loaded.model;
    const std::vector<float> expected = logits_of(*load(pack_of(GetParam().gguf())).model);

    auto slots = loaded.backend.make_slot_memory();
    ASSERT_TRUE(slots.ok()) << slots.error().message;
    MemoryMeter& meter = *loaded.backend.meter;
    const uint64_t before = meter.now();
    const auto not_kept =
        rehearse(model, *loaded.pack, *std::move(slots), meter, {.rows = 16, .logits = 16});
    ASSERT_TRUE(not_kept.ok()) << not_kept.error().message;
    EXPECT_GT(meter.now(), before);  // the workspace stays, the sequence does not
    EXPECT_LE(*not_kept, uint64_t{16} << 20);

    model.set_cache(*loaded.cache);
    auto sequence = model.create_sequence();
    ASSERT_TRUE(sequence.ok());
    meter.forget_most();
    const uint64_t rehearsed = meter.now();
    const std::vector<float> logits = run(model, **sequence, kPrompt, kPrompt.size());
    EXPECT_LE(meter.most(), rehearsed + *not_kept);
    expect_identical(logits, expected, "logits after a rehearsal");
}

TEST_P(Rehearsal, AHollowSequenceIsAtItsPositionAndHasRoomForTheRest) {
    LoadedModel loaded = load(pack_of(GetParam().gguf()));
    ASSERT_TRUE(loaded.model);
    const uint64_t context = loaded.model->info().context;
    auto sequence = loaded.model->create_hollow_sequence(context - 3);
    ASSERT_TRUE(sequence.ok()) << sequence.error().message;
    EXPECT_EQ((*sequence)->position(), context - 3);
    const std::vector<Row> four(4, Row{sequence->get(), 0, false});
    const auto pass = loaded.model->forward(four);
    ASSERT_FALSE(pass);
    EXPECT_EQ(pass.error().code, ErrorCode::kLimit);
}

}  // namespace
}  // namespace xp::test
