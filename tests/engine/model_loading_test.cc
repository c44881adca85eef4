// What load_model refuses, and how it says so.
#include <gtest/gtest.h>

#include "daemon/gguf/writer.h"
#include "daemon/pack/build.h"
#include "tests/engine/model_fixture.h"

namespace xp::test {
namespace {

class ModelLoadingTest : public testing::Test {
protected:
    struct Change {
        std::function<void(GgufMetadata&)> metadata = [](GgufMetadata&) {};
        std::string drop_tensor = {};
        std::string rename_tensor = {};
        std::string new_name = {};
    };

    // The message of loading the tiny model after a change; empty when it loaded.
    std::string error_of(const Change& change, const ModelOptions& options = {.context = 64}) {
        const Path gguf = directory_.path() / fmt::format("{}.gguf", ++count_);
        const Path pack_path = directory_.path() / fmt::format("{}.xpack", count_);
        const auto source = GgufFile::open(kTinyDeepSeek4);
        GgufMetadata metadata = source->metadata();
        change.metadata(metadata);
        std::vector<TensorToWrite> tensors;
        for (const TensorInfo& tensor : source->tensors()) {
            if (tensor.name == change.drop_tensor) continue;
            TensorToWrite out{tensor.name, tensor.type, {}, {}};
            if (tensor.name == change.rename_tensor) out.name = change.new_name;
            out.ne.assign(tensor.ne.begin(), tensor.ne.begin() + tensor.n_dims);
            std::vector<std::byte> bytes(tensor.bytes);
            EXPECT_TRUE(source->read_tensor(tensor, 0, bytes));
            out.write = [bytes](const TensorToWrite::Sink& sink) { return sink(bytes); };
            tensors.push_back(std::move(out));
        }
        EXPECT_TRUE(write_gguf(gguf, metadata, tensors));
        const auto attempt = [&]() -> Result<void> {
            XP_CHECK(build_pack(gguf, pack_path, {}));
            XP_TRY(auto pack, Pack::open(pack_path, {.direct = false}));
            XP_TRY(auto reads, make_read_backend({.direct = false}));
            XP_TRY(auto operators, make_cpu_operators(1));
            XP_TRY(auto cache, ExpertCache::create(*pack, *reads, make_host_slot_memory(),
                                                   {.top_k = 4}));
            XP_TRY(auto model, load_model(*pack, *operators, *cache, options));
            return {};
        };
        const Result<void> result = attempt();
        return result ? "" : result.error().message;
    }

    TemporaryDirectory directory_;
    int count_ = 0;
};

#define EXPECT_MENTIONS(message, text) \
    EXPECT_NE((message).find(text), std::string::npos) << "message: " << (message)

TEST_F(ModelLoadingTest, UnchangedModelLoads) { EXPECT_EQ(error_of({}), ""); }

TEST_F(ModelLoadingTest, OtherArchitecturesAreNamed) {
    const std::string message = error_of({.metadata = [](GgufMetadata& m) {
        m.set("general.architecture", GgufValue::string("deepseek41"));
    }});
    EXPECT_MENTIONS(message, "deepseek41");
    EXPECT_MENTIONS(message, "not supported");
}

TEST_F(ModelLoadingTest, MissingAndMisshapenTensorsAreNamed) {
    EXPECT_MENTIONS(error_of({.drop_tensor = "blk.3.attn_kv.weight"}), "blk.3.attn_kv.weight");
    EXPECT_MENTIONS(error_of({.drop_tensor = "output_hc_base.weight"}), "output_hc_base.weight");
    EXPECT_MENTIONS(error_of({.drop_tensor = "blk.0.ffn_gate_tid2eid.weight"}), "tid2eid");
    const std::string message = error_of({.metadata = [](GgufMetadata& m) {
        m.set("deepseek4.attention.q_lora_rank", GgufValue::u32(128));
    }});
    EXPECT_MENTIONS(message, "attn_q_a.weight");
    EXPECT_MENTIONS(message, "[256, 64]");
    EXPECT_MENTIONS(message, "[256, 128]");
}

TEST_F(ModelLoadingTest, EverythingMissingIsToldBesideWhatIsThereInstead) {
    const std::string message = error_of({.drop_tensor = "blk.3.attn_kv.weight",
                                          .rename_tensor = "output_norm.weight",
                                          .new_name = "norm.weight"});
    EXPECT_MENTIONS(message, "resident.gguf: 2 tensors");
    EXPECT_MENTIONS(message, "output_norm.weight, blk.3.attn_kv.weight or "
                             "blk.3.attn_kv_latent.weight or blk.3.attn_kv_a_mqa.weight");
    EXPECT_MENTIONS(message, "1 that are not used: norm.weight");
}

TEST_F(ModelLoadingTest, OldTensorNamesAreAccepted) {
    EXPECT_EQ(error_of({.rename_tensor = "blk.0.attn_kv.weight",
                        .new_name = "blk.0.attn_kv_a_mqa.weight"}), "");
    EXPECT_EQ(error_of({.rename_tensor = "output_hc_fn.weight", .new_name = "hc_head_fn.weight"}),
              "");
}

TEST_F(ModelLoadingTest, ImpossibleHyperparametersAreNamed) {
    const auto with = [&](const std::string& key, GgufValue value) {
        return error_of({.metadata = [&](GgufMetadata& m) { m.set(key, value); }});
    };
    EXPECT_MENTIONS(
        with("deepseek4.attention.compress_ratios", GgufValue::i32s({0, 0, 4, 64, 4, 128})), "64");
    EXPECT_MENTIONS(with("deepseek4.attention.compress_ratios", GgufValue::i32s({0, 0})),
                    "2 values for 6");
    EXPECT_MENTIONS(with("deepseek4.expert_gating_func", GgufValue::u32(2)), "expert_gating_func");
    EXPECT_MENTIONS(with("deepseek4.expert_used_count", GgufValue::u32(17)), "16 experts");
    EXPECT_MENTIONS(with("deepseek4.expert_count", GgufValue::u32(15)),
                    "expert_count is 15, but layer 0 has 16 experts");
    EXPECT_MENTIONS(with("deepseek4.block_count", GgufValue::u32(0)),
                    "deepseek4.block_count is 0");
    EXPECT_MENTIONS(with("deepseek4.rope.dimension_count", GgufValue::u32(63)),
                    "rope.dimension_count");
    EXPECT_MENTIONS(with("deepseek4.rope.scaling.type", GgufValue::string("linear")), "linear");
    EXPECT_MENTIONS(with("deepseek4.swiglu_clamp_exp", GgufValue::f32s({1, 2})),
                    "swiglu_clamp_exp");
    EXPECT_MENTIONS(with("deepseek4.block_count", GgufValue::u32(7)), "6 values for 7 layers");
    EXPECT_MENTIONS(with("deepseek4.hyper_connection.count", GgufValue::u32(9)),
                    "hyper_connection.count");
}

// nextn_predict_layers is set in files without such a block; it must not count as a layer.
TEST_F(ModelLoadingTest, AnnouncedButAbsentPredictionLayerIsIgnored) {
    EXPECT_EQ(error_of({.metadata = [](GgufMetadata& m) {
        m.set("deepseek4.nextn_predict_layers", GgufValue::u32(1));
    }}), "");
}

TEST_F(ModelLoadingTest, OptionalKeysMayBeMissing) {
    EXPECT_EQ(error_of({.metadata = [](GgufMetadata& m) {
        for (const char* key : {"deepseek4.attention.compress_ratios", "deepseek4.hash_layer_count",
                                "deepseek4.hyper_connection.count",
                                "deepseek4.hyper_connection.sinkhorn_iterations",
                                "deepseek4.hyper_connection.epsilon",
                                "deepseek4.attention.compress_rope_freq_base"}) {
            m.erase(key);
        }
    }}), "");
}

TEST_F(ModelLoadingTest, ContextBeyondTheModelsIsRefused) {
    EXPECT_MENTIONS(error_of({}, {.context = 4097}), "4097");
    EXPECT_MENTIONS(error_of({}, {.context = 0}), "0 tokens");
}

}  // namespace
}  // namespace xp::test
