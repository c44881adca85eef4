// Copies of freshly read memory to the device, by a kernel and not by a copy engine.
//
// What threads have just copied out of the page cache lies modified in the caches of their cores. A
// copy engine has few requests on their way, so that it waits for each of those caches to answer,
// and holds up the threads that read meanwhile; a kernel has as many as it likes.
#include <algorithm>

#include "cuda/kernels.h"
#include "cuda/launch.cuh"

namespace xp::cuda {
namespace {

constexpr uint32_t kThreads = 512;
constexpr uint32_t kBlocks = 128;
constexpr uint32_t kLoads = 4;  // of a thread, on their way at a time

__global__ void __launch_bounds__(kThreads)
    upload_kernel(const uint4* host, uint64_t n, uint4* device) {
    let_next_start();
    const uint64_t step = uint64_t{gridDim.x} * kThreads;
    for (uint64_t i = blockIdx.x * kThreads + threadIdx.x; i < n; i += step * kLoads) {
        uint4 v[kLoads];
#pragma unroll
        for (uint32_t k = 0; k < kLoads; ++k) {
            if (i + k * step < n) v[k] = __ldcv(host + i + k * step);  // never from a cache
        }
#pragma unroll
        for (uint32_t k = 0; k < kLoads; ++k) {
            if (i + k * step < n) device[i + k * step] = v[k];
        }
    }
    after_previous();  // nothing depends on it here, but what waits for this one
}

}  // namespace

void launch_upload(const std::byte* host, uint64_t bytes, std::byte* device, UploadOrder order,
                   cudaStream_t stream) {
    if (bytes == 0) return;
    static_assert(sizeof(uint4) == kUploadAlignment);
    const uint64_t n = bytes / sizeof(uint4);
    const uint64_t blocks = (n + kThreads - 1) / kThreads;
    const auto grid = static_cast<uint32_t>(std::min<uint64_t>(blocks, kBlocks));
    const auto* from = reinterpret_cast<const uint4*>(host);
    auto* to = reinterpret_cast<uint4*>(device);
    if (order == UploadOrder::kAfterAll) {
        launch<Start::kAfterAll>(upload_kernel, grid, kThreads, 0, stream, from, n, to);
    } else {
        launch(upload_kernel, grid, kThreads, 0, stream, from, n, to);
    }
}

}  // namespace xp::cuda
