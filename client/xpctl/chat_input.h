// Messages as a person types them, or as lines of a pipe.
//
// A line ending with \ goes on in the next one; """ begins and ends a text of several lines. The
// end of input ends a message that was begun.
#pragma once

#include <memory>
#include <string>

#include "client/xpctl/chat_history.h"

namespace xp::ctl {

enum class InputStatus {
    kOk,
    kInterrupted,  // Ctrl-C; see forget_interrupt()
    kEnd,          // Ctrl-D, or the end of the file
    kFailed        // reading failed, or a line is longer than any daemon takes
};

// Where lines come from.
class LineSource {
public:
    virtual ~LineSource() = default;
    // Without its newline. `prompt` is shown where there is somebody to see it.
    virtual InputStatus read(const char* prompt, std::string* line) = 0;
};

// As they are: of a pipe or file, or a terminal that cannot move its cursor.
std::unique_ptr<LineSource> plain_lines(int fd, bool show_prompt);
// Edited on the terminal that standard input and error are. `history` outlives it. Sets the locale
// of characters, as libedit depends on it. NULL when libedit refuses.
std::unique_ptr<LineSource> edited_lines(ChatHistory* history);

struct ChatMessage {
    std::string text;
    bool verbatim = false;  // written between """: no command
};
InputStatus read_message(LineSource& lines, ChatMessage* message);

}  // namespace xp::ctl
