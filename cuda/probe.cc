#include "cuda/probe.h"

#include <algorithm>
#include <chrono>
#include <cstring>

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

Result<double> measure_upload_bandwidth(uint64_t bytes) {
    constexpr int kRuns = 4, kCopies = 64, kPlaces = 8;
    XP_TRY(const Memory from, Memory::pinned(kPlaces * bytes, "the upload probe"));
    XP_TRY(const Memory to, Memory::device(kPlaces * bytes, "the upload probe"));
    XP_TRY(const Stream stream, make_stream("the upload probe"));
    std::memset(from.data(), 0, from.bytes());
    double best = 0;
    for (int run = 0; run < kRuns; ++run) {
        XP_CUDA(cudaStreamSynchronize(stream.get()), "the upload probe");
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < kCopies; ++i) {
            const uint64_t at = static_cast<uint64_t>(i % kPlaces) * bytes;
            XP_CUDA(cudaMemcpyAsync(to.data() + at, from.data() + at, bytes,
                                    cudaMemcpyHostToDevice, stream.get()), "the upload probe");
        }
        XP_CUDA(cudaStreamSynchronize(stream.get()), "the upload probe");
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        best = std::max(best, static_cast<double>(kCopies * bytes) / took.count());
    }
    return best;
}

}  // namespace xp::cuda
