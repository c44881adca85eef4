// One pass of the largest size before there are expert slots: whatever a pass allocates on a device
// on its way, code of kernels included, has been allocated then, and what is left is known.
#pragma once

#include <cstdint>
#include <memory>

#include "daemon/base/memory_meter.h"
#include "daemon/base/result.h"
#include "daemon/engine/model.h"
#include "daemon/tiers/slot_memory.h"

namespace xp {

struct RehearsalSize {
    uint32_t rows = 0;
    uint32_t logits = 0;   // rows that want them, at most `rows`
};

// Runs `model` at the end of its context on made-up experts, the same ones for all rows, in the
// fewest slots there can be; nothing is read from the pack. Returns how many bytes the pass had
// taken beyond what is kept after it. The model has no usable cache then, until it is given one.
Result<uint64_t> rehearse(Model& model, const Pack& pack, std::unique_ptr<SlotMemory> slots,
                          MemoryMeter& meter, const RehearsalSize& size);

}  // namespace xp
