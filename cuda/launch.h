// Kernel starts, counted; see launch.cuh.
#pragma once

#include <cstdint>

namespace xp::cuda {

// Whether kernels may begin early on the current device; asked once.
bool kernels_overlap();
// Of the process, so far.
uint64_t launches();
void count_launch();

}  // namespace xp::cuda
