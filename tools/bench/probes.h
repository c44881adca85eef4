// What the parts beneath the expert cache reach on their own, to compare the whole with.
#pragma once

#include "tools/bench/rig.h"

namespace xp {

// Bytes per second of reading whole experts in random order, as many at a time as the cache's
// memory has buffers: through the rig's read backend, so with its size of pieces and its depth.
// The best of a few runs.
Result<double> probe_reads(Rig& rig);

// Bytes per second at which so many threads (0: all) sum up `bytes` of memory, or a MiB if that is
// more. The best of a few runs.
Result<double> probe_memory(uint64_t bytes, unsigned threads);

// Buffers that expert reads of this rig may go into at a time.
uint32_t read_buffers(const Rig& rig);

}  // namespace xp
