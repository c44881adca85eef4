// A backend: operators, and memory for expert slots that they can compute on.
#pragma once

#include <functional>
#include <memory>

#include "daemon/base/memory_meter.h"
#include "daemon/base/result.h"
#include "daemon/engine/operators.h"
#include "daemon/tiers/slot_memory.h"

namespace xp {

// The memory of a device, in bytes.
struct DeviceMemory {
    uint64_t total = 0;
    uint64_t free = 0;     // now; other programs take some too
    uint64_t reserve = 0;  // what is to stay free, for the driver and for other programs
};

struct Backend {
    std::shared_ptr<void> device;  // what the others stand on; goes last
    // What operators hold: buffers they gave out, and scratch memory of a device.
    std::shared_ptr<MemoryMeter> meter;
    // Asks the device; any thread. Null where memory is the host's.
    std::function<Result<DeviceMemory>()> memory;
    std::unique_ptr<Operators> operators;
    // For one expert cache.
    std::function<Result<std::unique_ptr<SlotMemory>>()> make_slot_memory;
};

// `threads` 0: one per hardware thread. kUnsupported on processors without AVX2, FMA and F16C.
Result<Backend> open_cpu_backend(unsigned threads);

}  // namespace xp
