#include "daemon/serve/memory_plan.h"

#include <numeric>

#include "daemon/base/size.h"

namespace xp {

uint64_t MemoryPlan::usable() const {
    const uint64_t there = free - std::min(free, reserve);
    return limit ? std::min(there, *limit) : there;
}

Result<void> MemoryPlan::check() const {
    const uint64_t needed = fixed() + floor;
    if (!device || needed <= usable()) return {};
    std::string sum = fmt::format("weights {}", format_size(weights));
    if (workspace > 0) sum += fmt::format(" + workspace {}", format_size(workspace));
    if (state > 0) {
        sum += fmt::format(" + state of {} sequences {}", sequences, format_size(state));
    }
    sum += fmt::format(" + floor of {} expert slots {} = {}", floor_slots, format_size(floor),
                       format_size(needed));
    const bool limited = limit && *limit < needed;
    if (limited) {
        return make_error(ErrorCode::kInvalidArgument,
                          "{}, but [cache] vram_limit is {}: lower context of [[model]] or "
                          "chunk_rows of [engine], or raise it", sum, format_size(*limit));
    }
    return make_error(ErrorCode::kNoMemory,
                      "{}, but of the device's {} only {} are free, of which {} are to stay so: "
                      "lower context of [[model]] or chunk_rows of [engine], end what else uses "
                      "the device, or compute on the CPU ([engine] backend)",
                      sum, format_size(total), format_size(free), format_size(reserve));
}

Result<void> MemoryPlan::check_host() const {
    const uint64_t needed = host_fixed() + ram_floor;
    if (!host_usable || needed <= *host_usable) return {};
    std::string sum = fmt::format("embeddings {} + read buffers {}", format_size(host_weights),
                                  format_size(buffers));
    std::string keys = "end what else uses memory or raise the limit of the control group";
    if (ram_floor > 0) {
        sum += fmt::format(" + floor of {} RAM slots {}", ram_floor_slots, format_size(ram_floor));
        keys = "remove ram_tier of [cache], " + keys;
    }
    return make_error(ErrorCode::kNoMemory,
                      "{} = {}, but only {} of host memory are usable beside the device: {}", sum,
                      format_size(needed), format_size(*host_usable), keys);
}

std::vector<std::string> MemoryPlan::lines(const std::string& backend) const {
    std::vector<std::string> lines;
    if (device) {
        lines.push_back(fmt::format("memory plan: {}, {}, of which {} are free{}", backend,
                                    format_size(total), format_size(free),
                                    limit ? fmt::format("; at most {} by [cache] vram_limit",
                                                        format_size(*limit))
                                          : ""));
    } else {
        lines.push_back(fmt::format("memory plan: {}", backend));
    }
    const auto add = [&](const char* what, uint64_t bytes, const std::string& note) {
        lines.push_back(fmt::format("  {:<16}{:>10}{}{}", what, format_size(bytes),
                                    note.empty() ? "" : "  ", note));
    };
    add("weights", weights, "");
    add("workspace", workspace, fmt::format("{} tokens in a pass", chunk_rows));
    add("sequence state", state, fmt::format("of {}, at full context", sequences));
    add("expert slots", slots, fmt::format("fewest: {}", format_size(floor)));
    add("together", planned(), "");
    if (device) add("stays free", free - std::min(free, planned()), "");
    if (host_usable) {
        lines.push_back(fmt::format("host memory plan: {} are usable", format_size(*host_usable)));
        add("embeddings", host_weights, "");
        add("read buffers", buffers, "pinned");
        add("RAM tier", ram, ram == 0 ? "" : "pinned");
    }
    return lines;
}

std::vector<uint64_t> divide_slots(uint64_t bytes, std::span<const SlotWish> wishes) {
    std::vector<uint64_t> given;
    uint64_t spare = bytes;
    for (const SlotWish& wish : wishes) {
        given.push_back(std::min(wish.floor, wish.asked.value_or(wish.floor)));
        spare -= std::min(spare, given.back());
    }
    const auto give = [&](size_t i, uint64_t most) {
        const uint64_t more = std::min(most, spare);
        given[i] += more;
        spare -= more;
    };
    std::vector<size_t> sharing;
    for (size_t i = 0; i < wishes.size(); ++i) {
        if (!wishes[i].asked) {
            sharing.push_back(i);
        } else {
            give(i, std::min(*wishes[i].asked, wishes[i].all) - given[i]);
        }
    }
    const auto lacking = [&](size_t i) { return wishes[i].all - wishes[i].floor; };
    std::sort(sharing.begin(), sharing.end(),
              [&](size_t a, size_t b) { return lacking(a) < lacking(b); });
    for (size_t n = sharing.size(); const size_t i : sharing) {
        give(i, std::min(lacking(i), spare / n));
        --n;
    }
    return given;
}

}  // namespace xp
