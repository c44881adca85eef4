#include "daemon/text/kimi_answer.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "daemon/text/json_text.h"

namespace xp {

namespace {

// Longer than any tag that means something: the longest names of tools have 256 bytes. What a tag
// has beyond that is not looked at.
constexpr size_t kMaxTagBytes = 4096;

constexpr std::string_view kBlanks = " \t\r\n";

void replace_all(std::string& text, std::string_view from, std::string_view to) {
    for (size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size()) {
        text.replace(at, from.size(), to);
    }
}

std::string_view tag_name(std::string_view tag) { return tag.substr(0, tag.find(' ')); }

// The value of `key` in `name key="value" key="value"`; empty without it.
std::string attribute(std::string_view tag, std::string_view key) {
    for (size_t at = tag.find(' '); at < tag.size();) {
        const size_t begin = tag.find_first_not_of(' ', at);
        const size_t equals = tag.find("=\"", at);
        if (begin == tag.npos || equals == tag.npos) break;
        const size_t end = tag.find('"', equals + 2);
        if (end == tag.npos) break;
        if (tag.substr(begin, equals - begin) == key) {
            std::string value(tag.substr(equals + 2, end - equals - 2));
            replace_all(value, "&quot;", "\"");
            replace_all(value, "&amp;", "&");
            return value;
        }
        at = end + 1;
    }
    return {};
}

class KimiReader final : public AnswerReader {
public:
    KimiReader(const Tokenizer& tokenizer, const KimiTokens& structure, OutputChannel first_channel)
        : structure_(structure), detokenizer_(tokenizer),
          place_(first_channel == OutputChannel::kReasoning ? Place::kThink : Place::kResponse) {}

    std::string push(TokenId id) override {
        if (ended()) return {};
        if (id == structure_.open || id == structure_.close) {
            std::string text = take(detokenizer_.finish());
            in_tag_ = true;
            closing_ = id == structure_.close;
            tag_.clear();
            return text;
        }
        if (id != structure_.sep) return take(detokenizer_.push(id));
        if (!in_tag_) return {};
        take(detokenizer_.finish());
        in_tag_ = false;
        return closing_ ? close_tag(tag_name(tag_)) : open_tag(tag_name(tag_));
    }

    std::string finish() override { return take(detokenizer_.finish()); }

    OutputChannel channel() const override {
        switch (place_) {
            case Place::kThink: return OutputChannel::kReasoning;
            case Place::kTools:
            case Place::kCall:
            case Place::kArgument: return OutputChannel::kToolCall;
            default: return OutputChannel::kContent;
        }
    }
    bool ended() const override { return place_ == Place::kEnded; }
    bool called_tools() const override { return called_tools_; }

private:
    enum class Place : uint8_t {
        kThink, kBetween, kResponse, kAfter,  // kBetween: after <think>; kAfter: after <response>
        kTools, kCall, kArgument,             // kArgument: or <json>
        kEnded,
    };

    // Text where the answer is; gives back what of it is to be shown.
    std::string take(std::string text) {
        if (in_tag_) {
            if (tag_.size() < kMaxTagBytes) tag_ += text;
            return {};
        }
        switch (place_) {
            case Place::kBetween:
                text.erase(0, std::min(text.find_first_not_of(kBlanks), text.size()));
                if (text.empty()) return {};
                place_ = Place::kResponse;
                break;
            case Place::kThink: return text;
            case Place::kResponse: break;
            case Place::kArgument: value_ += text; return {};
            default: return {};
        }
        has_content_ = has_content_ || text.find_first_not_of(kBlanks) != text.npos;
        return text;
    }

    std::string open_tag(std::string_view name) {
        if (name == "message") {
            const bool over = place_ == Place::kResponse ? has_content_ : place_ > Place::kResponse;
            return over ? end() : std::string();
        }
        switch (place_) {
            case Place::kThink:
            case Place::kBetween:
            case Place::kResponse:
            case Place::kAfter: open_channel(name); return {};
            case Place::kTools:
                if (name == "call") open_call();
                return {};
            case Place::kCall: {
                std::string call;
                if (name == "call") {
                    call = finish_call();
                    open_call();
                } else if (name == "argument" || name == "json") {
                    place_ = Place::kArgument;
                    whole_ = name == "json";
                    key_ = attribute(tag_, "key");
                    type_ = attribute(tag_, "type");
                    value_.clear();
                }
                return call;
            }
            default: return {};
        }
    }

    void open_channel(std::string_view name) {
        const bool answered = place_ == Place::kAfter;
        if (name == "tools") {
            place_ = Place::kTools;
        } else if (name == "response" && !answered) {
            place_ = Place::kResponse;
        } else if (name == "think" && !answered && !has_content_) {
            place_ = Place::kThink;
        }
    }

    std::string close_tag(std::string_view name) {
        if (name == "message") return end();
        if (name == "think" && place_ == Place::kThink) {
            place_ = Place::kBetween;
        } else if (name == "response" && place_ == Place::kResponse) {
            place_ = Place::kAfter;
        } else if ((name == "argument" || name == "json") && place_ == Place::kArgument) {
            finish_argument();
        } else if (name == "call" && (place_ == Place::kCall || place_ == Place::kArgument)) {
            finish_argument();
            return finish_call();
        } else if (name == "tools" && channel() == OutputChannel::kToolCall) {
            std::string call = finish_call();
            place_ = Place::kAfter;
            return call;
        }
        return {};
    }

    std::string end() {
        std::string call = finish_call();
        place_ = Place::kEnded;
        return call;
    }

    void open_call() {
        place_ = Place::kCall;
        tool_ = attribute(tag_, "tool");
        arguments_.clear();
        raw_arguments_.clear();
    }

    void finish_argument() {
        if (place_ != Place::kArgument) return;
        place_ = Place::kCall;
        if (whole_) {
            raw_arguments_ = std::exchange(value_, {});
            return;
        }
        std::string json = json_string(value_);
        if (!type_.empty() && type_ != "string") {
            Result<JsonText> value = rewrite_json(value_, JsonStyle::kSpaced);
            if (value) json = std::move(value->text);
        }
        if (!arguments_.empty()) arguments_ += ", ";
        arguments_ += json_string(key_) + ": " + json;
    }

    // The call as a line, unless there is none or it is in the middle of an argument.
    std::string finish_call() {
        if (place_ != Place::kCall) return {};
        place_ = Place::kTools;
        if (tool_.empty()) return {};
        called_tools_ = true;
        const std::string arguments =
            raw_arguments_.empty() ? "{" + arguments_ + "}" : raw_arguments_;
        return "{\"name\": " + json_string(tool_) + ", \"arguments\": " + json_string(arguments) +
               "}\n";
    }

    const KimiTokens structure_;
    Detokenizer detokenizer_;
    Place place_;
    bool has_content_ = false;  // <response> had text that is not blank
    bool called_tools_ = false;

    bool in_tag_ = false, closing_ = false;
    std::string tag_;

    std::string tool_, arguments_, raw_arguments_;  // of the call
    bool whole_ = false;                            // the element is <json>
    std::string key_, type_, value_;                // of the argument
};

}  // namespace

std::unique_ptr<AnswerReader> read_kimi_answer(const Tokenizer& tokenizer,
                                               const KimiTokens& structure,
                                               OutputChannel first_channel) {
    return std::make_unique<KimiReader>(tokenizer, structure, first_channel);
}

}  // namespace xp
