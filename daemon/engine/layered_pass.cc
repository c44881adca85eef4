#include "daemon/engine/layered_pass.h"

#include <algorithm>

namespace xp {

LayeredPass::LayeredPass(const Shape& shape, Operators& operators, ExpertCache& cache,
                         std::span<const Row> rows, std::vector<SequenceSpan> spans,
                         const PassObserver* observer)
    : ops_(operators),
      cache_(cache),
      shape_(shape),
      rows_(rows.begin(), rows.end()),
      spans_(std::move(spans)) {
    if (observer != nullptr) observer_ = *observer;
    for (const SequenceSpan& span : spans_) span.sequence->begin_pass();
}

Result<bool> LayeredPass::step() {
    XP_ASSERT(!complete_ && !failed_);
    failed_ = true;  // until this step has come to its end
    if (!acquisition_) XP_CHECK(begin_layers());
    if (acquisition_) {
        XP_TRY(const std::span<const ReadyExpert> group, acquisition_->next());
        XP_CHECK(compute_group(group));
        acquisition_->release();
        prefetch(layer_ + 1);
        if (experts_left_ == 0) {
            acquisition_.reset();
            XP_CHECK(end_layer());
        }
    }
    XP_CHECK(ops_.status());
    failed_ = false;
    return complete_;
}

std::span<const float> LayeredPass::logits(size_t row) const {
    XP_ASSERT(complete_ && logits_index_[row] != UINT32_MAX);
    const uint64_t n_vocab = shape_.n_vocab;
    return std::span(logits_).subspan(logits_index_[row] * n_vocab, n_vocab);
}

Result<void> LayeredPass::begin_layers() {
    if (layer_ == 0) begin();
    for (;;) {
        fixed_ids_.clear();
        ids_known_ = false;
        experts_ = begin_layer();
        if (experts_ != nullptr) break;
        XP_CHECK(end_layer());
        if (complete_) return {};
    }
    // Reads begin as soon as the experts are known; a device gets work before it is asked.
    if (!ops_.runs_behind()) acquire_experts();
    beside_experts();
    if (ops_.runs_behind()) acquire_experts();
    return {};
}

// Asks for the experts that were chosen, which starts the reads of those missing.
void LayeredPass::acquire_experts() {
    const uint32_t k = shape_.top_k;
    std::vector<uint32_t> ids = fixed_ids_;
    if (!ids_known_ || observer_.routed) {
        ids.resize(rows_.size() * k);
        std::vector<float> weights(observer_.routed ? ids.size() : 0);
        ops_.routed(ids, weights);
        if (observer_.routed) observe_routing(ids, weights);
    }

    // A row's outputs are added in ascending expert id, whenever they arrive: its slots are in that
    // order. Sorting by expert then gives each expert its rows.
    choices_.clear();
    std::vector<Choice> row_choices(k);
    for (uint32_t row = 0; row < n_rows(); ++row) {
        for (uint32_t j = 0; j < k; ++j) row_choices[j] = {ids[row * k + j], row, 0, j};
        std::stable_sort(row_choices.begin(), row_choices.end(),
                         [](const Choice& a, const Choice& b) { return a.expert < b.expert; });
        for (uint32_t j = 0; j < k; ++j) row_choices[j].slot = j;
        choices_.insert(choices_.end(), row_choices.begin(), row_choices.end());
    }
    std::stable_sort(choices_.begin(), choices_.end(),
                     [](const Choice& a, const Choice& b) { return a.expert < b.expert; });
    std::vector<uint32_t> distinct;
    for (const Choice& choice : choices_) {
        if (distinct.empty() || distinct.back() != choice.expert) distinct.push_back(choice.expert);
    }
    experts_left_ = static_cast<uint32_t>(distinct.size());
    acquisition_.emplace(cache_.acquire(experts_->layer, distinct));
    prefetch(layer_ + 1);
}

Result<void> LayeredPass::compute_group(std::span<const ReadyExpert> group) {
    if (group.empty() || group.size() > experts_left_) {
        return make_error(ErrorCode::kInternal, "the expert cache handed out {} experts of {}",
                          group.size(), experts_left_);
    }
    experts_left_ -= static_cast<uint32_t>(group.size());

    std::vector<uint32_t> rows, slots, choices;
    std::vector<std::pair<size_t, size_t>> ranges;
    for (const ReadyExpert& ready : group) {
        const auto [first, last] = std::equal_range(
            choices_.begin(), choices_.end(), Choice{ready.expert, 0, 0, 0},
            [](const Choice& a, const Choice& b) { return a.expert < b.expert; });
        ranges.emplace_back(rows.size(), static_cast<size_t>(last - first));
        for (auto choice = first; choice != last; ++choice) {
            rows.push_back(choice->row);
            slots.push_back(choice->slot);
            choices.push_back(choice->choice);
        }
    }
    std::vector<ExpertWork> experts;
    for (size_t e = 0; e < group.size(); ++e) {
        const auto [first, n] = ranges[e];
        experts.push_back({group[e].data, std::span(rows).subspan(first, n),
                           std::span(slots).subspan(first, n),
                           std::span(choices).subspan(first, n)});
    }
    const auto shape = [&](ExpertRole role) {
        const RoleLayout& r = experts_->roles[static_cast<size_t>(role)];
        return Weight{r.type, r.layout, static_cast<uint32_t>(r.rows),
                      static_cast<uint32_t>(r.cols), nullptr};
    };
    const auto offset = [&](ExpertRole role) {
        return experts_->roles[static_cast<size_t>(role)].offset;
    };
    ExpertArgs args = expert_args();
    args.gate = shape(ExpertRole::kGate);
    args.up = shape(ExpertRole::kUp);
    args.down = shape(ExpertRole::kDown);
    args.gate_offset = offset(ExpertRole::kGate);
    args.up_offset = offset(ExpertRole::kUp);
    args.down_offset = offset(ExpertRole::kDown);
    args.n_slots = shape_.top_k;
    args.experts = experts;
    ops_.experts(args);
    return {};
}

Result<void> LayeredPass::end_layer() {
    finish_layer();
    if (observer_.layer_done) observer_.layer_done(layer_, state());
    if (++layer_ < shape_.n_layers) return {};
    return finish();
}

Result<void> LayeredPass::finish() {
    logits_index_.assign(rows_.size(), UINT32_MAX);
    std::vector<uint32_t> wanted;
    for (uint32_t row = 0; row < n_rows(); ++row) {
        if (!rows_[row].logits) continue;
        logits_index_[row] = static_cast<uint32_t>(wanted.size());
        wanted.push_back(row);
    }
    if (!wanted.empty()) {
        XP_TRY(const float* logits, head(wanted));
        logits_ = downloaded(logits, wanted.size() * uint64_t{shape_.n_vocab});
    }
    for (const SequenceSpan& span : spans_) span.sequence->end_pass(span.n_rows);
    complete_ = true;
    return {};
}

void LayeredPass::embed(const Weight& host_table, uint32_t streams, float* state) {
    std::vector<TokenId> tokens(rows_.size());
    std::transform(rows_.begin(), rows_.end(), tokens.begin(),
                   [](const Row& r) { return r.token; });
    ops_.embed(host_table, tokens, streams, state);
}

std::vector<uint32_t> LayeredPass::forced_experts(uint32_t layer) const {
    const uint32_t k = shape_.top_k;
    std::vector<uint32_t> ids(rows_.size() * k);
    for (uint32_t row = 0; row < n_rows(); ++row) {
        observer_.choose(layer, row, std::span(ids).subspan(uint64_t{row} * k, k));
    }
    return ids;
}

Result<const float*> LayeredPass::logits_of(const Weight& output, const float* x, uint32_t n,
                                            DeviceBuffer& logits) {
    const uint64_t bytes = uint64_t{n} * output.rows * sizeof(float);
    if (logits.bytes() < bytes) {
        XP_TRY(logits, ops_.allocate(bytes, "logits"));
    }
    ops_.matmul(output, x, n, logits.as<float>());
    return logits.as<float>();
}

std::vector<float> LayeredPass::downloaded(const float* data, uint64_t n) const {
    std::vector<float> host(n);
    ops_.download(std::as_writable_bytes(std::span(host)),
                  reinterpret_cast<const std::byte*>(data));
    return host;
}

void LayeredPass::observe_routing(std::span<const uint32_t> ids,
                                  std::span<const float> weights) const {
    const uint32_t k = shape_.top_k;
    for (uint32_t row = 0; row < n_rows(); ++row) {
        observer_.routed(layer_, row, ids.subspan(uint64_t{row} * k, k),
                         weights.subspan(uint64_t{row} * k, k));
    }
}

Result<const PackLayer*> find_experts(const Pack& pack, uint32_t layer, uint64_t dim, uint64_t ffn,
                                      uint32_t top_k) {
    const PackLayer* experts = pack.find_layer(layer);
    if (experts == nullptr) {
        return make_error(ErrorCode::kCorrupt, "{} holds no experts of layer {}",
                          pack.directory().native(), layer);
    }
    if (experts->n_experts < top_k) {
        return make_error(ErrorCode::kCorrupt, "layer {} has {} experts, but {} are used per token",
                          layer, experts->n_experts, top_k);
    }
    for (size_t r = 0; r < kExpertRoles; ++r) {
        const RoleLayout& role = experts->roles[r];
        const bool down = static_cast<ExpertRole>(r) == ExpertRole::kDown;
        if (role.rows != (down ? dim : ffn) || role.cols != (down ? ffn : dim)) {
            return make_error(ErrorCode::kCorrupt,
                              "{} matrix of the experts of layer {} is {} × {}",
                              role_name(static_cast<ExpertRole>(r)), layer, role.rows, role.cols);
        }
        if (traits_of(role.type).dequantise == nullptr) {
            return make_error(ErrorCode::kUnsupported,
                              "experts of layer {} have type {}, which cannot be computed with",
                              layer, traits_of(role.type).name);
        }
    }
    return experts;
}

}  // namespace xp
