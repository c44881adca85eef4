#include <immintrin.h>

#include "daemon/engine/cpu/kernels.h"
#include "daemon/gguf/iq_grids.h"

namespace xp {
namespace {

#include "daemon/engine/cpu/lanes.inl"
#include "daemon/engine/cpu/rows.inl"
#include "daemon/engine/cpu/rows_k.inl"
#include "daemon/engine/cpu/rows_iq.inl"
#include "daemon/engine/cpu/kernels.inl"

}  // namespace

const CpuKernels& avx2_kernels() {
    static constexpr CpuKernels kernels = {"AVX2", matmul, dot, axpy, half_to_float_row,
                                           float_to_half_row};
    return kernels;
}

}  // namespace xp
