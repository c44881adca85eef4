// Kimi-K3's chat format, XTML:
//
//     OPEN "message" (" " key) ("=\"") value ("\"") ... SEP  content  CLOSE "message" SEP END
//
// OPEN, SEP, CLOSE and END (<|end_of_msg|>) are tokens; each piece of text between them is encoded
// on its own, as the model has seen them in training: joined, they would get other ids. What comes
// from outside is never looked through for tokens, so that the worst a text can do is to look like
// a tag to a person. In attribute values & and " are written as &amp; and &quot;.
//
// A prompt: the tools, the effort, the messages in their order, the choice of tools, the form of
// the answer, and the beginning of the answer: a message with <think>, or <response> without
// thinking. In assistant messages <think> is there whenever thinking is on, even if empty.
#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "daemon/text/chat_formats.h"
#include "daemon/text/json_text.h"
#include "daemon/text/kimi_answer.h"
#include "daemon/text/unicode.h"
#include "daemon/text/utf8.h"

namespace xp {

namespace {

constexpr char kToolsHeading[] =
    "# Tools\nHere are the available tools, described in JSONSchema.\n\n";
constexpr char kMoreToolsHeading[] =
    "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\n"
    "You have access to all existing and extended tools.\n"
    "Here are the specs for the extended tools.\n\n";
constexpr char kEffortText[] =
    "`thinking_effort` guides on how much to think in your thinking channel (not including the "
    "response channel), supported values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort={}`.";
constexpr char kToolsRequired[] =
    "The system is invoked with `tool_choice=required`.\n"
    "You MUST call tools in the next message.";
constexpr char kToolsForbidden[] =
    "The system is invoked with `tool_choice=none`.\n"
    "You MUST NOT call any tools in the next message.";
constexpr char kFormText[] =
    "The system is invoked with `response_format={}`.\n"
    "Your response must be raw JSON data without markdown code blocks (```json) or any additional "
    "formatting.";
constexpr char kSchemaHeading[] = "\nThe JSON data must match the following schema:\n";

std::string_view effort_name(ReasoningEffort effort) {
    switch (effort) {
        case ReasoningEffort::kLow: return "low";
        case ReasoningEffort::kHigh: return "high";
        case ReasoningEffort::kMax: return "max";
    }
    return "low";
}

// Only what Python's str.strip() takes away: White_Space and four separators.
bool is_blank(std::string_view text) {
    while (!text.empty()) {
        const Utf8Char c = decode_utf8(text);
        if (c.status != Utf8Status::kValid) return false;
        const bool separator = c.code >= 0x1C && c.code <= 0x1F;
        if (!separator && (unicode_bits(c.code) & kUnicodeWhiteSpace) == 0) return false;
        text.remove_prefix(c.bytes);
    }
    return true;
}

std::string escape_attribute(std::string_view value) {
    std::string escaped;
    for (const char c : value) {
        if (c == '&') {
            escaped += "&amp;";
        } else if (c == '"') {
            escaped += "&quot;";
        } else {
            escaped += c;
        }
    }
    return escaped;
}

// JSON from outside, in a fence.
Result<std::string> fenced(std::string_view what, std::string_view json, std::string_view type) {
    const Result<JsonText> text = rewrite_json(json, JsonStyle::kSortedCompact);
    if (!text) {
        return make_error(ErrorCode::kInvalidArgument, "{}: {}", what, text.error().message);
    }
    if (!type.empty() && text->type != type) {
        return make_error(ErrorCode::kInvalidArgument, "{}: it is of the JSON type {}, not {}",
                          what, text->type, type);
    }
    return "```json\n" + text->text + "\n```";
}

struct Attribute {
    std::string_view key;
    std::string_view value;
};

// The ids of a prompt, piece by piece.
class XtmlWriter {
public:
    XtmlWriter(const Tokenizer& tokenizer, const KimiTokens& structure)
        : tokenizer_(tokenizer), structure_(structure) {}

    void text(std::string_view text) {
        const std::vector<TokenId> ids = tokenizer_.encode(text, SpecialTokens::kNone);
        tokens_.insert(tokens_.end(), ids.begin(), ids.end());
    }
    void open(std::string_view tag, std::initializer_list<Attribute> attributes = {}) {
        tokens_.push_back(structure_.open);
        text(tag);
        for (const Attribute& attribute : attributes) {
            if (attribute.key.empty()) continue;
            text(" " + std::string(attribute.key));
            text("=\"");
            text(escape_attribute(attribute.value));
            text("\"");
        }
        tokens_.push_back(structure_.sep);
    }
    void close(std::string_view tag) {
        tokens_.push_back(structure_.close);
        text(tag);
        tokens_.push_back(structure_.sep);
    }
    void end_message() {
        close("message");
        tokens_.push_back(structure_.end);
    }
    void element(std::string_view tag, std::string_view content) {
        open(tag);
        text(content);
        close(tag);
    }
    // A system message of the format's own.
    void notice(std::string_view type, std::string_view body) {
        open("message", {{"role", "system"}, {"type", type}});
        text(body);
        end_message();
    }
    std::vector<TokenId> finish() { return std::move(tokens_); }

private:
    const Tokenizer& tokenizer_;
    const KimiTokens& structure_;
    std::vector<TokenId> tokens_;
};

// A message's tag: without a name, no attribute for it.
Attribute name_of(const ChatMessage& message) {
    return message.name.empty() ? Attribute{} : Attribute{"name", message.name};
}

class KimiChat final : public ChatFormat {
public:
    KimiChat(const Tokenizer& tokenizer, const KimiTokens& structure)
        : tokenizer_(tokenizer), structure_(structure) {}

    Result<RenderedPrompt> render(const std::vector<ChatMessage>& messages,
                                  const ChatOptions& options) const override;
    std::unique_ptr<AnswerReader> read_answer(OutputChannel first_channel) const override {
        return read_kimi_answer(tokenizer_, structure_, first_channel);
    }

private:
    const Tokenizer& tokenizer_;
    const KimiTokens structure_;
};

// The messages of a conversation, one after the other.
class MessageWriter {
public:
    MessageWriter(const std::vector<ChatMessage>& messages, bool thinking, XtmlWriter& xtml)
        : messages_(messages), thinking_(thinking), xtml_(xtml) {}

    Result<void> write() {
        for (size_t i = 0; i < messages_.size();) {
            if (messages_[i].role == ChatRole::kTool) {
                XP_TRY(i, write_results(i));
                continue;
            }
            XP_CHECK(write_message(i));
            ++i;
        }
        return {};
    }

private:
    Result<void> write_message(size_t index) {
        const ChatMessage& message = messages_[index];
        if (!message.tools_json.empty()) {
            XP_TRY(const std::string tools,
                   fenced(fmt::format("the tools of messages[{}]", index), message.tools_json,
                          "array"));
            xtml_.notice("tool-declare", kMoreToolsHeading + tools);
            return {};
        }
        const ChatRole role =
            message.role == ChatRole::kDeveloper ? ChatRole::kSystem : message.role;
        xtml_.open("message", {{"role", role_name(role)}, name_of(message)});
        if (role == ChatRole::kAssistant) {
            XP_CHECK(write_answer(index));
        } else {
            xtml_.text(message.content);
        }
        xtml_.end_message();
        return {};
    }

    Result<void> write_answer(size_t index) {
        const ChatMessage& message = messages_[index];
        if (thinking_) xtml_.element("think", is_blank(message.reasoning) ? "" : message.reasoning);
        xtml_.element("response", message.content);
        calls_ = &message.tool_calls;
        n_results_ = 0;
        if (message.tool_calls.empty()) return {};
        xtml_.open("tools");
        for (size_t i = 0; i < message.tool_calls.size(); ++i) XP_CHECK(write_call(index, i));
        xtml_.close("tools");
        return {};
    }

    Result<void> write_call(size_t index, size_t number) {
        const ChatToolCall& call = messages_[index].tool_calls[number];
        if (call.name.empty()) {
            return make_error(ErrorCode::kInvalidArgument,
                              "messages[{}]: tool call {} names no tool", index, number);
        }
        const std::string position = std::to_string(number + 1);
        xtml_.open("call", {{"tool", call.name}, {"index", position}});
        if (!is_blank(call.arguments)) {
            const Result<JsonText> json = rewrite_json(call.arguments, JsonStyle::kSpaced);
            if (json && json->type != "object") {
                return make_error(ErrorCode::kInvalidArgument,
                                  "messages[{}]: the arguments of tool call {} are of the JSON "
                                  "type {}, not object", index, number, json->type);
            }
            if (json) {
                for (const JsonMember& argument : json->members) {
                    xtml_.open("argument", {{"key", argument.key}, {"type", argument.type}});
                    xtml_.text(argument.plain);
                    xtml_.close("argument");
                }
            } else {
                xtml_.open("json", {{"type", "object"}});
                xtml_.text(call.arguments);
                xtml_.close("json");
            }
        }
        xtml_.close("call");
        return {};
    }

    // The results from messages_[begin] on, in the order of the calls where each has its call's id,
    // else as they are. Returns where they end.
    Result<size_t> write_results(size_t begin) {
        size_t end = begin;
        while (end < messages_.size() && messages_[end].role == ChatRole::kTool) ++end;
        std::unordered_map<std::string_view, std::vector<size_t>> results;  // by id
        for (size_t i = begin; i < end; ++i) results[messages_[i].tool_call_id].push_back(i);
        std::vector<const ChatToolCall*> answered;  // the calls, each id once
        size_t n_matched = 0;
        std::unordered_set<std::string_view> seen;
        for (size_t i = 0; calls_ != nullptr && i < calls_->size(); ++i) {
            const ChatToolCall& call = (*calls_)[i];
            const auto found = results.find(call.id);
            if (call.id.empty() || found == results.end() || !seen.insert(call.id).second) continue;
            answered.push_back(&call);
            n_matched += found->second.size();
        }
        if (n_matched == end - begin) {
            for (const ChatToolCall* call : answered) {
                for (const size_t i : results[call->id]) write_result(messages_[i], call->name);
            }
            return end;
        }
        for (size_t i = begin; i < end; ++i) {
            std::string_view name = messages_[i].name;
            if (name.empty() && calls_ != nullptr && n_results_ < calls_->size()) {
                name = (*calls_)[n_results_].name;
            }
            if (name.empty()) {
                return make_error(ErrorCode::kInvalidArgument,
                                  "messages[{}] is a tool's result, but of which tool? Its "
                                  "tool_call_id '{}' is that of no call in the assistant message "
                                  "before it", i, messages_[i].tool_call_id);
            }
            write_result(messages_[i], name);
        }
        return end;
    }

    void write_result(const ChatMessage& message, std::string_view tool) {
        const std::string position = std::to_string(++n_results_);
        xtml_.open("message", {{"role", "tool"}, {"tool", tool}, {"index", position}});
        xtml_.text(message.content);
        xtml_.end_message();
    }

    const std::vector<ChatMessage>& messages_;
    const bool thinking_;
    XtmlWriter& xtml_;
    const std::vector<ChatToolCall>* calls_ = nullptr;  // of the last assistant message
    size_t n_results_ = 0;                              // since then
};

Result<void> write_form(const ChatOptions& options, XtmlWriter& xtml) {
    if (!options.json_schema.empty()) {
        XP_TRY(const std::string schema, fenced("the JSON schema", options.json_schema, ""));
        xtml.notice("response-format",
                    fmt::format(kFormText, "json_schema") + kSchemaHeading + schema);
    } else if (options.json_object) {
        xtml.notice("response-format", fmt::format(kFormText, "json_object"));
    }
    return {};
}

Result<RenderedPrompt> KimiChat::render(const std::vector<ChatMessage>& messages,
                                        const ChatOptions& options) const {
    XP_CHECK(check_conversation(messages, options, true));
    XtmlWriter xtml(tokenizer_, structure_);
    if (!options.tools_json.empty()) {
        XP_TRY(const std::string tools, fenced("the tools", options.tools_json, "array"));
        if (tools != "```json\n[]\n```") xtml.notice("tool-declare", kToolsHeading + tools);
    }
    if (options.thinking) {
        xtml.notice("thinking-effort", fmt::format(kEffortText, effort_name(options.effort)));
    }
    XP_CHECK(MessageWriter(messages, options.thinking, xtml).write());
    if (options.tool_choice == ToolChoice::kRequired) xtml.notice("tool-choice", kToolsRequired);
    if (options.tool_choice == ToolChoice::kNone) xtml.notice("tool-choice", kToolsForbidden);
    XP_CHECK(write_form(options, xtml));
    xtml.open("message", {{"role", "assistant"}});
    xtml.open(options.thinking ? "think" : "response");
    return RenderedPrompt{xtml.finish(), options.thinking ? OutputChannel::kReasoning
                                                          : OutputChannel::kContent};
}

}  // namespace

Result<std::unique_ptr<ChatFormat>> make_kimi_chat(const Tokenizer& tokenizer) {
    KimiTokens structure;
    XP_CHECK(find_structure(tokenizer, "kimi-k3", {
        {"<|open|>", &structure.open}, {"<|close|>", &structure.close},
        {"<|sep|>", &structure.sep},   {"<|end_of_msg|>", &structure.end},
    }));
    return std::unique_ptr<ChatFormat>(std::make_unique<KimiChat>(tokenizer, structure));
}

}  // namespace xp
