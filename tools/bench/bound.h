// xp-bench prefill, and decode with a trace: the time of a forward pass beside the longest of what
// it is made of, each measured on its own in the same run:
//   reads     bytes that a replay of the cache predicts, at the bandwidth of bare reads
//   uploads   those bytes and what comes back from the RAM tier, at the bandwidth of bare copies
//             to the device
//   compute   the same passes with all experts resident
// A pass that overlaps them perfectly takes as long as the longest. Copies to the RAM tier go the
// other way and are in none of them; they are shown.
#pragma once

#include "tools/bench/rig.h"

namespace xp {

struct BoundOptions {
    RigOptions rig;
    std::string trace;        // experts come from it; prefill may do without
    uint32_t prompt = 64;
    uint32_t chunk = 0;       // rows of a pass of the prompt; 0: all in one
    uint32_t warm = 64;       // tokens of decoding before any are timed
    uint32_t tokens = 32;     // per sample
    uint32_t samples = 5;
    std::string timeline;     // a file to write, if any
    bool json = false;
};

Result<void> bench_decode_bound(const BoundOptions& options);
Result<void> bench_prefill(const BoundOptions& options);

}  // namespace xp
