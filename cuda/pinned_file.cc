#include "cuda/pinned_file.h"

#include "daemon/base/size.h"

namespace xp::cuda {

PinnedFile::~PinnedFile() {
    if (file_.data() != nullptr) cudaHostUnregister(file_.data());
}

Result<PinnedFile> PinnedFile::create(uint64_t bytes, std::string_view what) {
    XP_TRY(MemoryFile file, MemoryFile::create(bytes, what));
    return pin(std::move(file), what);
}

Result<PinnedFile> PinnedFile::pin(MemoryFile file, std::string_view what) {
    if (file.data() == nullptr) return PinnedFile();
    const cudaError_t status = cudaHostRegister(
        file.data(), file.bytes(), cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (status != cudaSuccess) {
        cudaGetLastError();  // not sticky: the next call must not see it
        Error error = cuda_error(status, fmt::format("{} of host memory for {} cannot be pinned",
                                                     format_size(file.bytes()), what));
        if (error.code != ErrorCode::kNotFound) error.message += memlock_advice(file.bytes());
        return error;
    }
    PinnedFile pinned(std::move(file), nullptr);
    void* on_device = nullptr;
    XP_CUDA(cudaHostGetDevicePointer(&on_device, pinned.data(), 0), "mapping host memory");
    pinned.on_device_ = static_cast<std::byte*>(on_device);
    return pinned;
}

}  // namespace xp::cuda
