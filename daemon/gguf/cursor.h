// A bounds-checked forward reader over the header of a GGUF file: it reads through a small window,
// so that a file of hundreds of gigabytes opens by reading only its first megabytes. One shard's
// parser owns it, on one thread. Errors say what was wanted, the offset and what is left; the
// caller adds the file and the key or tensor.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "daemon/base/file.h"
#include "daemon/base/result.h"
#include "daemon/gguf/format.h"

namespace xp {

static_assert(std::endian::native == std::endian::little, "values are read as they are stored");

class HeaderCursor {
public:
    HeaderCursor(int fd, const Path& path, uint64_t file_bytes);

    uint64_t position() const { return position_; }
    uint64_t file_bytes() const { return file_bytes_; }

    // Copies the next bytes and moves on.
    Result<void> read(std::span<std::byte> bytes);

    template <class T>
    Result<T> read_value() {
        T value;
        XP_CHECK(read(std::as_writable_bytes(std::span(&value, 1))));
        return value;
    }

    // A 64-bit length, then that many bytes. Longer than `max_bytes` is an error.
    Result<std::string> read_string(uint64_t max_bytes, std::string_view what);

    // An error unless `count` items of at least `item_bytes` can still follow. To be called before
    // anything is allocated for them.
    Result<void> require(uint64_t count, uint64_t item_bytes, std::string_view what) const;

private:
    Result<void> fill();

    static constexpr uint64_t kWindowBytes = 256 << 10;

    int fd_;
    const Path& path_;
    uint64_t file_bytes_;
    uint64_t end_;           // of what may be read: the file's end or kMaxHeaderBytes
    uint64_t position_ = 0;
    uint64_t window_start_ = 0;
    uint64_t window_bytes_ = 0;
    std::unique_ptr<std::byte[]> window_;
};

// A key or tensor name for messages: quoted, control and non-ASCII bytes escaped, shortened.
std::string quote_name(std::string_view name);

}  // namespace xp
