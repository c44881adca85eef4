// Packing and checking touch hundreds of gigabytes once. What was used is dropped from the page
// cache, so that other programs keep what they had there.
#pragma once

#include <fcntl.h>

#include <algorithm>
#include <cstdint>

namespace xp {

// Drops a range that was read or has reached the drive. The kernel only drops what lies wholly
// inside, in units of up to 2 MiB, so the range reaches back over the border to the one before:
// without that, a third of a source stayed cached.
inline void drop_cached(int fd, uint64_t offset, uint64_t bytes) {
    constexpr uint64_t kReachBack = uint64_t{8} << 20;
    const uint64_t begin = offset - std::min(offset, kReachBack);
    ::posix_fadvise(fd, static_cast<off_t>(begin), static_cast<off_t>(offset + bytes - begin),
                    POSIX_FADV_DONTNEED);
}

}  // namespace xp
