// What the memory that a backend computes in is used for, settled once at start:
//
//   weights + workspace + sequence state + expert slots ≤ usable,
//   usable = min(free at start − what is to stay free, [cache] vram_limit)
//
// Weights and workspace are measured, not estimated: they are allocated first, the workspace by a
// pass of the largest size; the state of sequences is what their shapes say, at full context and
// for as many as may exist at a time; the slots get the rest. Where the host computes, a share of
// its memory takes the place of the rest, and nothing is refused here: host memory is taken as it
// is used, and the expert cache looks at what there is.
//
// Beside a device, host memory is planned too, for what is pinned in it is taken at once:
//
//   embeddings + read buffers + RAM slots ≤ usable host memory (daemon/tiers/host_memory.h)
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "daemon/base/result.h"

namespace xp {

struct MemoryPlan {
    bool device = false;         // otherwise host memory, of which only the parts below are known
    uint64_t total = 0;          // of the device
    uint64_t free = 0;           // when nothing was allocated
    uint64_t reserve = 0;        // to stay free
    std::optional<uint64_t> limit;

    uint64_t weights = 0;        // beside a device, without host_weights
    uint64_t workspace = 0;      // of one pass of `chunk_rows` rows, logits and scratch included
    uint64_t state = 0;          // of `sequences`
    uint64_t floor = 0;          // fewest slots that all models can run with
    uint64_t floor_slots = 0;
    uint64_t slots = 0;
    uint32_t chunk_rows = 0;
    uint32_t sequences = 0;

    // Host memory beside the device; none where slots are in it themselves.
    std::optional<uint64_t> host_usable;
    uint64_t host_weights = 0;   // embeddings
    uint64_t buffers = 0;        // reads on their way to slots
    uint64_t ram_floor = 0;      // fewest RAM slots of the models that are to have some
    uint64_t ram_floor_slots = 0;
    uint64_t ram = 0;            // RAM slots

    uint64_t usable() const;
    uint64_t fixed() const { return weights + workspace + state; }
    uint64_t planned() const { return fixed() + slots; }
    // What is left for slots.
    uint64_t rest() const { return usable() - std::min(usable(), fixed()); }

    // Refuses with the numbers known so far when not even the floor fits: kInvalidArgument when a
    // limit of the configuration stands in the way, kNoMemory when the device does.
    Result<void> check() const;
    // The same of host memory: kNoMemory.
    Result<void> check_host() const;
    uint64_t host_fixed() const { return host_weights + buffers; }
    uint64_t host_rest() const { return *host_usable - std::min(*host_usable, host_fixed()); }
    // Lines for people.
    std::vector<std::string> lines(const std::string& backend) const;
};

// One model's wish for slots, in bytes.
struct SlotWish {
    std::optional<uint64_t> asked;  // nothing: a share of what is left
    uint64_t floor = 0;             // fewest, and for all experts
    uint64_t all = 0;
};

// How `bytes` are divided: everybody's floor first, then what was asked for as far as it goes, in
// order; then even shares, of which whoever needs less leaves the rest to the others. Who asked for
// less than the floor gets what was asked, to be refused by the expert cache.
std::vector<uint64_t> divide_slots(uint64_t bytes, std::span<const SlotWish> wishes);

}  // namespace xp
