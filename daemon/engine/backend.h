// A backend: operators, and memory for expert slots that they can compute on.
#pragma once

#include <functional>
#include <memory>

#include "daemon/base/result.h"
#include "daemon/engine/operators.h"
#include "daemon/tiers/slot_memory.h"

namespace xp {

struct Backend {
    std::shared_ptr<void> device;  // what the others stand on; goes last
    std::unique_ptr<Operators> operators;
    // For one expert cache.
    std::function<Result<std::unique_ptr<SlotMemory>>()> make_slot_memory;
};

// `threads` 0: one per hardware thread. kUnsupported on processors without AVX2, FMA and F16C.
Result<Backend> open_cpu_backend(unsigned threads);

}  // namespace xp
