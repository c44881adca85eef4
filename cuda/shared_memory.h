// What a thread block may have of shared memory, so that kernels run on every architecture that is
// built for. Plain C++.
#pragma once

#include <cstdint>

namespace xp::cuda {

// 99 KiB on the smallest of them (86, 89, 120).
inline constexpr uint32_t kBlockSharedBytes = 99 * 1024;
// Of that, asked for at launch; the rest is for what kernels declare with a size, which
// tests/cuda/resources_test.cc finds in the compiler's report.
inline constexpr uint32_t kMaxSharedBytes = 96 * 1024;

}  // namespace xp::cuda
