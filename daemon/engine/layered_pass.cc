#include "daemon/engine/layered_pass.h"

#include <algorithm>

namespace xp {
namespace {

// Rows of a part: enough to keep a large device busy, and few of what a chunk of a prompt has.
constexpr uint32_t kPartRows = 512;

}  // namespace

std::vector<uint32_t> sorted_distinct(std::vector<uint32_t> ids) {
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    return ids;
}

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
    cut_into_parts();
}

// In one part where operators do not run behind: nothing could be read earlier.
void LayeredPass::cut_into_parts() {
    const bool cut = shape_.in_parts && ops_.runs_behind();
    const uint32_t rows = cut ? std::min(kPartRows, n_rows()) : n_rows();
    for (uint32_t first = 0; first < n_rows(); first += rows) {
        Part& part = parts_.emplace_back();
        part.first_row = first;
        part.n_rows = std::min(rows, n_rows() - first);
        for (const SequenceSpan& span : spans_) {
            const uint32_t begin = std::max(first, span.first_row);
            const uint32_t end = std::min(first + part.n_rows, span.first_row + span.n_rows);
            if (begin >= end) continue;
            part.spans.push_back({span.sequence, begin - first, end - begin,
                                  span.position + (begin - span.first_row)});
        }
    }
    part_ = &parts_.front();
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
    return logits_.subspan(logits_index_[row] * n_vocab, n_vocab);
}

Result<void> LayeredPass::begin_layers() {
    if (layer_ == 0) begin();
    for (;;) {
        begin_parts();
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

// Asks for a part's choices when the device has got the next part to work on, but before that is
// routed, which would overwrite them.
void LayeredPass::begin_parts() {
    fixed_ids_ = known_experts();
    ids_known_ = !fixed_ids_.empty();
    if (!ids_known_ && observer_.choose) fixed_ids_ = forced_experts(layer_);
    ids_.clear();
    const Part* before = nullptr;
    for (const Part& part : parts_) {
        part_ = &part;
        experts_ = begin_layer();
        if (experts_ == nullptr) continue;
        if (before != nullptr) take_choices(*before);
        route();
        before = &part;
    }
}

void LayeredPass::take_choices(const Part& part) {
    const uint64_t first = uint64_t{part.first_row} * shape_.top_k;
    const uint64_t n = uint64_t{part.n_rows} * shape_.top_k;
    const std::vector<uint32_t> known = sorted_distinct(ids_);
    bool left = !known.empty();
    const auto read_known = [&] {
        if (left) left = !cache_.prefetch(experts_->layer, known);
    };
    ids_.resize(first + n);
    const std::span ids = std::span(ids_).subspan(first);
    if (ids_known_ && !observer_.routed) {
        std::ranges::copy(std::span(fixed_ids_).subspan(first, n), ids.begin());
        return;
    }
    std::vector<float> weights(observer_.routed ? n : 0);
    // What earlier parts chose is read meanwhile.
    ops_.routed(ids, weights, left ? std::function<void()>(read_known) : nullptr);
    if (observer_.routed) observe_routing(part, ids, weights);
}

// Asks for the experts that were chosen, which starts the reads of those missing.
void LayeredPass::acquire_experts() {
    const uint32_t k = shape_.top_k;
    take_choices(parts_.back());

    // A row's outputs are added in ascending expert id, whenever they arrive: its slots are in that
    // order. Sorting by expert then gives each expert its rows.
    choices_.clear();
    std::vector<Choice> row_choices(k);
    for (uint32_t row = 0; row < n_rows(); ++row) {
        for (uint32_t j = 0; j < k; ++j) row_choices[j] = {ids_[row * k + j], row, 0, j};
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
    // More than the buffers had room for at first.
    if (ids_known_) prefetch(layer_);
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
        XP_TRY(LogitsBuffers* const logits, head(wanted));
        const uint64_t n = wanted.size() * uint64_t{shape_.n_vocab};
        std::span<float> host;
        if (n * sizeof(float) > LogitsBuffers::kKeptBytes) {
            many_logits_.resize(n);
            host = many_logits_;
        } else {
            if (logits->host.bytes() < n * sizeof(float)) {
                XP_TRY(logits->host, ops_.allocate_host(n * sizeof(float), "logits"));
            }
            host = std::span(logits->host.as<float>(), n);
        }
        ops_.download(std::as_writable_bytes(host), logits->device.data());
        logits_ = host;
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

Result<LogitsBuffers*> LayeredPass::logits_of(const Weight& output, const float* x, uint32_t n,
                                              LogitsBuffers& logits) {
    const uint64_t bytes = uint64_t{n} * output.rows * sizeof(float);
    if (logits.device.bytes() < bytes) {
        XP_TRY(logits.device, ops_.allocate(bytes, "logits"));
    }
    ops_.matmul(output, x, n, logits.device.as<float>());
    return &logits;
}

std::vector<float> LayeredPass::downloaded(const float* data, uint64_t n) const {
    std::vector<float> host(n);
    ops_.download(std::as_writable_bytes(std::span(host)),
                  reinterpret_cast<const std::byte*>(data));
    return host;
}

void LayeredPass::observe_routing(const Part& part, std::span<const uint32_t> ids,
                                  std::span<const float> weights) const {
    const uint32_t k = shape_.top_k;
    for (uint32_t row = 0; row < part.n_rows; ++row) {
        observer_.routed(layer_, part.first_row + row, ids.subspan(uint64_t{row} * k, k),
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
