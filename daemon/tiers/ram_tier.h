// The second tier: which experts stay in host memory after they left the slots that are computed
// on, and in which RAM slot each is. Pure bookkeeping: no memory, no copies, no locks; it belongs
// to the thread of its cache, which starts the copies (slot_memory.h).
//
// The tier is exclusive: an expert is in the first tier or here, never in both. Simulated on two
// routing traces with a first tier of 15 % of the experts and two thirds of that here, this read
// as little as one cache as large as both. A tier that keeps what was read from the drive, and so
// needs no copies out of the first tier, read 5 % more at its best, where experts that are in both
// tiers may have a tenth of it, and 8 to 43 % more without that limit.
//
// Life of a RAM slot: free; keep() says what is copied into it; take(), when its expert goes back;
// put_back(), once the copy out of it was started; free. Free slots are handed out in the order
// they became free, and a few are kept free ahead of need: a copy into a slot is ordered behind the
// copy out of it, which then was long ago.
//
// Admission is the first tier's policy: a victim is kept when it is not itself what the policy
// would evict of all that is here and the victim. Of a scan, which policies do not see, hardly
// anything is.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "daemon/tiers/policy.h"
#include "daemon/tiers/slot_memory.h"
#include "daemon/tiers/slot_plan.h"

namespace xp {

class RamTier {
public:
    // Slots are numbered over the plan's classes, in their order. `policy` outlives this.
    RamTier(const SlotPlan& plan, uint32_t n_experts, CachePolicy& policy);

    bool holds(ExpertNumber expert) const { return slots_of_[expert] != kNoSlot; }
    // The slot that an expert evicted from the first tier is to be copied to; none when it is not
    // worth the place of any expert here. It counts as held from now on.
    std::optional<SlotNumber> keep(ExpertNumber victim, uint32_t slot_class);
    // The expert goes back to the first tier: the slot to copy it from, in use until put_back().
    SlotNumber take(ExpertNumber expert);
    void put_back(SlotNumber slot);

    uint64_t held() const { return held_; }
    // Experts that made room for others.
    uint64_t evictions() const { return evictions_; }

private:
    struct Class {
        std::deque<SlotNumber> free;       // the first became free first
        size_t spare = 0;                  // slots kept free, or about to be
        size_t taken = 0;                  // slots not put back yet
        std::vector<ExpertNumber> held;
    };

    CachePolicy& policy_;
    std::vector<Class> classes_;
    std::vector<uint32_t> slot_classes_;   // per slot
    std::vector<SlotNumber> slots_of_;     // per expert
    uint64_t held_ = 0;
    uint64_t evictions_ = 0;
};

}  // namespace xp
