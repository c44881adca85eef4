// Misbehaviour before and during the handshake.
#include <cerrno>
#include <cstring>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "tests/hostile/behaviours.h"
#include "tests/hostile/raw_client.h"

namespace xp::hostile {
namespace {

using shm::WelcomeStatus;

// Sends `bytes` instead of a Hello, and expects this refusal.
bool refused(const std::string& path, const Bytes& bytes, WelcomeStatus status,
             std::span<const int> fds = {}) {
    RawClient client(path);
    return holds(send_datagram(client.socket(), bytes.data(), bytes.size(), fds) ==
                 static_cast<ssize_t>(bytes.size())) &&
           holds(client.refused_with(status));
}

Bytes as_bytes(const shm::Hello& hello) {
    const auto bytes = std::as_bytes(std::span(&hello, 1));
    return {bytes.begin(), bytes.end()};
}

bool hello_too_short(const std::string& path) {
    Bytes bytes = as_bytes(hello());
    bytes.pop_back();
    return refused(path, bytes, WelcomeStatus::kBadHello);
}

bool hello_too_long(const std::string& path) {
    Bytes bytes = as_bytes(hello());
    bytes.resize(shm::kMaxHelloBytes + 1);
    return refused(path, bytes, WelcomeStatus::kBadHello);
}

bool hello_of_other_magic(const std::string& path) {
    shm::Hello greeting = hello();
    greeting.magic = 0x20544547;  // "GET "
    return refused(path, as_bytes(greeting), WelcomeStatus::kBadHello);
}

bool hello_of_other_version(const std::string& path) {
    shm::Hello greeting = hello();
    greeting.abi_major = shm::kAbiMajor + 1;
    return refused(path, as_bytes(greeting), WelcomeStatus::kBadVersion);
}

bool hello_with_descriptors(const std::string& path) {
    const int fds[] = {0, 1};
    return refused(path, as_bytes(hello()), WelcomeStatus::kBadHello, fds);
}

// More than any receive buffer of the daemon has room for: some are cut off by the kernel.
bool hello_with_200_descriptors(const std::string& path) {
    const std::vector<int> fds(200, 0);
    return refused(path, as_bytes(hello()), WelcomeStatus::kBadHello, fds);
}

bool hello_empty(const std::string& path) {
    RawClient client(path);
    return holds(send_datagram(client.socket(), "", 0) == 0) && holds(client.closed());
}

bool hello_never(const std::string& path) {
    RawClient client(path);
    return holds(client.refused_with(WelcomeStatus::kBadHello));
}

bool hello_twice(const std::string& path) {
    RawClient client = connected(path);
    const shm::Hello again = hello();
    return holds(send_datagram(client.socket(), &again, sizeof again) > 0) &&
           holds(client.closed());
}

bool hello_with_garbage_behind_it(const std::string& path) {
    RawClient client(path);
    const shm::Hello greeting = hello();
    return holds(send_datagram(client.socket(), &greeting, sizeof greeting) > 0) &&
           holds(send_datagram(client.socket(), &path, 20) > 0) &&
           holds(client.take_welcome()) && holds(client.closed());
}

bool hello_and_gone(const std::string& path) {
    for (int i = 0; i < 20; ++i) {
        RawClient client(path);
        const shm::Hello greeting = hello();
        send_datagram(client.socket(), &greeting, sizeof greeting);
    }
    return holds(connected(path).served());
}

bool hello_with_absurd_rings(const std::string& path) {
    for (const uint32_t size : {0u, 1u, 0x7fffffffu, 0xffffffffu}) {
        shm::Hello greeting = hello();
        greeting.req_ring_bytes = size;
        greeting.resp_ring_bytes = ~size;
        RawClient client(path);
        if (!holds(client.greet(greeting)) || !holds(client.served()) ||
            !holds(client.ring_bytes() >= shm::kMinRingBytes) ||
            !holds(client.ring_bytes() <= shm::kRequestRingBytes)) {
            return false;
        }
    }
    return true;
}

// A name that would clear the screen of who reads the log; the daemon then has a cause to log it.
bool name_for_the_terminal(const std::string& path) {
    shm::Hello greeting = hello();
    std::memcpy(greeting.client_name, "\033[2J\nroot: \xff\xfe\x01 this is all fine...", 32);
    RawClient client(path);
    return holds(client.greet(greeting)) && holds(send_datagram(client.socket(), "x", 1) == 1) &&
           holds(client.closed());
}

// Sixteen may be silent at a time. The next one is not looked at until one of them goes.
bool half_open_crowd(const std::string& path) {
    std::vector<RawClient> crowd;
    for (int i = 0; i < 16; ++i) crowd.emplace_back(path);
    RawClient next(path);
    const shm::Hello greeting = hello();
    if (!holds(send_datagram(next.socket(), &greeting, sizeof greeting) > 0)) return false;
    pollfd poll{next.socket(), POLLIN, 0};
    if (!holds(::poll(&poll, 1, 300) == 0)) return false;
    stand_still();
    crowd.pop_back();
    return holds(next.take_welcome()) && holds(next.served());
}

bool too_many_connections(const std::string& path) {
    std::vector<RawClient> crowd;
    for (;;) {
        RawClient client(path);
        if (!client.greet()) {
            const auto status = static_cast<WelcomeStatus>(client.welcome().status);
            if (!holds(status == WelcomeStatus::kTooManyClients) || !holds(client.closed())) {
                return false;
            }
            break;
        }
        crowd.push_back(std::move(client));
        if (!holds(crowd.size() <= 16)) return false;
    }
    for (RawClient& client : crowd) {
        if (!holds(client.served())) return false;
    }
    crowd.pop_back();
    return holds(connected(path).served());
}

bool connect_storm(const std::string& path) {
    const shm::Hello greeting = hello();
    for (int i = 0; i < 400; ++i) {
        RawClient client(path);
        if (i % 4 == 0) send_datagram(client.socket(), "hello", 5);
        if (i % 4 == 1) client.greet(greeting);
    }
    return holds(connected(path).served());
}

constexpr Behaviour kHandshakeBehaviours[] = {
    {"hello_too_short", "63 bytes", 0, 1, hello_too_short},
    {"hello_too_long", "4097 bytes", 0, 1, hello_too_long},
    {"hello_of_other_magic", "another protocol's first words", 0, 1, hello_of_other_magic},
    {"hello_of_other_version", "major version 2", 0, 1, hello_of_other_version},
    {"hello_with_descriptors", "2 of them", 0, 1, hello_with_descriptors},
    {"hello_with_200_descriptors", "more than are received", 0, 1, hello_with_200_descriptors},
    {"hello_empty", "a datagram of 0 bytes", 0, 0, hello_empty},
    {"hello_never", "waits to be thrown out", 0, 1, hello_never},
    {"hello_twice", "says Hello to an open connection", 1, 0, hello_twice},
    {"hello_with_garbage_behind_it", "does not wait for the Welcome", 1, 0,
     hello_with_garbage_behind_it},
    {"hello_and_gone", "20 times, without waiting for the Welcome", 0, kAny, hello_and_gone},
    {"hello_with_absurd_rings", "sizes of 0 to 4 GiB", 0, 0, hello_with_absurd_rings},
    {"name_for_the_terminal", "control characters, no NUL", 1, 0, name_for_the_terminal},
    {"half_open_crowd", "16 connections without a Hello, and one with", 0, 0, half_open_crowd},
    {"too_many_connections", "until one is refused", 0, 1, too_many_connections},
    {"connect_storm", "400 connections, short Hellos among them", 0, kAny, connect_storm},
};

}  // namespace

std::span<const Behaviour> handshake_behaviours() {
    return kHandshakeBehaviours;
}

}  // namespace xp::hostile
