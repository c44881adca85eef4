#include "tests/hostile/raw_client.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <poll.h>
#include <sys/mman.h>
#include <sys/un.h>
#include <unistd.h>

#include "shm/deadline.h"

namespace xp::hostile {
namespace {

// Between two looks at the response ring: this client does not trust its bell to be unspoiled.
constexpr int kLookMs = 2;

uint64_t load(const std::byte* at) {
    return std::atomic_ref<uint64_t>(
               *reinterpret_cast<uint64_t*>(const_cast<std::byte*>(at)))
        .load(std::memory_order_acquire);
}

void sleep_ms(int ms) {
    ::usleep(static_cast<useconds_t>(ms) * 1000);
}

}  // namespace

void give_up(const std::string& what) {
    std::fprintf(stderr, "cannot set up: %s: %s\n", what.c_str(), std::strerror(errno));
    std::_Exit(3);
}

int checked(int result, const char* what) {
    if (result < 0) give_up(what);
    return result;
}

shm::Hello hello() {
    shm::Hello hello;
    std::strcpy(hello.client_name, "hostile");
    hello.req_ring_bytes = shm::kMinRingBytes;
    hello.resp_ring_bytes = shm::kMinRingBytes;
    return hello;
}

ssize_t send_datagram(int socket, const void* data, size_t bytes, std::span<const int> fds) {
    std::vector<std::byte> control(CMSG_SPACE(fds.size_bytes()));
    iovec part{const_cast<void*>(data), bytes};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (!fds.empty()) {
        message.msg_control = control.data();
        message.msg_controllen = control.size();
        cmsghdr* c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(fds.size_bytes());
        std::memcpy(CMSG_DATA(c), fds.data(), fds.size_bytes());
    }
    const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
    return sent < 0 ? -errno : sent;
}

RawClient::RawClient(const std::string& socket_path)
    : socket_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, socket_path.c_str(), sizeof address.sun_path - 1);
    checked(::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address),
            "connect");
}

bool RawClient::greet(const shm::Hello& greeting) {
    return send_datagram(socket_.get(), &greeting, sizeof greeting) ==
               static_cast<ssize_t>(sizeof greeting) &&
           take_welcome();
}

bool RawClient::take_welcome() {
    pollfd poll{socket_.get(), POLLIN, 0};
    if (::poll(&poll, 1, kPatienceMs) <= 0) return false;
    alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int) * shm::kWelcomeFds)];
    iovec part{&welcome_, sizeof welcome_};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    if (::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC) < ssize_t{sizeof welcome_}) {
        return false;
    }
    if (welcome_.status != 0) return false;
    const cmsghdr* c = CMSG_FIRSTHDR(&message);
    if (!c || c->cmsg_len != CMSG_LEN(sizeof(int) * shm::kWelcomeFds)) return false;
    int fds[shm::kWelcomeFds];
    std::memcpy(fds, CMSG_DATA(c), sizeof fds);
    for (int i = 0; i < shm::kWelcomeFds; ++i) fds_[i].reset(fds[i]);
    const auto map = [](int fd, uint64_t data_bytes, int protection) {
        const size_t bytes = shm::kDataOffset + data_bytes;
        void* base = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
        if (base == MAP_FAILED) give_up("mmap of a segment");
        return shm::Mapping(base, bytes);
    };
    req_map_ = map(fds[0], ring_bytes(), PROT_READ | PROT_WRITE);
    resp_map_ = map(fds[1], reply_ring_bytes(), PROT_READ);
    return true;
}

bool RawClient::refused_with(shm::WelcomeStatus status) {
    return !take_welcome() && welcome_.magic == shm::kWelcomeMagic &&
           welcome_.status == static_cast<uint32_t>(status) && closed();
}

void RawClient::store(uint64_t offset, uint64_t value) {
    std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(req_map_.base() + offset))
        .store(value, std::memory_order_seq_cst);
}

void RawClient::store_wait(uint32_t value) {
    std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(req_map_.base() + shm::kWaitOffset))
        .store(value, std::memory_order_seq_cst);
}

void RawClient::put(uint64_t ring_offset, std::span<const std::byte> bytes) {
    std::memcpy(ring_base() + ring_offset, bytes.data(), bytes.size());
}

void RawClient::put_header(uint64_t ring_offset, shm::RecordHeader header) {
    put(ring_offset, std::as_bytes(std::span(&header, 1)));
}

void RawClient::publish(uint64_t tail) {
    tail_ = tail;
    store(shm::kTailOffset, tail);
    ring();
}

void RawClient::ring() {
    const uint64_t one = 1;
    (void)!::send(req_bell().get(), &one, sizeof one, MSG_DONTWAIT | MSG_NOSIGNAL);
}

// Waits until the daemon has consumed enough.
bool RawClient::room_for(uint64_t bytes) {
    const shm::Deadline deadline(kPatienceMs);
    while (ring_bytes() - (tail_ - load(resp_map_.base() + shm::kHeadOffset)) < bytes) {
        if (deadline.left_ms() == 0) return false;
        sleep_ms(kLookMs);
    }
    return true;
}

bool RawClient::write(uint64_t id, std::span<const std::byte> body) {
    const uint64_t length = (sizeof(shm::RecordHeader) + body.size() + 7) / 8 * 8;
    const uint64_t to_end = ring_bytes() - tail_ % ring_bytes();
    const uint64_t pad = to_end < length ? to_end : 0;
    if (!room_for(pad + length)) return false;
    uint64_t at = tail_ % ring_bytes();
    if (pad != 0) {
        const shm::RecordHeader header{static_cast<uint32_t>(pad), 1, 0, 0};
        put(at, std::as_bytes(std::span(&header, 1)).first(std::min<size_t>(pad, sizeof header)));
        at = 0;
    }
    put_header(at, {static_cast<uint32_t>(length), 2, 0, id});
    put(at + sizeof(shm::RecordHeader), body);
    std::memset(ring_base() + at + sizeof(shm::RecordHeader) + body.size(), 0,
                length - sizeof(shm::RecordHeader) - body.size());
    publish(tail_ + pad + length);
    return true;
}

bool RawClient::write(uint64_t id, const shm::Request& request) {
    return write(id, shm::encode_request(request));
}

std::optional<Answer> RawClient::next(int timeout_ms) {
    const shm::Deadline deadline(timeout_ms);
    const std::byte* data = resp_map_.base() + shm::kDataOffset;
    bool hung_up = false;
    for (;;) {
        if (head_ != load(resp_map_.base() + shm::kTailOffset)) {
            const std::byte* at = data + head_ % reply_ring_bytes();
            shm::RecordHeader header;
            std::memcpy(&header, at, 8);
            if (header.kind == 1) {
                head_ += header.length;
                continue;
            }
            std::memcpy(&header, at, sizeof header);
            std::string why;
            const auto reply = shm::decode_reply(
                {at + sizeof header, header.length - sizeof header}, &why);
            if (!reply) give_up("the daemon's reply: " + why);
            head_ += header.length;
            store(shm::kHeadOffset, head_);
            ring();  // in case it waits for room
            return Answer{header.request_id, *reply};
        }
        // What was written before a hang-up is still to be read.
        if (hung_up || deadline.left_ms() == 0) return std::nullopt;
        hung_up = !socket_ || closed(0);
        if (!hung_up) sleep_ms(kLookMs);
    }
}

bool RawClient::fails(uint64_t id, const std::string& code) {
    while (const auto answer = next()) {
        if (answer->id != id || !shm::is_terminal(answer->reply)) continue;
        const auto* failed = std::get_if<shm::Failed>(&answer->reply);
        return failed && failed->code == code;
    }
    return false;
}

bool RawClient::served() {
    const uint64_t id = next_ping_++;
    if (!write(id, shm::Ping())) return false;
    while (const auto answer = next()) {
        if (answer->id == id) return std::holds_alternative<shm::Pong>(answer->reply);
    }
    return false;
}

bool RawClient::closed(int timeout_ms) {
    const shm::Deadline deadline(timeout_ms);
    for (;;) {
        pollfd poll{socket_.get(), POLLRDHUP, 0};
        if (::poll(&poll, 1, deadline.left_ms()) < 0) give_up("poll");
        if ((poll.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0) return true;
        if (deadline.left_ms() == 0) return false;
    }
}

bool RawClient::still_open() {
    // As long as the daemon needs to serve a whole ping and a little more.
    return !closed(200);
}

void stand_still() {
    ::raise(SIGSTOP);
}

RawClient connected(const std::string& socket_path) {
    RawClient client(socket_path);
    if (!client.greet()) {
        std::fprintf(stderr, "the daemon does not let a client in: %s\n", client.welcome().text);
        std::_Exit(1);
    }
    return client;
}

shm::Generate short_request() {
    shm::Generate request;
    request.prompt = shm::RawTokens{{1, 2, 3}};
    request.max_tokens = 2;
    request.ignore_eos = true;
    return request;
}

shm::Generate endless_request() {
    shm::Generate request = short_request();
    request.max_tokens = 0;
    return request;
}

}  // namespace xp::hostile
