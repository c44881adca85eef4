#include "daemon/serve/scoring.h"

#include <algorithm>

#include "daemon/serve/prompt.h"

namespace xp {

Scoring::Scoring(ServedModel& model, const shm::Generate& request, std::vector<TokenId> prompt,
                 const TaskOptions& options)
    : Task(model, std::move(prompt), options), wants_logits_(request.last_logits) {}

Result<std::unique_ptr<Scoring>> Scoring::create(ServedModel& model, const shm::Generate& request,
                                                 const TaskOptions& options) {
    XP_TRY(RenderedPrompt prompt, prompt_of(model, request));
    XP_CHECK(check_prompt(model, prompt, 0));
    std::unique_ptr<Scoring> scoring(
        new Scoring(model, request, std::move(prompt.tokens), options));
    XP_TRY(scoring->sequence_, model.model->create_sequence());
    return scoring;
}

Result<std::optional<shm::FinishReason>> Scoring::advance(std::vector<shm::Reply>* replies) {
    if (prefilling()) {
        if (!pass_) {
            XP_TRY(pass_, next_pass());
        }
        XP_TRY(const bool complete, pass_->step());
        if (complete) {
            const std::unique_ptr<ForwardPass> pass = std::move(pass_);
            XP_CHECK(score_pass(*pass, replies));
        }
    } else {
        give_out_logits(replies);
    }
    if (prefilling() || logits_given_ < last_logits_.size()) {
        return std::optional<shm::FinishReason>();
    }
    return std::optional(shm::FinishReason::kStop);
}

Result<std::unique_ptr<ForwardPass>> Scoring::next_pass() {
    const auto rest = prompt().subspan(prompt_done());
    pass_rows_ = std::min<uint64_t>(
        rest.size(), scored_rows(model().model->info().n_vocab, options().chunk_rows));
    std::vector<Row> rows;
    rows.reserve(pass_rows_);
    for (const TokenId token : rest.first(pass_rows_)) {
        rows.push_back({sequence_.get(), token, true});
    }
    return model().model->forward(rows);
}

Result<void> Scoring::score_pass(const ForwardPass& pass, std::vector<shm::Reply>* replies) {
    const size_t begin = prompt_done();
    shm::Scores scores;
    for (size_t row = 0; row < pass_rows_; ++row) {
        const size_t position = begin + row;
        const std::span<const float> logits = pass.logits(row);
        if (scores.logprobs.empty()) {
            scores.first = static_cast<uint32_t>(position);
        }
        scores.logprobs.push_back(next_logprob_);
        XP_TRY(const TokenId best, greedy_.sample(logits));
        scores.argmax.push_back(best);
        const bool last = position + 1 == prompt().size();
        if (!last) {
            next_logprob_ = logprob_of(logits, prompt()[position + 1]);
        } else if (wants_logits_) {
            last_logits_.assign(logits.begin(), logits.end());
        }
        if (2 * scores.logprobs.size() >= kReplyNumbers) {
            replies->push_back(std::exchange(scores, {}));
        }
    }
    if (!scores.logprobs.empty()) {
        replies->push_back(std::move(scores));
    }
    prompt_computed(pass_rows_, replies);
    if (!prefilling()) {
        sequence_.reset();
    }
    return {};
}

void Scoring::give_out_logits(std::vector<shm::Reply>* replies) {
    const auto piece = std::span(last_logits_).subspan(logits_given_);
    const auto values = piece.first(std::min(piece.size(), kReplyNumbers));
    replies->push_back(shm::Logits{static_cast<uint32_t>(logits_given_),
                                   {values.begin(), values.end()}});
    logits_given_ += values.size();
}

}  // namespace xp
