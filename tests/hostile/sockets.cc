// Misbehaviour with what came over the socket and goes over it: bells, notices, descriptors.
#include <algorithm>
#include <cerrno>
#include <vector>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/hostile/behaviours.h"
#include "tests/hostile/raw_client.h"

namespace xp::hostile {
namespace {

// Rings until nothing more fits.
void fill_bell(int bell, const std::vector<std::byte>& ring) {
    while (::send(bell, ring.data(), ring.size(), MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) {
    }
}

bool bells_filled(const std::string& path) {
    RawClient client = connected(path);
    for (int i = 0; i < 20; ++i) {
        fill_bell(client.req_bell().get(), std::vector<std::byte>(8));
        fill_bell(client.resp_bell().get(), std::vector<std::byte>(8));
        if (!holds(client.served())) return false;
    }
    return true;
}

bool bells_of_64_kib(const std::string& path) {
    RawClient client = connected(path);
    for (int i = 0; i < 20; ++i) {
        fill_bell(client.req_bell().get(), std::vector<std::byte>(64 << 10));
        if (!holds(client.served())) return false;
    }
    return true;
}

// The flag belongs to what both sides hold: a write of the daemon would wait for this client.
bool non_blocking_cleared_and_filled(const std::string& path) {
    RawClient client = connected(path);
    for (const int fd : {client.req_bell().get(), client.resp_bell().get(), client.socket()}) {
        checked(::fcntl(fd, F_SETFL, 0), "fcntl");
    }
    fill_bell(client.req_bell().get(), std::vector<std::byte>(8));
    fill_bell(client.resp_bell().get(), std::vector<std::byte>(8));
    client.store_wait(shm::kWaitData | shm::kWaitSpace);
    for (int i = 0; i < 50; ++i) {
        if (!holds(client.served())) return false;
    }
    return true;
}

// Says that it sleeps, and never takes a ring: the daemon's bell runs full.
bool response_bell_never_drained(const std::string& path) {
    RawClient client = connected(path);
    client.store_wait(shm::kWaitData | shm::kWaitSpace);
    for (uint64_t id = 1; id <= 1000; ++id) {
        if (!holds(client.write(id, shm::Request(shm::Ping()))) ||
            !holds(client.next().has_value())) {
            return false;
        }
    }
    return true;
}

bool bells_shut_down(const std::string& path) {
    RawClient client = connected(path);
    ::shutdown(client.resp_bell().get(), SHUT_RDWR);
    ::shutdown(client.req_bell().get(), SHUT_RD);
    client.store_wait(shm::kWaitData);
    return holds(client.served());
}

// Closes all but the socket and puts other files into the places. The mappings still work; without
// a bell, it is the daemon's look at everything that finds its request.
bool descriptors_closed_and_reused(const std::string& path) {
    RawClient client = connected(path);
    const shm::Fd null(checked(::open("/dev/null", O_RDWR | O_CLOEXEC), "/dev/null"));
    for (shm::Fd* fd : {&client.req(), &client.resp(), &client.req_bell(), &client.resp_bell()}) {
        checked(::dup2(null.get(), fd->get()), "dup2");
    }
    return holds(client.served());
}

bool works_without_bells(const std::string& path) {
    RawClient client = connected(path);
    client.req_bell().reset();
    client.resp_bell().reset();
    return holds(client.served());
}

bool notice_costs_the_connection(const std::string& path, const void* data, size_t bytes,
                                 std::span<const int> fds = {}) {
    RawClient client = connected(path);
    return holds(send_datagram(client.socket(), data, bytes, fds) ==
                 static_cast<ssize_t>(bytes)) &&
           holds(client.closed());
}

bool notice_of_three_bytes(const std::string& path) {
    return notice_costs_the_connection(path, "XPP", 3);
}

bool notice_of_garbage(const std::string& path) {
    return notice_costs_the_connection(path, "this is no notice at all", 24);
}

bool notice_of_64_kib(const std::string& path) {
    std::vector<std::byte> bytes(64 << 10);
    const shm::Notice notice{shm::kNoticeMagic, 77, 0};
    std::copy_n(reinterpret_cast<const std::byte*>(&notice), sizeof notice, bytes.begin());
    return notice_costs_the_connection(path, bytes.data(), bytes.size());
}

bool notice_with_a_descriptor(const std::string& path) {
    const shm::Notice notice{shm::kNoticeMagic, 77, 0};
    const int fds[] = {0};
    return notice_costs_the_connection(path, &notice, sizeof notice, fds);
}

bool notice_with_250_descriptors(const std::string& path) {
    const shm::Notice notice{shm::kNoticeMagic, 2, 100};
    const std::vector<int> fds(250, 0);
    return notice_costs_the_connection(path, &notice, sizeof notice, fds);
}

// The socket on a journey over itself: only the kernel's search for cycles could free it, if the
// daemon did not take it out.
bool own_socket_as_a_descriptor(const std::string& path) {
    RawClient client = connected(path);
    const shm::Notice notice{shm::kNoticeMagic, 2, 100};
    const int fds[] = {client.socket()};
    return holds(send_datagram(client.socket(), &notice, sizeof notice, fds) > 0) &&
           holds(client.write(1, shm::Request(shm::Enclosed{100}))) && holds(client.closed());
}

// Newer minor versions may have more kinds: ignored, be it many.
bool notice_flood(const std::string& path) {
    RawClient client = connected(path);
    for (uint32_t i = 0; i < 20'000; ++i) {
        const shm::Notice notice{shm::kNoticeMagic, 3 + i, i};
        if (!holds(send_datagram(client.socket(), &notice, sizeof notice) > 0)) return false;
    }
    return holds(client.served());
}

// The daemon's own notice, sent to it: not a thing it listens to.
bool drain_notice(const std::string& path) {
    RawClient client = connected(path);
    const shm::Notice notice{shm::kNoticeMagic, 1, 0};
    return holds(send_datagram(client.socket(), &notice, sizeof notice) > 0) &&
           holds(client.served()) && holds(connected(path).served());
}

bool half_closed(const std::string& path) {
    RawClient client = connected(path);
    if (!holds(client.write(1, shm::Request(endless_request())))) return false;
    ::shutdown(client.socket(), SHUT_WR);
    return holds(client.closed());
}

constexpr Behaviour kSocketBehaviours[] = {
    {"bells_filled", "both, from its own ends", 0, 0, bells_filled},
    {"bells_of_64_kib", "rings with large datagrams", 0, 0, bells_of_64_kib},
    {"non_blocking_cleared_and_filled", "so that the daemon's next ring would wait", 0, 0,
     non_blocking_cleared_and_filled},
    {"response_bell_never_drained", "a thousand rings", 0, 0, response_bell_never_drained},
    {"bells_shut_down", "instead of closed", 0, 0, bells_shut_down},
    {"descriptors_closed_and_reused", "other files in their places", 0, 0,
     descriptors_closed_and_reused},
    {"works_without_bells", "never rings", 0, 0, works_without_bells},
    {"notice_of_three_bytes", "a cut notice", 1, 0, notice_of_three_bytes},
    {"notice_of_garbage", "another magic", 1, 0, notice_of_garbage},
    {"notice_of_64_kib", "longer than any message", 1, 0, notice_of_64_kib},
    {"notice_with_a_descriptor", "of a kind that has none", 1, 0, notice_with_a_descriptor},
    {"notice_with_250_descriptors", "more than are received", 1, 0, notice_with_250_descriptors},
    {"own_socket_as_a_descriptor", "sent over itself", 1, 0, own_socket_as_a_descriptor},
    {"notice_flood", "20,000 of unknown kinds", 0, 0, notice_flood},
    {"drain_notice", "tells the daemon to shut down", 0, 0, drain_notice},
    {"half_closed", "shuts down its sending half with a request running", 0, 0, half_closed},
};

}  // namespace

std::span<const Behaviour> socket_behaviours() {
    return kSocketBehaviours;
}

}  // namespace xp::hostile
