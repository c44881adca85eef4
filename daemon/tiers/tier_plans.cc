#include "daemon/tiers/tier_plans.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "daemon/base/size.h"

namespace xp {
namespace {

// The plan for `bytes`, or for what is usable if that is less; `warning` then says so.
template <class Plan>
Result<SlotPlan> fit(const Plan& plan, uint64_t bytes, uint64_t usable, std::string_view memory,
                     std::string_view tier, std::string& warning) {
    XP_TRY(SlotPlan wanted, plan(bytes));
    if (wanted.bytes() <= usable) return wanted;
    Result<SlotPlan> cut = plan(std::max<uint64_t>(usable, 1));
    if (!cut) {
        return std::move(cut).error().with_context(
            fmt::format("only {} of {} are usable", format_size(usable), memory));
    }
    if (cut->bytes() < wanted.bytes()) {
        warning += fmt::format("the {} was cut from {} to {}, what memory allows. ", tier,
                               format_size(wanted.bytes()), format_size(cut->bytes()));
    }
    return cut;
}

}  // namespace

Result<TierPlans> plan_tiers(const Manifest& manifest, const SlotMemory& memory,
                             const CacheOptions& options, std::string& warning) {
    constexpr uint32_t kInFlight = ExpertCache::kInFlightSlots;
    TierPlans plans;
    const auto slots = [&](uint64_t bytes) {
        return plan_slots(manifest, bytes, options.top_k, kInFlight);
    };
    XP_TRY(plans.slots, fit(slots, options.bytes, memory.usable(), memory.name(), "expert cache",
                            warning));
    if (options.ram_bytes == 0) return plans;
    std::optional<uint64_t> usable = memory.usable_ram();
    if (!usable) {
        warning += fmt::format("a RAM tier of {} is not used: the expert cache is in {} itself. ",
                               format_size(options.ram_bytes), memory.name());
        return plans;
    }
    *usable -= std::min(*usable, memory.buffer_bytes(plans.slots.classes));
    const auto ram = [&](uint64_t bytes) {
        return plan_ram_slots(manifest, bytes, options.top_k, kInFlight, plans.slots);
    };
    if (Result<SlotPlan> wanted = ram(options.ram_bytes); !wanted) {
        // Whatever memory there is: nobody but the configuration says how large this tier is.
        Error error = std::move(wanted).error();
        error.code = ErrorCode::kInvalidArgument;
        return error;
    }
    XP_TRY(plans.ram, fit(ram, options.ram_bytes, *usable, "host memory", "RAM tier", warning));
    return plans;
}

}  // namespace xp
