// The chat formats behind ChatFormat::create(), and what they share.
#pragma once

#include <initializer_list>
#include <memory>
#include <string_view>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/text/chat.h"

namespace xp {

Result<std::unique_ptr<ChatFormat>> make_deepseek_chat(const GgufMetadata& metadata,
                                                       const Tokenizer& tokenizer);
Result<std::unique_ptr<ChatFormat>> make_kimi_chat(const Tokenizer& tokenizer);

// A structure token by its text, and where its id goes.
struct StructureToken {
    std::string_view text;
    TokenId* id;
};
// kUnsupported, naming the token, where one is missing or no special token: ordinary ones are
// within reach of what users write.
Result<void> find_structure(const Tokenizer& tokenizer, std::string_view architecture,
                            std::initializer_list<StructureToken> tokens);

std::string_view role_name(ChatRole role);

// What chat.h asks of a conversation.
Result<void> check_conversation(const std::vector<ChatMessage>& messages,
                                const ChatOptions& options, bool has_tools);

}  // namespace xp
