// Norms, rotary positions, stored rows: what treats every element, or every row, on
// its own. Rows are read in 16-byte pieces where they are aligned to that.
#include <cuda_fp16.h>

#include <algorithm>

#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/rows.cuh"

namespace xp::cuda {
namespace {

constexpr uint32_t kThreads = 256;
// Blocks for (row, quad of a row); kernels loop over the rows that do not fit.
dim3 grid_of_rows(uint32_t n_rows, uint32_t per_row) {
    return dim3((per_row + kThreads - 1) / kThreads, std::min(n_rows, kMaxGridY));
}

__global__ void spread_kernel(const float* rows, uint32_t n_rows, uint32_t streams, uint32_t dim,
                              bool aligned, float* state) {
    let_next_start();
    after_previous();
    const uint32_t quad = blockIdx.x * kThreads + threadIdx.x;
    if (quad >= quads_of(dim)) return;
    for (uint64_t row = blockIdx.y; row < n_rows; row += gridDim.y) {
        const float4 v = load_quad(rows + row * dim, quad, dim, aligned);
        for (uint32_t s = 0; s < streams; ++s) {
            store_quad(state + (row * streams + s) * dim, quad, dim, aligned, v);
        }
    }
}

// kPerRow threads per row: a warp, or a block.
template <uint32_t kPerRow>
__global__ void __launch_bounds__(kPerRow == kWarpSize ? kThreads : kPerRow)
    rms_norm_kernel(const float* x, const float* weight, float epsilon, uint32_t n_rows,
                    uint32_t dim, bool aligned, float* y) {
    __shared__ float parts[kPerRow / kWarpSize];
    let_next_start();
    after_previous();
    constexpr uint32_t kRows = kPerRow == kWarpSize ? kThreads / kWarpSize : 1;
    const uint64_t row = uint64_t{blockIdx.x} * kRows + threadIdx.x / kPerRow;
    if (row >= n_rows) return;
    const float* from = x + row * dim;
    const uint32_t thread = threadIdx.x % kPerRow;
    float squares = 0;
#pragma unroll 4
    for (uint32_t quad = thread; quad < quads_of(dim); quad += kPerRow) {
        squares = add_squares(load_quad(from, quad, dim, aligned), squares);
    }
    if constexpr (kPerRow == kWarpSize) {
        squares = warp_sum(squares);
    } else {
        squares = block_sum<kPerRow>(squares, parts);
    }
    const float factor = rms_factor(squares, dim, epsilon);
    for (uint32_t quad = thread; quad < quads_of(dim); quad += kPerRow) {
        float4 v = load_quad(from, quad, dim, aligned);
        v = make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor);
        if (weight != nullptr) {
            const float4 w = load_quad(weight, quad, dim, aligned);
            v = make_float4(v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w);
        }
        store_quad(y + row * dim, quad, dim, aligned, v);
    }
}

__device__ void store_half_quad(__half* row, uint32_t quad, uint32_t n, bool aligned, float4 v) {
    const uint32_t d = 4 * quad;
    if (aligned) {
        const __half2 low = __floats2half2_rn(v.x, v.y);
        const __half2 high = __floats2half2_rn(v.z, v.w);
        *reinterpret_cast<uint2*>(row + d) = make_uint2(*reinterpret_cast<const uint32_t*>(&low),
                                                        *reinterpret_cast<const uint32_t*>(&high));
        return;
    }
    row[d] = __float2half_rn(v.x);
    if (d + 1 < n) row[d + 1] = __float2half_rn(v.y);
    if (d + 2 < n) row[d + 2] = __float2half_rn(v.z);
    if (d + 3 < n) row[d + 3] = __float2half_rn(v.w);
}

// A warp per head; heads are numbered over kinds, rows and heads of a row.
__global__ void __launch_bounds__(kThreads)
    norm_rope_kernel(const __grid_constant__ DeviceNormRope args) {
    const uint32_t lane = threadIdx.x % kWarpSize;
    uint64_t head = uint64_t{blockIdx.x} * (kThreads / kWarpSize) + threadIdx.x / kWarpSize;
    uint32_t kind = 0;
    for (; kind < args.n_kinds; ++kind) {
        const uint64_t n = uint64_t{args.n_rows} * args.kinds[kind].n_heads;
        if (head < n) break;
        head -= n;
    }
    let_next_start();
    after_previous();
    if (kind == args.n_kinds) return;
    const DeviceHeads& h = args.kinds[kind];
    const uint32_t dim = h.dim;
    float* const x = h.x + head * dim;
    const bool aligned = aligned_rows(h.x, dim);
    const float* cos_sin = h.cos_sin + head / h.n_heads * h.rope_dims;
    const bool aligned_stored = aligned_rows(h.stored, dim);
    const bool aligned_norm = aligned_rows(h.norm, dim);
    const auto finish = [&](uint32_t quad, float4 v, float4 w, float factor) {
        if (h.normed) v = make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor);
        if (h.norm != nullptr) v = make_float4(v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w);
        v = turn_quad(v, quad, dim, cos_sin, h.rope_dims, 1);
        if (h.stored == nullptr) {
            store_quad(x, quad, dim, aligned, v);
        } else if (h.half) {
            store_half_quad(reinterpret_cast<__half*>(h.stored) + head * dim, quad, dim,
                            aligned_stored, v);
        } else {
            store_quad(reinterpret_cast<float*>(h.stored) + head * dim, quad, dim, aligned_stored,
                       v);
        }
    };
    // Of the usual heads all quads are asked for before any is used, and kept.
    constexpr uint32_t kHeld = 4;
    float4 held[kHeld], weights[kHeld];
#pragma unroll
    for (uint32_t i = 0; i < kHeld; ++i) {
        const uint32_t quad = lane + i * kWarpSize;
        held[i] = weights[i] = make_float4(0, 0, 0, 0);
        if (quad >= quads_of(dim)) continue;
        held[i] = load_quad(x, quad, dim, aligned);
        if (h.norm != nullptr) weights[i] = load_quad(h.norm, quad, dim, aligned_norm);
    }
    float squares = 0;
#pragma unroll
    for (uint32_t i = 0; i < kHeld; ++i) {
        if (lane + i * kWarpSize < quads_of(dim)) squares = add_squares(held[i], squares);
    }
    for (uint32_t quad = lane + kHeld * kWarpSize; quad < quads_of(dim); quad += kWarpSize) {
        squares = add_squares(load_quad(x, quad, dim, aligned), squares);
    }
    const float factor = h.normed ? rms_factor(warp_sum(squares), dim, h.epsilon) : 1.0f;
#pragma unroll
    for (uint32_t i = 0; i < kHeld; ++i) {
        const uint32_t quad = lane + i * kWarpSize;
        if (quad < quads_of(dim)) finish(quad, held[i], weights[i], factor);
    }
    for (uint32_t quad = lane + kHeld * kWarpSize; quad < quads_of(dim); quad += kWarpSize) {
        const float4 w = h.norm != nullptr ? load_quad(h.norm, quad, dim, aligned_norm)
                                           : make_float4(0, 0, 0, 0);
        finish(quad, load_quad(x, quad, dim, aligned), w, factor);
    }
}

}  // namespace

void launch_spread(const float* rows, uint32_t n_rows, uint32_t streams, uint32_t dim, float* state,
                   cudaStream_t stream) {
    if (n_rows == 0 || dim == 0) return;
    const bool aligned = aligned_rows(rows, dim) && aligned_rows(state, dim);
    launch(spread_kernel, grid_of_rows(n_rows, quads_of(dim)), kThreads, 0, stream, rows, n_rows,
           streams, dim, aligned, state);
}

void launch_rms_norm(const float* x, const float* weight, float epsilon, uint32_t n_rows,
                     uint32_t dim, float* y, cudaStream_t stream) {
    if (n_rows == 0 || dim == 0) return;
    const bool aligned = aligned_rows(x, dim) && aligned_rows(y, dim) && aligned_rows(weight, dim);
    // By the dimension only: the number of threads decides the order of the sum.
    constexpr uint32_t kMaxWarpDim = 512;
    if (dim <= kMaxWarpDim) {
        constexpr uint32_t kRows = kThreads / kWarpSize;
        const uint32_t blocks = n_rows / kRows + (n_rows % kRows != 0);
        launch(rms_norm_kernel<kWarpSize>, blocks, kThreads, 0, stream, x, weight, epsilon, n_rows,
               dim, aligned, y);
    } else {
        constexpr uint32_t kPerRow = 256;
        launch(rms_norm_kernel<kPerRow>, n_rows, kPerRow, 0, stream, x, weight, epsilon, n_rows,
               dim, aligned, y);
    }
}

void launch_norm_rope(const DeviceNormRope& args, cudaStream_t stream) {
    uint64_t heads = 0;
    for (uint32_t k = 0; k < args.n_kinds; ++k) {
        heads += uint64_t{args.n_rows} * args.kinds[k].n_heads;
    }
    if (heads == 0) return;
    constexpr uint32_t kPerBlock = kThreads / kWarpSize;
    launch(norm_rope_kernel, static_cast<uint32_t>((heads + kPerBlock - 1) / kPerBlock), kThreads,
           0, stream, args);
}

}  // namespace xp::cuda
