// The CUDA runtime behind RAII and Result: errors as values, memory, streams and events that free
// themselves. Nothing here knows models or operators.
//
// A CUDA error of a kernel is sticky: every later call of the process fails with it, and only a new
// process gets the device back. device_lost() tells such errors from ordinary ones.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "daemon/base/memory_meter.h"
#include "daemon/base/result.h"

namespace xp::cuda {

// "WHAT: cudaErrorName (text)"; kNoMemory when the device has none left, kNotFound when there is no
// device or no driver, kDeviceLost when device_lost(), kInternal otherwise.
Error cuda_error(cudaError_t status, std::string_view what);

// XP_CUDA(cudaFoo(...), "doing something");  in a function that returns Result.
#define XP_CUDA(call, what)                                                                        \
    do {                                                                                           \
        if (const cudaError_t xp_status = (call); xp_status != cudaSuccess) {                      \
            return ::xp::cuda::cuda_error(xp_status, what);                                        \
        }                                                                                          \
    } while (false)

// Whether the process can do nothing more with its device.
bool device_lost(cudaError_t status);

// Owns a handle of type T that Destroy gives back. Move-only.
template <class T, auto Destroy>
class Handle {
public:
    Handle() = default;
    explicit Handle(T value) : value_(value) {}
    Handle(Handle&& other) noexcept : value_(std::exchange(other.value_, T{})) {}
    Handle& operator=(Handle&& other) noexcept {
        std::swap(value_, other.value_);
        return *this;
    }
    ~Handle() {
        if (value_ != T{}) Destroy(value_);
    }
    T get() const { return value_; }

private:
    T value_{};
};

using Stream = Handle<cudaStream_t, cudaStreamDestroy>;
using Event = Handle<cudaEvent_t, cudaEventDestroy>;

// A stream that does not synchronise with the default one.
// `urgent`: its kernels are started before those of other streams that wait for room.
Result<Stream> make_stream(std::string_view what, bool urgent = false);
// For ordering streams; without time stamps, which cost more.
Result<Event> make_event(std::string_view what);

// Counts what Memory and Arena hold of all devices, in the pieces in which the driver gives it out.
MemoryMeter& device_meter();

// Bytes of the device or pinned host memory. Move-only.
class Memory {
public:
    Memory() = default;
    Memory(Memory&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)),
          bytes_(std::exchange(other.bytes_, 0)),
          pinned_(other.pinned_) {}
    Memory& operator=(Memory&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        std::swap(pinned_, other.pinned_);
        return *this;
    }
    ~Memory();

    // Of the current device; not initialised.
    static Result<Memory> device(uint64_t bytes, std::string_view what);
    // Page-locked host memory: what the device copies from at full speed.
    static Result<Memory> pinned(uint64_t bytes, std::string_view what);

    std::byte* data() const { return data_; }
    uint64_t bytes() const { return bytes_; }

private:
    Memory(void* data, uint64_t bytes, bool pinned)
        : data_(static_cast<std::byte*>(data)), bytes_(bytes), pinned_(pinned) {}

    std::byte* data_ = nullptr;
    uint64_t bytes_ = 0;
    bool pinned_ = false;
};

}  // namespace xp::cuda
