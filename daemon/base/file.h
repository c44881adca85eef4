// Files and directories: an owning descriptor and the few whole operations the daemon needs, each
// retrying EINTR and short transfers, each with errors that name the path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "daemon/base/result.h"

namespace xp {

class UniqueFd {
public:
    UniqueFd() = default;
    explicit UniqueFd(int fd) : fd_(fd) {}
    UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
    UniqueFd& operator=(UniqueFd&& other) noexcept {
        reset(other.release());
        return *this;
    }
    ~UniqueFd() { reset(); }

    int get() const { return fd_; }
    explicit operator bool() const { return fd_ >= 0; }
    int release() { return std::exchange(fd_, -1); }
    void reset(int fd = -1);

private:
    int fd_ = -1;
};

using Path = std::filesystem::path;

// open(2) with O_CLOEXEC added. `mode` counts only with O_CREAT.
Result<UniqueFd> open_file(const Path& path, int flags, unsigned mode = 0644);

Result<uint64_t> file_size(int fd, const Path& path);

// Reads exactly bytes.size() bytes at `offset`; a file that ends earlier is kCorrupt.
Result<void> read_exact(int fd, uint64_t offset, std::span<std::byte> bytes, const Path& path);

// Writes all bytes at `offset`.
Result<void> write_exact(int fd, uint64_t offset, std::span<const std::byte> bytes,
                         const Path& path);

// The whole file; larger than `limit_bytes` is kLimit.
Result<std::string> read_text_file(const Path& path, uint64_t limit_bytes);

Result<void> sync_file(int fd, const Path& path);
Result<void> sync_directory(const Path& path);

// Were one of the three standard descriptors closed, the next file opened would get its number, and
// messages would be written into it: /dev/null takes the place. False when that fails.
bool occupy_standard_descriptors();

// Replaces `path` so that a crash leaves the old or the new contents, never a mixture:
// PATH.tmp, fsync, rename, fsync of the directory.
Result<void> write_file_atomic(const Path& path, std::string_view contents);

}  // namespace xp
