#include "daemon/text/chat_formats.h"

#include <span>

#include "daemon/base/hash.h"
#include "daemon/gguf/cursor.h"

namespace xp {

namespace {

constexpr char kTemplateKey[] = "tokenizer.chat_template";

// Joins system messages, and the messages of one user turn.
constexpr char kBlankLine[] = "\n\n";

// A text of the model's authors, known by its beginning, length and digest, so that a changed
// template is noticed and not sent to the model.
struct KnownText {
    std::string_view beginning;
    size_t bytes;
    std::string_view sha256;
};

constexpr KnownText kAbsoluteMaximum = {
    "Reasoning Effort: Absolute maximum", 476,
    "f7a24f3b3050d4a83781e9b755b316aae2ec1d9dc87562541d90bcb04d7350f7"};
constexpr KnownText kBeyondMaximum = {
    "Reasoning Effort: Beyond maximum", 528,
    "53fb31b8392ec5b4a926481943efc67636748f137c1a49d493a7af4d4fa55d2c"};

// The text as written in a template's string literal, with its escapes undone; empty when it is
// not there or not the known one.
std::string find_known_text(std::string_view chat_template, const KnownText& known) {
    const size_t begin = chat_template.find(known.beginning);
    if (begin == chat_template.npos) return {};
    std::string text;
    for (size_t i = begin; i < chat_template.size() && text.size() < known.bytes; ++i) {
        char c = chat_template[i];
        if (c == '\\' && i + 1 < chat_template.size()) {
            c = chat_template[++i];
            if (c == 'n') c = '\n';
        }
        text.push_back(c);
    }
    const bool same = to_hex(sha256(std::as_bytes(std::span(text)))) == known.sha256;
    return same ? text : std::string();
}

bool is_user_turn(ChatRole role) { return role == ChatRole::kUser || role == ChatRole::kDeveloper; }

// Collects a prompt: text gathers until the next structure token and is then encoded as a whole.
class PromptBuilder {
public:
    explicit PromptBuilder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

    void text(std::string_view text) { text_ += text; }
    void token(TokenId id) {
        flush();
        tokens_.push_back(id);
    }
    std::vector<TokenId> finish() {
        flush();
        return std::move(tokens_);
    }

private:
    void flush() {
        const std::vector<TokenId> tokens = tokenizer_.encode(text_, SpecialTokens::kNone);
        tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
        text_.clear();
    }

    const Tokenizer& tokenizer_;
    std::string text_;
    std::vector<TokenId> tokens_;
};

class DeepSeekChat final : public ChatFormat {
public:
    static Result<std::unique_ptr<ChatFormat>> create(const GgufMetadata& metadata,
                                                      const Tokenizer& tokenizer);
    Result<RenderedPrompt> render(const std::vector<ChatMessage>& messages,
                                  const ChatOptions& options) const override;
    std::unique_ptr<AnswerReader> read_answer(OutputChannel first_channel) const override {
        return first_channel == OutputChannel::kReasoning
                   ? read_reasoned_answer(*tokenizer_, think_end_)
                   : read_plain_answer(*tokenizer_);
    }

private:
    void read_effort_prefixes(const GgufMetadata& metadata);
    Result<std::string> effort_prefix(const ChatOptions& options) const;

    const Tokenizer* tokenizer_ = nullptr;
    TokenId bos_ = 0, eos_ = 0, user_ = 0, assistant_ = 0, think_begin_ = 0, think_end_ = 0;
    std::string high_prefix_, max_prefix_;
    bool has_effort_prefixes_ = false;  // the file has at least one
};

Result<std::unique_ptr<ChatFormat>> DeepSeekChat::create(const GgufMetadata& metadata,
                                                         const Tokenizer& tokenizer) {
    auto format = std::make_unique<DeepSeekChat>();
    format->tokenizer_ = &tokenizer;
    XP_CHECK(find_structure(tokenizer, "deepseek4", {
        {"<｜begin▁of▁sentence｜>", &format->bos_}, {"<｜end▁of▁sentence｜>", &format->eos_},
        {"<｜User｜>", &format->user_},             {"<｜Assistant｜>", &format->assistant_},
        {"<think>", &format->think_begin_},         {"</think>", &format->think_end_},
    }));
    format->read_effort_prefixes(metadata);
    return std::unique_ptr<ChatFormat>(std::move(format));
}

Result<RenderedPrompt> DeepSeekChat::render(const std::vector<ChatMessage>& messages,
                                            const ChatOptions& options) const {
    XP_CHECK(check_conversation(messages, options, false));
    if (options.tool_choice != ToolChoice::kAuto || options.json_object ||
        !options.json_schema.empty()) {
        return make_error(ErrorCode::kUnsupported,
                          "a choice of tools or a form of the answer is not supported yet");
    }
    XP_TRY(const std::string prefix, effort_prefix(options));

    PromptBuilder prompt(*tokenizer_);
    prompt.token(bos_);
    prompt.text(prefix);
    bool first_system = true;
    for (const ChatMessage& message : messages) {
        if (message.role != ChatRole::kSystem) continue;
        if (!first_system) prompt.text(kBlankLine);
        first_system = false;
        prompt.text(message.content);
    }

    // Every assistant message stands before the last user message, see check_conversation().
    const bool keep_reasoning = options.thinking && !options.drop_past_reasoning;
    bool in_user_turn = false;
    for (const ChatMessage& message : messages) {
        if (is_user_turn(message.role)) {
            if (in_user_turn) {
                prompt.text(kBlankLine);
            } else {
                prompt.token(user_);
            }
            in_user_turn = true;
            prompt.text(message.content);
        } else if (message.role == ChatRole::kAssistant) {
            in_user_turn = false;
            prompt.token(assistant_);
            if (keep_reasoning) {
                prompt.token(think_begin_);
                prompt.text(message.reasoning);
            }
            prompt.token(think_end_);
            prompt.text(message.content);
            prompt.token(eos_);
        }
    }
    prompt.token(assistant_);
    prompt.token(options.thinking ? think_begin_ : think_end_);
    return RenderedPrompt{prompt.finish(), options.thinking ? OutputChannel::kReasoning
                                                            : OutputChannel::kContent};
}

void DeepSeekChat::read_effort_prefixes(const GgufMetadata& metadata) {
    const Result<std::string> chat_template = metadata.get_string(kTemplateKey);
    if (!chat_template) return;  // raw prompts and low effort need none
    std::string absolute = find_known_text(*chat_template, kAbsoluteMaximum);
    std::string beyond = find_known_text(*chat_template, kBeyondMaximum);
    has_effort_prefixes_ = !absolute.empty() || !beyond.empty();
    if (beyond.empty()) {
        max_prefix_ = std::move(absolute);
    } else {
        high_prefix_ = std::move(absolute);
        max_prefix_ = std::move(beyond);
    }
}

Result<std::string> DeepSeekChat::effort_prefix(const ChatOptions& options) const {
    if (!options.thinking || options.effort == ReasoningEffort::kLow) return std::string();
    if (!has_effort_prefixes_) {
        return make_error(ErrorCode::kUnsupported,
                          "reasoning effort '{}': the model file's {} has no known text for it; "
                          "use 'low'",
                          options.effort == ReasoningEffort::kHigh ? "high" : "max", kTemplateKey);
    }
    return options.effort == ReasoningEffort::kHigh ? high_prefix_ : max_prefix_;
}

}  // namespace

Result<std::unique_ptr<ChatFormat>> make_deepseek_chat(const GgufMetadata& metadata,
                                                       const Tokenizer& tokenizer) {
    return DeepSeekChat::create(metadata, tokenizer);
}

}  // namespace xp
