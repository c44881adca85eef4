// Chat rendering: messages to prompt tokens, natively per model family (no template language).
// Structure comes as token ids from the renderer; everything a person wrote is encoded with
// SpecialTokens::kNone, so that user text can never become a control token.
//
// DeepSeek-V4: BOS [effort prefix] system, then per turn <｜User｜>text, <｜Assistant｜> with
// <think>reasoning</think>text or </think>text, EOS; the prompt ends with <｜Assistant｜><think>
// (thinking) or <｜Assistant｜></think>. All system messages, wherever they stand, are joined with a
// blank line and come first; consecutive user and developer messages are one turn, joined the same
// way. Text between two structure tokens is encoded in one go.
//
// A conversation needs a user or developer message, and its last message other than system ones
// must be one: there must be something to answer, and continuing an assistant's message is not
// supported. Only assistant messages have reasoning. All else is kInvalidArgument and names the
// message by its index. Messages of tools are kUnsupported.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/text/tokenizer.h"

namespace xp {

enum class ChatRole : uint8_t { kSystem, kDeveloper, kUser, kAssistant, kTool };

struct ChatMessage {
    ChatRole role = ChatRole::kUser;
    std::string content;
    std::string reasoning;  // assistant only
};

// How long the model is told to think; without thinking it has no effect. kLow adds nothing. kHigh
// and kMax put a fixed text of the model's authors in front, which is read from the model file's
// chat template: files with both texts have one for each; files with one text only (the preview
// models) use it for kMax, and kHigh adds nothing there; with none both are kUnsupported.
enum class ReasoningEffort : uint8_t { kLow, kHigh, kMax };

struct ChatOptions {
    bool thinking = false;
    ReasoningEffort effort = ReasoningEffort::kLow;
    // Renders assistant turns before the last user turn without their reasoning.
    bool drop_past_reasoning = true;
};

// What generated text belongs to. The state right after a rendered prompt is kReasoning when the
// prompt ends in <think>, else kContent.
enum class OutputChannel : uint8_t { kContent, kReasoning };

struct RenderedPrompt {
    std::vector<TokenId> tokens;
    OutputChannel first_channel = OutputChannel::kContent;
};

class ChatFormat {
public:
    // Picks the format by general.architecture and checks that the vocabulary has the tokens it
    // needs; kUnsupported where there is none (raw prompts still work). Keeps a pointer to the
    // tokenizer. `metadata` supplies model-specific texts (effort prefixes) from the file's own
    // chat template where they are needed.
    static Result<ChatFormat> create(const GgufMetadata& metadata, const Tokenizer& tokenizer);

    Result<RenderedPrompt> render(const std::vector<ChatMessage>& messages,
                                  const ChatOptions& options) const;

    // The token that switches from reasoning to content (</think>).
    TokenId end_of_reasoning() const { return think_end_; }

private:
    void read_effort_prefixes(const GgufMetadata& metadata);
    Result<std::string> effort_prefix(const ChatOptions& options) const;

    const Tokenizer* tokenizer_ = nullptr;
    TokenId bos_ = 0, eos_ = 0, user_ = 0, assistant_ = 0, think_begin_ = 0, think_end_ = 0;
    std::string high_prefix_, max_prefix_;
    bool has_effort_prefixes_ = false;  // the file has at least one
};

}  // namespace xp
