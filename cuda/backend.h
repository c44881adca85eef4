// The CUDA backend as the daemon opens it. Every build has this function; one without CUDA says so.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "daemon/engine/backend.h"

namespace xp {

// Whether this build has CUDA operators: the library says so to all who link it.
#if defined(XP_HAS_CUDA)
inline constexpr bool kBuiltWithCuda = true;
#else
inline constexpr bool kBuiltWithCuda = false;
#endif

struct CudaOptions {
    int device = 0;
    uint32_t read_buffers = 16;  // pinned, of one expert each
    uint64_t reserve_bytes = uint64_t{1} << 30;
};

// kNotFound: there is no device, or no driver. kUnsupported: this build has no CUDA at all, or no
// kernels for this device. All else is a device that should work and does not.
Result<Backend> open_cuda_backend(const CudaOptions& options);

// The same for benchmarks: with time stamps around operators while measure(true) holds.
struct CudaOperatorTime {
    std::string name;
    uint64_t calls = 0;
    double seconds = 0;
    uint64_t bytes = 0;         // of weights
};
struct CudaMeasurements {
    double read_bandwidth = 0;  // bytes per second of a plain kernel that reads device memory
    // Bytes per second of copies of so many bytes each from pinned memory.
    std::function<Result<double>(uint64_t)> measure_upload;
    std::function<void(bool)> measure;
    std::function<std::vector<CudaOperatorTime>()> take;  // since the last call
};
Result<Backend> open_measured_cuda_backend(const CudaOptions& options,
                                           CudaMeasurements& measurements);

}  // namespace xp
