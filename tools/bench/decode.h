// xp-bench decode: tokens per second of one sequence, beside what memory bandwidth allows.
#pragma once

#include "tools/bench/rig.h"

namespace xp {

struct DecodeOptions {
    RigOptions rig;
    uint32_t prompt = 64;
    uint32_t tokens = 64;
    bool fill = true;      // the cache, first
    bool json = false;
};

Result<void> bench_decode(const DecodeOptions& options);

}  // namespace xp
