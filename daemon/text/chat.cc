#include "daemon/text/chat.h"

#include "daemon/gguf/cursor.h"
#include "daemon/text/chat_formats.h"

namespace xp {

namespace {

constexpr char kArchitectureKey[] = "general.architecture";

Result<void> check_message(const ChatMessage& message, size_t index, bool has_tools) {
    const auto misplaced = [&](std::string_view what, std::string_view whose) {
        return make_error(ErrorCode::kInvalidArgument,
                          "messages[{}] has the role '{}' and carries {}; only {} messages can",
                          index, role_name(message.role), what, whose);
    };
    const bool of_tools = message.role == ChatRole::kTool || !message.tool_calls.empty() ||
                          !message.tools_json.empty();
    if (of_tools && !has_tools) {
        return make_error(ErrorCode::kUnsupported,
                          "message {}: tool calls and tool results are not supported yet", index);
    }
    if (message.role != ChatRole::kAssistant && !message.reasoning.empty()) {
        return misplaced("reasoning", "assistant");
    }
    if (message.role != ChatRole::kAssistant && !message.tool_calls.empty()) {
        return misplaced("tool calls", "assistant");
    }
    if (message.role != ChatRole::kTool && !message.tool_call_id.empty()) {
        return misplaced("a tool call's id", "tool");
    }
    if (message.role != ChatRole::kSystem && !message.tools_json.empty()) {
        return misplaced("tools", "system");
    }
    if (!message.tools_json.empty() && !message.content.empty()) {
        return make_error(ErrorCode::kInvalidArgument,
                          "messages[{}] declares tools and has content; it can have one of them",
                          index);
    }
    return {};
}

}  // namespace

Result<std::unique_ptr<ChatFormat>> ChatFormat::create(const GgufMetadata& metadata,
                                                       const Tokenizer& tokenizer) {
    XP_TRY(const std::string architecture, metadata.get_string(kArchitectureKey));
    if (architecture == "deepseek4") return make_deepseek_chat(metadata, tokenizer);
    if (architecture == "kimi-k3") return make_kimi_chat(tokenizer);
    return make_error(ErrorCode::kUnsupported,
                      "{}: there is no chat format for {} (there is one for: deepseek4, kimi-k3); "
                      "raw prompts work", kArchitectureKey, quote_name(architecture));
}

Result<void> find_structure(const Tokenizer& tokenizer, std::string_view architecture,
                            std::initializer_list<StructureToken> tokens) {
    for (const auto& [text, id] : tokens) {
        const std::optional<TokenId> found = tokenizer.find(text);
        if (!found) {
            return make_error(ErrorCode::kUnsupported,
                              "tokenizer.ggml.tokens has no token '{}', which the chat format of "
                              "'{}' needs; raw prompts work", text, architecture);
        }
        // Only special tokens are out of reach for what users write.
        if (tokenizer.encode(text, SpecialTokens::kAll) != std::vector<TokenId>{*found}) {
            return make_error(ErrorCode::kUnsupported,
                              "tokenizer.ggml.token_type marks '{}' (token {}) as ordinary text, "
                              "but the chat format of '{}' needs it as a special token; raw "
                              "prompts work", text, *found, architecture);
        }
        *id = *found;
    }
    return {};
}

std::string_view role_name(ChatRole role) {
    switch (role) {
        case ChatRole::kSystem: return "system";
        case ChatRole::kDeveloper: return "developer";
        case ChatRole::kUser: return "user";
        case ChatRole::kAssistant: return "assistant";
        case ChatRole::kTool: return "tool";
    }
    return "unknown";
}

Result<void> check_conversation(const std::vector<ChatMessage>& messages,
                                const ChatOptions& options, bool has_tools) {
    if (!options.tools_json.empty() && !has_tools) {
        return make_error(ErrorCode::kUnsupported, "tools are not supported yet");
    }
    const ChatMessage* last = nullptr;  // of those that are no system messages
    for (size_t i = 0; i < messages.size(); ++i) {
        XP_CHECK(check_message(messages[i], i, has_tools));
        if (messages[i].role != ChatRole::kSystem) last = &messages[i];
    }
    if (last == nullptr) {
        return make_error(ErrorCode::kInvalidArgument,
                          "the conversation has no user message to answer");
    }
    if (last->role == ChatRole::kAssistant) {
        return make_error(ErrorCode::kInvalidArgument,
                          "messages[{}] is the assistant's and comes last; continuing it is not "
                          "supported, end with a user message", last - messages.data());
    }
    return {};
}

}  // namespace xp
