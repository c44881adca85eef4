#include "daemon/gguf/cursor.h"

#include <algorithm>
#include <cstring>

namespace xp {
namespace {

// Long enough for every real name; keys may have 65,535 bytes.
constexpr size_t kMaxQuotedBytes = 96;

}  // namespace

HeaderCursor::HeaderCursor(int fd, const Path& path, uint64_t file_bytes)
    : fd_(fd), path_(path), file_bytes_(file_bytes), end_(std::min(file_bytes, kMaxHeaderBytes)),
      window_(std::make_unique_for_overwrite<std::byte[]>(std::min(kWindowBytes, end_))) {}

Result<void> HeaderCursor::read(std::span<std::byte> bytes) {
    XP_CHECK(require(bytes.size(), 1, "bytes"));
    size_t done = 0;
    while (done < bytes.size()) {
        if (position_ >= window_start_ + window_bytes_) XP_CHECK(fill());
        const uint64_t in_window = position_ - window_start_;
        const uint64_t n = std::min<uint64_t>(bytes.size() - done, window_bytes_ - in_window);
        std::memcpy(bytes.data() + done, window_.get() + in_window, n);
        done += n;
        position_ += n;
    }
    return {};
}

Result<std::string> HeaderCursor::read_string(uint64_t max_bytes, std::string_view what) {
    XP_TRY(const uint64_t length, read_value<uint64_t>());
    if (length > max_bytes) {
        return make_error(ErrorCode::kCorrupt,
                          "the {} at offset {} claims {} bytes; at most {} are allowed", what,
                          position_ - 8, length, max_bytes);
    }
    XP_CHECK(require(length, 1, fmt::format("bytes of the {}", what)));
    std::string text(length, '\0');
    XP_CHECK(read(std::as_writable_bytes(std::span(text))));
    return text;
}

Result<void> HeaderCursor::require(uint64_t count, uint64_t item_bytes,
                                   std::string_view what) const {
    if (count <= (end_ - position_) / item_bytes) return {};
    if (count <= (file_bytes_ - position_) / item_bytes) {
        return make_error(ErrorCode::kLimit,
                          "{} {} at offset {} would make the header longer than the limit of {} "
                          "bytes", count, what, position_, kMaxHeaderBytes);
    }
    return make_error(ErrorCode::kCorrupt,
                      "{} {} at offset {} do not fit into the {} bytes left of the file; it is "
                      "cut short or damaged", count, what, position_, file_bytes_ - position_);
}

Result<void> HeaderCursor::fill() {
    const uint64_t n = std::min(kWindowBytes, end_ - position_);
    XP_CHECK(read_exact(fd_, position_, {window_.get(), n}, path_));
    window_start_ = position_;
    window_bytes_ = n;
    return {};
}

std::string quote_name(std::string_view name) {
    std::string text = "'";
    for (const char c : name.substr(0, kMaxQuotedBytes)) {
        const unsigned char byte = static_cast<unsigned char>(c);
        if (byte < 0x20 || byte >= 0x7f) {
            text += fmt::format("\\x{:02x}", byte);
        } else {
            text += c;
        }
    }
    if (name.size() > kMaxQuotedBytes) text += "...";
    return text + "'";
}

}  // namespace xp
