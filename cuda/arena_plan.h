// Into how many arenas (cuda/arena.h) the slots of a class go: pieces of 256 MiB to 1 GiB, all of
// nearly the same size, so that they are few enough to keep a descriptor of each, and a cache can
// give some of its memory back. A class that takes less is one arena.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace xp::cuda {

inline constexpr uint64_t kArenaBytesMax = uint64_t{1} << 30;

// Slots of `stride` bytes in each arena.
inline std::vector<uint64_t> slots_of_arenas(uint64_t stride, uint64_t slots) {
    const uint64_t most = std::max<uint64_t>(1, kArenaBytesMax / stride);
    const uint64_t n = (slots + most - 1) / most;
    std::vector<uint64_t> arenas;
    for (uint64_t i = 0; i < n; ++i) arenas.push_back(slots / n + (i < slots % n ? 1 : 0));
    return arenas;
}

}  // namespace xp::cuda
