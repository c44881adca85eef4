#include "client/xpctl/chat_history.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/xpctl/output.h"
#include "client/xpctl/request.h"
#include "shm/codec.h"

namespace xp::ctl {
namespace {

bool wanted(std::string_view line) {
    return !line.empty() && line.size() <= kHistoryLineBytes &&
           std::none_of(line.begin(), line.end(),
                        [](char c) { return c == '\n' || c == '\0'; }) &&
           shm::is_valid_utf8(line);
}

void make_folders(const std::string& path) {
    for (size_t slash = path.find('/', 1); slash != std::string::npos;
         slash = path.find('/', slash + 1)) {
        ::mkdir(path.substr(0, slash).c_str(), 0700);  // those that exist are left as they are
    }
}

}  // namespace

std::string ChatHistory::default_path() {
    constexpr char kFile[] = "/expertpack/chat_history";
    // The XDG specification: paths that are not absolute are ignored.
    const char* state = std::getenv("XDG_STATE_HOME");
    if (state && *state == '/') return std::string(state) + kFile;
    const char* home = std::getenv("HOME");
    return home && *home == '/' ? std::string(home) + "/.local/state" + kFile : std::string();
}

ChatHistory::ChatHistory(const std::string& path) {
    if (path.empty()) return;
    make_folders(path);
    // O_NONBLOCK: a FIFO of that name must not stop the chat.
    file_.reset(::open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600));
    struct stat status {};
    if (file_ && ::fstat(file_.get(), &status) == 0 && S_ISREG(status.st_mode)) {
        load(path);
    } else {
        file_.reset();
    }
}

void ChatHistory::append(std::string_view line) {
    if (!file_ || !wanted(line)) return;
    // One write, so that lines of several chats do not mix. A full disk costs the line.
    (void)write_all(file_.get(), std::string(line) + "\n");
}

void ChatHistory::load(const std::string& path) {
    Failure ignored;
    const std::optional<std::string> text = read_input(file_.get(), path, &ignored);
    if (!text) return;
    std::string_view rest = *text;
    size_t in_file = 0;
    while (!rest.empty()) {
        const size_t end = std::min(rest.find('\n'), rest.size());
        ++in_file;
        if (wanted(rest.substr(0, end))) lines_.emplace_back(rest.substr(0, end));
        rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    if (lines_.size() > kHistoryLines) {
        lines_.erase(lines_.begin(), lines_.end() - static_cast<ptrdiff_t>(kHistoryLines));
    }
    if (in_file > lines_.size()) cut(path);
}

void ChatHistory::cut(const std::string& path) {
    std::string text;
    for (const std::string& line : lines_) text += line + "\n";
    std::string temporary = path + ".XXXXXX";
    shm::Fd fd(::mkostemp(temporary.data(), O_APPEND | O_CLOEXEC));
    if (!fd) return;
    if (write_all(fd.get(), text) == WriteStatus::kOk &&
        ::rename(temporary.c_str(), path.c_str()) == 0) {
        file_ = std::move(fd);
    } else {
        ::unlink(temporary.c_str());
    }
}

}  // namespace xp::ctl
