// Arrays in a backend's memory for tests: made from host values, or poisoned, so that an output
// left unwritten is found; downloaded with host(). In front of and behind the elements lies guard
// space, which is looked at when the vector goes: a write outside fails the test. Guards and poison
// are NaN as float or half, so that reading outside shows in results too.
//
// A vector belongs to one test and must go before the operators it was made with.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "daemon/engine/operators.h"

namespace xp::test {

template <class T>
class DeviceVector {
public:
    static_assert(std::is_trivially_copyable_v<T>);

    // Nothing, to be assigned.
    DeviceVector() = default;
    DeviceVector(Operators& ops, std::span<const T> host) : ops_(&ops), size_(host.size()) {
        const uint64_t bytes = size_ * sizeof(T);
        std::vector<std::byte> image(bytes + 2 * kGuardBytes, kGuard);
        if (bytes > 0) std::memcpy(image.data() + kGuardBytes, host.data(), bytes);
        auto buffer = ops.allocate(image.size(), "test vector");
        if (!buffer) ADD_FAILURE() << buffer.error().message;
        buffer_ = *std::move(buffer);
        ops.upload(buffer_.data(), image);
    }

    static DeviceVector poisoned(Operators& ops, uint64_t n) {
        std::vector<T> host(n);
        if constexpr (std::is_floating_point_v<T>) {
            std::fill(host.begin(), host.end(), static_cast<T>(NAN));
        } else {
            if (n > 0) std::memset(host.data(), kPoison, n * sizeof(T));
        }
        return DeviceVector(ops, host);
    }

    DeviceVector(DeviceVector&& other) noexcept
        : ops_(std::exchange(other.ops_, nullptr)),
          buffer_(std::move(other.buffer_)),
          size_(other.size_) {}
    DeviceVector& operator=(DeviceVector&& other) noexcept {
        std::swap(ops_, other.ops_);
        std::swap(buffer_, other.buffer_);
        std::swap(size_, other.size_);
        return *this;
    }
    ~DeviceVector() {
        if (ops_ != nullptr) check_guards();
    }

    T* data() const { return reinterpret_cast<T*>(buffer_.data() + kGuardBytes); }
    std::byte* bytes() const { return buffer_.data() + kGuardBytes; }
    uint64_t size() const { return size_; }

    std::vector<T> host() const {
        std::vector<T> values(size_);
        ops_->download(std::as_writable_bytes(std::span(values)), bytes());
        return values;
    }

private:
    // Keeps the elements aligned like an allocation of their own.
    static constexpr uint64_t kGuardBytes = 512;
    static constexpr std::byte kGuard{0xff};
    static constexpr int kPoison = 0xab;

    void check_guards() const {
        std::vector<std::byte> found(kGuardBytes);
        const std::vector<std::byte> expected(kGuardBytes, kGuard);
        ops_->download(found, buffer_.data());
        EXPECT_TRUE(found == expected) << "written in front of a vector of " << size_;
        ops_->download(found, bytes() + size_ * sizeof(T));
        EXPECT_TRUE(found == expected) << "written behind a vector of " << size_;
    }

    Operators* ops_ = nullptr;
    DeviceBuffer buffer_;
    uint64_t size_ = 0;
};

}  // namespace xp::test
