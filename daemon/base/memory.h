// Page-aligned memory for O_DIRECT reads, weights and sequence state. Pages are committed on first
// touch, so a reservation sized for the longest context costs only what is used of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "daemon/base/result.h"

namespace xp {

// What O_DIRECT needs of addresses, offsets and lengths on every drive we know (512 on most).
inline constexpr uint64_t kPageBytes = 4096;

constexpr uint64_t align_up(uint64_t value, uint64_t alignment) {
    return (value + alignment - 1) / alignment * alignment;
}

// A private anonymous mapping, zero-filled. Move-only; empty when default-constructed.
class PageBuffer {
public:
    PageBuffer() = default;
    PageBuffer(PageBuffer&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    PageBuffer& operator=(PageBuffer&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    ~PageBuffer();

    // Rounds `bytes` up to whole pages. `what` names the purpose in the error message.
    static Result<PageBuffer> allocate(uint64_t bytes, std::string_view what);

    std::byte* data() const { return data_; }
    uint64_t bytes() const { return bytes_; }
    template <class T>
    T* as() const {
        return reinterpret_cast<T*>(data_);
    }

private:
    std::byte* data_ = nullptr;
    uint64_t bytes_ = 0;
};

}  // namespace xp
