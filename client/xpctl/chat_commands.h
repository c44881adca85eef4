// The /commands of a chat: what they do to its state, and what they say. Nothing is printed or sent
// here.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/xpctl/answer.h"
#include "client/xpctl/connection.h"
#include "client/xpctl/conversation.h"
#include "client/xpctl/options.h"

namespace xp::ctl {

struct ChatState {
    RequestOptions settings;
    Conversation conversation;
    std::string unanswered;      // the last message, when it got no answer: for /retry
    std::optional<Answer> last;  // the last answer
};

// The names of the daemon's models; on failure an exit code that is not kExitOk.
using ListModels = std::function<Failure(std::vector<std::string>* names)>;

struct CommandResult {
    std::string say;                  // for the user; lines end with a newline
    int exit_code = 0;                // with which a script ends, unless 0; `say` tells why
    bool quit = false;
    std::optional<std::string> send;  // a message to send now
};

// `line` begins with '/'.
CommandResult run_chat_command(std::string_view line, ChatState* state,
                               const ListModels& list_models);

}  // namespace xp::ctl
