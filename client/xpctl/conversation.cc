#include "client/xpctl/conversation.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "client/xpctl/json.h"
#include "client/xpctl/output.h"
#include "client/xpctl/request.h"
#include "shm/fd.h"

namespace xp::ctl {
namespace {

constexpr char kFormat[] = "expertpack-chat";

Json conversation_object(const Conversation& conversation) {
    Json messages = Json::array();
    if (!conversation.system.empty()) {
        messages.push_back({{"role", "system"}, {"content", conversation.system}});
    }
    for (const Turn& turn : conversation.turns) {
        messages.push_back({{"role", "user"}, {"content", turn.user}});
        Json answer = {{"role", "assistant"}, {"content", turn.answer}};
        if (!turn.reasoning.empty()) answer["reasoning"] = turn.reasoning;
        messages.push_back(std::move(answer));
    }
    return {{"format", kFormat}, {"messages", std::move(messages)}};
}

// A member that is a text, or nothing.
std::optional<std::string> text_member(const Json& object, const char* key) {
    if (!object.is_object()) return std::nullopt;
    const auto member = object.find(key);
    if (member == object.end() || !member->is_string()) return std::nullopt;
    return member->get<std::string>();
}

std::string cannot(const char* what, const std::string& path) {
    return fmt::format("cannot {} {}: {}", what, echoed(path), errno_text(errno));
}

// "~" and "~/" at the beginning of a path, which no shell has seen. Without a home there is no such
// directory, which opening a file there then says.
std::string expand_home(const std::string& path) {
    if (path == "~") return expand_home("~/");
    const char* home = std::getenv("HOME");
    return path.starts_with("~/") && home && *home ? home + path.substr(1) : path;
}

// What `path` names in the end: a rename to a link would put a file in the link's place. Also where
// the last link's file does not exist yet.
std::string end_of_links(const std::string& path) {
    constexpr int kMostLinks = 40;  // as many as the kernel follows
    std::filesystem::path end = path;
    std::error_code error;
    for (int i = 0; i < kMostLinks; ++i) {
        const std::filesystem::path next = std::filesystem::read_symlink(end, error);
        if (error) break;
        end = end.parent_path() / next;  // next, where that is absolute
    }
    return end;
}

}  // namespace

void Conversation::add_to(expertpack::Generate* request, std::string_view user) const {
    if (!system.empty()) request->message(XP_ROLE_SYSTEM, system);
    for (const Turn& turn : turns) {
        request->message(XP_ROLE_USER, turn.user).message(XP_ROLE_ASSISTANT, turn.answer);
        if (!turn.reasoning.empty()) request->reasoning(turn.reasoning);
    }
    request->message(XP_ROLE_USER, user);
}

std::optional<Conversation> parse_conversation(std::string_view json, std::string* error) {
    const Json file = Json::parse(json, nullptr, false);
    if (text_member(file, "format") != kFormat || !file.contains("messages") ||
        !file.at("messages").is_array()) {
        *error = "it is no saved chat";
        return std::nullopt;
    }
    Conversation conversation;
    bool asked = false;  // the last message is a user's
    size_t position = 0;
    for (const Json& message : file.at("messages")) {
        ++position;
        const std::optional<std::string> role = text_member(message, "role");
        const std::optional<std::string> content = text_member(message, "content");
        if (role && content && *role == "system" && position == 1) {
            conversation.system = *content;
        } else if (role && content && *role == "user" && !asked) {
            conversation.turns.push_back({*content, "", ""});
            asked = true;
        } else if (role && content && *role == "assistant" && asked) {
            conversation.turns.back().answer = *content;
            conversation.turns.back().reasoning = text_member(message, "reasoning").value_or("");
            asked = false;
        } else {
            *error = fmt::format("its message {} is not what has its place there: a system message "
                                 "at first, then a user's and an assistant's in turn", position);
            return std::nullopt;
        }
    }
    if (asked) {
        *error = "its last message has no answer";
        return std::nullopt;
    }
    return conversation;
}

std::string load_conversation(const std::string& file, Conversation* conversation) {
    const std::string path = expand_home(file);
    const shm::Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!fd) return cannot("open", path);
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
        return fmt::format("cannot load {}: it is no regular file", echoed(path));
    }
    Failure failure;
    const std::optional<std::string> text = read_input(fd.get(), echoed(path), &failure);
    if (!text) return failure.message;
    std::string error;
    std::optional<Conversation> loaded = parse_conversation(*text, &error);
    if (!loaded) return fmt::format("cannot load {}: {}", echoed(path), error);
    *conversation = std::move(*loaded);
    return {};
}

std::string save_conversation(const Conversation& conversation, const std::string& file) {
    const std::string path = expand_home(file);
    struct stat status {};
    if (::stat(path.c_str(), &status) == 0) {
        Conversation saved;
        if (!load_conversation(path, &saved).empty()) {
            return fmt::format("{} exists and is no saved chat: choose another name",
                               echoed(path));
        }
    } else if (errno != ENOENT) {
        return cannot("write", path);  // links in a circle, too long a name, no access
    }
    // Written beside it and renamed, so that a full disk costs no older chat.
    const std::string target = end_of_links(path);
    // Not a longer name than the file's, which may be as long as the file system allows.
    std::string temporary = std::filesystem::path(target).replace_filename(".xpctl-XXXXXX");
    const shm::Fd fd(::mkostemp(temporary.data(), O_CLOEXEC));  // mode 0600
    if (!fd) return cannot("write", path);
    const bool written =
        write_all(fd.get(), json_line(conversation_object(conversation))) == WriteStatus::kOk &&
        ::fsync(fd.get()) == 0 && ::rename(temporary.c_str(), target.c_str()) == 0;
    if (written) return {};
    const std::string error = cannot("write", path);
    ::unlink(temporary.c_str());
    return error;
}

}  // namespace xp::ctl
