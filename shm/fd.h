// Owning wrappers for what a connection holds of the operating system: descriptors and mappings.
// Move-only, closed by the destructor; errors of close() are ignored, as nothing here is written
// through a descriptor that buffers.
#pragma once

#include <cstddef>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

namespace xp::shm {

class Fd {
public:
    Fd() = default;
    explicit Fd(int fd) : fd_(fd) {}
    Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Fd& operator=(Fd&& other) noexcept {
        reset(std::exchange(other.fd_, -1));
        return *this;
    }
    ~Fd() { reset(); }

    int get() const { return fd_; }
    explicit operator bool() const { return fd_ >= 0; }
    int release() { return std::exchange(fd_, -1); }
    void reset(int fd = -1) {
        if (fd_ >= 0) ::close(fd_);
        fd_ = fd;
    }

private:
    int fd_ = -1;
};

class Mapping {
public:
    Mapping() = default;
    Mapping(void* base, size_t size) : base_(static_cast<std::byte*>(base)), size_(size) {}
    Mapping(Mapping&& other) noexcept
        : base_(std::exchange(other.base_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    Mapping& operator=(Mapping&& other) noexcept {
        reset();
        base_ = std::exchange(other.base_, nullptr);
        size_ = std::exchange(other.size_, 0);
        return *this;
    }
    ~Mapping() { reset(); }

    std::byte* base() const { return base_; }
    size_t size() const { return size_; }
    explicit operator bool() const { return base_ != nullptr; }
    void reset() {
        if (base_) ::munmap(base_, size_);
        base_ = nullptr;
        size_ = 0;
    }
    // Forgets the mapping without touching it: for a child of fork, where MADV_DONTFORK left none.
    void abandon() {
        base_ = nullptr;
        size_ = 0;
    }

private:
    std::byte* base_ = nullptr;
    size_t size_ = 0;
};

}  // namespace xp::shm
