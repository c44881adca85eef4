// A chat as this program keeps it: a system message and turns of a message and its answer. Turns
// are always whole: what got no answer is not part of it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/expertpack.hpp"

namespace xp::ctl {

struct Turn {
    std::string user;
    std::string answer;
    std::string reasoning;  // of the answer; the model's chat format decides what it still sees
};

struct Conversation {
    std::string system;     // "": none
    std::vector<Turn> turns;

    // Adds all messages, and `user` as the last one.
    void add_to(expertpack::Generate* request, std::string_view user) const;
};

// As a file: {"format": "expertpack-chat", "messages": [{"role": .., "content": ..}, ...]}.
// Readable by its owner only. Replaces an existing file when that is a saved chat, and no other;
// where the name is a symbolic link, the file it leads to.
// Return an error's text, or "".
std::string save_conversation(const Conversation& conversation, const std::string& path);
std::string load_conversation(const std::string& path, Conversation* conversation);

// Of such a file's text.
std::optional<Conversation> parse_conversation(std::string_view json, std::string* error);

}  // namespace xp::ctl
