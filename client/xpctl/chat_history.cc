#include "client/xpctl/chat_history.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/xpctl/output.h"
#include "client/xpctl/request.h"
#include "shm/codec.h"
#include "shm/fd.h"

namespace xp::ctl {
namespace {

bool wanted(std::string_view line) {
    return !line.empty() && line.size() <= kHistoryLineBytes &&
           std::none_of(line.begin(), line.end(),
                        [](char c) { return c == '\n' || c == '\0'; }) &&
           shm::is_valid_utf8(line);
}

// The file that has the name now, locked: whoever cuts it gives the name to another.
shm::Fd open_locked(const std::string& path) {
    for (int attempt = 0; attempt < 10; ++attempt) {
        // O_NONBLOCK: a FIFO of that name must not stop the chat.
        shm::Fd file(::open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK,
                            0600));
        struct stat held {};
        struct stat named {};
        if (!file || ::fstat(file.get(), &held) != 0 || !S_ISREG(held.st_mode) ||
            ::flock(file.get(), LOCK_EX) != 0) {
            return {};
        }
        if (::stat(path.c_str(), &named) == 0 && named.st_ino == held.st_ino &&
            named.st_dev == held.st_dev) {
            return file;
        }
    }
    return {};
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
    // The file itself, where the name is a link to it: cutting replaces the file.
    char* real = ::realpath(path.c_str(), nullptr);
    path_ = real ? real : path;
    std::free(real);
    load();
}

void ChatHistory::append(std::string_view line) {
    if (path_.empty() || !wanted(line)) return;
    const shm::Fd file = open_locked(path_);
    // A full disk costs the line.
    if (file) (void)write_all(file.get(), std::string(line) + "\n");
}

void ChatHistory::load() {
    const shm::Fd file = open_locked(path_);
    if (!file) {
        path_.clear();
        return;
    }
    Failure ignored;
    const std::optional<std::string> text = read_input(file.get(), path_, &ignored);
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
    if (in_file > lines_.size()) cut();
}

// With the file locked, so that no line of another chat comes in between.
void ChatHistory::cut() const {
    std::string text;
    for (const std::string& line : lines_) text += line + "\n";
    std::string temporary = path_ + ".XXXXXX";
    const shm::Fd fd(::mkostemp(temporary.data(), O_CLOEXEC));
    if (!fd) return;
    if (write_all(fd.get(), text) != WriteStatus::kOk ||
        ::rename(temporary.c_str(), path_.c_str()) != 0) {
        ::unlink(temporary.c_str());
    }
}

}  // namespace xp::ctl
