#include "client/xpctl/answer.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace xp::ctl {
namespace {

using Json = nlohmann::ordered_json;

const char* finish_reason_name(xp_finish_reason reason) {
    switch (reason) {
        case XP_FINISH_STOP: return "stop";
        case XP_FINISH_LENGTH: return "length";
        case XP_FINISH_TOOL_CALLS: return "tool_calls";
    }
    return "unknown";  // of a newer daemon
}

double milliseconds(uint64_t us) { return static_cast<double>(us) / 1e3; }

double per_second(double count, uint64_t us) {
    return us == 0 ? 0.0 : count * 1e6 / static_cast<double>(us);
}

double prompt_rate(const xp_timings& timings) {
    return per_second(timings.prompt_tokens, timings.prefill_us);
}

// The prefill yields the first token, so that decode_us is the time of all others.
double decode_rate(const xp_timings& timings) {
    if (timings.generated_tokens < 2) return 0.0;
    return per_second(timings.generated_tokens - 1, timings.decode_us);
}

Json timings_object(const xp_timings& timings) {
    return {{"queued_ms", milliseconds(timings.queued_us)},
            {"prefill_ms", milliseconds(timings.prefill_us)},
            {"decode_ms", milliseconds(timings.decode_us)},
            {"prompt_tokens", timings.prompt_tokens},
            {"generated_tokens", timings.generated_tokens},
            {"prompt_tokens_per_second", prompt_rate(timings)},
            {"tokens_per_second", decode_rate(timings)},
            {"expert_hits", timings.expert_hits},
            {"expert_misses", timings.expert_misses},
            {"read_bytes", timings.read_bytes}};
}

std::string count(uint64_t n, const char* noun) {
    return fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s");
}

}  // namespace

void Answer::add(const xp_event& event) {
    switch (event.type) {
        case XP_EVENT_ACCEPTED:
            model_ = event.model;
            prompt_tokens_.assign(event.prompt_tokens,
                                  event.prompt_tokens + event.prompt_token_count);
            break;
        case XP_EVENT_TOKENS:
            add_tokens(event);
            break;
        case XP_EVENT_DONE:
            terminal_ = Terminal{finish_reason_name(event.finish_reason), "", event.timings};
            break;
        case XP_EVENT_CANCELLED:
            terminal_ = Terminal{"cancelled", event.code, event.timings};
            break;
        default:
            break;
    }
}

void Answer::add_tokens(const xp_event& event) {
    tokens_.insert(tokens_.end(), event.token_ids, event.token_ids + event.token_count);
    std::string& channel = event.channel == XP_CHANNEL_REASONING ? reasoning_ : text_;
    channel.append(event.text, event.text_length);
    if (!event.logprobs) return;
    for (size_t i = 0; i < event.token_count; ++i) {
        const xp_token_logprobs& from = event.logprobs[i];
        TokenLogprobs to{from.chosen, {}};
        for (uint32_t k = 0; k < from.top_count; ++k) {
            to.top.push_back({from.top[k].token_id, from.top[k].logprob});
        }
        logprobs_.push_back(std::move(to));
    }
}

std::string Answer::json(std::optional<uint64_t> seed, bool logprobs) const {
    Json object = {{"model", model_}, {"text", text_}};
    if (!reasoning_.empty()) object["reasoning"] = reasoning_;
    object["tokens"] = tokens_;
    object["prompt_tokens"] = prompt_tokens_;
    object["finish_reason"] = terminal_ ? terminal_->finish_reason : "unknown";
    if (terminal_ && !terminal_->cancel_reason.empty()) {
        object["cancel_reason"] = terminal_->cancel_reason;
    }
    if (seed) object["seed"] = *seed;
    if (logprobs) {
        Json list = Json::array();
        for (size_t i = 0; i < logprobs_.size(); ++i) {
            Json top = Json::array();
            for (const Alternative& entry : logprobs_[i].top) {
                top.push_back({{"token", entry.id}, {"logprob", entry.logprob}});
            }
            list.push_back({{"token", tokens_[i]},
                            {"logprob", logprobs_[i].chosen},
                            {"top", std::move(top)}});
        }
        object["logprobs"] = std::move(list);
    }
    object["timings"] = timings_object(terminal_ ? terminal_->timings : xp_timings{});
    return object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string Answer::summary() const {
    if (!terminal_) return {};
    const xp_timings& timings = terminal_->timings;
    std::string line = count(timings.generated_tokens, "token");
    if (decode_rate(timings) > 0) line += fmt::format(", {:.1f} tokens/s", decode_rate(timings));
    line += "; prompt " + count(timings.prompt_tokens, "token");
    if (prompt_rate(timings) > 0) line += fmt::format(", {:.1f} tokens/s", prompt_rate(timings));
    const uint64_t lookups = timings.expert_hits + timings.expert_misses;
    if (lookups > 0) {
        line += fmt::format("; {:.1f} % expert hits", 100.0 * static_cast<double>(
                                timings.expert_hits) / static_cast<double>(lookups));
    }
    return line;
}

}  // namespace xp::ctl
