// The DeepSeek-V4 graph. Per layer, on `streams` parallel residual vectors X of every row:
//
//   x = norm(HCpre(X));  X = HCpost(Attention(x), X)
//   x = norm(HCpre(X));  X = HCpost(MoE(x), X)
//
// then logits = output · norm(HChead(X)). There is no other residual addition. Shapes in comments
// are per row: [d] hidden, [h] heads, [k] head size.
#include "daemon/engine/deepseek4/pass.h"

#include <algorithm>
#include <cmath>

namespace xp {
namespace {

constexpr uint64_t kKeptLogitsBytes = uint64_t{8} << 20;

}  // namespace

DeepSeek4Pass::DeepSeek4Pass(DeepSeek4Model& model, std::span<const Row> rows,
                             std::vector<Span> spans,
                             std::unique_ptr<DeepSeek4Workspace> workspace,
                             const PassObserver* observer)
    : model_(model),
      ops_(model.operators_),
      rows_(rows.begin(), rows.end()),
      spans_(std::move(spans)),
      work_(std::move(workspace)) {
    if (observer != nullptr) observer_ = *observer;
    for (const Span& span : spans_) span.sequence->in_pass_ = true;
}

DeepSeek4Pass::~DeepSeek4Pass() {
    acquisition_.reset();
    // What many rows asked for would otherwise stay allocated for all who ask for one.
    if (work_->logits.bytes() > kKeptLogitsBytes) work_->logits = DeviceBuffer();
    model_.give_back(std::move(work_));
}

Result<bool> DeepSeek4Pass::step() {
    XP_ASSERT(!complete_ && !failed_);
    failed_ = true;  // until this step has come to its end
    if (!acquisition_) {
        if (layer_ == 0) embed();
        attention_part();
        hyper_connection(layer().hc_ffn, layer().ffn_norm);
        route();  // starts the reads
        prefetch_next_layer();
        shared_expert();
    }
    XP_TRY(const std::span<const ReadyExpert> group, acquisition_->next());
    XP_CHECK(compute_group(group));
    acquisition_->release();
    if (experts_left_ == 0) {
        acquisition_.reset();
        finish_layer();
        if (++layer_ == model_.config_.n_layers) XP_CHECK(head());
    }
    XP_CHECK(ops_.status());
    failed_ = false;
    return complete_;
}

std::span<const float> DeepSeek4Pass::logits(size_t row) const {
    XP_ASSERT(complete_ && logits_index_[row] != UINT32_MAX);
    const uint64_t n_vocab = model_.config_.n_vocab;
    return std::span(logits_).subspan(logits_index_[row] * n_vocab, n_vocab);
}

void DeepSeek4Pass::embed() {
    std::vector<TokenId> tokens(rows_.size());
    std::transform(rows_.begin(), rows_.end(), tokens.begin(),
                   [](const Row& r) { return r.token; });
    ops_.embed(model_.embedding_, tokens, model_.config_.streams, work_->state);
    fill_turns(model_.config_.frequencies_plain, work_->turns_plain);
    fill_turns(model_.config_.frequencies_compress, work_->turns_compress);
}

// Angles in double: positions reach a million radians, where float32 has lost the fraction.
void DeepSeek4Pass::fill_turns(std::span<const double> frequencies, float* turns) {
    std::vector<float> host(rows_.size() * 2 * frequencies.size());
    for (const Span& span : spans_) {
        for (uint32_t i = 0; i < span.n_rows; ++i) {
            float* row = host.data() + (span.first_row + i) * 2 * frequencies.size();
            const double p = static_cast<double>(span.sequence->position_ + i);
            for (size_t f = 0; f < frequencies.size(); ++f) {
                row[2 * f] = static_cast<float>(std::cos(p * frequencies[f]));
                row[2 * f + 1] = static_cast<float>(std::sin(p * frequencies[f]));
            }
        }
    }
    ops_.upload(reinterpret_cast<std::byte*>(turns), std::as_bytes(std::span(host)));
}

// x = norm(HCpre(X)); post_comb is kept for the HCpost that follows.
void DeepSeek4Pass::hyper_connection(const HyperConnection& hc, const float* norm) {
    const DeepSeek4Config& c = model_.config_;
    ops_.matmul(hc.fn, work_->state, n_rows(), work_->mixes);
    ops_.hc_pre({.state = work_->state, .mixes = work_->mixes, .base = hc.base, .scale = hc.scale,
                 .streams = c.streams, .dim = c.dim, .norm_epsilon = c.norm_epsilon,
                 .epsilon = c.hc_epsilon, .iterations = c.sinkhorn_iterations},
                n_rows(), work_->mixed, work_->post_comb);
    ops_.rms_norm(work_->mixed, norm, c.norm_epsilon, n_rows(), c.dim, work_->x);
}

void DeepSeek4Pass::attention_part() {
    const DeepSeek4Config& c = model_.config_;
    const DeepSeek4Layer& l = layer();
    const uint32_t n = n_rows();
    const float* turns = compressed_layer() ? work_->turns_compress : work_->turns_plain;
    hyper_connection(l.hc_attention, l.attention_norm);

    // Queries through a low rank, then per head an RMS norm without weight.
    ops_.matmul(l.q_a, work_->x, n, work_->q_low);
    ops_.rms_norm(work_->q_low, l.q_a_norm, c.norm_epsilon, n, c.q_rank, work_->q_low);
    ops_.matmul(l.q_b, work_->q_low, n, work_->q);
    ops_.rms_norm(work_->q, nullptr, c.norm_epsilon, n * c.n_heads, c.head_dim, work_->q);
    ops_.rope(work_->q, turns, n, c.n_heads, c.head_dim, c.rope_dims, false);

    // One row serves as key and value of all heads.
    ops_.matmul(l.kv, work_->x, n, work_->kv);
    ops_.rms_norm(work_->kv, l.kv_norm, c.norm_epsilon, n, c.head_dim, work_->kv);
    ops_.rope(work_->kv, turns, n, 1, c.head_dim, c.rope_dims, false);
    ops_.store_rows(work_->kv, model_.options_.kv, n, c.head_dim, work_->kv_rows);

    // Compressed rows that end with a row of this batch are visible to that very row.
    if (compressed_layer()) compress(l.compressor, false);
    if (c.indexed(layer_)) pick_rows();

    std::vector<AttentionSegment> segments;
    for (const Span& span : spans_) {
        DeepSeek4Sequence::LayerState& state = span.sequence->layers_[layer_];
        segments.push_back({span.first_row, span.n_rows, span.sequence->position_,
                            state.ring.data(), state.compressed.data()});
    }
    const AttentionArgs args = {
        .q = work_->q, .rows = work_->kv_rows, .kv = model_.options_.kv, .n_heads = c.n_heads,
        .dim = c.head_dim, .window = c.window, .ratio = c.ratio[layer_],
        .picks = c.indexed(layer_) ? work_->picks : nullptr, .max_picks = c.index_top_k,
        .sinks = l.sinks, .scale = 1 / std::sqrt(static_cast<float>(c.head_dim)),
        .segments = segments, .out = work_->attended};
    ops_.attention(args);
    ops_.update_rings(args);

    // The values were rotated as keys: turn them back, then the low-rank output per head group.
    ops_.rope(work_->attended, turns, n, c.n_heads, c.head_dim, c.rope_dims, true);
    ops_.matmul_grouped(l.out_a, c.out_groups, work_->attended, n, work_->out_low);
    ops_.matmul(l.out_b, work_->out_low, n, work_->out);
    ops_.hc_post(work_->out, work_->post_comb, n, c.streams, c.dim, work_->state);
}

void DeepSeek4Pass::compress(const Compressor& compressor, bool index) {
    const DeepSeek4Config& c = model_.config_;
    ops_.matmul(compressor.keys, work_->x, n_rows(), work_->compressor_keys);
    ops_.matmul(compressor.gates, work_->x, n_rows(), work_->compressor_gates);
    std::vector<CompressorSegment> segments;
    for (const Span& span : spans_) {
        DeepSeek4Sequence::LayerState& s = span.sequence->layers_[layer_];
        segments.push_back({span.first_row, span.n_rows, span.sequence->position_,
                            (index ? s.index_keys : s.keys).as<float>(),
                            (index ? s.index_gates : s.gates).as<float>(),
                            (index ? s.index_rows : s.compressed).data()});
    }
    ops_.compress({.keys = work_->compressor_keys, .gates = work_->compressor_gates,
                   .bias = compressor.bias, .norm = compressor.norm, .epsilon = c.norm_epsilon,
                   .ratio = c.ratio[layer_], .factor = c.compressor_factor(layer_),
                   .dim = index ? c.index_dim : c.head_dim, .rope_dims = c.rope_dims,
                   .host_frequencies = c.frequencies_compress, .kv = model_.options_.kv,
                   .segments = segments});
}

// The lightning indexer: which compressed rows each row attends to.
void DeepSeek4Pass::pick_rows() {
    const DeepSeek4Config& c = model_.config_;
    compress(layer().index_compressor, true);
    ops_.matmul(layer().index_q, work_->q_low, n_rows(), work_->index_q);
    ops_.rope(work_->index_q, work_->turns_compress, n_rows(), c.index_heads, c.index_dim,
              c.rope_dims, false);
    ops_.matmul(layer().index_weights, work_->x, n_rows(), work_->index_weights);
    ops_.scale(work_->index_weights,
               1 / std::sqrt(static_cast<float>(c.index_dim) * static_cast<float>(c.index_heads)),
               uint64_t{n_rows()} * c.index_heads);
    std::vector<IndexSegment> segments;
    for (const Span& span : spans_) {
        segments.push_back({span.first_row, span.n_rows, span.sequence->position_,
                            span.sequence->layers_[layer_].index_rows.data()});
    }
    ops_.index_rows({.q = work_->index_q, .weights = work_->index_weights,
                     .n_heads = c.index_heads, .dim = c.index_dim, .ratio = c.ratio[layer_],
                     .kv = model_.options_.kv, .max_picks = c.index_top_k, .segments = segments,
                     .picks = work_->picks});
    if (observer_.indexed) observe_picks();
}

std::vector<uint32_t> DeepSeek4Pass::fixed_experts(uint32_t layer) const {
    const uint32_t k = model_.config_.top_k;
    const DeepSeek4Layer& l = model_.layers_[layer];
    std::vector<uint32_t> ids;
    if (observer_.choose) {
        ids.resize(rows_.size() * k);
        for (uint32_t row = 0; row < n_rows(); ++row) {
            observer_.choose(layer, row, std::span(ids).subspan(uint64_t{row} * k, k));
        }
        return ids;
    }
    if (l.hash_experts.empty()) return ids;
    for (const Row& row : rows_) {
        const auto first = l.hash_experts.begin() + ptrdiff_t{row.token} * k;
        ids.insert(ids.end(), first, first + k);
    }
    return ids;
}

// Chooses the experts of every row and asks for them, which starts the reads of those missing.
void DeepSeek4Pass::route() {
    const DeepSeek4Config& c = model_.config_;
    const DeepSeek4Layer& l = layer();
    ops_.matmul(l.router, work_->x, n_rows(), work_->router);
    const std::vector<uint32_t> fixed = fixed_experts(layer_);
    std::vector<uint32_t> ids(rows_.size() * c.top_k);
    std::vector<float> weights(ids.size());
    ops_.route({.logits = work_->router, .bias = l.router_bias,
                .host_fixed = fixed.empty() ? nullptr : fixed.data(),
                .normalise = c.expert_normalise,
                .scale = c.expert_scale, .n_experts = l.experts->n_experts, .top_k = c.top_k},
               n_rows(), ids.data(), weights.data());
    if (observer_.routed) observe_routing(ids, weights);

    // A row's outputs are added in ascending expert id, whenever they arrive: its slots are in that
    // order. Sorting by expert then gives each expert its rows.
    choices_.clear();
    std::vector<Choice> row_choices(c.top_k);
    for (uint32_t row = 0; row < n_rows(); ++row) {
        for (uint32_t j = 0; j < c.top_k; ++j) {
            row_choices[j] = {ids[row * c.top_k + j], row, 0, weights[row * c.top_k + j]};
        }
        std::stable_sort(row_choices.begin(), row_choices.end(),
                         [](const Choice& a, const Choice& b) { return a.expert < b.expert; });
        for (uint32_t j = 0; j < c.top_k; ++j) row_choices[j].slot = j;
        choices_.insert(choices_.end(), row_choices.begin(), row_choices.end());
    }
    std::stable_sort(choices_.begin(), choices_.end(),
                     [](const Choice& a, const Choice& b) { return a.expert < b.expert; });
    std::vector<uint32_t> distinct;
    for (const Choice& choice : choices_) {
        if (distinct.empty() || distinct.back() != choice.expert) distinct.push_back(choice.expert);
    }
    experts_left_ = static_cast<uint32_t>(distinct.size());
    acquisition_.emplace(model_.cache_->acquire(l.experts->layer, distinct));
}

// The next layer's experts are known already if it routes by token id.
void DeepSeek4Pass::prefetch_next_layer() {
    if (layer_ + 1 >= model_.config_.n_layers) return;
    const DeepSeek4Layer& next = model_.layers_[layer_ + 1];
    if (next.hash_experts.empty()) return;
    std::vector<uint32_t> ids = fixed_experts(layer_ + 1);
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    model_.cache_->prefetch(next.experts->layer, ids);
}

void DeepSeek4Pass::shared_expert() {
    const DeepSeek4Config& c = model_.config_;
    const DeepSeek4Layer& l = layer();
    ops_.matmul(l.shared_gate, work_->x, n_rows(), work_->shared_gate);
    ops_.matmul(l.shared_up, work_->x, n_rows(), work_->shared_up);
    ops_.swiglu(work_->shared_gate, work_->shared_up, c.clamp_shared[layer_],
                uint64_t{n_rows()} * c.ffn_dim, work_->shared_gate);
    ops_.matmul(l.shared_down, work_->shared_gate, n_rows(), work_->shared);
}

Result<void> DeepSeek4Pass::compute_group(std::span<const ReadyExpert> group) {
    const DeepSeek4Config& c = model_.config_;
    const PackLayer& pack = *layer().experts;
    if (group.empty() || group.size() > experts_left_) {
        return make_error(ErrorCode::kInternal, "the expert cache handed out {} experts of {}",
                          group.size(), experts_left_);
    }
    experts_left_ -= static_cast<uint32_t>(group.size());

    std::vector<uint32_t> rows, slots;
    std::vector<float> weights;
    std::vector<std::pair<size_t, size_t>> ranges;
    for (const ReadyExpert& ready : group) {
        const auto [first, last] = std::equal_range(
            choices_.begin(), choices_.end(), Choice{ready.expert, 0, 0, 0},
            [](const Choice& a, const Choice& b) { return a.expert < b.expert; });
        ranges.emplace_back(rows.size(), static_cast<size_t>(last - first));
        for (auto choice = first; choice != last; ++choice) {
            rows.push_back(choice->row);
            slots.push_back(choice->slot);
            weights.push_back(choice->weight);
        }
    }
    std::vector<ExpertWork> experts;
    for (size_t e = 0; e < group.size(); ++e) {
        const auto [first, n] = ranges[e];
        experts.push_back({group[e].data, std::span(rows).subspan(first, n),
                           std::span(slots).subspan(first, n),
                           std::span(weights).subspan(first, n)});
    }
    const auto shape = [&](ExpertRole role) {
        const RoleLayout& r = pack.roles[static_cast<size_t>(role)];
        return Weight{r.type, r.layout, static_cast<uint32_t>(r.rows),
                      static_cast<uint32_t>(r.cols), nullptr};
    };
    const auto offset = [&](ExpertRole role) {
        return pack.roles[static_cast<size_t>(role)].offset;
    };
    ops_.experts({.gate = shape(ExpertRole::kGate), .up = shape(ExpertRole::kUp),
                  .down = shape(ExpertRole::kDown), .gate_offset = offset(ExpertRole::kGate),
                  .up_offset = offset(ExpertRole::kUp), .down_offset = offset(ExpertRole::kDown),
                  .x = work_->x, .limit = c.clamp_experts[layer_], .n_slots = c.top_k,
                  .experts = experts, .out = work_->expert_out});
    return {};
}

void DeepSeek4Pass::finish_layer() {
    const DeepSeek4Config& c = model_.config_;
    ops_.sum_slots(work_->expert_out, n_rows(), c.top_k, c.dim, work_->out);
    ops_.add(work_->shared, uint64_t{n_rows()} * c.dim, work_->out);
    ops_.hc_post(work_->out, work_->post_comb, n_rows(), c.streams, c.dim, work_->state);
    if (observer_.layer_done) {
        std::vector<float> state(uint64_t{n_rows()} * c.streams * c.dim);
        ops_.download(std::as_writable_bytes(std::span(state)),
                      reinterpret_cast<const std::byte*>(work_->state));
        observer_.layer_done(layer_, state);
    }
}

// Only for the rows that asked: their states are moved together first.
Result<void> DeepSeek4Pass::head() {
    const DeepSeek4Config& c = model_.config_;
    const uint64_t flat = uint64_t{c.streams} * c.dim;
    logits_index_.assign(rows_.size(), UINT32_MAX);
    uint32_t n = 0;
    for (uint32_t row = 0; row < n_rows(); ++row) {
        if (!rows_[row].logits) continue;
        if (n != row) ops_.copy(work_->state + row * flat, flat, work_->state + n * flat);
        logits_index_[row] = n++;
    }
    if (n > 0) {
        ops_.matmul(model_.head_fn_, work_->state, n, work_->mixes);
        ops_.hc_head({.state = work_->state, .mixes = work_->mixes, .base = model_.head_base_,
                      .scale = model_.head_scale_, .streams = c.streams, .dim = c.dim,
                      .norm_epsilon = c.norm_epsilon, .epsilon = c.hc_epsilon},
                     n, work_->mixed);
        ops_.rms_norm(work_->mixed, model_.output_norm_, c.norm_epsilon, n, c.dim, work_->x);
        const uint64_t bytes = uint64_t{n} * c.n_vocab * sizeof(float);
        if (work_->logits.bytes() < bytes) {
            XP_TRY(work_->logits, ops_.allocate(bytes, "logits"));
        }
        ops_.matmul(model_.output_, work_->x, n, work_->logits.as<float>());
        logits_.resize(uint64_t{n} * c.n_vocab);
        ops_.download(std::as_writable_bytes(std::span(logits_)), work_->logits.data());
    }
    for (const Span& span : spans_) {
        span.sequence->position_ += span.n_rows;
        span.sequence->in_pass_ = false;
    }
    complete_ = true;
    return {};
}

void DeepSeek4Pass::observe_routing(std::span<const uint32_t> ids,
                                    std::span<const float> weights) const {
    const uint32_t k = model_.config_.top_k;
    for (uint32_t row = 0; row < n_rows(); ++row) {
        observer_.routed(layer_, row, ids.subspan(uint64_t{row} * k, k),
                         weights.subspan(uint64_t{row} * k, k));
    }
}

void DeepSeek4Pass::observe_picks() const {
    const uint32_t k = model_.config_.index_top_k;
    std::vector<uint32_t> picks(uint64_t{n_rows()} * k);
    ops_.download(std::as_writable_bytes(std::span(picks)),
                  reinterpret_cast<const std::byte*>(work_->picks));
    for (uint32_t row = 0; row < n_rows(); ++row) {
        const auto first = picks.begin() + ptrdiff_t{row} * k;
        const auto last = std::find(first, first + k, kNoPick);
        observer_.indexed(layer_, row, std::span(first, last));
    }
}

}  // namespace xp
