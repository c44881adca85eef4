// The DeepSeek-V4 graph. Per layer, on `streams` parallel residual vectors X of every row:
//
//   x = norm(HCpre(X));  X = HCpost(Attention(x), X)
//   x = norm(HCpre(X));  X = HCpost(MoE(x), X)
//
// then logits = output · norm(HChead(X)). There is no other residual addition. An HCpost is done
// together with the HCpre that follows it.
#include "daemon/engine/deepseek4/pass.h"

#include <algorithm>
#include <cmath>

namespace xp {

DeepSeek4Pass::DeepSeek4Pass(DeepSeek4Model& model, std::span<const Row> rows,
                             std::vector<SequenceSpan> spans,
                             std::unique_ptr<DeepSeek4Workspace> workspace,
                             const PassObserver* observer)
    : LayeredPass({model.config_.n_layers, model.config_.n_vocab, model.config_.top_k,
                   true},
                  model.operators_, *model.cache_, rows, std::move(spans), observer),
      model_(model),
      work_(std::move(workspace)) {}

DeepSeek4Pass::~DeepSeek4Pass() { model_.workspaces_.give_back(std::move(work_)); }

void DeepSeek4Pass::begin() {
    find_hashed();
    prefetch(0);
    std::vector<float> turns;
    append_turns(model_.config_.frequencies_plain, turns);
    append_turns(model_.config_.frequencies_compress, turns);
    ops_.upload(reinterpret_cast<std::byte*>(work_->turns), std::as_bytes(std::span(turns)));
    turns_plain_ = work_->turns;
    turns_compress_ = work_->turns + turns.size() / 2;
    embed(model_.embedding_, model_.config_.streams, work_->state);
}

const PackLayer* DeepSeek4Pass::begin_layer() {
    attention_part();
    return layer().experts;
}

// Angles in double: positions reach a million radians, where float32 has lost the fraction.
void DeepSeek4Pass::append_turns(std::span<const double> frequencies,
                                 std::vector<float>& turns) const {
    for (const SequenceSpan& span : spans_) {
        for (uint32_t i = 0; i < span.n_rows; ++i) {
            const double p = static_cast<double>(span.position + i);
            for (const double frequency : frequencies) {
                turns.push_back(static_cast<float>(std::cos(p * frequency)));
                turns.push_back(static_cast<float>(std::sin(p * frequency)));
            }
        }
    }
}

// x = norm(HCpre(X)), after HCpost(*update); post_comb is kept for the HCpost that follows.
void DeepSeek4Pass::hyper_connection(const HyperConnection& hc, const float* norm,
                                     const HcUpdate* update) {
    const DeepSeek4Config& c = model_.config_;
    ops_.hc_pre({.state = of_part(work_->state, uint64_t{c.streams} * c.dim), .fn = hc.fn,
                 .base = hc.base, .scale = hc.scale, .norm = norm, .streams = c.streams,
                 .dim = c.dim, .norm_epsilon = c.norm_epsilon, .epsilon = c.hc_epsilon,
                 .iterations = c.sinkhorn_iterations},
                update, part_->n_rows, of_part(work_->x, c.dim), post_comb());
}

void DeepSeek4Pass::attention_part() {
    const DeepSeek4Config& c = model_.config_;
    const DeepSeek4Layer& l = layer();
    const uint32_t n = part_->n_rows;
    const float* const x = of_part(work_->x, c.dim);
    const float* const turns =
        of_part(compressed_layer() ? turns_compress_ : turns_plain_, c.rope_dims);
    const HcUpdate before = {.post_comb = post_comb(), .rest = of_part(work_->shared, c.dim),
                             .parts = of_part(work_->expert_out, uint64_t{c.top_k} * c.dim),
                             .n_slots = c.top_k};
    hyper_connection(l.hc_attention, l.attention_norm, update_left_ ? &before : nullptr);

    // All that is made of x: queries' low rank, the row that serves as key and value of all heads,
    // what the compressors take in.
    std::vector<Product> products = {{l.q_a, work_->q_low}, {l.kv, work_->kv}};
    if (compressed_layer()) {
        products.push_back({l.compressor.keys, work_->compressor_keys});
        products.push_back({l.compressor.gates, work_->compressor_gates});
    }
    const bool picks = picks_rows();
    if (c.indexed(layer_)) {
        products.push_back({l.index_compressor.keys, work_->index_compressor_keys});
        products.push_back({l.index_compressor.gates, work_->index_compressor_gates});
        if (picks) products.push_back({l.index_weights, work_->index_weights});
    }
    ops_.matmuls(products, x, n);

    products = {{l.q_b, work_->q}};
    if (picks) products.push_back({l.index_q, work_->index_q});
    ops_.normed_matmuls(products, work_->q_low, l.q_a_norm, c.norm_epsilon, n);

    // Queries have a norm per head without weight, the indexer's have none.
    std::vector<NormRopeArgs> heads = {
        {.x = work_->q, .normed = true, .epsilon = c.norm_epsilon, .n_heads = c.n_heads,
         .dim = c.head_dim, .cos_sin = turns, .rope_dims = c.rope_dims},
        {.x = work_->kv, .normed = true, .norm = l.kv_norm, .epsilon = c.norm_epsilon,
         .n_heads = 1, .dim = c.head_dim, .cos_sin = turns, .rope_dims = c.rope_dims,
         .stored = work_->kv_rows, .kv = model_.options_.kv}};
    if (picks) {
        heads.push_back({.x = work_->index_q, .n_heads = c.index_heads, .dim = c.index_dim,
                         .cos_sin = turns, .rope_dims = c.rope_dims});
    }
    ops_.norm_rope(heads, n);

    // Compressed rows that end with a row of this batch are visible to that very row.
    if (compressed_layer()) compress(l.compressor, false);
    if (c.indexed(layer_)) compress(l.index_compressor, true);
    if (picks) pick_rows();

    std::vector<AttentionSegment> segments;
    for (const SequenceSpan& span : part_->spans) {
        DeepSeek4Sequence::LayerState& state = state_of(span);
        segments.push_back({span.first_row, span.n_rows, span.position,
                            state.ring.data(), state.compressed.data()});
    }
    ops_.attention({
        .q = work_->q, .rows = work_->kv_rows, .kv = model_.options_.kv, .n_heads = c.n_heads,
        .dim = c.head_dim, .window = c.window, .ratio = c.ratio[layer_],
        .picks = picks ? work_->picks : nullptr, .max_picks = c.index_top_k,
        .sinks = l.sinks, .scale = 1 / std::sqrt(static_cast<float>(c.head_dim)),
        .cos_sin = turns, .rope_dims = c.rope_dims, .segments = segments,
        .out = work_->attended});

    // The low-rank output per group of heads.
    ops_.matmul_grouped(l.out_a, c.out_groups, work_->attended, n, work_->out_low);
    ops_.matmul(l.out_b, work_->out_low, n, work_->out);
    const HcUpdate update = {.post_comb = post_comb(), .rest = work_->out};
    hyper_connection(l.hc_ffn, l.ffn_norm, &update);
}

void DeepSeek4Pass::compress(const Compressor& compressor, bool index) {
    const DeepSeek4Config& c = model_.config_;
    std::vector<CompressorSegment> segments;
    for (const SequenceSpan& span : part_->spans) {
        DeepSeek4Sequence::LayerState& s = state_of(span);
        segments.push_back({span.first_row, span.n_rows, span.position,
                            (index ? s.index_keys : s.keys).as<float>(),
                            (index ? s.index_gates : s.gates).as<float>(),
                            (index ? s.index_rows : s.compressed).data()});
    }
    ops_.compress({.keys = index ? work_->index_compressor_keys : work_->compressor_keys,
                   .gates = index ? work_->index_compressor_gates : work_->compressor_gates,
                   .bias = compressor.bias, .norm = compressor.norm, .epsilon = c.norm_epsilon,
                   .ratio = c.ratio[layer_], .factor = c.compressor_factor(layer_),
                   .dim = index ? c.index_dim : c.head_dim, .rope_dims = c.rope_dims,
                   .host_frequencies = c.frequencies_compress, .kv = model_.options_.kv,
                   .segments = segments});
}

// Whether the indexer has a choice: it picks all compressed rows while there are few.
bool DeepSeek4Pass::picks_rows() const {
    const DeepSeek4Config& c = model_.config_;
    if (!c.indexed(layer_)) return false;
    const auto chooses = [&](const SequenceSpan& span) {
        return (span.position + span.n_rows) / c.ratio[layer_] > c.index_top_k;
    };
    return observer_.indexed || std::ranges::any_of(part_->spans, chooses);
}

// The lightning indexer: which compressed rows each row attends to.
void DeepSeek4Pass::pick_rows() {
    const DeepSeek4Config& c = model_.config_;
    std::vector<IndexSegment> segments;
    for (const SequenceSpan& span : part_->spans) {
        segments.push_back({span.first_row, span.n_rows, span.position,
                            state_of(span).index_rows.data()});
    }
    const float heads_dims =
        static_cast<float>(c.index_dim) * static_cast<float>(c.index_heads);
    ops_.index_rows({.q = work_->index_q, .weights = work_->index_weights,
                     .scale = 1 / std::sqrt(heads_dims), .n_heads = c.index_heads,
                     .dim = c.index_dim, .ratio = c.ratio[layer_],
                     .kv = model_.options_.kv, .max_picks = c.index_top_k, .segments = segments,
                     .picks = work_->picks});
    if (observer_.indexed) observe_picks();
}

void DeepSeek4Pass::find_hashed() {
    const DeepSeek4Config& c = model_.config_;
    for (uint32_t layer = 0; layer < c.n_layers; ++layer) {
        const DeepSeek4Layer& l = model_.layers_[layer];
        if (l.hash_experts.empty()) continue;
        Hashed& hashed = hashed_.emplace_back();
        hashed.layer = layer;
        if (observer_.choose) {
            hashed.ids = forced_experts(layer);
        } else {
            for (const Row& row : rows_) {
                const auto first = l.hash_experts.begin() + ptrdiff_t{row.token} * c.top_k;
                hashed.ids.insert(hashed.ids.end(), first, first + c.top_k);
            }
        }
        hashed.distinct = sorted_distinct(hashed.ids);
    }
}

// Reads of what is known already go on while other things are computed. In order, so that what is
// needed last never takes the place of what is needed first.
void DeepSeek4Pass::prefetch(uint32_t first_layer) {
    for (const Hashed& hashed : hashed_) {
        if (hashed.layer < first_layer) continue;
        const uint32_t block = model_.layers_[hashed.layer].experts->layer;
        if (!cache_.prefetch(block, hashed.distinct)) break;
    }
}

std::vector<uint32_t> DeepSeek4Pass::known_experts() {
    const auto hashed = std::find_if(hashed_.begin(), hashed_.end(),
                                     [&](const Hashed& h) { return h.layer == layer_; });
    return hashed != hashed_.end() ? std::move(hashed->ids) : std::vector<uint32_t>();
}

// Chooses the experts of the part's rows.
void DeepSeek4Pass::route() {
    const DeepSeek4Config& c = model_.config_;
    const DeepSeek4Layer& l = layer();
    ops_.matmul(l.router, of_part(work_->x, c.dim), part_->n_rows, work_->router);
    ops_.route({.logits = work_->router, .bias = l.router_bias, .host_fixed = fixed_ids(),
                .normalise = c.expert_normalise, .scale = c.expert_scale,
                .n_experts = l.experts->n_experts, .top_k = c.top_k,
                .weights = of_part(work_->expert_weights, c.top_k)},
               part_->n_rows);
}

void DeepSeek4Pass::beside_experts() {
    const DeepSeek4Config& c = model_.config_;
    const DeepSeek4Layer& l = layer();
    ops_.matmul_gated(l.shared_gate, l.shared_up, work_->x, n_rows(),
                      {.limit = c.clamp_shared[layer_]}, work_->shared_mid);
    ops_.matmul(l.shared_down, work_->shared_mid, n_rows(), work_->shared);
}

ExpertArgs DeepSeek4Pass::expert_args() {
    ExpertArgs args;
    args.x = work_->x;
    args.weights = work_->expert_weights;
    args.activation.limit = model_.config_.clamp_experts[layer_];
    args.out = work_->expert_out;
    return args;
}

// What the layer gave is put into the state by the next layer's first operator, unless the state
// itself is asked for.
void DeepSeek4Pass::finish_layer() {
    const DeepSeek4Config& c = model_.config_;
    update_left_ = layer_ + 1 < c.n_layers && !observer_.layer_done;
    if (!update_left_) {
        ops_.hc_post({.post_comb = work_->post_comb, .rest = work_->shared,
                      .parts = work_->expert_out, .n_slots = c.top_k},
                     n_rows(), c.streams, c.dim, work_->state);
    }
}

std::vector<float> DeepSeek4Pass::state() {
    const DeepSeek4Config& c = model_.config_;
    return downloaded(work_->state, uint64_t{n_rows()} * c.streams * c.dim);
}

// The states of the rows that asked are moved together first.
Result<LogitsBuffers*> DeepSeek4Pass::head(std::span<const uint32_t> rows) {
    const DeepSeek4Config& c = model_.config_;
    const uint64_t flat = uint64_t{c.streams} * c.dim;
    const auto n = static_cast<uint32_t>(rows.size());
    for (uint32_t i = 0; i < n; ++i) {
        if (rows[i] != i) ops_.copy(work_->state + rows[i] * flat, flat, work_->state + i * flat);
    }
    ops_.hc_head({.state = work_->state, .fn = model_.head_fn_, .base = model_.head_base_,
                  .scale = model_.head_scale_, .norm = model_.output_norm_, .streams = c.streams,
                  .dim = c.dim, .norm_epsilon = c.norm_epsilon, .epsilon = c.hc_epsilon},
                 n, work_->x);
    return logits_of(model_.output_, work_->x, n, work_->logits);
}

void DeepSeek4Pass::observe_picks() const {
    const uint32_t k = model_.config_.index_top_k;
    std::vector<uint32_t> picks(uint64_t{part_->n_rows} * k);
    ops_.download(std::as_writable_bytes(std::span(picks)),
                  reinterpret_cast<const std::byte*>(work_->picks));
    for (uint32_t row = 0; row < part_->n_rows; ++row) {
        const auto first = picks.begin() + ptrdiff_t{row} * k;
        const auto last = std::find(first, first + k, kNoPick);
        observer_.indexed(layer_, part_->first_row + row, std::span(first, last));
    }
}

}  // namespace xp
