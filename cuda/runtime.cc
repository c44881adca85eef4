#include "cuda/runtime.h"

#include "daemon/base/memory.h"
#include "daemon/base/memory_file.h"
#include "daemon/base/size.h"

namespace xp::cuda {
namespace {

// The driver gives out whole pages of 2 MiB; only what is smaller than half of one shares it.
uint64_t held_bytes(uint64_t bytes) {
    constexpr uint64_t kPage = uint64_t{2} << 20;
    constexpr uint64_t kShare = 512;
    return align_up(bytes, bytes > kPage / 2 ? kPage : kShare);
}

}  // namespace

Error cuda_error(cudaError_t status, std::string_view what) {
    const bool no_device = status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver;
    const ErrorCode code = status == cudaErrorMemoryAllocation ? ErrorCode::kNoMemory
                           : no_device                         ? ErrorCode::kNotFound
                           : device_lost(status)               ? ErrorCode::kDeviceLost
                                                               : ErrorCode::kInternal;
    return make_error(code, "{}{}: {} ({})", what, no_device ? ": no CUDA device" : "",
                      cudaGetErrorName(status), cudaGetErrorString(status));
}

bool device_lost(cudaError_t status) {
    switch (status) {
        case cudaSuccess:
        case cudaErrorNotReady:
        case cudaErrorMemoryAllocation:
        case cudaErrorInvalidValue:
        case cudaErrorInvalidConfiguration:
        case cudaErrorNoDevice:
        case cudaErrorInsufficientDriver:
            return false;
        default:
            return true;
    }
}

Result<Stream> make_stream(std::string_view what, bool urgent) {
    int lowest = 0, highest = 0;
    XP_CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest), what);
    cudaStream_t stream = nullptr;
    XP_CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                         urgent ? highest : lowest), what);
    return Stream(stream);
}

Result<Event> make_event(std::string_view what) {
    cudaEvent_t event = nullptr;
    XP_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), what);
    return Event(event);
}

MemoryMeter& device_meter() {
    static MemoryMeter meter;
    return meter;
}

Memory::~Memory() {
    if (data_ == nullptr) return;
    if (pinned_) {
        cudaFreeHost(data_);
    } else {
        cudaFree(data_);
        device_meter().remove(held_bytes(bytes_));
    }
}

Result<Memory> Memory::device(uint64_t bytes, std::string_view what) {
    void* data = nullptr;
    const cudaError_t status = cudaMalloc(&data, bytes);
    if (status != cudaSuccess) {
        cudaGetLastError();  // not sticky: the next call must not see it
        return cuda_error(status, fmt::format("no {} of GPU memory for {}", format_size(bytes),
                                              what));
    }
    device_meter().add(held_bytes(bytes));
    return Memory(data, bytes, false);
}

Result<Memory> Memory::pinned(uint64_t bytes, std::string_view what) {
    void* data = nullptr;
    const cudaError_t status = cudaHostAlloc(&data, bytes, cudaHostAllocPortable);
    if (status != cudaSuccess) {
        cudaGetLastError();
        Error error = cuda_error(status, fmt::format("no {} of pinned host memory for {}",
                                                     format_size(bytes), what));
        if (error.code != ErrorCode::kNotFound) error.message += memlock_advice(bytes);
        return error;
    }
    return Memory(data, bytes, true);
}

}  // namespace xp::cuda
