// Norms, activations, rotary positions, conversions: what treats every element, or every row, on
// its own. Rows are read in 16-byte pieces where they are aligned to that.
#include <cuda_fp16.h>

#include <algorithm>

#include "cuda/kernels.h"
#include "cuda/rows.cuh"

namespace xp::cuda {
namespace {

constexpr uint32_t kThreads = 256;
// Enough to fill any device; loops take the rest.
constexpr uint64_t kMaxBlocks = 4096;

uint32_t blocks_for(uint64_t n) {
    return static_cast<uint32_t>(std::min((n + kThreads - 1) / kThreads, kMaxBlocks));
}

// Blocks for (row, quad of a row); kernels loop over the rows that do not fit.
dim3 grid_of_rows(uint32_t n_rows, uint32_t per_row) {
    return dim3((per_row + kThreads - 1) / kThreads, std::min(n_rows, kMaxGridY));
}

__global__ void spread_kernel(const float* rows, uint32_t n_rows, uint32_t streams, uint32_t dim,
                              bool aligned, float* state) {
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

__global__ void scale_kernel(float* x, float factor, uint64_t n) {
    const uint64_t step = uint64_t{gridDim.x} * kThreads;
    for (uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += step) {
        x[i] *= factor;
    }
}

__global__ void add_kernel(const float* x, uint64_t n, float* y) {
    const uint64_t step = uint64_t{gridDim.x} * kThreads;
    for (uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += step) {
        y[i] += x[i];
    }
}

// Comparisons are written so that a NaN stays one.
__global__ void swiglu_kernel(const float* gate, const float* up, float limit, uint64_t n,
                              float* y) {
    const uint64_t step = uint64_t{gridDim.x} * kThreads;
    for (uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += step) {
        const float g = limit < gate[i] ? limit : gate[i];
        float u = up[i];
        u = u < -limit ? -limit : limit < u ? limit : u;
        y[i] = g * (1 / (1 + expf(-g))) * u;
    }
}

__global__ void rope_kernel(float* x, const float* cos_sin, uint32_t n_rows, uint32_t n_heads,
                            uint32_t dim, uint32_t rope_dims, float direction) {
    const uint32_t pairs = rope_dims / 2;
    const uint32_t item = blockIdx.x * kThreads + threadIdx.x;
    if (item >= n_heads * pairs) return;
    const uint32_t head = item / pairs;
    const uint32_t pair = item % pairs;
    for (uint64_t row = blockIdx.y; row < n_rows; row += gridDim.y) {
        const float* turn = cos_sin + row * rope_dims + 2 * pair;
        float* v = x + (row * n_heads + head + 1) * dim - rope_dims + 2 * pair;
        const float c = turn[0];
        const float s = turn[1] * direction;
        const float a = v[0];
        const float b = v[1];
        v[0] = fmaf(a, c, -(b * s));
        v[1] = fmaf(a, s, b * c);
    }
}

__global__ void to_half_kernel(const float* x, uint64_t n, bool aligned, __half* rows) {
    const uint64_t step = uint64_t{gridDim.x} * kThreads;
    const uint64_t begin = uint64_t{blockIdx.x} * kThreads + threadIdx.x;
    const uint64_t n_pairs = aligned ? n / 2 : 0;
    for (uint64_t i = begin; i < n_pairs; i += step) {
        const float2 v = reinterpret_cast<const float2*>(x)[i];
        reinterpret_cast<__half2*>(rows)[i] = __floats2half2_rn(v.x, v.y);
    }
    for (uint64_t i = 2 * n_pairs + begin; i < n; i += step) rows[i] = __float2half_rn(x[i]);
}

__global__ void sum_slots_kernel(const float* parts, uint32_t n_rows, uint32_t n_slots,
                                 uint32_t dim, bool aligned, float* y) {
    const uint32_t quad = blockIdx.x * kThreads + threadIdx.x;
    if (quad >= quads_of(dim)) return;
    for (uint64_t row = blockIdx.y; row < n_rows; row += gridDim.y) {
        const float* part = parts + row * n_slots * dim;
        float4 sum = load_quad(part, quad, dim, aligned);
#pragma unroll 4
        for (uint32_t s = 1; s < n_slots; ++s) {
            const float4 v = load_quad(part + uint64_t{s} * dim, quad, dim, aligned);
            sum = make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w);
        }
        store_quad(y + row * dim, quad, dim, aligned, sum);
    }
}

}  // namespace

void launch_spread(const float* rows, uint32_t n_rows, uint32_t streams, uint32_t dim, float* state,
                   cudaStream_t stream) {
    if (n_rows == 0 || dim == 0) return;
    const bool aligned = aligned_rows(rows, dim) && aligned_rows(state, dim);
    spread_kernel<<<grid_of_rows(n_rows, quads_of(dim)), kThreads, 0, stream>>>(
        rows, n_rows, streams, dim, aligned, state);
}

void launch_rms_norm(const float* x, const float* weight, float epsilon, uint32_t n_rows,
                     uint32_t dim, float* y, cudaStream_t stream) {
    if (n_rows == 0 || dim == 0) return;
    const bool aligned = aligned_rows(x, dim) && aligned_rows(y, dim) && aligned_rows(weight, dim);
    // By the dimension only: the number of threads decides the order of the sum.
    constexpr uint32_t kMaxWarpDim = 1024;
    if (dim <= kMaxWarpDim) {
        constexpr uint32_t kRows = kThreads / kWarpSize;
        const uint32_t blocks = n_rows / kRows + (n_rows % kRows != 0);
        rms_norm_kernel<kWarpSize><<<blocks, kThreads, 0, stream>>>(x, weight, epsilon, n_rows, dim,
                                                                    aligned, y);
    } else {
        constexpr uint32_t kPerRow = 512;
        rms_norm_kernel<kPerRow><<<n_rows, kPerRow, 0, stream>>>(x, weight, epsilon, n_rows, dim,
                                                                 aligned, y);
    }
}

void launch_scale(float* x, float factor, uint64_t n, cudaStream_t stream) {
    if (n == 0) return;
    scale_kernel<<<blocks_for(n), kThreads, 0, stream>>>(x, factor, n);
}

void launch_add(const float* x, uint64_t n, float* y, cudaStream_t stream) {
    if (n == 0) return;
    add_kernel<<<blocks_for(n), kThreads, 0, stream>>>(x, n, y);
}

void launch_swiglu(const float* gate, const float* up, float limit, uint64_t n, float* y,
                   cudaStream_t stream) {
    if (n == 0) return;
    swiglu_kernel<<<blocks_for(n), kThreads, 0, stream>>>(gate, up, limit, n, y);
}

void launch_rope(float* x, const float* cos_sin, uint32_t n_rows, uint32_t n_heads, uint32_t dim,
                 uint32_t rope_dims, bool inverse, cudaStream_t stream) {
    if (n_rows == 0 || n_heads == 0 || rope_dims < 2) return;
    rope_kernel<<<grid_of_rows(n_rows, n_heads * (rope_dims / 2)), kThreads, 0, stream>>>(
        x, cos_sin, n_rows, n_heads, dim, rope_dims, inverse ? -1.0f : 1.0f);
}

void launch_store_rows(const float* x, bool half, uint64_t n, std::byte* rows,
                       cudaStream_t stream) {
    if (n == 0) return;
    if (!half) {
        cudaMemcpyAsync(rows, x, n * sizeof(float), cudaMemcpyDeviceToDevice, stream);
        return;
    }
    const bool aligned = reinterpret_cast<uintptr_t>(x) % sizeof(float2) == 0 &&
                         reinterpret_cast<uintptr_t>(rows) % sizeof(__half2) == 0;
    to_half_kernel<<<blocks_for(n / 2 + 1), kThreads, 0, stream>>>(
        x, n, aligned, reinterpret_cast<__half*>(rows));
}

void launch_sum_slots(const float* parts, uint32_t n_rows, uint32_t n_slots, uint32_t dim, float* y,
                      cudaStream_t stream) {
    if (n_rows == 0 || dim == 0) return;
    const bool aligned = aligned_rows(parts, dim) && aligned_rows(y, dim);
    sum_slots_kernel<<<grid_of_rows(n_rows, quads_of(dim)), kThreads, 0, stream>>>(
        parts, n_rows, n_slots, dim, aligned, y);
}

}  // namespace xp::cuda
