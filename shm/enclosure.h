// Requests larger than a record: the whole encoded message in a sealed memfd.
//
// The client writes the message into a memfd, seals it against every change, and sends it over the
// socket with a kEnclosed notice; then it writes a record that holds an Enclosed request, under the
// id that the request shall have. The record gives the request its place in the ring's order, and
// the notice has always arrived before it. The daemon takes enclosures in the order they came.
// Each is a request in flight from its notice on: more than Welcome::max_in_flight are a violation.
//
// A sealed memfd cannot shrink or change under its reader, so there is nothing to race with, and
// what is not fully sealed, not as long as stated, or no memfd at all is refused before it is read.
// Functions are free of state and may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shm/fd.h"

namespace xp::shm {

// Four million tokens of text: more than any model's context, and a bound on how long the daemon's
// ring thread reads and checks one before it serves others.
inline constexpr uint32_t kMaxEnclosedBytes = uint32_t{16} << 20;

// A sealed memfd that holds `message`; nothing, and `error`, when memory or descriptors are short.
Fd enclose(std::span<const std::byte> message, std::string* error);

// Reads an enclosure of `bytes` bytes, which the caller has compared with its limit. False and
// `error` when it is not what it should be.
bool open_enclosure(const Fd& enclosed, uint64_t bytes, std::vector<std::byte>* message,
                    std::string* error);

}  // namespace xp::shm
