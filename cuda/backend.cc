#include "cuda/backend.h"

#include "cuda/matmul.h"
#include "cuda/operators.h"
#include "cuda/probe.h"
#include "cuda/slots.h"
#include "cuda/timed_operators.h"

namespace xp {

using cuda::CudaOperators;
using cuda::CudaSlotMemory;
using cuda::Stream;

Result<Backend> open_cuda_backend(const CudaOptions& options) {
    int n_devices = 0;
    const cudaError_t found = cudaGetDeviceCount(&n_devices);
    if (found != cudaSuccess || n_devices == 0) {
        cudaGetLastError();
        return make_error(ErrorCode::kNotFound, "no CUDA device: {}",
                          found == cudaSuccess ? "none is there" : cudaGetErrorString(found));
    }
    if (options.device >= n_devices) {
        return make_error(ErrorCode::kNotFound, "no CUDA device {}: there are {}", options.device,
                          n_devices);
    }
    XP_CUDA(cudaSetDevice(options.device), "opening the CUDA device");
    if (!cuda::has_kernels()) {
        cudaGetLastError();
        int major = 0, minor = 0;
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, options.device);
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, options.device);
        return make_error(ErrorCode::kUnsupported,
                          "this build has no kernels for devices of compute capability {}.{}",
                          major, minor);
    }
    XP_TRY(Stream stream, cuda::make_stream("the compute stream"));
    const cudaStream_t compute = stream.get();
    Backend backend;
    backend.device = std::make_shared<Stream>(std::move(stream));
    XP_TRY(backend.operators, CudaOperators::create(options.device, compute));
    backend.meter = std::shared_ptr<MemoryMeter>(&cuda::device_meter(), [](MemoryMeter*) {});
    backend.memory = [options]() -> Result<DeviceMemory> {
        size_t free = 0, total = 0;
        XP_CUDA(cudaSetDevice(options.device), "choosing the device");
        XP_CUDA(cudaMemGetInfo(&free, &total), "asking for the device's memory");
        return DeviceMemory{total, free, options.reserve_bytes};
    };
    backend.make_slot_memory = [compute, options]() -> Result<std::unique_ptr<SlotMemory>> {
        XP_TRY(std::unique_ptr<CudaSlotMemory> memory,
               CudaSlotMemory::create(compute, {options.read_buffers, options.reserve_bytes}));
        return std::unique_ptr<SlotMemory>(std::move(memory));
    };
    return backend;
}

Result<Backend> open_measured_cuda_backend(const CudaOptions& options,
                                           CudaMeasurements& measurements) {
    constexpr uint64_t kProbeBytes = uint64_t{4} << 30;
    XP_TRY(Backend backend, open_cuda_backend(options));
    XP_TRY(measurements.read_bandwidth, cuda::measure_read_bandwidth(kProbeBytes));
    std::unique_ptr<CudaOperators> plain(
        static_cast<CudaOperators*>(backend.operators.release()));
    auto timed = std::make_unique<cuda::TimedOperators>(std::move(plain));
    measurements.measure_upload = cuda::measure_upload_bandwidth;
    measurements.measure = [timed = timed.get()](bool on) { timed->measure(on); };
    measurements.take = [timed = timed.get()] { return timed->take_times(); };
    backend.operators = std::move(timed);
    return backend;
}

}  // namespace xp
