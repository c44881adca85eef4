// Kimi-K3 files of other conversions load to the same model; what cannot be one is refused, and how
// that is said.
#include <gtest/gtest.h>

#include <cmath>

#include "daemon/engine/cpu/operators.h"
#include "daemon/pack/build.h"
#include "tests/engine/tiny_kimi_k3.h"

namespace xp::test {
namespace {

class KimiK3Loading : public testing::Test {
protected:
    // Logits of a prompt; empty, with a message in error_, when the model does not load.
    std::vector<float> logits_of(const TinyKimiK3& options) {
        const Path own = directory_.path() / std::to_string(++count_);
        std::filesystem::create_directory(own);
        const Path gguf = write_tiny_kimi_k3(own, options);
        const Path pack_path = own / "model.xpack";
        std::vector<float> logits;
        const auto attempt = [&]() -> Result<void> {
            XP_CHECK(build_pack(gguf, pack_path, {}));
            XP_TRY(auto pack, Pack::open(pack_path, {.direct = false}));
            XP_TRY(auto reads, make_read_backend({.direct = false}));
            XP_TRY(auto operators, make_cpu_operators(2));
            XP_TRY(auto cache, ExpertCache::create(*pack, *reads, make_host_slot_memory(),
                                                   {.top_k = 4}));
            XP_TRY(auto model, load_model(*pack, *operators, *cache, {.context = 64}));
            XP_TRY(auto sequence, model->create_sequence());
            logits = run(*model, *sequence, prompt(40), 40);
            return {};
        };
        const Result<void> result = attempt();
        error_ = result ? "" : result.error().message;
        return logits;
    }
    std::string error_with(const std::string& key, GgufValue value) {
        logits_of({.small = true, .metadata = [&](GgufMetadata& m) { m.set(key, value); }});
        return error_;
    }

    TemporaryDirectory directory_;
    std::string error_;
    int count_ = 0;
};

#define EXPECT_SAYS(message, text) \
    EXPECT_NE((message).find(text), std::string::npos) << "message: " << (message)

TEST_F(KimiK3Loading, OlderConversionsAreTheSameModel) {
    const auto usual = logits_of({.small = true});
    ASSERT_EQ(error_, "");
    const auto old = logits_of({.small = true, .old_dialect = true});
    ASSERT_EQ(error_, "");
    expect_identical(usual, old, "older names and keys, factors of score vectors, positive ssm_a");
    const auto joined = logits_of({.small = true, .joined_kv_b = true});
    ASSERT_EQ(error_, "");
    expect_identical(usual, joined, "keys and values in one matrix");
    const auto array = logits_of({.small = true, .metadata = [](GgufMetadata& m) {
        std::vector<int64_t> sizes(13, 48);
        sizes[0] = 0;
        m.set("kimi-k3.expert_feed_forward_length", GgufValue::i32s(sizes));
        m.set("kimi-k3.attention.value_length", GgufValue::u32(74));
        m.set("kimi-k3.rope.freq_base", GgufValue::f32(10000));
    }});
    EXPECT_EQ(error_, "");
    expect_identical(usual, array, "sizes per layer, keys without meaning");
}

TEST_F(KimiK3Loading, ShardsAreTheSameModel) {
    const auto one = logits_of({.quantised = true});
    ASSERT_EQ(error_, "");
    const auto three = logits_of({.quantised = true, .shards = 3});
    ASSERT_EQ(error_, "");
    expect_identical(one, three, "three shards");
}

// Another formula, not another bound.
TEST_F(KimiK3Loading, WithoutLowerBoundTheGateIsSoftplus) {
    const auto bounded = logits_of({.small = true});
    const auto softplus = logits_of({.small = true, .metadata = [](GgufMetadata& m) {
        m.erase("kimi-k3.kda.gate_lower_bound");
    }});
    ASSERT_EQ(error_, "");
    ASSERT_EQ(bounded.size(), softplus.size());
    double largest = 0;
    for (size_t i = 0; i < bounded.size(); ++i) {
        ASSERT_TRUE(std::isfinite(softplus[i]));
        largest = std::max(largest, std::fabs(double{bounded[i]} - softplus[i]));
    }
    EXPECT_GT(largest, 0.1);
}

TEST_F(KimiK3Loading, ImpossibleHyperparametersAreNamed) {
    EXPECT_SAYS(error_with("kimi-k3.attention.head_count_kv", GgufValue::i32s({0, 0, 0, 1})),
                "head_count_kv has 4 values for 13 layers");
    EXPECT_SAYS(error_with("kimi-k3.attention.head_count_kv",
                           GgufValue::i32s({0, 0, 2, 1, 0, 0, 0, 1, 0, 0, 0, 1, 1})),
                "layer 2 has 2");
    EXPECT_SAYS(error_with("kimi-k3.expert_gating_func", GgufValue::u32(1)), "2 (sigmoid)");
    EXPECT_SAYS(error_with("kimi-k3.kda.gate_lower_bound", GgufValue::f32(5)), "not negative");
    EXPECT_SAYS(error_with("kimi-k3.expert_count", GgufValue::u32(15)),
                "expert_count is 15, but layer 1 has 16 experts");
    EXPECT_SAYS(error_with("kimi-k3.expert_used_count", GgufValue::u32(17)), "16 experts");
    EXPECT_SAYS(error_with("kimi-k3.expert_group_count", GgufValue::u32(2)), "expert_group_count");
    EXPECT_SAYS(error_with("kimi-k3.attn_res.block_size", GgufValue::u32(0)), "block_size is 0");
    EXPECT_SAYS(error_with("kimi-k3.activation.situ_beta", GgufValue::f32(0)), "situ_beta");
    EXPECT_SAYS(error_with("kimi-k3.attention.key_length", GgufValue::u32(41)), "32 + 8");
    EXPECT_SAYS(error_with("kimi-k3.attention.key_length_mla", GgufValue::u32(8)),
                "key_length_mla");
    EXPECT_SAYS(error_with("kimi-k3.leading_dense_block_count", GgufValue::u32(13)),
                "leading_dense_block_count");
    EXPECT_SAYS(error_with("kimi-k3.expert_latent_length", GgufValue::u32(32)), "layer 1");
    EXPECT_SAYS(error_with("kimi-k3.block_count", GgufValue::u32(12)), "13 values for 12 layers");
}

TEST_F(KimiK3Loading, KeysWithoutDefaultsAreRequired) {
    for (const char* key : {"expert_gating_func", "attention.head_count_kv", "kda.head_dim",
                            "expert_latent_length", "attn_res.block_size", "activation.situ_beta",
                            "attention.layer_norm_rms_epsilon", "leading_dense_block_count"}) {
        logits_of({.small = true, .metadata = [&](GgufMetadata& m) {
            m.erase(fmt::format("kimi-k3.{}", key));
        }});
        EXPECT_SAYS(error_, key);
    }
}

TEST_F(KimiK3Loading, MissingTensorsAndImpossibleValuesAreNamed) {
    for (const char* name : {"blk.3.attn_k_b.weight", "output_res_score.weight", "blk.0.ssm_a",
                             "blk.5.ffn_routed_norm.weight", "blk.0.ffn_up.weight"}) {
        logits_of({.small = true, .drop_tensor = name});
        EXPECT_SAYS(error_, name);
    }
    const auto with = [&](const std::string& name, float value) {
        logits_of({.small = true, .values = [&](const std::string& tensor, auto& values) {
            if (tensor == name) values[1] = value;
        }});
        return error_;
    };
    EXPECT_SAYS(with("blk.1.ssm_a", 1), "blk.1.ssm_a has values of both signs");
    EXPECT_SAYS(with("blk.2.ffn_res_score.weight", NAN), "blk.2.ffn_res_score.weight");
    EXPECT_SAYS(with("blk.2.exp_probs_b.bias", INFINITY), "not finite");
}

// 9 layers with a matrix per head and three rows of history, 4 with a row per position.
TEST_F(KimiK3Loading, SequencesTakeWhatIsPlanned) {
    for (const KvType kv : {KvType::kF32, KvType::kF16}) {
        const LoadedModel loaded =
            load(pack_of(tiny_kimi_k3("small")), {.model = {.context = 1000, .kv = kv}});
        ASSERT_NE(loaded.model, nullptr);
        const uint64_t fixed = 9 * (4 * 16 * 16 + 3 * 3 * 64) * 4;
        const uint64_t planned = fixed + 4 * 1000 * 40 * kv_bytes(kv);
        EXPECT_EQ(loaded.model->info().sequence_bytes, planned);
        const uint64_t before = loaded.backend.meter->now();
        const auto sequence = loaded.model->create_sequence();
        ASSERT_TRUE(sequence);
        const uint64_t taken = loaded.backend.meter->now() - before;
        EXPECT_GE(taken, planned);
        EXPECT_LE(taken, planned + (2 * 9 + 4) * 4096) << "whole pages of every buffer";
    }
}

// A backend without the operators says what to do instead.
class WithoutKimiK3 final : public CpuOperators {
public:
    WithoutKimiK3() : CpuOperators(*best_cpu_kernels(), 1) {}
    bool has_kimi_k3() const override { return false; }
};

TEST_F(KimiK3Loading, BackendsWithoutItsOperatorsAreNamed) {
    auto pack = Pack::open(pack_of(tiny_kimi_k3("small")), {.direct = false});
    ASSERT_TRUE(pack);
    WithoutKimiK3 operators;
    const auto model = load_model(**pack, operators, {.context = 64});
    ASSERT_FALSE(model);
    EXPECT_EQ(model.error().code, ErrorCode::kUnsupported);
    EXPECT_SAYS(model.error().message, "runs on the CPU only so far");
    EXPECT_SAYS(model.error().message, "backend = \"cpu\"");
}

}  // namespace
}  // namespace xp::test
