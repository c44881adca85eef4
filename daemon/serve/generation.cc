#include "daemon/serve/generation.h"

#include <algorithm>

namespace xp {
namespace {

SamplingOptions sampling_of(const shm::Sampling& wire) {
    return {.temperature = wire.temperature, .top_k = wire.top_k, .top_p = wire.top_p,
            .min_p = wire.min_p, .seed = wire.seed};
}

shm::Channel channel_of(const AnswerReader& answer) {
    return static_cast<shm::Channel>(answer.channel());
}

static_assert(static_cast<int>(OutputChannel::kContent) ==
                  static_cast<int>(shm::Channel::kContent) &&
              static_cast<int>(OutputChannel::kReasoning) ==
                  static_cast<int>(shm::Channel::kReasoning) &&
              static_cast<int>(OutputChannel::kToolCall) ==
                  static_cast<int>(shm::Channel::kToolCall));

}  // namespace

Generation::Generation(ServedModel& model, const shm::Generate& request, RenderedPrompt prompt,
                       const TaskOptions& options)
    : Task(model, std::move(prompt.tokens), options), ignore_eos_(request.ignore_eos),
      stream_(request.stream), top_logprobs_(request.top_logprobs),
      sampler_(sampling_of(request.sampling)),
      answer_(std::holds_alternative<shm::Chat>(request.prompt)
                  ? model.chat->read_answer(prompt.first_channel)
                  : read_plain_answer(model.tokenizer)),
      stops_(request.stop), channel_(channel_of(*answer_)) {
    const uint64_t room = model.model->info().context - this->prompt().size();
    max_generated_ =
        request.max_tokens == 0 ? room : std::min<uint64_t>(room, request.max_tokens);
}

Result<std::unique_ptr<Generation>> Generation::create(ServedModel& model,
                                                       const shm::Generate& request,
                                                       const TaskOptions& options) {
    XP_CHECK(check_sampling(sampling_of(request.sampling)));
    XP_TRY(RenderedPrompt prompt, prompt_of(model, request));
    XP_CHECK(check_prompt(model, prompt, 1));
    std::unique_ptr<Generation> generation(
        new Generation(model, request, std::move(prompt), options));
    XP_TRY(generation->sequence_, model.model->create_sequence());
    return generation;
}

Result<std::optional<shm::FinishReason>> Generation::advance(std::vector<shm::Reply>* replies) {
    if (!pass_) {
        XP_TRY(pass_, next_pass());
    }
    XP_TRY(const bool complete, pass_->step());
    return complete ? finish_pass(replies) : std::optional<shm::FinishReason>();
}

Result<std::unique_ptr<ForwardPass>> Generation::next_pass() {
    std::vector<Row> rows;
    if (prefilling()) {
        const auto rest = prompt().subspan(prompt_done());
        pass_rows_ = std::min<size_t>(options().chunk_rows, rest.size());
        rows.reserve(pass_rows_);
        for (const TokenId token : rest.first(pass_rows_)) {
            rows.push_back({sequence_.get(), token, false});
        }
        rows.back().logits = pass_rows_ == rest.size();
    } else {
        pass_rows_ = 1;
        rows.push_back({sequence_.get(), last_token_, true});
    }
    return model().model->forward(rows);
}

Result<std::optional<shm::FinishReason>> Generation::finish_pass(
    std::vector<shm::Reply>* replies) {
    const std::unique_ptr<ForwardPass> pass = std::move(pass_);
    if (prefilling()) {
        prompt_computed(pass_rows_, replies);
        if (prefilling()) {
            return std::optional<shm::FinishReason>();
        }
    }
    const std::span<const float> logits = pass->logits(pass_rows_ - 1);
    XP_TRY(const TokenId id, sampler_.sample(logits));
    if (top_logprobs_ > 0) {
        shm::TokenLogprobs logprobs;
        logprobs.chosen = logprob_of(logits, id);
        for (const TokenLogprob& entry : xp::top_logprobs(logits, top_logprobs_)) {
            logprobs.top.push_back({entry.id, entry.logprob});
        }
        pending_.logprobs.push_back(std::move(logprobs));
    }
    return take_token(id, replies);
}

std::optional<shm::FinishReason> Generation::take_token(TokenId id,
                                                        std::vector<shm::Reply>* replies) {
    count_generated();
    last_token_ = id;
    pending_.ids.push_back(id);
    std::optional<shm::FinishReason> reason;
    if (model().tokenizer.is_end_of_generation(id) && !ignore_eos_) {
        end_text();
        reason = shm::FinishReason::kStop;
    } else if (add_text(answer_->push(id))) {
        reason = shm::FinishReason::kStop;
    } else if (answer_->ended() && !ignore_eos_) {
        end_text();
        reason = shm::FinishReason::kStop;
    } else if (channel_of(*answer_) != channel_) {
        end_channel();
        flush(replies);
        channel_ = channel_of(*answer_);
    }
    if (reason && answer_->called_tools()) {
        reason = shm::FinishReason::kToolCalls;
    }
    if (!reason && n_generated() >= max_generated_) {
        end_text();
        reason = shm::FinishReason::kLength;
    }
    if (stream_ || reason || batch_is_full()) {
        flush(replies);
    }
    return reason;
}

bool Generation::add_text(std::string text) {
    if (channel_ != shm::Channel::kContent) {
        pending_.text += text;
        return false;
    }
    StopScanner::Output output = stops_.push(text);
    pending_.text += output.text;
    return output.stopped;
}

void Generation::end_text() {
    if (!add_text(answer_->finish())) {
        end_channel();
    }
}

void Generation::end_channel() {
    if (channel_ == shm::Channel::kContent) {
        pending_.text += stops_.finish();
    }
}

bool Generation::batch_is_full() const {
    // An alternative has an id and a number.
    return pending_.ids.size() * (1 + 2 * top_logprobs_) >= kBatchNumbers ||
           pending_.text.size() >= kBatchTextBytes;
}

void Generation::flush(std::vector<shm::Reply>* replies) {
    if (pending_.ids.empty() && pending_.text.empty()) {
        return;
    }
    pending_.channel = channel_;
    replies->push_back(std::exchange(pending_, {}));
}

}  // namespace xp
