#include "daemon/base/memory.h"

#include <sys/mman.h>

#include <cerrno>

namespace xp {

PageBuffer::~PageBuffer() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
}

Result<PageBuffer> PageBuffer::allocate(uint64_t bytes, std::string_view what) {
    PageBuffer buffer;
    if (bytes == 0) return buffer;
    if (bytes > UINT64_MAX - kPageBytes) {
        return make_error(ErrorCode::kNoMemory, "cannot allocate {} bytes for {}", bytes, what);
    }
    const uint64_t rounded = align_up(bytes, kPageBytes);
    void* data = ::mmap(nullptr, rounded, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) {
        return errno_error(errno, fmt::format("cannot allocate {} bytes for {}", rounded, what));
    }
    // Experts are megabytes; fewer TLB misses are worth having where the kernel agrees.
    if (rounded >= (uint64_t{2} << 20)) ::madvise(data, rounded, MADV_HUGEPAGE);
    buffer.data_ = static_cast<std::byte*>(data);
    buffer.bytes_ = rounded;
    return buffer;
}

}  // namespace xp
