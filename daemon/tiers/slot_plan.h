// How many expert slots a budget of bytes gives. Slots come in classes, one per object size
// (stride): layers of one model may be quantised differently, and a slot that fits any object would
// waste the difference.
//
// The rule: every class gets its hard floor first. What is left is split over the classes in
// proportion to the bytes they still lack, in whole slots; a remainder that is too small for that
// goes to the first classes (ascending stride) it fits. Nobody gets more slots than objects.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/pack/pack.h"

namespace xp {

struct SlotClass {
    uint64_t stride = 0;     // bytes of a slot
    uint32_t n_layers = 0;
    uint64_t n_objects = 0;
    // top_k of the layer being computed plus what is in flight; never more than there are objects.
    uint64_t floor_slots = 0;
    uint64_t slots = 0;
};

struct SlotPlan {
    std::vector<SlotClass> classes;  // ascending stride

    uint64_t slots() const;
    uint64_t bytes() const;
    uint64_t floor_slots() const;
    uint64_t floor_bytes() const;
};

// `bytes` 0, or more than all experts need: a slot for every expert. Below the floor: kNoMemory
// with the numbers, and `key`, the one of [cache] that says the bytes.
Result<SlotPlan> plan_slots(const Manifest& manifest, uint64_t bytes, uint32_t top_k,
                            uint32_t in_flight_slots, std::string_view key = "experts");

// The same for RAM slots behind the slots of `first`: none more than there are objects that `first`
// has no slots for, and those on their way between the two.
Result<SlotPlan> plan_ram_slots(const Manifest& manifest, uint64_t bytes, uint32_t top_k,
                                uint32_t in_flight_slots, const SlotPlan& first);

// Empty, or a sentence about the first class that holds less than one token's working set.
std::string working_set_warning(const SlotPlan& plan, uint32_t top_k);

}  // namespace xp
