// Chat formats: messages to prompt tokens, and answers back to text, natively per model
// family (no template language). Structure comes as token ids from the format; everything a person
// or a tool wrote is encoded with SpecialTokens::kNone, and can never become a control token.
//
// A conversation needs something to answer: its last message other than system ones must be a
// user's, a developer's or, where the format takes tools, a tool's. Continuing an assistant's
// message is not supported. Only assistant messages have reasoning and tool calls. All else is
// kInvalidArgument and names the message by its index; what a format does not have is kUnsupported.
//
// DeepSeek-V4 (architecture deepseek4): BOS [effort prefix] system, then per turn <｜User｜>text,
// <｜Assistant｜> with <think>reasoning</think>text or </think>text, EOS; the prompt ends with
// <｜Assistant｜><think> (thinking) or <｜Assistant｜></think>. All system messages, wherever they
// stand, are joined with a blank line and come first; consecutive user and developer messages are
// one turn, joined the same way. Text between two structure tokens is encoded in one go. No tools.
//
// Kimi-K3 (architecture kimi-k3): XTML, where each message is an element, in the conversation's
// order: see chat_kimi.cc. Names of tags, keys, values and texts are encoded one by one. Developer
// messages are system messages there.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/text/answer.h"
#include "daemon/text/tokenizer.h"

namespace xp {

enum class ChatRole : uint8_t { kSystem, kDeveloper, kUser, kAssistant, kTool };

struct ChatToolCall {
    std::string id;
    std::string name;
    std::string arguments;  // as the model gave them: JSON of an object, or what should have been
};

struct ChatMessage {
    ChatRole role = ChatRole::kUser;
    std::string content;
    std::string reasoning;                      // assistant only
    std::string name = {};                      // who speaks; of a tool: the tool. Kimi-K3 only
    std::vector<ChatToolCall> tool_calls = {};  // assistant only
    std::string tool_call_id = {};              // tool only: the call it answers
    std::string tools_json = {};                // system only: declares further tools; no content
};

// How long the model is told to think; without thinking it has no effect. In DeepSeek-V4's format
// kLow adds nothing; kHigh and kMax put a fixed text of the model's authors in front, which is read
// from the model file's chat template: files with both texts have one for each; files with one text
// only (the preview models) use it for kMax, and kHigh adds nothing there; with none both are
// kUnsupported. Kimi-K3 has a system message for each; these three are all it takes.
enum class ReasoningEffort : uint8_t { kLow, kHigh, kMax };

enum class ToolChoice : uint8_t { kAuto, kNone, kRequired };

struct ChatOptions {
    bool thinking = false;
    ReasoningEffort effort = ReasoningEffort::kLow;
    // Renders assistant turns before the last user turn without their reasoning. DeepSeek-V4 only:
    // Kimi-K3 was trained to see it.
    bool drop_past_reasoning = true;
    std::string tools_json = {};  // a JSON array of tools; empty: none
    ToolChoice tool_choice = ToolChoice::kAuto;
    bool json_object = false;             // the answer shall be a JSON object
    std::string json_schema = {};         // the answer shall be JSON of this schema; empty: any
};

struct RenderedPrompt {
    std::vector<TokenId> tokens;
    // What generated text belongs to at first: kReasoning where thinking is on.
    OutputChannel first_channel = OutputChannel::kContent;
};

// Immutable; usable from any thread.
class ChatFormat {
public:
    // Picks the format by general.architecture and checks that the vocabulary has the tokens it
    // needs; kUnsupported where there is none (raw prompts still work). Keeps a pointer to the
    // tokenizer. `metadata` supplies model-specific texts (effort prefixes) from the file's own
    // chat template where they are needed.
    static Result<std::unique_ptr<ChatFormat>> create(const GgufMetadata& metadata,
                                                      const Tokenizer& tokenizer);
    virtual ~ChatFormat() = default;

    virtual Result<RenderedPrompt> render(const std::vector<ChatMessage>& messages,
                                          const ChatOptions& options) const = 0;
    // Reads what the model writes after a rendered prompt.
    virtual std::unique_ptr<AnswerReader> read_answer(OutputChannel first_channel) const = 0;
};

}  // namespace xp
