// Host memory that the device copies from and to at full speed, and that has a descriptor
// (daemon/base/memory_file.h): read buffers and RAM slots. Small and short-lived memory of the same
// kind is Memory::pinned().
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "cuda/runtime.h"
#include "daemon/base/memory_file.h"

namespace xp::cuda {

// Move-only; empty when default-constructed. Must not go while copies use it.
class PinnedFile {
public:
    PinnedFile() = default;
    PinnedFile(PinnedFile&&) noexcept = default;
    PinnedFile& operator=(PinnedFile&&) noexcept = default;
    ~PinnedFile();

    static Result<PinnedFile> create(uint64_t bytes, std::string_view what);
    // Of memory that was kept by its descriptor.
    static Result<PinnedFile> pin(MemoryFile file, std::string_view what);

    std::byte* data() const { return file_.data(); }
    // The same memory for kernels.
    std::byte* on_device() const { return on_device_; }
    uint64_t bytes() const { return file_.bytes(); }
    const MemoryFile& file() const { return file_; }

private:
    PinnedFile(MemoryFile file, std::byte* on_device)
        : file_(std::move(file)), on_device_(on_device) {}

    MemoryFile file_;
    std::byte* on_device_ = nullptr;
};

}  // namespace xp::cuda
