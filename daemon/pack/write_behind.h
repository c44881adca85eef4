// Keeps a long sequential write from filling memory with dirty pages and from pushing other
// programs' files out of the page cache: written ranges are sent to the drive at once and dropped
// from the cache when they have arrived. At most kWindowBytes are on their way.
#pragma once

#include <cstdint>
#include <deque>

namespace xp {

class WriteBehind {
public:
    // Deep enough to keep a drive busy (8 requests of a typical 4-MB matrix and more).
    static constexpr uint64_t kWindowBytes = uint64_t{64} << 20;

    // `fd` must stay open until drain(). Errors show in the fsync that follows.
    void wrote(int fd, uint64_t offset, uint64_t bytes);
    void drain();

private:
    struct Range {
        int fd = -1;
        uint64_t offset = 0;
        uint64_t bytes = 0;
    };
    void retire_oldest();

    std::deque<Range> ranges_;
    uint64_t pending_bytes_ = 0;
};

}  // namespace xp
