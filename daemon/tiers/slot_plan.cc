#include "daemon/tiers/slot_plan.h"

#include <algorithm>
#include <limits>
#include <map>

#include "daemon/base/size.h"

namespace xp {
namespace {

// Slots are numbered with 32 bits, and so are experts.
constexpr uint64_t kMaxObjects = std::numeric_limits<uint32_t>::max() - 1;

template <class Field>
uint64_t sum(const SlotPlan& plan, Field field) {
    uint64_t total = 0;
    for (const SlotClass& slot_class : plan.classes) total += field(slot_class);
    return total;
}

Result<SlotPlan> find_classes(const Manifest& manifest, uint32_t top_k, uint32_t in_flight_slots) {
    std::map<uint64_t, SlotClass> by_stride;
    uint64_t n_objects = 0;
    for (const PackLayer& layer : manifest.layers) {
        if (top_k < 1 || top_k > layer.n_experts) {
            return make_error(ErrorCode::kInvalidArgument,
                              "layer {} has {} experts: a token cannot use {} of them", layer.layer,
                              layer.n_experts, top_k);
        }
        SlotClass& slot_class = by_stride[layer.stride];
        slot_class.stride = layer.stride;
        ++slot_class.n_layers;
        slot_class.n_objects += layer.n_experts;
        n_objects += layer.n_experts;
    }
    if (n_objects == 0 || n_objects > kMaxObjects) {
        return make_error(ErrorCode::kInvalidArgument,
                          "the pack holds {} experts: an expert cache takes 1 to {}", n_objects,
                          kMaxObjects);
    }
    SlotPlan plan;
    for (auto& [stride, slot_class] : by_stride) {
        slot_class.floor_slots =
            std::min<uint64_t>(uint64_t{top_k} + in_flight_slots, slot_class.n_objects);
        plan.classes.push_back(slot_class);
    }
    return plan;
}

// a * b / c without overflow.
uint64_t scale(uint64_t a, uint64_t b, uint64_t c) {
    return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b / c);
}

void split(SlotPlan& plan, uint64_t bytes) {
    const uint64_t spare = bytes - plan.floor_bytes();
    const auto lacking = [](const SlotClass& slot_class) {
        return (slot_class.n_objects - slot_class.floor_slots) * slot_class.stride;
    };
    const uint64_t all_lacking = sum(plan, lacking);
    uint64_t left = spare;
    for (SlotClass& slot_class : plan.classes) {
        const uint64_t share =
            all_lacking == 0 ? 0 : scale(spare, lacking(slot_class), all_lacking);
        const uint64_t extra = share / slot_class.stride;
        slot_class.slots = slot_class.floor_slots + extra;
        left -= extra * slot_class.stride;
    }
    for (SlotClass& slot_class : plan.classes) {
        const uint64_t extra = std::min(left / slot_class.stride,
                                        slot_class.n_objects - slot_class.slots);
        slot_class.slots += extra;
        left -= extra * slot_class.stride;
    }
}

}  // namespace

uint64_t SlotPlan::slots() const {
    return sum(*this, [](const SlotClass& c) { return c.slots; });
}
uint64_t SlotPlan::bytes() const {
    return sum(*this, [](const SlotClass& c) { return c.slots * c.stride; });
}
uint64_t SlotPlan::floor_slots() const {
    return sum(*this, [](const SlotClass& c) { return c.floor_slots; });
}
uint64_t SlotPlan::floor_bytes() const {
    return sum(*this, [](const SlotClass& c) { return c.floor_slots * c.stride; });
}

Result<SlotPlan> plan_slots(const Manifest& manifest, uint64_t bytes, uint32_t top_k,
                            uint32_t in_flight_slots, std::string_view key) {
    XP_TRY(SlotPlan plan, find_classes(manifest, top_k, in_flight_slots));
    const uint64_t all_bytes =
        sum(plan, [](const SlotClass& c) { return c.n_objects * c.stride; });
    if (bytes == 0 || bytes >= all_bytes) {
        for (SlotClass& slot_class : plan.classes) slot_class.slots = slot_class.n_objects;
        return plan;
    }
    if (bytes < plan.floor_bytes()) {
        return make_error(ErrorCode::kNoMemory,
                          "an expert cache of {} bytes ({}) is below the hard floor of {} bytes "
                          "({}): {} slots, for the {} experts a token uses in a layer and {} being "
                          "read; give [cache] {} at least that",
                          bytes, format_size(bytes), plan.floor_bytes(),
                          format_size(plan.floor_bytes()), plan.floor_slots(), top_k,
                          in_flight_slots, key);
    }
    split(plan, bytes);
    return plan;
}

Result<SlotPlan> plan_ram_slots(const Manifest& manifest, uint64_t bytes, uint32_t top_k,
                                uint32_t in_flight_slots, const SlotPlan& first) {
    XP_TRY(SlotPlan plan, plan_slots(manifest, bytes, top_k, in_flight_slots, "ram_tier"));
    for (size_t i = 0; i < plan.classes.size(); ++i) {
        SlotClass& slot_class = plan.classes[i];
        const uint64_t others = slot_class.n_objects - first.classes[i].slots;
        const uint64_t useful = others == 0 ? 0 : others + in_flight_slots;
        slot_class.slots = std::min(slot_class.slots, useful);
    }
    return plan;
}

std::string working_set_warning(const SlotPlan& plan, uint32_t top_k) {
    for (const SlotClass& slot_class : plan.classes) {
        const uint64_t needed = uint64_t{top_k} * slot_class.n_layers;
        if (slot_class.slots >= needed) continue;
        return fmt::format("the expert cache has {} slots of {}, fewer than the {} experts of that "
                           "size one token uses: most of them will be read from the drive for "
                           "every token; {} slots take {} bytes ({})",
                           slot_class.slots, format_size(slot_class.stride), needed, needed,
                           needed * slot_class.stride, format_size(needed * slot_class.stride));
    }
    return "";
}

}  // namespace xp
