#include "cuda/probe.h"

#include <algorithm>

#include "cuda/kernels.h"
#include "cuda/runtime.h"

namespace xp::cuda {

Result<double> measure_read_bandwidth(uint64_t bytes) {
    constexpr int kRuns = 5;
    constexpr uint32_t kBlocksEach = 8;
    int device = 0, processors = 0;
    XP_CUDA(cudaGetDevice(&device), "asking for the device");
    XP_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
            "asking for the device's processors");
    XP_TRY(const Memory memory, Memory::device(bytes, "the bandwidth probe"));
    XP_CUDA(cudaMemset(memory.data(), 0, bytes), "filling the probe's memory");
    cudaEvent_t begin = nullptr, end = nullptr;
    XP_CUDA(cudaEventCreate(&begin), "an event");
    XP_CUDA(cudaEventCreate(&end), "an event");
    float best = 0;
    for (int run = 0; run < kRuns; ++run) {
        cudaEventRecord(begin);
        launch_read_all(memory.data(), bytes, kBlocksEach * static_cast<uint32_t>(processors),
                        reinterpret_cast<uint32_t*>(memory.data()), nullptr);
        cudaEventRecord(end);
        XP_CUDA(cudaEventSynchronize(end), "the bandwidth probe");
        float milliseconds = 0;
        cudaEventElapsedTime(&milliseconds, begin, end);
        if (run > 0) best = run == 1 ? milliseconds : std::min(best, milliseconds);
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return static_cast<double>(bytes) / (best * 1e-3);
}

}  // namespace xp::cuda
