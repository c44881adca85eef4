#include "daemon/engine/deepseek4/model.h"

#include <algorithm>

#include "daemon/engine/deepseek4/pass.h"

namespace xp {

Result<std::unique_ptr<Model>> load_deepseek4(const Pack& pack, Operators& operators,
                                              const ModelOptions& options) {
    auto model = std::make_unique<DeepSeek4Model>(operators, options);
    XP_CHECK(model->load(pack));
    return std::unique_ptr<Model>(std::move(model));
}

Result<void> DeepSeek4Model::load(const Pack& pack) {
    const GgufFile& file = pack.resident();
    XP_TRY(config_, read_deepseek4_config(file));
    if (options_.context == 0 || options_.context > config_.context_max) {
        return make_error(ErrorCode::kInvalidArgument,
                          "a context of {} tokens was asked for; this model was made for 1 to {}",
                          options_.context, config_.context_max);
    }
    identity_ = pack.manifest().identity;
    const uint64_t dim = config_.dim;
    const uint64_t flat = dim * config_.streams;
    WeightLoader loader(file, operators_);
    XP_TRY(embedding_, loader.host_matrix({kEmbedding}, config_.n_vocab, dim));
    XP_TRY(output_, loader.matrix({"output.weight"}, config_.n_vocab, dim));
    XP_TRY(output_norm_, loader.floats({"output_norm.weight"}, {dim}));
    XP_TRY(head_fn_, loader.matrix({"output_hc_fn.weight", "hc_head_fn.weight"}, config_.streams,
                                   flat));
    XP_TRY(head_base_, loader.floats({"output_hc_base.weight", "hc_head_base.weight"},
                                     {config_.streams}));
    XP_TRY(head_scale_, loader.floats({"output_hc_scale.weight", "hc_head_scale.weight"}, {1}));
    layers_.resize(config_.n_layers);
    for (uint32_t i = 0; i < config_.n_layers; ++i) {
        XP_CHECK(load_attention(loader, i, layers_[i]));
        XP_CHECK(load_experts(loader, pack, i, layers_[i]));
    }
    XP_CHECK(loader.check_complete());
    info_.architecture = "deepseek4";
    info_.name = pack.manifest().model_name;
    info_.n_layers = config_.n_layers;
    info_.n_vocab = config_.n_vocab;
    info_.n_experts = layers_[0].experts->n_experts;
    info_.top_k = config_.top_k;
    info_.context = options_.context;
    info_.context_max = config_.context_max;
    info_.weight_bytes = loader.bytes();
    info_.sequence_bytes = DeepSeek4Sequence::state_bytes(config_, options_);
    buffers_ = std::move(loader).take_buffers();
    return {};
}

Result<HyperConnection> DeepSeek4Model::load_hyper_connection(WeightLoader& loader,
                                                              const std::string& prefix,
                                                              const char* part) {
    const uint64_t n_outputs = uint64_t{2 + config_.streams} * config_.streams;
    HyperConnection hc;
    XP_TRY(hc.fn, loader.matrix({fmt::format("{}hc_{}_fn.weight", prefix, part)}, n_outputs,
                                uint64_t{config_.dim} * config_.streams));
    XP_TRY(hc.base, loader.floats({fmt::format("{}hc_{}_base.weight", prefix, part)}, {n_outputs}));
    XP_TRY(hc.scale, loader.floats({fmt::format("{}hc_{}_scale.weight", prefix, part)}, {3}));
    return hc;
}

Result<Compressor> DeepSeek4Model::load_compressor(WeightLoader& loader, const std::string& prefix,
                                                   const std::string& alias, uint32_t ratio,
                                                   uint32_t factor, uint32_t dim) {
    const uint64_t width = uint64_t{factor} * dim;
    Compressor compressor;
    XP_TRY(compressor.keys,
           loader.matrix({prefix + "kv.weight", alias + "kv.weight"}, width, config_.dim));
    XP_TRY(compressor.gates,
           loader.matrix({prefix + "gate.weight", alias + "gate.weight"}, width, config_.dim));
    XP_TRY(compressor.bias,
           loader.floats({prefix + "ape.weight", alias + "ape.weight"}, {width, ratio}));
    XP_TRY(compressor.norm, loader.floats({prefix + "norm.weight", alias + "norm.weight"}, {dim}));
    return compressor;
}

Result<void> DeepSeek4Model::load_attention(WeightLoader& loader, uint32_t index,
                                            DeepSeek4Layer& layer) {
    const std::string p = fmt::format("blk.{}.", index);
    const uint64_t dim = config_.dim;
    const uint64_t head_dim = config_.head_dim;
    const uint64_t heads = config_.n_heads;
    XP_TRY(layer.hc_attention, load_hyper_connection(loader, p, "attn"));
    XP_TRY(layer.attention_norm, loader.floats({p + "attn_norm.weight"}, {dim}));
    XP_TRY(layer.q_a, loader.matrix({p + "attn_q_a.weight"}, config_.q_rank, dim));
    XP_TRY(layer.q_a_norm, loader.floats({p + "attn_q_a_norm.weight"}, {config_.q_rank}));
    XP_TRY(layer.q_b, loader.matrix({p + "attn_q_b.weight"}, heads * head_dim, config_.q_rank));
    XP_TRY(layer.kv, loader.matrix({p + "attn_kv.weight", p + "attn_kv_latent.weight",
                                    p + "attn_kv_a_mqa.weight"}, head_dim, dim));
    XP_TRY(layer.kv_norm, loader.floats({p + "attn_kv_a_norm.weight"}, {head_dim}));
    XP_TRY(layer.sinks, loader.floats({p + "attn_sinks.weight"}, {heads}));
    XP_TRY(layer.out_a, loader.matrix({p + "attn_output_a.weight"},
                                      uint64_t{config_.out_groups} * config_.out_rank,
                                      heads * head_dim / config_.out_groups));
    XP_TRY(layer.out_b, loader.matrix({p + "attn_output_b.weight"}, dim,
                                      uint64_t{config_.out_groups} * config_.out_rank));
    const uint32_t ratio = config_.ratio[index];
    if (ratio == 0) return {};
    XP_TRY(layer.compressor,
           load_compressor(loader, p + "attn_compressor_", p + "attn_compress_", ratio,
                           config_.compressor_factor(index), config_.head_dim));
    if (!config_.indexed(index)) return {};
    XP_TRY(layer.index_q, loader.matrix({p + "indexer.attn_q_b.weight"},
                                        uint64_t{config_.index_heads} * config_.index_dim,
                                        config_.q_rank));
    XP_TRY(layer.index_weights,
           loader.matrix({p + "indexer.proj.weight"}, config_.index_heads, dim));
    XP_TRY(layer.index_compressor,
           load_compressor(loader, p + "indexer_compressor_", p + "indexer.compress_", ratio,
                           config_.compressor_factor(index), config_.index_dim));
    return {};
}

Result<void> DeepSeek4Model::load_experts(WeightLoader& loader, const Pack& pack, uint32_t index,
                                          DeepSeek4Layer& layer) {
    const std::string p = fmt::format("blk.{}.", index);
    const uint64_t dim = config_.dim;
    const uint64_t ffn = config_.ffn_dim;
    XP_TRY(layer.experts, find_experts(pack, index, dim, ffn, config_.top_k));
    const uint32_t n_experts = layer.experts->n_experts;
    if (config_.n_experts != 0 && config_.n_experts != n_experts) {
        return make_error(ErrorCode::kCorrupt,
                          "deepseek4.expert_count is {}, but layer {} has {} experts",
                          config_.n_experts, index, n_experts);
    }
    XP_TRY(layer.hc_ffn, load_hyper_connection(loader, p, "ffn"));
    XP_TRY(layer.ffn_norm, loader.floats({p + "ffn_norm.weight"}, {dim}));
    XP_TRY(layer.router, loader.matrix({p + "ffn_gate_inp.weight"}, n_experts, dim));
    XP_TRY(layer.shared_gate, loader.matrix({p + "ffn_gate_shexp.weight"}, ffn, dim));
    XP_TRY(layer.shared_up, loader.matrix({p + "ffn_up_shexp.weight"}, ffn, dim));
    XP_TRY(layer.shared_down, loader.matrix({p + "ffn_down_shexp.weight"}, dim, ffn));
    if (index >= config_.n_hash_layers) {
        XP_TRY(layer.router_bias, loader.floats({p + "exp_probs_b.bias"}, {n_experts}));
        return {};
    }
    XP_TRY(const std::vector<int32_t> table, loader.integers({p + "ffn_gate_tid2eid.weight"},
                                                             {config_.top_k, config_.n_vocab}));
    layer.hash_experts.reserve(table.size());
    for (const int32_t expert : table) {
        if (expert < 0 || static_cast<uint32_t>(expert) >= n_experts) {
            return make_error(ErrorCode::kCorrupt,
                              "{}ffn_gate_tid2eid.weight names expert {} of {}", p, expert,
                              n_experts);
        }
        layer.hash_experts.push_back(static_cast<uint32_t>(expert));
    }
    return {};
}

Result<std::unique_ptr<Sequence>> DeepSeek4Model::create_sequence() {
    return create_hollow_sequence(0);
}

Result<std::unique_ptr<Sequence>> DeepSeek4Model::create_hollow_sequence(uint64_t position) {
    XP_TRY(std::unique_ptr<DeepSeek4Sequence> sequence,
           DeepSeek4Sequence::create(*this, config_, identity_, operators_, options_));
    XP_ASSERT(position <= options_.context);
    sequence->set_position(position);
    return std::unique_ptr<Sequence>(std::move(sequence));
}

Result<void> DeepSeek4Model::reserve(uint32_t n_rows, uint32_t n_logits) {
    XP_TRY(std::unique_ptr<DeepSeek4Workspace> workspace, take_workspace(n_rows));
    Result<DeviceBuffer> logits = operators_.allocate(
        uint64_t{n_logits} * config_.n_vocab * sizeof(float), "logits");
    workspaces_.give_back(std::move(workspace));
    return logits ? Result<void>() : std::move(logits).error();
}

Result<std::unique_ptr<ForwardPass>> DeepSeek4Model::forward(std::span<const Row> rows,
                                                             const PassObserver* observer) {
    XP_ASSERT(cache_ != nullptr);
    XP_TRY(std::vector<SequenceSpan> spans, spans_of(rows, *this));
    XP_TRY(std::unique_ptr<DeepSeek4Workspace> workspace,
           take_workspace(static_cast<uint32_t>(rows.size())));
    return std::unique_ptr<ForwardPass>(std::make_unique<DeepSeek4Pass>(
        *this, rows, std::move(spans), std::move(workspace), observer));
}

Result<std::unique_ptr<DeepSeek4Workspace>> DeepSeek4Model::make_workspace(uint32_t n_rows) {
    auto workspace = std::make_unique<DeepSeek4Workspace>();
    workspace->capacity = n_rows;
    const DeepSeek4Config& c = config_;
    uint32_t n_experts = 0;
    for (const DeepSeek4Layer& layer : layers_) {
        n_experts = std::max(n_experts, layer.experts->n_experts);
    }
    const auto reserve = [&]<class T>(T*& pointer, uint64_t per_row) -> Result<void> {
        XP_TRY(DeviceBuffer buffer,
               operators_.allocate(n_rows * per_row * sizeof(T), "a workspace"));
        pointer = buffer.as<T>();
        workspace->buffers.push_back(std::move(buffer));
        return {};
    };
    DeepSeek4Workspace& w = *workspace;
    XP_CHECK(reserve(w.state, uint64_t{c.streams} * c.dim));
    XP_CHECK(reserve(w.post_comb, c.streams + uint64_t{c.streams} * c.streams));
    for (float** row : {&w.x, &w.out, &w.shared}) XP_CHECK(reserve(*row, c.dim));
    XP_CHECK(reserve(w.q_low, c.q_rank));
    for (float** q : {&w.q, &w.attended}) XP_CHECK(reserve(*q, uint64_t{c.n_heads} * c.head_dim));
    XP_CHECK(reserve(w.kv, c.head_dim));
    XP_CHECK(reserve(w.kv_rows, c.head_dim * kv_bytes(options_.kv)));
    XP_CHECK(reserve(w.out_low, uint64_t{c.out_groups} * c.out_rank));
    for (float** b : {&w.compressor_keys, &w.compressor_gates}) {
        XP_CHECK(reserve(*b, 2 * uint64_t{c.head_dim}));
    }
    for (float** b : {&w.index_compressor_keys, &w.index_compressor_gates}) {
        XP_CHECK(reserve(*b, 2 * uint64_t{c.index_dim}));
    }
    XP_CHECK(reserve(w.index_q, uint64_t{c.index_heads} * c.index_dim));
    XP_CHECK(reserve(w.index_weights, c.index_heads));
    XP_CHECK(reserve(w.picks, c.index_top_k));
    XP_CHECK(reserve(w.router, n_experts));
    XP_CHECK(reserve(w.shared_mid, c.ffn_dim));
    XP_CHECK(reserve(w.expert_weights, c.top_k));
    XP_CHECK(reserve(w.expert_out, uint64_t{c.top_k} * c.dim));
    XP_CHECK(reserve(w.turns, 2 * uint64_t{c.rope_dims}));
    return workspace;
}

}  // namespace xp
