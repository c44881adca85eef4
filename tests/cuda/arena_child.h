// What a process of its own does with arenas, for the test of their survival: this program again,
// started with "--arena-child=ROLE" and the number of a socket that it inherits.
//   make   fills an arena and a pinned file, sends descriptors and sums, and waits for its end
//   adopt  receives descriptors and sums, and compares
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "daemon/base/file.h"

namespace xp::cuda::test {

inline constexpr std::string_view kArenaChild = "--arena-child=";

// Memory that was given away, with the sum of its contents.
struct Kept {
    UniqueFd arena, file;
    uint64_t arena_bytes = 0, arena_sum = 0, file_sum = 0;
};

bool send_kept(int socket, const Kept& kept);
// Waits; nothing when the other side went away or said something else.
std::optional<Kept> receive_kept(int socket);

// The process's exit status: 0, or 1 with the reason on the standard output.
int run_arena_child(std::string_view role, int socket);

}  // namespace xp::cuda::test
