#include "tools/synth/tensors.h"

#include <cmath>

#include "daemon/pack/build_plan.h"
#include "tools/synth/vocabulary.h"

namespace xp {

namespace {

constexpr double kNormDeviation = 0.05;
constexpr double kBaseDeviation = 0.5;        // hyper-connections, sinks, position biases
constexpr double kRouterBiasDeviation = 0.02; // scores spread by about 0.3

class TensorList {
public:
    explicit TensorList(const Shape& shape) : shape_(shape) {}

    std::vector<SynthTensor> build() {
        const uint64_t flat = uint64_t{shape_.streams} * shape_.dim;
        add("token_embd.weight", GgmlType::kF16, {shape_.dim, shape_.n_vocab}, 0, 1);
        for (uint32_t layer = 0; layer < shape_.ratios.size(); ++layer) add_layer(layer);
        norm("output_norm.weight", shape_.dim);
        matrix("output.weight", GgmlType::kQ8_0, shape_.dim, shape_.n_vocab);
        matrix("output_hc_fn.weight", GgmlType::kF16, flat, shape_.streams);
        add("output_hc_base.weight", GgmlType::kF32, {shape_.streams}, 0, kBaseDeviation);
        norm("output_hc_scale.weight", 1);
        return std::move(tensors_);
    }

private:
    void add(std::string name, GgmlType type, std::vector<uint64_t> ne, double mean,
             double deviation) {
        tensors_.push_back({std::move(name), type, std::move(ne), mean, deviation, 0});
    }
    void matrix(std::string name, GgmlType type, uint64_t cols, uint64_t rows) {
        add(std::move(name), type, {cols, rows}, 0, 1 / std::sqrt(static_cast<double>(cols)));
    }
    void norm(std::string name, uint64_t n) {
        add(std::move(name), GgmlType::kF32, {n}, 1, kNormDeviation);
    }

    void add_layer(uint32_t layer) {
        const std::string p = fmt::format("blk.{}.", layer);
        add_attention(p);
        add_hyper_connection(p + "hc_attn_");
        add_hyper_connection(p + "hc_ffn_");
        const uint32_t ratio = shape_.ratios[layer];
        if (ratio != 0) {
            add_compressor(p + "attn_compressor_", ratio, shape_.head_dim);
        }
        if (ratio == 4) {
            matrix(p + "indexer.attn_q_b.weight", GgmlType::kF16, shape_.q_rank,
                   uint64_t{shape_.index_heads} * shape_.index_dim);
            matrix(p + "indexer.proj.weight", GgmlType::kF16, shape_.dim, shape_.index_heads);
            add_compressor(p + "indexer_compressor_", ratio, shape_.index_dim);
        }
        add_experts(p, layer);
    }

    void add_attention(const std::string& p) {
        const uint64_t all_heads = uint64_t{shape_.n_heads} * shape_.head_dim;
        const uint64_t all_ranks = uint64_t{shape_.out_groups} * shape_.out_rank;
        norm(p + "attn_norm.weight", shape_.dim);
        norm(p + "ffn_norm.weight", shape_.dim);
        matrix(p + "attn_q_a.weight", GgmlType::kQ8_0, shape_.dim, shape_.q_rank);
        norm(p + "attn_q_a_norm.weight", shape_.q_rank);
        matrix(p + "attn_q_b.weight", GgmlType::kQ8_0, shape_.q_rank, all_heads);
        matrix(p + "attn_kv.weight", GgmlType::kQ8_0, shape_.dim, shape_.head_dim);
        norm(p + "attn_kv_a_norm.weight", shape_.head_dim);
        add(p + "attn_sinks.weight", GgmlType::kF32, {shape_.n_heads}, 0, kBaseDeviation);
        matrix(p + "attn_output_a.weight", GgmlType::kQ8_0, all_heads / shape_.out_groups,
               all_ranks);
        matrix(p + "attn_output_b.weight", GgmlType::kQ8_0, all_ranks, shape_.dim);
    }

    void add_hyper_connection(const std::string& p) {
        const uint64_t n = uint64_t{2 + shape_.streams} * shape_.streams;
        matrix(p + "fn.weight", GgmlType::kF16, uint64_t{shape_.streams} * shape_.dim, n);
        add(p + "base.weight", GgmlType::kF32, {n}, 0, kBaseDeviation);
        norm(p + "scale.weight", 3);
    }

    // Windows of ratio 4 overlap, and have two halves.
    void add_compressor(const std::string& p, uint32_t ratio, uint64_t dim) {
        const uint64_t width = ratio == 4 ? 2 * dim : dim;
        matrix(p + "kv.weight", GgmlType::kF16, shape_.dim, width);
        matrix(p + "gate.weight", GgmlType::kF16, shape_.dim, width);
        add(p + "ape.weight", GgmlType::kF16, {width, ratio}, 0, kBaseDeviation);
        norm(p + "norm.weight", dim);
    }

    void add_experts(const std::string& p, uint32_t layer) {
        const uint64_t dim = shape_.dim;
        const uint64_t ffn = shape_.ffn_dim;
        matrix(p + "ffn_gate_inp.weight", GgmlType::kF16, dim, shape_.n_experts);
        if (layer < shape_.n_hash) {
            tensors_.push_back({p + "ffn_gate_tid2eid.weight", GgmlType::kI32,
                                {shape_.top_k, shape_.n_vocab}, 0, 0, shape_.n_experts});
        } else {
            add(p + "exp_probs_b.bias", GgmlType::kF32, {shape_.n_experts}, 0,
                kRouterBiasDeviation);
        }
        for (size_t r = 0; r < kExpertRoles; ++r) {
            const ExpertRole role = static_cast<ExpertRole>(r);
            const bool down = role == ExpertRole::kDown;
            matrix(expert_tensor_name(layer, role), GgmlType::kMXFP4, down ? ffn : dim,
                   down ? dim : ffn);
            tensors_.back().ne.push_back(shape_.n_experts);
        }
        matrix(p + "ffn_gate_shexp.weight", GgmlType::kQ8_0, dim, ffn);
        matrix(p + "ffn_up_shexp.weight", GgmlType::kQ8_0, dim, ffn);
        matrix(p + "ffn_down_shexp.weight", GgmlType::kQ8_0, ffn, dim);
    }

    const Shape& shape_;
    std::vector<SynthTensor> tensors_;
};

void add_hyperparameters(const Shape& shape, const std::string& architecture,
                         GgufMetadata& metadata) {
    const auto set = [&](const char* key, GgufValue value) {
        metadata.set(fmt::format("{}.{}", architecture, key), std::move(value));
    };
    const auto n = [](uint64_t value) { return GgufValue::u32(static_cast<uint32_t>(value)); };
    const size_t layers = shape.ratios.size();
    // Published files have one more entry, for a multi-token-prediction layer.
    std::vector<int64_t> ratios(shape.ratios.begin(), shape.ratios.end());
    ratios.push_back(0);
    set("block_count", n(layers));
    set("context_length", n(shape.context));
    set("embedding_length", n(shape.dim));
    set("vocab_size", n(shape.n_vocab));
    set("attention.head_count", n(shape.n_heads));
    set("attention.head_count_kv", n(1));
    set("attention.key_length", n(shape.head_dim));
    set("attention.value_length", n(shape.head_dim));
    set("attention.layer_norm_rms_epsilon", GgufValue::f32(1e-6f));
    set("attention.q_lora_rank", n(shape.q_rank));
    set("attention.output_lora_rank", n(shape.out_rank));
    set("attention.output_group_count", n(shape.out_groups));
    set("attention.sliding_window", n(shape.window));
    set("attention.compress_ratios", GgufValue::i32s(std::move(ratios)));
    set("attention.compress_rope_freq_base", GgufValue::f32(160000));
    set("attention.indexer.head_count", n(shape.index_heads));
    set("attention.indexer.key_length", n(shape.index_dim));
    set("attention.indexer.top_k", n(shape.index_top_k));
    set("rope.dimension_count", n(shape.rope_dims));
    set("rope.freq_base", GgufValue::f32(10000));
    set("rope.scaling.type", GgufValue::string("yarn"));
    set("rope.scaling.factor", GgufValue::f32(16));
    set("rope.scaling.original_context_length", n(shape.rope_original));
    set("rope.scaling.yarn_beta_fast", GgufValue::f32(32));
    set("rope.scaling.yarn_beta_slow", GgufValue::f32(1));
    set("expert_count", n(shape.n_experts));
    set("expert_used_count", n(shape.top_k));
    set("expert_shared_count", n(1));
    set("expert_feed_forward_length", n(shape.ffn_dim));
    set("expert_gating_func", n(4));
    set("expert_weights_scale", GgufValue::f32(1.5f));
    set("expert_weights_norm", GgufValue::boolean(true));
    set("swiglu_clamp_exp", GgufValue::f32s(std::vector<double>(layers, 10)));
    set("swiglu_clamp_shexp", GgufValue::f32s(std::vector<double>(layers, 10)));
    set("hash_layer_count", n(shape.n_hash));
    set("hyper_connection.count", n(shape.streams));
    set("hyper_connection.sinkhorn_iterations", n(20));
    set("hyper_connection.epsilon", GgufValue::f32(1e-6f));
}

}  // namespace

uint64_t SynthTensor::bytes() const {
    uint64_t bytes = row_bytes(type, ne[0]);
    for (size_t i = 1; i < ne.size(); ++i) bytes *= ne[i];
    return bytes;
}

SynthModel describe_model(const Shape& shape, const std::string& name) {
    constexpr uint32_t kQuantisationVersion = 2;
    constexpr uint32_t kMostlyMxfp4 = 38;
    SynthModel model{"deepseek4", name, {}, {}};
    model.metadata.set("general.architecture", GgufValue::string(model.architecture));
    model.metadata.set("general.name", GgufValue::string(name));
    model.metadata.set("general.description",
                       GgufValue::string("Random weights, for measuring. It knows nothing."));
    model.metadata.set("general.quantization_version", GgufValue::u32(kQuantisationVersion));
    model.metadata.set("general.file_type", GgufValue::u32(kMostlyMxfp4));
    add_hyperparameters(shape, model.architecture, model.metadata);
    add_vocabulary(shape.n_vocab, model.metadata);
    model.tensors = TensorList(shape).build();
    return model;
}

}  // namespace xp
