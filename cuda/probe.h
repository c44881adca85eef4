// What a device can do at most, for benchmarks: floors are measured where they are used.
#pragma once

#include <cstdint>

#include "daemon/base/result.h"

namespace xp::cuda {

// Bytes per second at which a plain kernel sums up `bytes` of device memory (much more than the
// device's caches), best of several runs.
Result<double> measure_read_bandwidth(uint64_t bytes);

// Bytes per second of copies of `bytes` each from pinned memory to the device, one after the other
// on a stream; best of several runs.
Result<double> measure_upload_bandwidth(uint64_t bytes);

}  // namespace xp::cuda
