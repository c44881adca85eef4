#include "daemon/serve/generation.h"

#include <algorithm>

namespace xp {
namespace {

SamplingOptions sampling_of(const shm::Sampling& wire) {
    return {.temperature = wire.temperature, .top_k = wire.top_k, .top_p = wire.top_p,
            .min_p = wire.min_p, .seed = wire.seed};
}

Result<RenderedPrompt> render_chat(const ServedModel& model, const shm::Chat& chat) {
    if (!model.chat) {
        return make_error(ErrorCode::kUnsupported,
                          "model \"{}\" has no chat format here ({}); send a raw prompt",
                          model.name, model.chat_missing);
    }
    if (!chat.tools_json.empty()) {
        return make_error(ErrorCode::kUnsupported, "tools are not supported yet");
    }
    std::vector<ChatMessage> messages;
    messages.reserve(chat.messages.size());
    for (const shm::Message& message : chat.messages) {
        if (message.role == shm::Role::kTool || !message.tool_calls.empty()) {
            return make_error(ErrorCode::kUnsupported,
                              "message {}: tool calls and tool results are not supported yet",
                              messages.size());
        }
        messages.push_back({static_cast<ChatRole>(message.role), message.content,
                            message.reasoning});
    }
    ChatOptions options;
    options.thinking = chat.thinking;
    options.effort = static_cast<ReasoningEffort>(chat.effort);
    return model.chat->render(messages, options);
}

static_assert(static_cast<int>(ChatRole::kSystem) == static_cast<int>(shm::Role::kSystem) &&
              static_cast<int>(ChatRole::kDeveloper) == static_cast<int>(shm::Role::kDeveloper) &&
              static_cast<int>(ChatRole::kUser) == static_cast<int>(shm::Role::kUser) &&
              static_cast<int>(ChatRole::kAssistant) == static_cast<int>(shm::Role::kAssistant));
static_assert(static_cast<int>(ReasoningEffort::kLow) == static_cast<int>(shm::Effort::kLow) &&
              static_cast<int>(ReasoningEffort::kHigh) == static_cast<int>(shm::Effort::kHigh) &&
              static_cast<int>(ReasoningEffort::kMax) == static_cast<int>(shm::Effort::kMax));

Result<RenderedPrompt> prompt_of(const ServedModel& model, const shm::Generate& request) {
    RenderedPrompt prompt;
    if (const auto* text = std::get_if<shm::RawText>(&request.prompt)) {
        prompt.tokens = model.tokenizer.encode(text->text, SpecialTokens::kAll);
    } else if (const auto* tokens = std::get_if<shm::RawTokens>(&request.prompt)) {
        prompt.tokens = tokens->ids;
    } else {
        XP_TRY(prompt, render_chat(model, std::get<shm::Chat>(request.prompt)));
    }
    const ModelInfo& info = model.model->info();
    if (prompt.tokens.empty()) {
        return make_error(ErrorCode::kInvalidArgument, "the prompt is empty");
    }
    for (size_t i = 0; i < prompt.tokens.size(); ++i) {
        if (prompt.tokens[i] < 0 || static_cast<uint32_t>(prompt.tokens[i]) >= info.n_vocab) {
            return make_error(ErrorCode::kInvalidArgument,
                              "prompt token {} is {}: the vocabulary of model \"{}\" has the ids "
                              "0 to {}", i, prompt.tokens[i], model.name, info.n_vocab - 1);
        }
    }
    if (prompt.tokens.size() >= info.context) {
        return make_error(ErrorCode::kLimit,
                          "the prompt has {} tokens, and one more must fit: the context of model "
                          "\"{}\" is {} tokens (key context of its [[model]] section; the model "
                          "was made for {})", prompt.tokens.size(), model.name, info.context,
                          info.context_max);
    }
    return prompt;
}

uint64_t microseconds(std::chrono::steady_clock::duration duration) {
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(duration).count());
}

}  // namespace

Generation::Generation(ServedModel& model, const shm::Generate& request,
                       const GenerationOptions& options)
    : model_(model), options_(options), ignore_eos_(request.ignore_eos), stream_(request.stream),
      top_logprobs_(request.top_logprobs), sampler_(sampling_of(request.sampling)),
      detokenizer_(model.tokenizer), stops_(request.stop), last_progress_(Clock::now()) {}

Result<std::unique_ptr<Generation>> Generation::create(ServedModel& model,
                                                       const shm::Generate& request,
                                                       const GenerationOptions& options) {
    XP_ASSERT(options.chunk_rows > 0);
    XP_CHECK(check_sampling(sampling_of(request.sampling)));
    XP_TRY(RenderedPrompt prompt, prompt_of(model, request));
    std::unique_ptr<Generation> generation(new Generation(model, request, options));
    const uint64_t room = model.model->info().context - prompt.tokens.size();
    generation->max_generated_ =
        request.max_tokens == 0 ? room : std::min<uint64_t>(room, request.max_tokens);
    generation->prompt_ = std::move(prompt.tokens);
    if (prompt.first_channel == OutputChannel::kReasoning) {
        generation->channel_ = shm::Channel::kReasoning;
    }
    XP_TRY(generation->sequence_, model.model->create_sequence());
    return generation;
}

Result<std::optional<shm::FinishReason>> Generation::step(std::vector<shm::Reply>* replies) {
    const bool prefill = prefilling();
    const Clock::time_point begin = Clock::now();
    const CacheStats before = model_.cache ? model_.cache->stats() : CacheStats{};
    if (!pass_) {
        XP_TRY(pass_, next_pass());
    }
    XP_TRY(const bool complete, pass_->step());
    std::optional<shm::FinishReason> reason;
    if (complete) {
        XP_TRY(reason, finish_pass(replies));
    }
    (prefill ? prefill_time_ : decode_time_) += Clock::now() - begin;
    if (model_.cache) {
        const CacheStats after = model_.cache->stats();
        counted_.expert_hits += after.hits - before.hits;
        counted_.expert_misses += after.misses - before.misses;
        counted_.read_bytes += after.read_bytes - before.read_bytes;
    }
    return reason;
}

shm::Timings Generation::timings() const {
    shm::Timings timings = counted_;
    timings.prefill_us = microseconds(prefill_time_);
    timings.decode_us = microseconds(decode_time_);
    timings.prompt_tokens = static_cast<uint32_t>(prompt_.size());
    timings.generated_tokens = static_cast<uint32_t>(generated_.size());
    return timings;
}

Result<std::unique_ptr<ForwardPass>> Generation::next_pass() {
    std::vector<Row> rows;
    if (prefilling()) {
        pass_rows_ = std::min<uint64_t>(options_.chunk_rows, prompt_.size() - prompt_done_);
        rows.reserve(pass_rows_);
        for (size_t i = 0; i < pass_rows_; ++i) {
            rows.push_back({sequence_.get(), prompt_[prompt_done_ + i], false});
        }
        rows.back().logits = prompt_done_ + pass_rows_ == prompt_.size();
    } else {
        pass_rows_ = 1;
        rows.push_back({sequence_.get(), generated_.back(), true});
    }
    return model_.model->forward(rows);
}

Result<std::optional<shm::FinishReason>> Generation::finish_pass(
    std::vector<shm::Reply>* replies) {
    const std::unique_ptr<ForwardPass> pass = std::move(pass_);
    if (prefilling()) {
        prompt_done_ += pass_rows_;
        const Clock::time_point now = Clock::now();
        if (now - last_progress_ >= options_.progress_interval) {
            last_progress_ = now;
            replies->push_back(shm::Progress{static_cast<uint32_t>(prompt_done_),
                                             static_cast<uint32_t>(prompt_.size())});
        }
        if (prompt_done_ < prompt_.size()) {
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
    generated_.push_back(id);
    pending_.ids.push_back(id);
    std::optional<shm::FinishReason> reason;
    if (model_.tokenizer.is_end_of_generation(id) && !ignore_eos_) {
        end_text();
        reason = shm::FinishReason::kStop;
    } else if (channel_ == shm::Channel::kReasoning && id == model_.chat->end_of_reasoning()) {
        end_text();
        flush(replies);
        channel_ = shm::Channel::kContent;
        detokenizer_ = Detokenizer(model_.tokenizer);
    } else if (add_text(detokenizer_.push(id))) {
        reason = shm::FinishReason::kStop;
    }
    if (!reason && generated_.size() >= max_generated_) {
        end_text();
        reason = shm::FinishReason::kLength;
    }
    if (stream_ || reason || pending_.ids.size() >= kBatchTokens) {
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
    if (!add_text(detokenizer_.finish()) && channel_ == shm::Channel::kContent) {
        pending_.text += stops_.finish();
    }
}

void Generation::flush(std::vector<shm::Reply>* replies) {
    if (pending_.ids.empty() && pending_.text.empty()) {
        return;
    }
    pending_.channel = channel_;
    replies->push_back(std::exchange(pending_, {}));
}

}  // namespace xp
