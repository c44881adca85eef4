#include "client/xpctl/answer.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "client/xpctl/json.h"
#include "client/xpctl/timings.h"

namespace xp::ctl {
namespace {

const char* finish_reason_name(xp_finish_reason reason) {
    switch (reason) {
        case XP_FINISH_STOP: return "stop";
        case XP_FINISH_LENGTH: return "length";
        case XP_FINISH_TOOL_CALLS: return "tool_calls";
    }
    return "unknown";  // of a newer daemon
}

// Lines that are no JSON, which no daemon should send, are left out.
Json tool_calls(std::string_view lines) {
    Json calls = Json::array();
    while (!lines.empty()) {
        const size_t end = std::min(lines.find('\n'), lines.size());
        Json call = Json::parse(lines.substr(0, end), nullptr, false);
        if (!call.is_discarded()) calls.push_back(std::move(call));
        lines.remove_prefix(std::min(end + 1, lines.size()));
    }
    return calls;
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
    std::string& channel = event.channel == XP_CHANNEL_REASONING   ? reasoning_
                           : event.channel == XP_CHANNEL_TOOL_CALL ? tool_calls_
                                                                   : text_;
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
    if (!tool_calls_.empty()) object["tool_calls"] = tool_calls(tool_calls_);
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
                top.push_back({{"token", entry.id}, {"logprob", json_float(entry.logprob)}});
            }
            list.push_back({{"token", tokens_[i]},
                            {"logprob", json_float(logprobs_[i].chosen)},
                            {"top", std::move(top)}});
        }
        object["logprobs"] = std::move(list);
    }
    object["timings"] = timings_object(terminal_ ? terminal_->timings : xp_timings{});
    return json_line(object);
}

std::string Answer::summary() const {
    if (!terminal_) return {};
    const xp_timings& timings = terminal_->timings;
    std::string line = count(timings.generated_tokens, "token");
    if (terminal_->finish_reason == "length") line += " (cut at the limit)";
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
