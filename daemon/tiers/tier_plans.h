// How many slots an expert cache gets, on the device and in RAM, of what its options ask for and
// of what memory there is.
#pragma once

#include <string>

#include "daemon/base/result.h"
#include "daemon/tiers/expert_cache.h"
#include "daemon/tiers/slot_memory.h"
#include "daemon/tiers/slot_plan.h"

namespace xp {

// The slots of both tiers.
struct TierPlans {
    SlotPlan slots;
    SlotPlan ram;  // empty: no RAM tier
};

// Adds sentences to `warning` when memory cut the slots, and when RAM slots were asked for where
// there can be none. Below the hard floor: kNoMemory or, of a RAM tier, kInvalidArgument.
Result<TierPlans> plan_tiers(const Manifest& manifest, const SlotMemory& memory,
                             const CacheOptions& options, std::string& warning);

}  // namespace xp
