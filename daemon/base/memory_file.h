// Host memory that has a descriptor (memfd): it lives for as long as anybody holds the descriptor
// or a mapping, and so can outlive the process that filled it. For large buffers that a device
// copies from and to: every page is there from the start, and none can be taken away again by
// making the file shorter.
//
// Huge pages are used where the machine has enough of them reserved (vm.nr_hugepages), which is
// seldom; ordinary pages otherwise. The whole is shared memory: programs that hold the descriptor
// see each other's writes, and a core file does not contain it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "daemon/base/file.h"
#include "daemon/base/result.h"

namespace xp {

// Move-only; empty when default-constructed.
class MemoryFile {
public:
    static constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

    MemoryFile() = default;
    MemoryFile(MemoryFile&& other) noexcept { swap(other); }
    MemoryFile& operator=(MemoryFile&& other) noexcept {
        swap(other);
        return *this;
    }
    ~MemoryFile();

    // Zero-filled, rounded up to whole pages of the kind that is used. `what` names the purpose in
    // messages, and the memory in /proc.
    static Result<MemoryFile> create(uint64_t bytes, std::string_view what);
    // All of a file that create() made, in this process or another. A file that could still become
    // shorter is refused: touching what is gone ends the process.
    static Result<MemoryFile> adopt(UniqueFd fd, std::string_view what);

    std::byte* data() const { return data_; }
    uint64_t bytes() const { return bytes_; }
    bool huge_pages() const { return huge_; }
    // Stays the object's own.
    int fd() const { return fd_.get(); }

private:
    MemoryFile(UniqueFd fd, uint64_t bytes, bool huge)
        : fd_(std::move(fd)), bytes_(bytes), huge_(huge) {}
    static Result<MemoryFile> create_of(uint64_t bytes, bool huge, std::string_view what);
    Result<void> map(std::string_view what);
    Result<void> populate(std::string_view what);
    void swap(MemoryFile& other) noexcept {
        std::swap(fd_, other.fd_);
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        std::swap(huge_, other.huge_);
    }

    UniqueFd fd_;
    std::byte* data_ = nullptr;
    uint64_t bytes_ = 0;
    bool huge_ = false;
};

// What to add to the message when `bytes` could not be locked in memory: empty where a limit of
// `limit` bytes (RLIMIT_MEMLOCK) allows that much.
std::string memlock_advice(uint64_t bytes, uint64_t limit);
// The same with the limit of this process.
std::string memlock_advice(uint64_t bytes);

}  // namespace xp
