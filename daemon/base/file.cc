#include "daemon/base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace xp {

const char* error_code_name(ErrorCode code) {
    switch (code) {
        case ErrorCode::kInvalidArgument: return "invalid_argument";
        case ErrorCode::kNotFound: return "not_found";
        case ErrorCode::kCorrupt: return "corrupt";
        case ErrorCode::kUnsupported: return "unsupported";
        case ErrorCode::kIo: return "io";
        case ErrorCode::kNoSpace: return "no_space";
        case ErrorCode::kNoMemory: return "no_memory";
        case ErrorCode::kLimit: return "limit";
        case ErrorCode::kBusy: return "busy";
        case ErrorCode::kCancelled: return "cancelled";
        case ErrorCode::kShutdown: return "shutdown";
        case ErrorCode::kDeviceLost: return "device_lost";
        case ErrorCode::kInternal: return "internal";
    }
    return "internal";
}

Error errno_error(int saved_errno, std::string text) {
    ErrorCode code = ErrorCode::kIo;
    if (saved_errno == ENOSPC || saved_errno == EDQUOT) code = ErrorCode::kNoSpace;
    if (saved_errno == ENOENT) code = ErrorCode::kNotFound;
    if (saved_errno == ENOMEM) code = ErrorCode::kNoMemory;
    if (saved_errno == EMFILE || saved_errno == ENFILE) code = ErrorCode::kBusy;
    return Error{code, fmt::format("{}: {}", text, std::strerror(saved_errno))};
}

void UniqueFd::reset(int fd) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
}

Result<UniqueFd> open_file(const Path& path, int flags, unsigned mode) {
    // Opening a FIFO would wait for its other end; what is not a regular file is refused later.
    int fd;
    do {
        fd = ::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, mode);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0) return errno_error(errno, fmt::format("cannot open {}", path.native()));
    UniqueFd opened(fd);
    // Reads of a drive must wait for it, whatever io_uring makes of O_NONBLOCK.
    ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    return opened;
}

Result<uint64_t> file_size(int fd, const Path& path) {
    struct stat info;
    if (::fstat(fd, &info) != 0) {
        return errno_error(errno, fmt::format("cannot stat {}", path.native()));
    }
    if (!S_ISREG(info.st_mode)) {
        return make_error(ErrorCode::kInvalidArgument, "{} is not a regular file", path.native());
    }
    return static_cast<uint64_t>(info.st_size);
}

Result<void> read_exact(int fd, uint64_t offset, std::span<std::byte> bytes, const Path& path) {
    size_t done = 0;
    while (done < bytes.size()) {
        const ssize_t n = ::pread(fd, bytes.data() + done, bytes.size() - done,
                                  static_cast<off_t>(offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            return errno_error(errno, fmt::format("cannot read {} bytes at offset {} of {}",
                                                  bytes.size(), offset, path.native()));
        }
        if (n == 0) {
            return make_error(ErrorCode::kCorrupt,
                              "{} ends at offset {}, where {} bytes from offset {} were expected",
                              path.native(), offset + done, bytes.size(), offset);
        }
        done += static_cast<size_t>(n);
    }
    return {};
}

Result<void> write_exact(int fd, uint64_t offset, std::span<const std::byte> bytes,
                         const Path& path) {
    size_t done = 0;
    while (done < bytes.size()) {
        const ssize_t n = ::pwrite(fd, bytes.data() + done, bytes.size() - done,
                                   static_cast<off_t>(offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            return errno_error(errno, fmt::format("cannot write {} bytes at offset {} of {}",
                                                  bytes.size(), offset, path.native()));
        }
        done += static_cast<size_t>(n);
    }
    return {};
}

// To the end rather than to the stated size, which is 0 for files of /proc.
Result<std::string> read_text_file(const Path& path, uint64_t limit_bytes) {
    XP_TRY(UniqueFd fd, open_file(path, O_RDONLY));
    XP_TRY([[maybe_unused]] const uint64_t stated_size, file_size(fd.get(), path));
    std::string text;
    for (;;) {
        constexpr size_t kPiece = 65536;
        const size_t done = text.size();
        text.resize(done + kPiece);
        const ssize_t n = ::read(fd.get(), text.data() + done, kPiece);
        text.resize(done + static_cast<size_t>(std::max<ssize_t>(n, 0)));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno_error(errno, fmt::format("cannot read {}", path.native()));
        if (text.size() > limit_bytes) {
            return make_error(ErrorCode::kLimit, "{} has more than the {} bytes that are read here",
                              path.native(), limit_bytes);
        }
        if (n == 0) return text;
    }
}

Result<void> sync_file(int fd, const Path& path) {
    if (::fsync(fd) != 0) return errno_error(errno, fmt::format("cannot sync {}", path.native()));
    return {};
}

Result<void> sync_directory(const Path& path) {
    XP_TRY(UniqueFd fd, open_file(path.empty() ? Path(".") : path, O_RDONLY | O_DIRECTORY));
    return sync_file(fd.get(), path);
}

Result<void> write_file_atomic(const Path& path, std::string_view contents) {
    const Path temporary = path.native() + ".tmp";
    XP_TRY(UniqueFd fd, open_file(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW));
    XP_CHECK(write_exact(fd.get(), 0, std::as_bytes(std::span(contents)), temporary));
    XP_CHECK(sync_file(fd.get(), temporary));
    if (::rename(temporary.c_str(), path.c_str()) != 0) {
        return errno_error(errno, fmt::format("cannot rename {} to {}", temporary.native(),
                                              path.native()));
    }
    return sync_directory(path.parent_path());
}

bool occupy_standard_descriptors() {
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
        if (::fcntl(fd, F_GETFD) != -1) continue;
        // Opened for the other direction: reading or writing it fails as it would have.
        if (::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd) return false;
    }
    return true;
}

}  // namespace xp
