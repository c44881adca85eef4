#include <bit>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "shm/deadline.h"
#include "shm/handshake.h"
#include "shm/handshake_detail.h"

namespace xp::shm {
namespace {

ConnectStatus system_status(int why) {
    return why == ENOMEM || why == ENOBUFS ? ConnectStatus::kNoMemory : ConnectStatus::kSystem;
}

ConnectStatus connect_error(std::string_view path, std::string* error) {
    const int why = errno;
    std::string what = detail::errno_text("cannot connect to " + std::string(path));
    switch (why) {
    case ENOENT:
    case ENOTDIR:
    case ECONNREFUSED:
        *error = what + " (is expertpackd running?)";
        return ConnectStatus::kUnavailable;
    case ELOOP:
        *error = std::move(what);
        return ConnectStatus::kUnavailable;
    case EACCES:
    case EPERM:
        *error = what + " (is this user a member of the socket's group?)";
        return ConnectStatus::kUnavailable;
    case EPROTOTYPE:
        *error = what + " (another program's socket?)";
        return ConnectStatus::kUnavailable;
    case EAGAIN:
        *error = what + " (the daemon did not accept the connection in time)";
        return ConnectStatus::kTimeout;
    default:
        *error = std::move(what);
        return system_status(why);
    }
}

// A unix socket's connect() blocks while the listener's backlog is full, and a non-blocking one
// fails at once instead of finishing later; so the wait is a send timeout on a blocking socket.
ConnectStatus connect_socket(std::string_view path, const Deadline& deadline, Fd* socket,
                             std::string* error) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.empty() || path.size() >= sizeof address.sun_path) {
        *error = "the socket path '" + std::string(path) + "' must have 1 to " +
                 std::to_string(sizeof address.sun_path - 1) + " bytes";
        return ConnectStatus::kBadPath;
    }
    path.copy(address.sun_path, path.size());

    socket->reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (!*socket) {
        const int why = errno;
        *error = detail::errno_text("cannot create a socket");
        return system_status(why);
    }
    int result;
    do {
        const int left_ms = deadline.left_ms();
        if (left_ms == 0) ::fcntl(socket->get(), F_SETFL, O_NONBLOCK);
        const timeval wait{left_ms < 0 ? 0 : left_ms / 1000,
                           left_ms < 0 ? 0 : (left_ms % 1000) * 1000};
        ::setsockopt(socket->get(), SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
        result = ::connect(socket->get(), reinterpret_cast<const sockaddr*>(&address),
                           sizeof address);
    } while (result != 0 && errno == EINTR);
    if (result != 0) return connect_error(path, error);
    if (::fcntl(socket->get(), F_SETFL, O_NONBLOCK) != 0) {
        *error = detail::errno_text("cannot make the socket non-blocking");
        return ConnectStatus::kSystem;
    }
    return ConnectStatus::kOk;
}

ConnectStatus receive_welcome(int socket, const Deadline& deadline, Welcome* welcome,
                              std::vector<Fd>* fds, std::string* error) {
    std::byte buffer[kMaxHelloBytes];
    detail::Datagram datagram;
    for (;;) {
        const ReceiveStatus status = detail::receive(socket, buffer, &datagram, error);
        if (status == ReceiveStatus::kOk) break;
        if (status == ReceiveStatus::kBad) {
            return datagram.too_many_open ? ConnectStatus::kSystem : ConnectStatus::kProtocol;
        }
        if (status == ReceiveStatus::kClosed) {
            *error = "the daemon closed the connection without an answer";
            return ConnectStatus::kUnavailable;
        }
        const int left_ms = deadline.left_ms();
        if (left_ms == 0) {
            *error = "the daemon did not answer in time";
            return ConnectStatus::kTimeout;
        }
        pollfd wait{socket, POLLIN, 0};
        // EINTR included: the loop looks again and knows what is left.
        (void)::poll(&wait, 1, left_ms);
    }
    if (datagram.bytes < sizeof *welcome) {
        *error = "the daemon's welcome is too short";
        return ConnectStatus::kProtocol;
    }
    std::memcpy(welcome, buffer, sizeof *welcome);
    if (welcome->magic != kWelcomeMagic) {
        *error = "what answered is no expertpackd";
        return ConnectStatus::kProtocol;
    }
    *fds = std::move(datagram.fds);
    return ConnectStatus::kOk;
}

// The status and the numbers of a Welcome that has the right form.
ConnectStatus check_welcome(const Welcome& welcome, size_t n_fds, std::string* error) {
    const auto status = static_cast<WelcomeStatus>(welcome.status);
    if (status != WelcomeStatus::kOk) {
        const std::string text = detail::printable(welcome.text);
        *error = "the daemon refused the connection (" +
                 std::string(welcome_status_name(status)) + ")" + (text.empty() ? "" : ": ") + text;
        return status == WelcomeStatus::kBadVersion ? ConnectStatus::kBadVersion
                                                    : ConnectStatus::kRefused;
    }
    if (welcome.abi_major != kAbiMajor || welcome.abi_minor > kAbiMinor) {
        *error = "the daemon welcomed with protocol version " + std::to_string(welcome.abi_major) +
                 "." + std::to_string(welcome.abi_minor) + ", which was not offered";
        return ConnectStatus::kBadVersion;
    }
    if (welcome.fds != kWelcomeFds || n_fds != kWelcomeFds) {
        *error = "the daemon's welcome came with " + std::to_string(n_fds) + " descriptors, not " +
                 std::to_string(kWelcomeFds);
        return ConnectStatus::kProtocol;
    }
    for (const uint32_t bytes : {welcome.req_ring_bytes, welcome.resp_ring_bytes}) {
        if (!std::has_single_bit(bytes) || bytes < kMinRingBytes || bytes > kMaxRingBytes) {
            *error = "the daemon chose the impossible ring size " + std::to_string(bytes);
            return ConnectStatus::kProtocol;
        }
    }
    return ConnectStatus::kOk;
}

// Maps a segment after making sure that it has, and keeps, the size that it claims: a file that
// could shrink would kill this process by SIGBUS.
ConnectStatus map_segment(int fd, uint32_t magic, uint64_t data_bytes, int protection,
                          Mapping* mapping, std::string* error) {
    const uint64_t total = kDataOffset + data_bytes;
    struct stat info{};
    if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) ||
        static_cast<uint64_t>(info.st_size) != total) {
        *error = "the daemon's shared memory does not have the size that it announced";
        return ConnectStatus::kProtocol;
    }
    constexpr int kNeeded = F_SEAL_SHRINK | F_SEAL_GROW;
    const int seals = ::fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & kNeeded) != kNeeded) {
        *error = "the daemon's shared memory is not sealed";
        return ConnectStatus::kProtocol;
    }
    void* base = ::mmap(nullptr, total, protection, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        const int why = errno;
        *error = detail::errno_text("cannot map the daemon's shared memory");
        return system_status(why);
    }
    *mapping = Mapping(base, total);
    // A child of fork could not share the connection sensibly: it shall not even see it.
    ::madvise(base, total, MADV_DONTFORK);

    SegmentHeader header;
    std::memcpy(&header, base, sizeof header);
    if (header.magic != magic || header.abi_major != kAbiMajor || header.total_bytes != total ||
        header.data_offset != kDataOffset || header.data_bytes != data_bytes) {
        *error = "the header of the daemon's shared memory is not the one announced";
        return ConnectStatus::kProtocol;
    }
    return ConnectStatus::kOk;
}

}  // namespace

ConnectStatus connect_channel(std::string_view path, const Hello& hello, int timeout_ms,
                              ClientChannel* channel, std::string* error) {
    const Deadline deadline(timeout_ms);
    ClientChannel fresh;
    ConnectStatus status = connect_socket(path, deadline, &fresh.socket, error);
    if (status != ConnectStatus::kOk) return status;
    // A daemon that refuses at once may have hung up already: its reason is still there to read.
    if (!detail::send(fresh.socket.get(), &hello, sizeof hello, {}) && errno != EPIPE &&
        errno != ECONNRESET) {
        *error = detail::errno_text("cannot send the hello");
        return ConnectStatus::kSystem;
    }
    std::vector<Fd> fds;
    status = receive_welcome(fresh.socket.get(), deadline, &fresh.welcome, &fds, error);
    if (status != ConnectStatus::kOk) return status;
    status = check_welcome(fresh.welcome, fds.size(), error);
    if (status != ConnectStatus::kOk) {
        channel->welcome = fresh.welcome;
        return status;
    }

    status = map_segment(fds[0].get(), kRequestMagic, fresh.welcome.req_ring_bytes,
                         PROT_READ | PROT_WRITE, &fresh.req, error);
    if (status != ConnectStatus::kOk) return status;
    status = map_segment(fds[1].get(), kResponseMagic, fresh.welcome.resp_ring_bytes, PROT_READ,
                         &fresh.resp, error);
    if (status != ConnectStatus::kOk) return status;
    fresh.req_bell = std::move(fds[2]);
    fresh.resp_bell = std::move(fds[3]);
    *channel = std::move(fresh);
    return ConnectStatus::kOk;
}

}  // namespace xp::shm
