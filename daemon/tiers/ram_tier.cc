#include "daemon/tiers/ram_tier.h"

#include <algorithm>
#include <utility>

#include "daemon/base/assert.h"

namespace xp {
namespace {

// Slots of a class that stay free ahead of need: as many as a layer usually brings back at once. A
// quarter of a small class.
constexpr size_t kSpareSlots = 4;

}  // namespace

RamTier::RamTier(const SlotPlan& plan, uint32_t n_experts, CachePolicy& policy)
    : policy_(policy), slots_of_(n_experts, kNoSlot) {
    for (const SlotClass& slot_class : plan.classes) {
        const auto index = static_cast<uint32_t>(classes_.size());
        Class& c = classes_.emplace_back();
        c.spare = std::min<size_t>(kSpareSlots, slot_class.slots / 4);
        c.held.reserve(slot_class.slots + 1);
        for (uint64_t i = 0; i < slot_class.slots; ++i) {
            c.free.push_back(static_cast<SlotNumber>(slot_classes_.size()));
            slot_classes_.push_back(index);
        }
    }
}

// One pass over what the class holds per victim once it is full, as in the first tier.
std::optional<SlotNumber> RamTier::keep(ExpertNumber victim, uint32_t slot_class) {
    XP_ASSERT(!holds(victim));
    Class& c = classes_[slot_class];
    c.held.push_back(victim);
    if (c.free.empty() || c.free.size() + c.taken <= c.spare) {
        const size_t index = choose_victim(policy_, c.held);
        const ExpertNumber out = std::exchange(c.held[index], c.held.back());
        c.held.pop_back();
        if (out == victim) return std::nullopt;
        c.free.push_back(std::exchange(slots_of_[out], kNoSlot));
        --held_;
        ++evictions_;
    }
    const SlotNumber slot = c.free.front();
    c.free.pop_front();
    slots_of_[victim] = slot;
    ++held_;
    return slot;
}

SlotNumber RamTier::take(ExpertNumber expert) {
    XP_ASSERT(holds(expert));
    const SlotNumber slot = std::exchange(slots_of_[expert], kNoSlot);
    Class& c = classes_[slot_classes_[slot]];
    const auto at = std::find(c.held.begin(), c.held.end(), expert);
    XP_ASSERT(at != c.held.end());
    *at = c.held.back();
    c.held.pop_back();
    --held_;
    ++c.taken;
    return slot;
}

void RamTier::put_back(SlotNumber slot) {
    Class& c = classes_[slot_classes_[slot]];
    XP_ASSERT(c.taken > 0);
    --c.taken;
    c.free.push_back(slot);
}

}  // namespace xp
