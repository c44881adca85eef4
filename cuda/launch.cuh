// How kernels are started, and how one begins before the one in front of it has ended.
//
// Devices from sm_90 on can start a kernel's blocks while the kernel in front of it in the stream
// still runs (programmatic dependent launch). Such a kernel may do what depends on no other one,
// as reading its arguments and fetching weights, then waits: after_previous() returns when the
// kernel in front has ended and its results can be seen. Every kernel begins with it, or with
// fetches of weights and then it, and no block leaves before; it says let_next_start() at once,
// since what comes next waits by itself. What is no kernel in a stream (a copy, an event of another
// stream) is waited for before a kernel starts, as always. On older devices kernels start one after
// the other, and both functions do nothing.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/launch.h"

namespace xp::cuda {

__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
    cudaTriggerProgrammaticLaunchCompletion();
#endif
}
__device__ inline void after_previous() {
#if __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
#endif
}

// Brings a weight's bytes on their way to the L2 cache.
__device__ inline void prefetch(const void* p) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

enum class Start { kEarly, kAfterAll };

// kAfterAll: where a kernel's first fetches depend on what other kernels wrote.
template <Start kStart = Start::kEarly, class... Params, class... Args>
void launch(void (*kernel)(Params...), dim3 grid, dim3 block, uint32_t shared_bytes,
            cudaStream_t stream, const Args&... args) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = kStart == Start::kEarly && kernels_overlap() ? 1 : 0;
    count_launch();
    // An error stays with the runtime: see Operators::status().
    (void)cudaLaunchKernelEx(&config, kernel, Params(args)...);
}

}  // namespace xp::cuda
