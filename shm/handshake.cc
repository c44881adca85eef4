#include "shm/handshake.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <sys/socket.h>
#include <unistd.h>

#include "shm/handshake_detail.h"

namespace xp::shm {
namespace {

// More than any message of ours carries, so that a peer that sends too many is told apart from one
// that sends the right number; what exceeds even this shows as MSG_CTRUNC.
constexpr size_t kMaxReceivedFds = 8;

// Reads that may fail before one counts: a signal, or the reset after a peer closed without reading
// all, which is reported once and before what the peer had sent (a refusal, say).
constexpr int kMaxReceiveTries = 16;

// Rings that one drain takes. Honest peers ring only sleepers, so one or two are waiting.
constexpr int kMaxDrain = 64;

void take_fds(msghdr* message, std::vector<Fd>* fds) {
    for (cmsghdr* c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; ++i) {
            int fd;
            std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
            fds->emplace_back(fd);
        }
    }
}

}  // namespace

namespace detail {

ReceiveStatus receive(int socket, std::span<std::byte> buffer, Datagram* datagram,
                      std::string* error) {
    alignas(cmsghdr) std::byte control[CMSG_SPACE(kMaxReceivedFds * sizeof(int))];
    iovec data{buffer.data(), buffer.size()};
    msghdr message{};
    ssize_t got = -1;
    for (int i = 0; i < kMaxReceiveTries; ++i) {
        message = {};
        message.msg_iov = &data;
        message.msg_iovlen = 1;
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (got >= 0 || (errno != EINTR && errno != ECONNRESET)) break;
    }
    if (got < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK) return ReceiveStatus::kAgain;
        *error = errno_text("cannot receive from the socket");
        return ReceiveStatus::kClosed;
    }
    // First of all, so that whatever happens next nothing leaks.
    datagram->fds.clear();
    take_fds(&message, &datagram->fds);
    if (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
        const bool full = datagram->fds.size() == kMaxReceivedFds;
        datagram->fds.clear();
        if (message.msg_flags & MSG_TRUNC) {
            *error = "a datagram is longer than any message";
        } else if (full) {
            *error = "descriptors of a datagram were cut";
        } else {
            // The kernel cuts them where the buffer ends, or where no more files may be open.
            datagram->too_many_open = true;
            errno = EMFILE;
            *error = errno_text("cannot take the descriptors of a datagram");
        }
        return ReceiveStatus::kBad;
    }
    // An empty datagram looks the same as a hang-up, and nobody honest sends one.
    if (got == 0) {
        *error = "the peer closed the connection";
        return ReceiveStatus::kClosed;
    }
    datagram->bytes = static_cast<size_t>(got);
    return ReceiveStatus::kOk;
}

bool send(int socket, const void* data, size_t bytes, std::span<const int> fds) {
    alignas(cmsghdr) std::byte control[CMSG_SPACE(kWelcomeFds * sizeof(int))] = {};
    iovec part{const_cast<void*>(data), bytes};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (!fds.empty()) {
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(fds.size_bytes());
        cmsghdr* c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(fds.size_bytes());
        std::memcpy(CMSG_DATA(c), fds.data(), fds.size_bytes());
    }
    ssize_t sent;
    do {
        sent = ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent == static_cast<ssize_t>(bytes);
}

std::string errno_text(std::string_view what) {
    char buffer[128];
    const char* limit = errno == EMFILE ? " (ulimit -n)" : "";
    // The GNU form returns the text, which need not be in the buffer.
    return std::string(what) + ": " + ::strerror_r(errno, buffer, sizeof buffer) + limit;
}

std::string printable(std::span<const char> field) {
    std::string text(field.begin(), std::find(field.begin(), field.end(), '\0'));
    for (char& c : text) {
        if (c < ' ' || c > '~') c = '?';
    }
    return text;
}

}  // namespace detail

const char* welcome_status_name(WelcomeStatus status) {
    switch (status) {
    case WelcomeStatus::kOk: return "ok";
    case WelcomeStatus::kBadVersion: return "bad_version";
    case WelcomeStatus::kNotAllowed: return "not_allowed";
    case WelcomeStatus::kTooManyClients: return "too_many_clients";
    case WelcomeStatus::kShuttingDown: return "shutting_down";
    case WelcomeStatus::kBadHello: return "bad_hello";
    case WelcomeStatus::kInternal: return "internal";
    }
    return "unknown";
}

bool send_notice(int socket, NoticeKind kind, uint64_t value, int enclosed) {
    const Notice notice{kNoticeMagic, static_cast<uint32_t>(kind), value};
    const std::span<const int> fds(&enclosed, enclosed >= 0 ? 1 : 0);
    return detail::send(socket, &notice, sizeof notice, fds);
}

ReceiveStatus receive_notice(int socket, Notice* notice, Fd* enclosed, std::string* error) {
    std::byte buffer[kMaxHelloBytes];
    detail::Datagram datagram;
    const ReceiveStatus status = detail::receive(socket, buffer, &datagram, error);
    if (status != ReceiveStatus::kOk) return status;
    if (datagram.bytes < sizeof *notice) {
        *error = "a notice of " + std::to_string(datagram.bytes) + " bytes is too short";
        return ReceiveStatus::kBad;
    }
    std::memcpy(notice, buffer, sizeof *notice);
    if (notice->magic != kNoticeMagic) {
        *error = "a datagram on the socket is no notice";
        return ReceiveStatus::kBad;
    }
    const bool encloses =
        enclosed != nullptr && notice->kind == static_cast<uint32_t>(NoticeKind::kEnclosed);
    if (datagram.fds.size() != (encloses ? 1 : 0)) {
        *error = "a notice of kind " + std::to_string(notice->kind) + " came with " +
                 std::to_string(datagram.fds.size()) + " descriptors";
        return ReceiveStatus::kBad;
    }
    if (encloses) *enclosed = std::move(datagram.fds.front());
    return ReceiveStatus::kOk;
}

void ring_bell(int bell) {
    const uint64_t ring = 1;
    // Errors need no answer: EAGAIN means that rings wait already, and that the peer is gone is
    // told by the connection's socket.
    if (::send(bell, &ring, sizeof ring, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno == ENOTSOCK) {
        (void)!::write(bell, &ring, sizeof ring);
    }
}

void drain_bell(int bell) {
    for (int i = 0; i < kMaxDrain; ++i) {
        uint64_t rings;
        ssize_t got = ::recv(bell, &rings, sizeof rings, MSG_DONTWAIT);
        if (got < 0 && errno == ENOTSOCK) got = ::read(bell, &rings, sizeof rings);
        // An interrupted read, or the reset after a peer disconnected its end, is not the end.
        if (got < 0 && errno != EINTR && errno != ECONNRESET) return;
    }
}

}  // namespace xp::shm
