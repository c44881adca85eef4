#include "daemon/base/memory_file.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>

#include "daemon/base/memory.h"
#include "daemon/base/size.h"

namespace xp {
namespace {

#ifndef MADV_POPULATE_WRITE
constexpr int MADV_POPULATE_WRITE = 23;  // Linux 5.14
#endif

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// The kernel takes 249 characters.
constexpr size_t kMaxNameBytes = 200;

Error failed(int saved_errno, uint64_t bytes, std::string_view what, std::string_view step) {
    return errno_error(saved_errno, fmt::format("no {} of host memory for {}: {}",
                                                format_size(bytes), what, step));
}

}  // namespace

MemoryFile::~MemoryFile() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
}

Result<MemoryFile> MemoryFile::create(uint64_t bytes, std::string_view what) {
    if (bytes == 0) return MemoryFile();
    if (bytes > INT64_MAX - kHugePageBytes) {
        return make_error(ErrorCode::kNoMemory, "no {} bytes of host memory for {}", bytes, what);
    }
    if (bytes >= kHugePageBytes) {
        // Not there, or not enough of them, or not allowed: all of that is usual.
        Result<MemoryFile> huge = create_of(align_up(bytes, kHugePageBytes), true, what);
        if (huge) return huge;
    }
    return create_of(align_up(bytes, kPageBytes), false, what);
}

Result<MemoryFile> MemoryFile::create_of(uint64_t bytes, bool huge, std::string_view what) {
    const std::string name(what.substr(0, kMaxNameBytes));
    unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    if (huge) flags |= MFD_HUGETLB | MFD_HUGE_2MB;
    UniqueFd fd(::memfd_create(name.c_str(), flags));
    if (!fd) {
        return failed(errno, bytes, what,
                      "memfd_create, which a container's filter of system calls has to allow");
    }
    MemoryFile file(std::move(fd), bytes, huge);
    if (::ftruncate(file.fd(), static_cast<off_t>(bytes)) != 0) {
        return failed(errno, bytes, what, "ftruncate of a memfd");
    }
    if (::fcntl(file.fd(), F_ADD_SEALS, kSeals) != 0) {
        return failed(errno, bytes, what, "sealing a memfd");
    }
    XP_CHECK(file.map(what));
    XP_CHECK(file.populate(what));
    return file;
}

Result<MemoryFile> MemoryFile::adopt(UniqueFd fd, std::string_view what) {
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0) {
        return errno_error(errno, fmt::format("cannot look at the memory kept for {}", what));
    }
    const int seals = ::fcntl(fd.get(), F_GET_SEALS);
    if (seals < 0 || (seals & kSeals) != kSeals || status.st_size <= 0) {
        return make_error(ErrorCode::kInvalidArgument,
                          "what was kept as memory for {} is not a memfd with sealed size", what);
    }
    const bool huge = static_cast<uint64_t>(status.st_blksize) >= kHugePageBytes;
    MemoryFile file(std::move(fd), static_cast<uint64_t>(status.st_size), huge);
    XP_CHECK(file.map(what));
    return file;
}

Result<void> MemoryFile::map(std::string_view what) {
    void* data = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd(), 0);
    if (data == MAP_FAILED) return failed(errno, bytes_, what, "mmap of a memfd");
    data_ = static_cast<std::byte*>(data);
    ::madvise(data_, bytes_, MADV_DONTDUMP);
    // Fewer and larger pages, where the kernel agrees.
    if (!huge_) ::madvise(data_, bytes_, MADV_HUGEPAGE);
    return {};
}

// A page that cannot be had is an error here, and a signal where it is touched first.
Result<void> MemoryFile::populate(std::string_view what) {
    while (::madvise(data_, bytes_, MADV_POPULATE_WRITE) != 0) {
        // A kernel that does not know it yet.
        if (errno == EINVAL && ::fallocate(fd(), 0, 0, static_cast<off_t>(bytes_)) == 0) break;
        if (errno == EINTR) continue;
        return failed(errno, bytes_, what, "taking its pages");
    }
    return {};
}

std::string memlock_advice(uint64_t bytes, uint64_t limit) {
    if (bytes <= limit) return "";
    return fmt::format("; RLIMIT_MEMLOCK allows {} to be locked: raise it (LimitMEMLOCK= of a "
                       "systemd unit, ulimit -l of a shell)", format_size(limit));
}

std::string memlock_advice(uint64_t bytes) {
    rlimit limit{};
    if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
    return memlock_advice(bytes, limit.rlim_cur);
}

}  // namespace xp
