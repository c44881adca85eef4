// Device memory for expert slots, in large pieces. An arena has a descriptor: whoever holds that,
// another process or this one, keeps the bytes alive, also when the process that made the arena is
// killed, and a later process makes an arena of it again, with the same contents.
//
// The driver's functions for that are found at run time, so a program starts where there is no
// driver, and is told here that there is no device. Some platforms cannot share device memory at
// all (WSL2, virtual GPUs without that feature, containers that intercept allocations), and what
// the driver claims to support is not always what it does: check_export() finds out on a small
// piece, and who can do without takes create_private() instead.
//
// Whoever frees or adopts an arena must know that nothing computes on it any more: unlike cudaFree,
// giving it back waits for nobody. Any thread whose current device is the arena's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "cuda/runtime.h"
#include "daemon/base/file.h"

namespace xp::cuda {

// Move-only; empty when default-constructed.
class Arena {
public:
    Arena() = default;
    Arena(Arena&& other) noexcept { swap(other); }
    Arena& operator=(Arena&& other) noexcept {
        swap(other);
        return *this;
    }
    ~Arena();

    // Whether arenas of the current device can be exported; kUnsupported with the reason if not.
    static Result<void> check_export();

    // On the current device; not initialised. kNoMemory when there is too little of it.
    static Result<Arena> create(uint64_t bytes);
    // The same without a descriptor, from the runtime's own allocator.
    static Result<Arena> create_private(uint64_t bytes);
    // The first `bytes` of the arena that was exported as `fd`, which stays the caller's and is not
    // needed any more. It has to be the current device's.
    static Result<Arena> import(int fd, uint64_t bytes);

    // A descriptor of its own for each call; it is closed on exec.
    Result<UniqueFd> export_fd() const;

    std::byte* data() const { return data_; }
    uint64_t bytes() const { return bytes_; }

private:
    // Gives the range an address; `bytes` are the driver's whole pieces.
    static Result<Arena> map(unsigned long long handle, uint64_t bytes, uint64_t held, int device);
    void swap(Arena& other) noexcept {
        std::swap(private_, other.private_);
        std::swap(imported_, other.imported_);
        std::swap(handle_, other.handle_);
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        std::swap(held_, other.held_);
        std::swap(mapped_, other.mapped_);
    }

    Memory private_;
    UniqueFd imported_;              // what it was imported as: that cannot be exported again
    unsigned long long handle_ = 0;  // of the driver, counted by it: 0 when private or empty
    std::byte* data_ = nullptr;
    uint64_t bytes_ = 0;             // as asked for
    uint64_t held_ = 0;              // in the driver's pieces
    bool mapped_ = false;
};

}  // namespace xp::cuda
