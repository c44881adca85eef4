#include "cuda/arena.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <fcntl.h>

#include "daemon/base/memory.h"
#include "daemon/base/size.h"

namespace xp::cuda {
namespace {

constexpr CUmemAllocationHandleType kHandleType = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

// Of the driver's library, which may not be there.
struct Driver {
    PFN_cuMemGetAllocationGranularity_v10020 granularity = nullptr;
    PFN_cuMemCreate_v10020 create = nullptr;
    PFN_cuMemRelease_v10020 release = nullptr;
    PFN_cuMemAddressReserve_v10020 reserve = nullptr;
    PFN_cuMemAddressFree_v10020 free = nullptr;
    PFN_cuMemMap_v10020 map = nullptr;
    PFN_cuMemUnmap_v10020 unmap = nullptr;
    PFN_cuMemSetAccess_v10020 set_access = nullptr;
    PFN_cuMemExportToShareableHandle_v10020 export_handle = nullptr;
    PFN_cuMemImportFromShareableHandle_v10020 import_handle = nullptr;
    PFN_cuMemGetAllocationPropertiesFromHandle_v10020 properties = nullptr;
};

template <class Function>
Result<void> find(const char* name, Function& function) {
    constexpr unsigned kVersion = 10'020;  // CUDA 10.2 brought all of them
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t status =
        cudaGetDriverEntryPointByVersion(name, &found, kVersion, cudaEnableDefault, &result);
    if (status != cudaSuccess) {
        cudaGetLastError();
        return cuda_error(status, fmt::format("looking for {} in the driver", name));
    }
    if (found == nullptr || result != cudaDriverEntryPointSuccess) {
        return make_error(ErrorCode::kUnsupported,
                          "the driver has no function {}: install a newer one", name);
    }
    function = reinterpret_cast<Function>(found);
    return {};
}

Result<Driver> find_driver() {
    int n_devices = 0;
    XP_CUDA(cudaGetDeviceCount(&n_devices), "looking for a device");
    Driver driver;
    XP_CHECK(find("cuMemGetAllocationGranularity", driver.granularity));
    XP_CHECK(find("cuMemCreate", driver.create));
    XP_CHECK(find("cuMemRelease", driver.release));
    XP_CHECK(find("cuMemAddressReserve", driver.reserve));
    XP_CHECK(find("cuMemAddressFree", driver.free));
    XP_CHECK(find("cuMemMap", driver.map));
    XP_CHECK(find("cuMemUnmap", driver.unmap));
    XP_CHECK(find("cuMemSetAccess", driver.set_access));
    XP_CHECK(find("cuMemExportToShareableHandle", driver.export_handle));
    XP_CHECK(find("cuMemImportFromShareableHandle", driver.import_handle));
    XP_CHECK(find("cuMemGetAllocationPropertiesFromHandle", driver.properties));
    return driver;
}

// Found once; an error then stays.
const Result<Driver>& driver() {
    static const Result<Driver> found = find_driver();
    return found;
}

// The runtime's errors have the driver's numbers. What is neither too little memory nor a lost
// device is a refusal: the platform cannot do this.
Error driver_error(CUresult result, std::string_view what) {
    switch (result) {
        case CUDA_ERROR_INVALID_VALUE:
        case CUDA_ERROR_INVALID_DEVICE:
        case CUDA_ERROR_OPERATING_SYSTEM:
        case CUDA_ERROR_INVALID_HANDLE:
        case CUDA_ERROR_NOT_PERMITTED:
        case CUDA_ERROR_NOT_SUPPORTED:
        case CUDA_ERROR_UNKNOWN: {
            Error error = cuda_error(static_cast<cudaError_t>(result), what);
            error.code = ErrorCode::kUnsupported;
            return error;
        }
        default: return cuda_error(static_cast<cudaError_t>(result), what);
    }
}

#define XP_DRIVER(call, what)                                                                      \
    do {                                                                                           \
        if (const CUresult xp_result = (call); xp_result != CUDA_SUCCESS) {                        \
            return driver_error(xp_result, what);                                                  \
        }                                                                                          \
    } while (false)

CUmemAllocationProp properties_on(int device) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = kHandleType;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    return properties;
}

Result<uint64_t> whole_pieces(const Driver& driver, uint64_t bytes, int device) {
    const CUmemAllocationProp properties = properties_on(device);
    size_t piece = 0;
    XP_DRIVER(driver.granularity(&piece, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
              "asking for the granularity of exportable GPU memory");
    return align_up(bytes, piece);
}

// Also makes sure that the runtime has begun to use the device.
Result<int> current_device() {
    int device = 0;
    XP_CUDA(cudaGetDevice(&device), "asking for the device");
    XP_CUDA(cudaFree(nullptr), "opening the device");
    return device;
}

}  // namespace

Arena::~Arena() {
    if (handle_ == 0) return;
    const Driver& functions = *driver();
    const auto address = reinterpret_cast<CUdeviceptr>(data_);
    if (mapped_) functions.unmap(address, held_);
    if (data_ != nullptr) functions.free(address, held_);
    functions.release(handle_);
    if (mapped_) device_meter().remove(held_);
}

Result<void> Arena::check_export() {
    Result<Arena> arena = create(1);
    if (!arena) return std::move(arena).error();
    Result<UniqueFd> fd = arena->export_fd();
    if (!fd) return std::move(fd).error();
    return {};
}

Result<Arena> Arena::create(uint64_t bytes) {
    if (!driver()) return driver().error();
    XP_TRY(const int device, current_device());
    XP_TRY(const uint64_t held, whole_pieces(*driver(), bytes, device));
    const CUmemAllocationProp properties = properties_on(device);
    CUmemGenericAllocationHandle handle = 0;
    XP_DRIVER(driver()->create(&handle, held, &properties, 0),
              fmt::format("no {} of exportable GPU memory for expert slots", format_size(bytes)));
    return map(handle, bytes, held, device);
}

Result<Arena> Arena::create_private(uint64_t bytes) {
    Arena arena;
    XP_TRY(arena.private_, Memory::device(bytes, "expert slots"));
    arena.data_ = arena.private_.data();
    arena.bytes_ = bytes;
    return arena;
}

Result<Arena> Arena::import(int fd, uint64_t bytes) {
    if (!driver()) return driver().error();
    XP_TRY(const int device, current_device());
    XP_TRY(const uint64_t held, whole_pieces(*driver(), bytes, device));
    CUmemGenericAllocationHandle handle = 0;
    const auto descriptor = reinterpret_cast<void*>(static_cast<uintptr_t>(fd));
    XP_DRIVER(driver()->import_handle(&handle, descriptor, kHandleType),
              fmt::format("taking over {} of GPU memory that was kept", format_size(bytes)));
    CUmemAllocationProp properties{};
    const CUresult told = driver()->properties(&properties, handle);
    if (told != CUDA_SUCCESS || properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        properties.location.id != device) {
        driver()->release(handle);
        XP_DRIVER(told, "asking what GPU memory was kept");
        return make_error(ErrorCode::kInvalidArgument,
                          "the GPU memory that was kept is not of device {}", device);
    }
    XP_TRY(Arena arena, map(handle, bytes, held, device));
    arena.imported_ = UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!arena.imported_) return errno_error(errno, "keeping a descriptor for GPU memory");
    return arena;
}

// On errors the arena gives back what it has so far, the handle included.
Result<Arena> Arena::map(unsigned long long handle, uint64_t bytes, uint64_t held, int device) {
    Arena arena;
    arena.handle_ = handle;
    arena.held_ = held;
    CUdeviceptr address = 0;
    XP_DRIVER(driver()->reserve(&address, held, 0, 0, 0), "an address for GPU memory");
    arena.data_ = reinterpret_cast<std::byte*>(address);
    XP_DRIVER(driver()->map(address, held, 0, handle, 0),
              fmt::format("mapping {} of GPU memory", format_size(held)));
    arena.mapped_ = true;
    device_meter().add(held);
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    XP_DRIVER(driver()->set_access(address, held, &access, 1), "access to GPU memory");
    arena.bytes_ = bytes;
    return arena;
}

Result<UniqueFd> Arena::export_fd() const {
    if (handle_ == 0) {
        return make_error(ErrorCode::kUnsupported, "this GPU memory has no descriptor");
    }
    // The driver exports only what this process allocated.
    if (imported_) {
        UniqueFd fd(::fcntl(imported_.get(), F_DUPFD_CLOEXEC, 0));
        if (!fd) return errno_error(errno, "a descriptor for GPU memory");
        return fd;
    }
    int number = -1;
    XP_DRIVER(driver()->export_handle(&number, handle_, kHandleType, 0),
              "a descriptor for GPU memory");
    UniqueFd fd(number);
    if (::fcntl(fd.get(), F_SETFD, FD_CLOEXEC) != 0) {
        return errno_error(errno, "a descriptor for GPU memory");
    }
    return fd;
}

}  // namespace xp::cuda
