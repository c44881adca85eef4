#include "daemon/serve/listener.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

namespace xp {
namespace {

// Connections that may wait to be accepted, for instance while a daemon restarts.
constexpr int kListenBacklog = 64;
constexpr size_t kMaxPathBytes = sizeof(sockaddr_un::sun_path) - 1;

Result<int> socket_option(int fd, int option) {
    int value = 0;
    socklen_t bytes = sizeof value;
    if (::getsockopt(fd, SOL_SOCKET, option, &value, &bytes) != 0) {
        return errno_error(errno, "the descriptor passed as \"control\"");
    }
    return value;
}

}  // namespace

Result<void> check_socket_path(const Path& path) {
    if (path.empty() || path.string().size() > kMaxPathBytes) {
        return make_error(ErrorCode::kInvalidArgument,
                          "the socket path {} has {} bytes; a socket address holds 1 to {} "
                          "([daemon] socket)", path.string(), path.string().size(), kMaxPathBytes);
    }
    const Path directory = path.has_parent_path() ? path.parent_path() : Path(".");
    // The dot asks for a directory.
    if (::faccessat(AT_FDCWD, (directory / ".").c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
        return errno_error(errno, fmt::format("cannot make the socket {} in {} ([daemon] socket: "
                                              "run as the service's user, or set another path)",
                                              path.string(), directory.string()));
    }
    struct stat info {};
    if (::lstat(path.c_str(), &info) != 0) {
        if (errno == ENOENT) {
            return {};
        }
        return errno_error(errno, fmt::format("cannot look at {}", path.string()));
    }
    if (!S_ISSOCK(info.st_mode)) {
        return make_error(ErrorCode::kInvalidArgument,
                          "{} exists and is {}, not a socket: remove it, or set another path "
                          "([daemon] socket)", path.string(),
                          S_ISLNK(info.st_mode) ? "a symbolic link" : "another kind of file");
    }
    return {};
}

Result<UniqueFd> lock_socket_path(const Path& path) {
    const Path lock_path = path.string() + ".lock";
    XP_TRY(UniqueFd lock, open_file(lock_path, O_RDWR | O_CREAT | O_NOFOLLOW, 0600));
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK) {
            return make_error(ErrorCode::kBusy,
                              "another expertpackd serves {} (it holds {}): stop it first, or set "
                              "another path ([daemon] socket)", path.string(), lock_path.string());
        }
        return errno_error(errno, fmt::format("cannot lock {}", lock_path.string()));
    }
    return lock;
}

Result<Listener> Listener::bind(const Path& path, UniqueFd lock) {
    XP_CHECK(check_socket_path(path));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.c_str(), path.string().size());
    // Whoever left it is dead: the lock is held.
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
        return errno_error(errno, fmt::format("cannot remove the old socket {}", path.string()));
    }

    Listener listener;
    listener.lock_ = std::move(lock);
    listener.socket_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!listener.socket_) {
        return errno_error(errno, "cannot create a socket");
    }
    if (::bind(listener.socket_.get(), reinterpret_cast<const sockaddr*>(&address),
               sizeof address) != 0) {
        return errno_error(errno, fmt::format("cannot bind the socket {}", path.string()));
    }
    struct stat info {};
    if (::lstat(path.c_str(), &info) != 0) {
        return errno_error(errno, fmt::format("cannot look at the new socket {}", path.string()));
    }
    listener.bound_path_ = path;
    listener.device_ = info.st_dev;
    listener.inode_ = info.st_ino;
    // Nobody can connect between bind and listen, so there is no moment with a wider mode.
    if (::chmod(path.c_str(), 0660) != 0) {
        return errno_error(errno, fmt::format("cannot set the mode of {}", path.string()));
    }
    if (::listen(listener.socket_.get(), kListenBacklog) != 0) {
        return errno_error(errno, fmt::format("cannot listen on {}", path.string()));
    }
    return listener;
}

Result<Listener> Listener::adopt(UniqueFd socket) {
    XP_TRY(const int domain, socket_option(socket.get(), SO_DOMAIN));
    XP_TRY(const int type, socket_option(socket.get(), SO_TYPE));
    XP_TRY(const int listening, socket_option(socket.get(), SO_ACCEPTCONN));
    if (domain != AF_UNIX || type != SOCK_SEQPACKET || listening == 0) {
        return make_error(ErrorCode::kInvalidArgument,
                          "the descriptor passed as \"control\" is no listening Unix SEQPACKET "
                          "socket: the socket unit needs ListenSequentialPacket=");
    }
    const int flags = ::fcntl(socket.get(), F_GETFL);
    if (flags < 0 || ::fcntl(socket.get(), F_SETFL, flags | O_NONBLOCK) != 0 ||
        ::fcntl(socket.get(), F_SETFD, FD_CLOEXEC) != 0) {
        return errno_error(errno, "the descriptor passed as \"control\"");
    }
    Listener listener;
    listener.socket_ = std::move(socket);
    return listener;
}

bool Listener::reachable() const {
    if (bound_path_.empty()) {
        return true;
    }
    struct stat info {};
    if (::lstat(bound_path_.c_str(), &info) != 0) {
        // Any other failure says nothing about the file.
        return errno != ENOENT && errno != ENOTDIR;
    }
    return info.st_dev == device_ && info.st_ino == inode_;
}

void Listener::close() {
    if (socket_ && !bound_path_.empty() && reachable()) {
        ::unlink(bound_path_.c_str());
    }
    socket_.reset();
    lock_.reset();
}

}  // namespace xp
