// The lines that were typed in chats, for the arrow keys: a text file with one line each, oldest
// first, in $XDG_STATE_HOME/expertpack/chat_history, readable by its owner only.
//
// Lines are appended as they are typed, so that chats in several terminals share the file and a
// crash loses nothing; it is cut to the newest lines when a chat begins. Both lock it.
// Errors are no reason not to chat: there is no history then.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace xp::ctl {

inline constexpr size_t kHistoryLines = 1000;
// Longer ones are pasted texts that nobody wants to scroll through.
inline constexpr size_t kHistoryLineBytes = 4096;

class ChatHistory {
public:
    // The file's usual place; "" when the environment names none.
    static std::string default_path();

    // Opens the file and makes it and its folders where needed. "": no file, lines are forgotten.
    explicit ChatHistory(const std::string& path);

    const std::vector<std::string>& lines() const { return lines_; }
    void append(std::string_view line);

private:
    void load();
    void cut() const;

    std::string path_;                // "": no file
    std::vector<std::string> lines_;  // as they were at the beginning
};

}  // namespace xp::ctl
