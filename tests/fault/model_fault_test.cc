// A whole model on bad drives: a pass either gives exactly the logits of a quiet run or ends with
// one error that names expert, layer and file; and the next one on a healthy drive is right again.
#include <gmock/gmock.h>

#include "tests/engine/backends.h"
#include "tests/engine/model_fixture.h"
#include "tests/fault/faulty_backend.h"

namespace xp::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Fault = FaultyBackend::Fault;

constexpr uint64_t kSeeds = 50;
constexpr size_t kChunk = 4;
const std::vector<TokenId> kPrompt = {1, 77, 310, 5, 99, 204, 441, 12, 300, 7};

struct Rig {
    std::unique_ptr<Pack> pack;
    std::unique_ptr<FaultyBackend> reads;
    Backend backend;
    std::unique_ptr<ExpertCache> cache;
    std::unique_ptr<Model> model;
};

// The tiny model with the fewest slots there can be, so that nearly every expert is read each time.
Rig make_rig(uint64_t seed, FaultyBackend::Weather weather, VerifyMode verify) {
    Rig rig;
    const auto attempt = [&]() -> Result<void> {
        XP_TRY(rig.pack, Pack::open(pack_of(kTinyDeepSeek4), {.direct = false}));
        rig.reads = std::make_unique<FaultyBackend>(seed, weather, 2 * kPageBytes);
        XP_TRY(rig.backend, open_model_backend(1));
        XP_TRY(std::unique_ptr<SlotMemory> slots, rig.backend.make_slot_memory());
        XP_TRY(const uint32_t top_k, experts_per_token(rig.pack->resident().metadata()));
        uint64_t stride = 0;
        for (const PackLayer& layer : rig.pack->manifest().layers) {
            stride = std::max(stride, layer.stride);
        }
        XP_TRY(rig.cache,
               ExpertCache::create(*rig.pack, *rig.reads, std::move(slots),
                                   {.bytes = (top_k + ExpertCache::kInFlightSlots) * stride,
                                    .verify = verify, .top_k = top_k}));
        XP_TRY(rig.model, load_model(*rig.pack, *rig.backend.operators, *rig.cache,
                                     {.context = 64, .kv = KvType::kF32}));
        return {};
    };
    const Result<void> made = attempt();
    EXPECT_TRUE(made) << made.error().message;
    return rig;
}

// All logits of the prompt, or the first error.
Result<std::vector<float>> logits_of(Model& model) {
    XP_TRY(const std::unique_ptr<Sequence> sequence, model.create_sequence());
    std::vector<float> logits;
    for (size_t done = 0; done < kPrompt.size(); done += kChunk) {
        std::vector<Row> rows;
        for (size_t i = done; i < std::min(done + kChunk, kPrompt.size()); ++i) {
            rows.push_back({sequence.get(), kPrompt[i], true});
        }
        XP_TRY(const std::unique_ptr<ForwardPass> pass, model.forward(rows));
        XP_CHECK(run_to_end(*pass));
        for (size_t i = 0; i < rows.size(); ++i) {
            const auto row = pass->logits(i);
            logits.insert(logits.end(), row.begin(), row.end());
        }
    }
    return logits;
}

// The first tokens of the prompt as the beginnings of several sequences in one pass: all logits, or
// the error.
constexpr size_t kBatch = 4, kEach = 2;
Result<std::vector<float>> batch_logits(Model& model) {
    std::vector<std::unique_ptr<Sequence>> sequences(kBatch);
    std::vector<Row> rows;
    for (size_t i = 0; i < kBatch; ++i) {
        XP_TRY(sequences[i], model.create_sequence());
        for (size_t j = 0; j < kEach; ++j) rows.push_back({sequences[i].get(), kPrompt[j], true});
    }
    XP_TRY(const std::unique_ptr<ForwardPass> pass, model.forward(rows));
    XP_CHECK(run_to_end(*pass));
    std::vector<float> logits;
    for (size_t i = 0; i < rows.size(); ++i) {
        const auto row = pass->logits(i);
        logits.insert(logits.end(), row.begin(), row.end());
    }
    return logits;
}

const std::vector<float>& quiet_logits() {
    static const std::vector<float> logits = [] {
        const LoadedModel loaded = load(pack_of(kTinyDeepSeek4));
        auto result = logits_of(*loaded.model);
        EXPECT_TRUE(result) << result.error().message;
        return *std::move(result);
    }();
    return logits;
}

TEST(ModelFaultTest, ALateReorderedInterruptedAndCutDriveChangesNoBitOfTheLogits) {
    Rig rig = make_rig(1, FaultyBackend::kStorm, VerifyMode::kSample);
    for (int run = 0; run < 20; ++run) {
        SCOPED_TRACE(fmt::format("run {} of seed 1", run));
        const auto logits = logits_of(*rig.model);
        ASSERT_TRUE(logits) << logits.error().message;
        expect_identical(*logits, quiet_logits(), "logits");
    }
    EXPECT_GT(rig.reads->stats().short_reads, 100u);
    EXPECT_GT(rig.reads->stats().retries, 100u);
}

// One read in so many goes wrong, which ones the seed says; all runs through the same cache.
TEST(ModelFaultTest, FailedAndDamagedReadsEndThePassWithTheirNameAndNothingElseIsLost) {
    Rig rig = make_rig(2, FaultyBackend::kStorm, VerifyMode::kRead);
    uint64_t failed = 0;
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
        SCOPED_TRACE(fmt::format("seed {}", seed));
        rig.reads->set_fault([random = std::mt19937_64(seed)](const ReadRequest&) mutable {
            const uint64_t dice = random() % 400;
            return dice == 0 ? Fault::kFail : dice == 1 ? Fault::kBadByte : Fault::kNone;
        });
        const auto logits = logits_of(*rig.model);
        if (logits) {
            expect_identical(*logits, quiet_logits(), "logits");
        } else {
            ++failed;
            const Error& error = logits.error();
            EXPECT_TRUE(error.code == ErrorCode::kIo || error.code == ErrorCode::kCorrupt);
            EXPECT_THAT(error.message, AllOf(HasSubstr("expert "), HasSubstr(" of layer "),
                                             HasSubstr("experts.000.xpk")));
        }
        rig.reads->set_fault(nullptr);
        const auto healthy = logits_of(*rig.model);
        ASSERT_TRUE(healthy) << healthy.error().message;
        expect_identical(*healthy, quiet_logits(), "logits on a healthy drive");
    }
    std::printf("%llu of %llu runs ended with an error\n", static_cast<unsigned long long>(failed),
                static_cast<unsigned long long>(kSeeds));
    EXPECT_GT(failed, kSeeds / 4);
    EXPECT_LT(failed, kSeeds);
}

// The n-th read of a batch goes wrong, for every n and each way there is.
TEST(ModelFaultTest, AnyBadReadOfABatchEndsItWithItsNameAndLeavesNothingToBeHitLater) {
    Rig rig = make_rig(3, FaultyBackend::kStorm, VerifyMode::kRead);
    std::vector<float> expected;
    for (size_t i = 0; i < kBatch; ++i) {
        const auto first = quiet_logits().begin();
        expected.insert(expected.end(), first, first + ptrdiff_t{kEach * kTinyVocab});
    }
    const struct {
        Fault fault;
        ErrorCode code;
        const char* text;
    } kinds[] = {{Fault::kFail, ErrorCode::kIo, "Input/output error"},
                 {Fault::kEnd, ErrorCode::kIo, "only 0 of"},
                 {Fault::kBadByte, ErrorCode::kCorrupt, "checksum"}};
    int ended = 0;
    for (const auto& [fault, code, text] : kinds) {
        for (uint64_t nth = 0; nth < 40; nth += 3) {
            SCOPED_TRACE(fmt::format("read {}, {}", nth, text));
            std::optional<uint64_t> bad;  // its place
            uint64_t reads = 0;
            rig.reads->set_fault([&, kind = fault](const ReadRequest& request) {
                if (reads++ == nth) bad = request.offset;
                // It stays bad until the drive is healthy again.
                return bad == request.offset ? kind : Fault::kNone;
            });
            const auto logits = batch_logits(*rig.model);
            rig.reads->settle();
            rig.reads->set_fault(nullptr);
            ASSERT_TRUE(bad);
            if (!logits) {
                ++ended;
                EXPECT_EQ(logits.error().code, code);
                EXPECT_THAT(logits.error().message,
                            AllOf(HasSubstr("expert "), HasSubstr("experts.000.xpk"),
                                  HasSubstr(fmt::format("offset {}", *bad)), HasSubstr(text)));
            }
            const auto healthy = batch_logits(*rig.model);
            ASSERT_TRUE(healthy) << healthy.error().message;
            expect_identical(*healthy, expected, "logits on a healthy drive");
        }
    }
    // Only a read ahead of need may fail without harm, when its expert makes room unused.
    EXPECT_GT(ended, 3 * 14 / 2);
}

}  // namespace
}  // namespace xp::test
