#include "daemon/pack/write_behind.h"

#include <fcntl.h>

#include "daemon/pack/page_cache.h"

namespace xp {

void WriteBehind::wrote(int fd, uint64_t offset, uint64_t bytes) {
    ::sync_file_range(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes),
                      SYNC_FILE_RANGE_WRITE);
    ranges_.push_back({fd, offset, bytes});
    pending_bytes_ += bytes;
    while (pending_bytes_ > kWindowBytes) retire_oldest();
}

void WriteBehind::drain() {
    while (!ranges_.empty()) retire_oldest();
}

void WriteBehind::retire_oldest() {
    const Range range = ranges_.front();
    ranges_.pop_front();
    pending_bytes_ -= range.bytes;
    const off_t offset = static_cast<off_t>(range.offset);
    const off_t bytes = static_cast<off_t>(range.bytes);
    ::sync_file_range(range.fd, offset, bytes,
                      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
                          SYNC_FILE_RANGE_WAIT_AFTER);
    drop_cached(range.fd, range.offset, range.bytes);
}

}  // namespace xp
