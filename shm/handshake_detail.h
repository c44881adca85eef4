// What both sides of the handshake share: receiving one datagram with descriptors, safely.
// Private to shm/.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shm/fd.h"
#include "shm/handshake.h"

namespace xp::shm::detail {

struct Datagram {
    size_t bytes = 0;
    std::vector<Fd> fds;
    bool too_many_open = false;  // with kBad: this process has no room for the descriptors
};

// Receives one datagram into `buffer` without blocking, with every descriptor that came along
// (close-on-exec). kBad when data or control part was cut: descriptors that did arrive are closed.
ReceiveStatus receive(int socket, std::span<std::byte> buffer, Datagram* datagram,
                      std::string* error);

// Sends one datagram without blocking; false with errno set.
bool send(int socket, const void* data, size_t bytes, std::span<const int> fds);

// Close-on-exec and sealable; not executable where the kernel knows how.
Fd create_memfd(const char* name);

// "WHAT: strerror(errno)", which names the limit where that is one on open files.
std::string errno_text(std::string_view what);

// A peer's text up to its NUL or the end of the field, with everything but printable ASCII
// replaced, so that it can go to a log or a terminal.
std::string printable(std::span<const char> field);

}  // namespace xp::shm::detail
