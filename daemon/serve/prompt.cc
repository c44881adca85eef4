#include "daemon/serve/prompt.h"

namespace xp {
namespace {

Result<RenderedPrompt> render_chat(const ServedModel& model, const shm::Chat& chat) {
    if (!model.chat) {
        return make_error(ErrorCode::kUnsupported,
                          "model \"{}\" has no chat format here ({}); send a raw prompt",
                          model.name, model.chat_missing);
    }
    std::vector<ChatMessage> messages;
    messages.reserve(chat.messages.size());
    for (const shm::Message& message : chat.messages) {
        ChatMessage& to = messages.emplace_back();
        to.role = static_cast<ChatRole>(message.role);
        to.content = message.content;
        to.reasoning = message.reasoning;
        for (const shm::ToolCall& call : message.tool_calls) {
            to.tool_calls.push_back({call.id, call.name, call.arguments_json});
        }
        to.tool_call_id = message.tool_call_id;
    }
    ChatOptions options;
    options.thinking = chat.thinking;
    options.effort = static_cast<ReasoningEffort>(chat.effort);
    options.tools_json = chat.tools_json;
    return model.chat->render(messages, options);
}

static_assert(static_cast<int>(ChatRole::kSystem) == static_cast<int>(shm::Role::kSystem) &&
              static_cast<int>(ChatRole::kDeveloper) == static_cast<int>(shm::Role::kDeveloper) &&
              static_cast<int>(ChatRole::kUser) == static_cast<int>(shm::Role::kUser) &&
              static_cast<int>(ChatRole::kAssistant) == static_cast<int>(shm::Role::kAssistant) &&
              static_cast<int>(ChatRole::kTool) == static_cast<int>(shm::Role::kTool));
static_assert(static_cast<int>(ReasoningEffort::kLow) == static_cast<int>(shm::Effort::kLow) &&
              static_cast<int>(ReasoningEffort::kHigh) == static_cast<int>(shm::Effort::kHigh) &&
              static_cast<int>(ReasoningEffort::kMax) == static_cast<int>(shm::Effort::kMax));

}  // namespace

Result<RenderedPrompt> prompt_of(const ServedModel& model, const shm::Generate& request) {
    RenderedPrompt prompt;
    if (const auto* text = std::get_if<shm::RawText>(&request.prompt)) {
        prompt.tokens = model.tokenizer.encode_prompt(text->text);
    } else if (const auto* tokens = std::get_if<shm::RawTokens>(&request.prompt)) {
        prompt.tokens = tokens->ids;
    } else {
        XP_TRY(prompt, render_chat(model, std::get<shm::Chat>(request.prompt)));
    }
    const uint32_t n_vocab = model.model->info().n_vocab;
    for (size_t i = 0; i < prompt.tokens.size(); ++i) {
        if (prompt.tokens[i] < 0 || static_cast<uint32_t>(prompt.tokens[i]) >= n_vocab) {
            return make_error(ErrorCode::kInvalidArgument,
                              "prompt token {} is {}: the vocabulary of model \"{}\" has the ids "
                              "0 to {}", i, prompt.tokens[i], model.name, n_vocab - 1);
        }
    }
    return prompt;
}

Result<void> check_prompt(const ServedModel& model, const RenderedPrompt& prompt, uint32_t more) {
    const ModelInfo& info = model.model->info();
    if (prompt.tokens.empty()) {
        return make_error(ErrorCode::kInvalidArgument, "the prompt is empty");
    }
    if (prompt.tokens.size() + more > info.context) {
        return make_error(ErrorCode::kLimit,
                          "the prompt has {} tokens{}: the context of model \"{}\" is {} tokens "
                          "(key context of its [[model]] section; the model was made for {})",
                          prompt.tokens.size(), more > 0 ? ", and one more must fit" : "",
                          model.name, info.context, info.context_max);
    }
    return {};
}

}  // namespace xp
