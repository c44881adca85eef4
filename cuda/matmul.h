// Matrix products on the device: y = W·x for rows of weights in their stored type, one column or
// thousands, one matrix or one per expert.
//
// The order of a sum depends on the weight's type, rows, number of columns (K) and the kind of the
// product (gated, MatmulArgs::alike) only. A row is cut into pieces (what 16 bytes of codes hold):
// consecutive elements, or of K types runs of 16 elements that are 32 or 64 apart, see
// cuda/matmul_readers_k.cuh. Piece p belongs to lane p mod 32 of warp (p / 32) mod W of its thread
// block, where W follows from those. A lane takes its pieces in ascending order: of types with
// scales it adds up a piece's codes times x on their own, scales that sum and adds it; of others,
// and of K types, every element is added to the lane's sum directly; always in ascending elements
// of the piece, with fused multiply-adds. The 32 lanes are added as a butterfly (16, 8, 4, 2, 1
// apart), then the W warps in ascending order. So decode, prefill and any batch give the same bits.
//
// Plain C++, included by nvcc and the host compiler alike. Launches are asynchronous.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace xp::cuda {

// How a row of weights is stored. Split forms: all codes of the row, then all its scales, in the
// order of the blocks (StorageLayout::kSplit). K types: all weights and rows of x must begin at
// multiples of 16 bytes.
enum class RowForm : uint8_t {
    kF32, kF16, kBF16, kQ8_0, kQ8_0Split, kMxfp4, kMxfp4Split, kQ2_K, kQ3_K, kQ4_K, kQ6_K
};

// One matrix times some columns of x. Column c stands for row x_rows[c] of x and y_rows[c] of y, or
// where those are null for rows x_first + c and y_first + c.
struct MatmulJob {
    const std::byte* weight = nullptr;   // row 0
    const std::byte* weight2 = nullptr;  // of the second matrix, for gated products
    float* y = nullptr;
    const uint32_t* x_rows = nullptr;
    const uint32_t* y_rows = nullptr;
    const uint32_t* factor_at = nullptr; // of each column, in MatmulArgs::factors
    uint64_t x_offset = 0;               // elements, into each row of x
    uint32_t y_stride = 0;               // elements between rows
    uint32_t rows = 0;
    uint32_t x_first = 0;
    uint32_t y_first = 0;
    uint32_t factor_first = 0;           // where factor_at is null: column c has the c-th from here
    uint32_t n_columns = 0;
};

struct MatmulArgs {
    RowForm form = RowForm::kF32;
    uint32_t cols = 0;                   // K
    uint64_t row_bytes = 0;
    bool aligned_base = false;           // weights of all jobs begin at multiples of 16 bytes
    // Weights are written by a kernel that comes before, as unpacked ones are: see launch.cuh.
    bool late_weights = false;
    const float* x = nullptr;
    uint64_t x_stride = 0;               // elements between rows
    // Of one column only, where norms_columns(): x stands for its RMS norm, times this if not null.
    bool normed = false;
    const float* norm = nullptr;
    float norm_epsilon = 0;
    static constexpr uint32_t kFewJobs = 16;
    MatmulJob few[kFewJobs];             // the jobs, if there are no more
    // Or in device memory: for many columns, slower for those up to kFewColumns.
    const MatmulJob* jobs = nullptr;
    static constexpr uint32_t kFewColumns = 4;
    uint32_t n_jobs = 1;
    // Matrices of these rows that are multiplied at a time as a rule, whatever n_jobs is.
    uint32_t alike = 1;
    uint32_t max_rows = 0;               // largest of the jobs
    uint32_t all_rows = 0;               // of all jobs together
    uint32_t max_columns = 0;            // largest of the jobs
    // Gated: y = silu(min(W·x, limit)) · clamp(W2·x, ±limit) · factor
    bool gated = false;
    float limit = 0;
    const float* factors = nullptr;      // null: 1
};

// Whether this build has kernels for the current device.
bool has_kernels();

// Whether `normed` products of x can be had: where the sum of squares is that of launch_rms_norm().
bool norms_columns(const MatmulArgs& args);
void launch_matmul(const MatmulArgs& args, cudaStream_t stream);

}  // namespace xp::cuda
