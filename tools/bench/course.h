// A course of forward passes that is run several times in the same way: with all experts resident,
// with the cache that is measured, and as a replay without either. Parts of it are samples.
#pragma once

#include <vector>

#include "tools/bench/replay.h"
#include "tools/bench/rig.h"

namespace xp {

struct Pass {
    uint32_t n_rows = 1;
    bool fresh = false;              // begins a sequence
    uint32_t sample = kNoSample;     // to which it counts
    static constexpr uint32_t kNoSample = UINT32_MAX;
};
struct Course {
    std::vector<Pass> passes;
    uint32_t n_samples = 0;

    // A prompt, `warm` tokens one by one, then samples of `tokens` tokens each.
    static Course decode(uint32_t prompt, uint32_t warm, uint32_t tokens, uint32_t samples);
    // A prompt in chunks, once to warm up, then as a new sequence for every sample.
    static Course prefill(uint32_t prompt, uint32_t chunk, uint32_t samples);

    uint64_t longest() const;        // tokens of a sequence
};

struct Sample {
    double seconds = 0;
    uint64_t read_bytes = 0;
    uint64_t reads = 0;
    uint64_t repeated = 0;           // of these, within one pass
    uint64_t hits = 0;
    uint64_t misses = 0;             // of slots
    uint64_t ram_hits = 0;           // of these, in the RAM tier
    uint64_t uploaded_bytes = 0;     // into slots, from buffers and the RAM tier
    uint64_t saved_bytes = 0;        // from slots to the RAM tier
    uint64_t launches = 0;           // on a device
    uint64_t waits = 0;              // of the host for it
    uint64_t wait_us = 0;
};

Result<std::vector<Sample>> run_course(Rig& rig, const Course& course, const Routing* routing,
                                       Routing* record);
// Only what a cache counts; the others stay 0.
Result<std::vector<Sample>> replay_course(Replay& replay, const Course& course,
                                          const Routing& routing);

}  // namespace xp
