// What a device can do at most, for benchmarks: floors are measured where they are used.
#pragma once

#include <cstdint>

#include "daemon/base/result.h"

namespace xp::cuda {

// Bytes per second at which a plain kernel sums up `bytes` of device memory (much more than the
// device's caches), best of several runs.
Result<double> measure_read_bandwidth(uint64_t bytes);

}  // namespace xp::cuda
