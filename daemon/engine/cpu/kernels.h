// The CPU backend's inner loops, compiled once per instruction set from the .inl files and picked
// at run time. Both give the same bits: every sum runs over 16 lanes (element i in lane i mod 16,
// in ascending i, fused multiply-add), and the lanes are added in one fixed tree. A weight's type
// does not change a bit either: a row gives what the same values stored as F32 would.
#pragma once

#include <cstdint>

#include "daemon/engine/operators.h"

namespace xp {

struct CpuKernels {
    const char* name;

    // y[c·y_stride + r] = Σ_i w[r][i]·x[c·x_stride + i] for rows [begin, end) and columns [0, n).
    // Any type with a dequantise function, any layout it supports. `scratch`: scratch_floats(cols).
    void (*matmul)(const Weight& w, uint32_t begin, uint32_t end, const float* x, uint64_t x_stride,
                   uint32_t n, float* y, uint64_t y_stride, float* scratch);

    float (*dot)(const float* a, const float* b, uint64_t n);
    // y[i] += a·x[i], fused.
    void (*axpy)(float a, const float* x, float* y, uint64_t n);
    void (*half_to_float_row)(const uint16_t* x, float* y, uint64_t n);
    void (*float_to_half_row)(const float* x, uint16_t* y, uint64_t n);
};

// Room for a tile of unpacked rows.
constexpr uint64_t scratch_floats(uint64_t cols) { return 4 * cols; }

const CpuKernels& avx2_kernels();
const CpuKernels& avx512_kernels();

// The best the processor has; null where even AVX2, FMA or F16C is missing.
const CpuKernels* best_cpu_kernels();

}  // namespace xp
