#include "daemon/engine/kimi_k3/model.h"

#include <algorithm>
#include <cmath>

#include "daemon/engine/kimi_k3/pass.h"

namespace xp {
namespace {

Result<void> check_finite(const std::vector<float>& values, const std::string& name) {
    if (std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); })) {
        return {};
    }
    return make_error(ErrorCode::kCorrupt, "tensor {} has values that are not finite", name);
}

// The score vector of an attention residual; older conversions have its factors, the gain of a norm
// and the row of a projection.
Result<const float*> load_score(WeightLoader& loader, const std::string& prefix, uint64_t dim) {
    const std::string name = prefix + "_res_score.weight";
    const std::string norm = prefix + "_res_norm.weight";
    std::vector<float> score;
    if (!loader.has(name) && loader.has(norm)) {
        const std::string projection = prefix + "_res_proj.weight";
        XP_TRY(score, loader.host_floats({norm}, {dim}));
        XP_TRY(const std::vector<float> row, loader.host_floats({projection}, {dim}));
        if (row.empty()) return nullptr;
        for (size_t d = 0; d < score.size(); ++d) score[d] *= row[d];
    } else {
        XP_TRY(score, loader.host_floats({name}, {dim}));
    }
    XP_CHECK(check_finite(score, name));
    return loader.keep(score, name);
}

// exp(A_log) per head: stored with a minus sign by some conversions, without by others.
Result<const float*> load_decay(WeightLoader& loader, const std::string& name, uint64_t heads) {
    XP_TRY(std::vector<float> decay, loader.host_floats({name}, {heads}));
    XP_CHECK(check_finite(decay, name));
    const bool negative = !decay.empty() && decay[0] < 0;
    for (float& value : decay) {
        if (value == 0 || (value < 0) != negative) {
            return make_error(ErrorCode::kCorrupt, "tensor {} has values of both signs, or 0",
                              name);
        }
        value = std::fabs(value);
    }
    return loader.keep(decay, name);
}

// Keys and values in one matrix, as older conversions have them: per head the rows of its keys,
// then of its values. Those of keys are turned over, and both are kept as float32.
Result<void> split_kv_b(WeightLoader& loader, const std::string& name, const KimiK3Config& c,
                        KimiK3Layer& layer) {
    const uint64_t nope = c.key_dim - c.tail;
    const uint64_t head_rows = nope + c.value_dim;
    XP_TRY(const std::vector<float> both,
           loader.host_floats({name}, {c.kv_rank, c.n_heads * head_rows}));
    std::vector<float> keys(uint64_t{c.n_heads} * c.kv_rank * nope);
    std::vector<float> values(uint64_t{c.value_width()} * c.kv_rank);
    for (uint64_t h = 0; h < c.n_heads; ++h) {
        const float* from = both.data() + h * head_rows * c.kv_rank;
        for (uint64_t n = 0; n < nope; ++n) {
            for (uint64_t r = 0; r < c.kv_rank; ++r) {
                keys[(h * c.kv_rank + r) * nope + n] = from[n * c.kv_rank + r];
            }
        }
        const uint64_t n_values = uint64_t{c.value_dim} * c.kv_rank;
        std::copy_n(from + nope * c.kv_rank, n_values, values.data() + h * n_values);
    }
    const auto floats = [&](const std::vector<float>& w, uint64_t rows,
                            uint64_t cols) -> Result<Weight> {
        XP_TRY(const float* data, loader.keep(w, name));
        return Weight{GgmlType::kF32, StorageLayout::kGgml, static_cast<uint32_t>(rows),
                      static_cast<uint32_t>(cols), reinterpret_cast<const std::byte*>(data)};
    };
    XP_TRY(layer.k_b, floats(keys, uint64_t{c.n_heads} * c.kv_rank, nope));
    XP_TRY(layer.v_b, floats(values, c.value_width(), c.kv_rank));
    return {};
}

}  // namespace

Result<std::unique_ptr<Model>> load_kimi_k3(const Pack& pack, Operators& operators,
                                            const ModelOptions& options) {
    if (!operators.has_kimi_k3()) {
        return make_error(ErrorCode::kUnsupported,
                          "architecture kimi-k3 runs on the CPU only so far, not on {}; set "
                          "backend = \"cpu\" in [engine]", operators.describe());
    }
    auto model = std::make_unique<KimiK3Model>(operators, options);
    XP_CHECK(model->load(pack));
    return std::unique_ptr<Model>(std::move(model));
}

Result<void> KimiK3Model::load(const Pack& pack) {
    const GgufFile& file = pack.resident();
    XP_TRY(config_, read_kimi_k3_config(file));
    if (options_.context == 0 || options_.context > config_.context_max) {
        return make_error(ErrorCode::kInvalidArgument,
                          "a context of {} tokens was asked for; this model was made for 1 to {}",
                          options_.context, config_.context_max);
    }
    identity_ = pack.manifest().identity;
    const uint64_t dim = config_.dim;
    WeightLoader loader(file, operators_);
    XP_TRY(embedding_, loader.host_matrix({kEmbedding}, config_.n_vocab, dim));
    XP_TRY(output_, loader.matrix({"output.weight"}, config_.n_vocab, dim));
    XP_TRY(output_norm_, loader.floats({"output_norm.weight"}, {dim}));
    XP_TRY(output_score_, load_score(loader, "output", dim));
    layers_.resize(config_.n_layers);
    for (uint32_t i = 0; i < config_.n_layers; ++i) {
        const std::string p = fmt::format("blk.{}.", i);
        KimiK3Layer& layer = layers_[i];
        XP_TRY(layer.attention_score, load_score(loader, p + "attn", dim));
        XP_TRY(layer.attention_norm, loader.floats({p + "attn_norm.weight"}, {dim}));
        XP_TRY(layer.ffn_score, load_score(loader, p + "ffn", dim));
        XP_TRY(layer.ffn_norm, loader.floats({p + "ffn_norm.weight"}, {dim}));
        XP_CHECK(config_.latent[i] ? load_latent_attention(loader, p, layer)
                                   : load_delta_attention(loader, p, layer));
        XP_CHECK(load_feed_forward(loader, pack, i, layer));
    }
    XP_CHECK(loader.check_complete());
    info_.architecture = "kimi-k3";
    info_.name = pack.manifest().model_name;
    info_.n_layers = config_.n_layers;
    info_.n_vocab = config_.n_vocab;
    info_.n_experts = config_.n_experts;
    info_.top_k = config_.top_k;
    info_.context = options_.context;
    info_.context_max = config_.context_max;
    info_.weight_bytes = loader.bytes();
    info_.sequence_bytes = KimiK3Sequence::state_bytes(config_, options_);
    buffers_ = std::move(loader).take_buffers();
    return {};
}

Result<void> KimiK3Model::load_delta_attention(WeightLoader& loader, const std::string& p,
                                               KimiK3Layer& layer) {
    const uint64_t dim = config_.dim;
    const uint64_t width = config_.delta_width();
    const uint64_t taps = config_.conv_taps;
    XP_TRY(layer.q, loader.matrix({p + "attn_q.weight"}, width, dim));
    XP_TRY(layer.k, loader.matrix({p + "attn_k.weight"}, width, dim));
    XP_TRY(layer.v, loader.matrix({p + "attn_v.weight"}, width, dim));
    XP_TRY(layer.conv_q, loader.floats({p + "ssm_conv1d_q.weight"}, {taps, 1, width}));
    XP_TRY(layer.conv_k, loader.floats({p + "ssm_conv1d_k.weight"}, {taps, 1, width}));
    XP_TRY(layer.conv_v, loader.floats({p + "ssm_conv1d_v.weight"}, {taps, 1, width}));
    XP_TRY(layer.f_a, loader.matrix({p + "ssm_f_a.weight"}, config_.delta_dim, dim));
    XP_TRY(layer.f_b, loader.matrix({p + "ssm_f_b.weight"}, width, config_.delta_dim));
    XP_TRY(layer.gate_bias, loader.floats({p + "ssm_dt.bias"}, {width}));
    XP_TRY(layer.decay, load_decay(loader, p + "ssm_a", config_.n_heads));
    XP_TRY(layer.beta, loader.matrix({p + "ssm_beta.weight"}, config_.n_heads, dim));
    XP_TRY(layer.out_gate,
           loader.matrix({p + "ssm_g.weight", p + "attn_gate.weight"}, width, dim));
    XP_TRY(layer.head_norm, loader.floats({p + "ssm_norm.weight"}, {config_.delta_dim}));
    XP_TRY(layer.out, loader.matrix({p + "attn_output.weight"}, dim, width));
    return {};
}

Result<void> KimiK3Model::load_latent_attention(WeightLoader& loader, const std::string& p,
                                                KimiK3Layer& layer) {
    const KimiK3Config& c = config_;
    const uint64_t dim = c.dim;
    const uint64_t heads = c.n_heads;
    XP_TRY(layer.q_a, loader.matrix({p + "attn_q_a.weight"}, c.q_rank, dim));
    XP_TRY(layer.q_a_norm, loader.floats({p + "attn_q_a_norm.weight"}, {c.q_rank}));
    XP_TRY(layer.q_b, loader.matrix({p + "attn_q_b.weight"}, heads * c.key_dim, c.q_rank));
    XP_TRY(layer.kv_a, loader.matrix({p + "attn_kv_a_mqa.weight"}, c.row_width(), dim));
    XP_TRY(layer.kv_norm, loader.floats({p + "attn_kv_a_norm.weight"}, {c.kv_rank}));
    const std::string both = p + "attn_kv_b.weight";
    if (loader.has(both) && !loader.has(p + "attn_k_b.weight")) {
        XP_CHECK(split_kv_b(loader, both, c, layer));
    } else {
        XP_TRY(layer.k_b, loader.matrix({p + "attn_k_b.weight"}, heads * c.kv_rank,
                                        c.key_dim - c.tail, heads));
        XP_TRY(layer.v_b,
               loader.matrix({p + "attn_v_b.weight"}, c.value_width(), c.kv_rank, heads));
    }
    XP_TRY(layer.out_gate, loader.matrix({p + "attn_gate.weight"}, c.value_width(), dim));
    XP_TRY(layer.out, loader.matrix({p + "attn_output.weight"}, dim, c.value_width()));
    return {};
}

Result<void> KimiK3Model::load_feed_forward(WeightLoader& loader, const Pack& pack, uint32_t index,
                                            KimiK3Layer& layer) {
    const KimiK3Config& c = config_;
    const std::string p = fmt::format("blk.{}.", index);
    const uint64_t dim = c.dim;
    const bool dense = index < c.n_dense;
    const char* const suffix = dense ? "" : "_shexp";
    const uint64_t width = dense ? c.dense_dim : c.shared_dim;
    XP_TRY(layer.gate, loader.matrix({fmt::format("{}ffn_gate{}.weight", p, suffix)}, width, dim));
    XP_TRY(layer.up, loader.matrix({fmt::format("{}ffn_up{}.weight", p, suffix)}, width, dim));
    XP_TRY(layer.down, loader.matrix({fmt::format("{}ffn_down{}.weight", p, suffix)}, dim, width));
    if (dense) return {};
    XP_TRY(layer.experts, find_experts(pack, index, c.latent_dim, c.ffn_dim, c.top_k));
    if (layer.experts->n_experts != c.n_experts) {
        return make_error(ErrorCode::kCorrupt,
                          "kimi-k3.expert_count is {}, but layer {} has {} experts", c.n_experts,
                          index, layer.experts->n_experts);
    }
    XP_TRY(layer.router, loader.matrix({p + "ffn_gate_inp.weight"}, c.n_experts, dim));
    const std::string bias_name = p + "exp_probs_b.bias";
    XP_TRY(const std::vector<float> bias, loader.host_floats({bias_name}, {c.n_experts}));
    XP_CHECK(check_finite(bias, bias_name));
    XP_TRY(layer.router_bias, loader.keep(bias, bias_name));
    XP_TRY(layer.routed_down,
           loader.matrix({p + "ffn_routed_down.weight", p + "ffn_latent_down.weight"},
                         c.latent_dim, dim));
    XP_TRY(layer.routed_norm,
           loader.floats({p + "ffn_routed_norm.weight", p + "ffn_latent_norm.weight"},
                         {c.latent_dim}));
    XP_TRY(layer.routed_up,
           loader.matrix({p + "ffn_routed_up.weight", p + "ffn_latent_up.weight"}, dim,
                         c.latent_dim));
    return {};
}

Result<std::unique_ptr<Sequence>> KimiK3Model::create_sequence() {
    return create_hollow_sequence(0);
}

Result<std::unique_ptr<Sequence>> KimiK3Model::create_hollow_sequence(uint64_t position) {
    XP_TRY(std::unique_ptr<KimiK3Sequence> sequence,
           KimiK3Sequence::create(*this, config_, identity_, operators_, options_));
    XP_ASSERT(position <= options_.context);
    sequence->set_position(position);
    return std::unique_ptr<Sequence>(std::move(sequence));
}

Result<void> KimiK3Model::reserve(uint32_t n_rows, uint32_t n_logits) {
    XP_TRY(std::unique_ptr<KimiK3Workspace> workspace, take_workspace(n_rows));
    Result<DeviceBuffer> logits = operators_.allocate(
        uint64_t{n_logits} * config_.n_vocab * sizeof(float), "logits");
    workspaces_.give_back(std::move(workspace));
    return logits ? Result<void>() : std::move(logits).error();
}

Result<std::unique_ptr<ForwardPass>> KimiK3Model::forward(std::span<const Row> rows,
                                                          const PassObserver* observer) {
    XP_ASSERT(cache_ != nullptr);
    XP_TRY(std::vector<SequenceSpan> spans, spans_of(rows, *this));
    XP_TRY(std::unique_ptr<KimiK3Workspace> workspace,
           take_workspace(static_cast<uint32_t>(rows.size())));
    return std::unique_ptr<ForwardPass>(std::make_unique<KimiK3Pass>(
        *this, rows, std::move(spans), std::move(workspace), observer));
}

Result<std::unique_ptr<KimiK3Workspace>> KimiK3Model::make_workspace(uint32_t n_rows) {
    auto workspace = std::make_unique<KimiK3Workspace>();
    workspace->capacity = n_rows;
    const KimiK3Config& c = config_;
    const auto reserve = [&](float*& pointer, uint64_t per_row) -> Result<void> {
        XP_TRY(DeviceBuffer buffer,
               operators_.allocate(n_rows * per_row * sizeof(float), "a workspace"));
        pointer = buffer.as<float>();
        workspace->buffers.push_back(std::move(buffer));
        return {};
    };
    KimiK3Workspace& w = *workspace;
    const uint64_t width = c.delta_width();
    const uint64_t heads = c.n_heads;
    XP_CHECK(reserve(w.bank, uint64_t{c.bank_rows()} * c.dim));
    for (float** row : {&w.stream, &w.x, &w.out, &w.shared}) XP_CHECK(reserve(*row, c.dim));
    XP_CHECK(reserve(w.q, std::max(width, heads * c.key_dim)));
    for (float** row : {&w.k, &w.v, &w.gate}) XP_CHECK(reserve(*row, width));
    XP_CHECK(reserve(w.beta, heads));
    for (float** row : {&w.out_gate, &w.attended}) {
        XP_CHECK(reserve(*row, std::max<uint64_t>(width, c.value_width())));
    }
    XP_CHECK(reserve(w.low, std::max(c.delta_dim, c.q_rank)));
    for (float** row : {&w.q_latent, &w.context}) XP_CHECK(reserve(*row, heads * c.kv_rank));
    XP_CHECK(reserve(w.kv, c.row_width()));
    XP_CHECK(reserve(w.mid, std::max(c.dense_dim, c.shared_dim)));
    XP_CHECK(reserve(w.router, c.n_experts));
    for (float** row : {&w.latent, &w.routed}) XP_CHECK(reserve(*row, c.latent_dim));
    XP_CHECK(reserve(w.expert_weights, c.top_k));
    XP_CHECK(reserve(w.expert_out, uint64_t{c.top_k} * c.latent_dim));
    return workspace;
}

}  // namespace xp
