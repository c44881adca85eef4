// What kernels over rows share: sums in a fixed order, and rows in quads of four elements. A thread
// that takes quads in ascending order sums the same elements in the same order whether a row is
// aligned to 16 bytes or not.
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

namespace xp::cuda {

inline constexpr uint32_t kWarpSize = 32;
inline constexpr uint32_t kAllLanes = 0xffffffffu;
inline constexpr uint32_t kMaxGridY = 65535;  // kernels loop over what exceeds it

// As a butterfly (16, 8, 4, 2, 1 apart): every lane gets the sum.
__device__ inline float warp_sum(float v) {
#pragma unroll
    for (uint32_t apart = kWarpSize / 2; apart > 0; apart /= 2) {
        v += __shfl_xor_sync(kAllLanes, v, apart);
    }
    return v;
}

// The warps' sums in ascending order; every thread gets the result. `parts`: shared memory for one
// float per warp, free again on return.
template <uint32_t kThreads>
__device__ float block_sum(float v, float* parts) {
    v = warp_sum(v);
    if (threadIdx.x % kWarpSize == 0) parts[threadIdx.x / kWarpSize] = v;
    __syncthreads();
    float sum = parts[0];
#pragma unroll
    for (uint32_t w = 1; w < kThreads / kWarpSize; ++w) sum += parts[w];
    __syncthreads();
    return sum;
}

__host__ __device__ inline uint32_t quads_of(uint32_t n) { return n / 4 + (n % 4 != 0); }

// Elements 4·quad .. 4·quad + 3 of a row of n, zero beyond its end. `aligned`: the row begins at a
// multiple of 16 bytes and n is one of 4.
__device__ inline float4 load_quad(const float* row, uint32_t quad, uint32_t n, bool aligned) {
    if (aligned) return reinterpret_cast<const float4*>(row)[quad];
    const uint32_t d = 4 * quad;
    float4 v = make_float4(row[d], 0, 0, 0);
    if (d + 1 < n) v.y = row[d + 1];
    if (d + 2 < n) v.z = row[d + 2];
    if (d + 3 < n) v.w = row[d + 3];
    return v;
}

__device__ inline void store_quad(float* row, uint32_t quad, uint32_t n, bool aligned, float4 v) {
    if (aligned) {
        reinterpret_cast<float4*>(row)[quad] = v;
        return;
    }
    const uint32_t d = 4 * quad;
    row[d] = v.x;
    if (d + 1 < n) row[d + 1] = v.y;
    if (d + 2 < n) row[d + 2] = v.z;
    if (d + 3 < n) row[d + 3] = v.w;
}

__device__ inline float add_squares(float4 v, float sum) {
    return fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, sum))));
}

// Adds 32 values over the lanes as a butterfly in which every lane gives half of its values away:
// lane i ends with the sum of value i.
__device__ inline float add_32(float* v, uint32_t lane) {
#pragma unroll
    for (uint32_t left = 16; left > 0; left /= 2) {
        const bool upper = lane & left;
#pragma unroll
        for (uint32_t i = 0; i < 16; ++i) {  // a fixed bound keeps v in registers
            if (i >= left) break;
            const float mine = upper ? v[i + left] : v[i];
            const float other = upper ? v[i] : v[i + left];
            v[i] = mine + __shfl_xor_sync(kAllLanes, other, left);
        }
    }
    return v[0];
}

__device__ inline float4 add_scaled(float w, float4 x, float4 sum) {
    return make_float4(fmaf(w, x.x, sum.x), fmaf(w, x.y, sum.y), fmaf(w, x.z, sum.z),
                       fmaf(w, x.w, sum.w));
}

// 1 / sqrt(mean of squares + epsilon)
__device__ inline float rms_factor(float squares, uint64_t n, float epsilon) {
    return 1 / sqrtf(squares / static_cast<float>(n) + epsilon);
}

// Whether rows of n floats that begin here can be read in 16-byte pieces.
__host__ __device__ inline bool aligned_rows(const void* pointer, uint64_t n) {
    return reinterpret_cast<uintptr_t>(pointer) % 16 == 0 && n % 4 == 0;
}

// Turns the pairs of a quad that lie in the trailing rope_dims of a row of n, forwards or (sign −1)
// back. n and rope_dims are even, so no pair is in two quads. cos_sin: of the row.
__device__ inline float4 turn_quad(float4 v, uint32_t quad, uint32_t n, const float* cos_sin,
                                   uint32_t rope_dims, float sign) {
    const uint32_t plain = n - rope_dims;
    const auto turn = [&](float& a, float& b, uint32_t d) {
        if (d < plain || d >= n) return;
        const float c = cos_sin[d - plain];
        const float s = cos_sin[d - plain + 1] * sign;
        const float x = a;
        a = fmaf(x, c, -(b * s));
        b = fmaf(x, s, b * c);
    };
    turn(v.x, v.y, 4 * quad);
    turn(v.z, v.w, 4 * quad + 2);
    return v;
}

// A quad of a row in its stored form, float32 or binary16. Loading and converting are two steps so
// that a thread can have several loads on their way; the read-only path tells the compiler that
// stores to shared memory do not get into theirs.
struct StoredQuad {
    uint4 raw;    // four floats, or four halves in x and y
    bool packed;
};

// `aligned`: the row begins at a multiple of the quad's size, and n is one of 4.
__device__ inline StoredQuad load_stored(const std::byte* row, bool half, uint32_t quad, uint32_t n,
                                         bool aligned) {
    if (aligned && half) {
        const uint2 raw = __ldg(reinterpret_cast<const uint2*>(row) + quad);
        return {make_uint4(raw.x, raw.y, 0, 0), true};
    }
    if (aligned) return {__ldg(reinterpret_cast<const uint4*>(row) + quad), false};
    float v[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t d = 4 * quad + i;
        v[i] = d >= n ? 0.0f
               : half ? __half2float(reinterpret_cast<const __half*>(row)[d])
                      : reinterpret_cast<const float*>(row)[d];
    }
    return {make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]),
                       __float_as_uint(v[3])),
            false};
}

__device__ inline float4 to_float4(const StoredQuad& quad) {
    if (quad.packed) {
        const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&quad.raw.x));
        const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&quad.raw.y));
        return make_float4(low.x, low.y, high.x, high.y);
    }
    return make_float4(__uint_as_float(quad.raw.x), __uint_as_float(quad.raw.y),
                       __uint_as_float(quad.raw.z), __uint_as_float(quad.raw.w));
}

}  // namespace xp::cuda
