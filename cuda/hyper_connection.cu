// Hyper-connections: a row's streams mixed into one input, and an output spread over the streams
// again. hc_pre takes one block per row: the norm of all streams, the row's mixing weights (tiny),
// then the mix; the Sinkhorn iterations run in one warp while the others mix.
#include <algorithm>

#include "cuda/kernels.h"
#include "cuda/rows.cuh"

namespace xp::cuda {
namespace {

constexpr uint32_t kThreads = 512;      // of a block that does a row
constexpr uint32_t kPostThreads = 256;

__device__ float sigmoid(float x) { return 1 / (1 + expf(-x)); }

// A matrix of n × n, n ≤ 8, over a warp: lane 8·j + k has the elements (j, k) and (j + 4, k); those
// beyond n are 0 and stay it.
struct Tile {
    float upper, lower;
};
static_assert(kMaxStreams == 8);

__device__ float row_sum(float v) {
#pragma unroll
    for (uint32_t apart = 1; apart < 8; apart *= 2) v += __shfl_xor_sync(kAllLanes, v, apart);
    return v;
}
__device__ float row_max(float v) {
#pragma unroll
    for (uint32_t apart = 1; apart < 8; apart *= 2) {
        v = fmaxf(v, __shfl_xor_sync(kAllLanes, v, apart));
    }
    return v;
}

// Makes exp(c) nearly doubly stochastic: softmax over each row plus epsilon, then columns and rows
// divided by their sums in turn, beginning and ending with columns.
__device__ Tile sinkhorn(Tile c, uint32_t n, float epsilon, uint32_t iterations) {
    const uint32_t j = threadIdx.x % kWarpSize / 8;
    const uint32_t k = threadIdx.x % 8;
    const bool has_upper = j < n && k < n;
    const bool has_lower = j + 4 < n && k < n;
    const auto divide = [&](float upper_sum, float lower_sum) {
        c.upper = has_upper ? c.upper / upper_sum : 0.0f;
        c.lower = has_lower ? c.lower / lower_sum : 0.0f;
    };
    const auto normalise_columns = [&] {
        float sum = c.upper + c.lower;
        sum += __shfl_xor_sync(kAllLanes, sum, 8);
        sum += __shfl_xor_sync(kAllLanes, sum, 16);
        divide(sum + epsilon, sum + epsilon);
    };
    const float upper_max = row_max(has_upper ? c.upper : -INFINITY);
    const float lower_max = row_max(has_lower ? c.lower : -INFINITY);
    c.upper = has_upper ? expf(c.upper - upper_max) : 0.0f;
    c.lower = has_lower ? expf(c.lower - lower_max) : 0.0f;
    divide(row_sum(c.upper), row_sum(c.lower));
    if (has_upper) c.upper += epsilon;
    if (has_lower) c.lower += epsilon;
    normalise_columns();
    for (uint32_t i = 1; i < iterations; ++i) {
        const float upper_sum = row_sum(c.upper);
        const float lower_sum = row_sum(c.lower);
        divide(upper_sum + epsilon, lower_sum + epsilon);
        normalise_columns();
    }
    return c;
}

// post and comb of a row, by one warp.
__device__ void post_and_comb(const DeviceHyperConnection& args, const float* mixes, float factor,
                              float* post) {
    const uint32_t lane = threadIdx.x % kWarpSize;
    const uint32_t n = args.streams;
    if (lane < n) {
        post[lane] = 2 * sigmoid(fmaf(mixes[n + lane] * factor, args.scale[1],
                                      args.base[n + lane]));
    }
    const uint32_t j = lane / 8;
    const uint32_t k = lane % 8;
    const auto at = [&](uint32_t row) {
        if (row >= n || k >= n) return 0.0f;
        const uint32_t i = 2 * n + row * n + k;
        return fmaf(mixes[i] * factor, args.scale[2], args.base[i]);
    };
    const Tile c = sinkhorn({at(j), at(j + 4)}, n, args.epsilon, args.iterations);
    float* comb = post + n;
    if (j < n && k < n) comb[j * n + k] = c.upper;
    if (j + 4 < n && k < n) comb[(j + 4) * n + k] = c.lower;
}

template <bool kHead>
__global__ void __launch_bounds__(kThreads)
    mix_kernel(const DeviceHyperConnection args, bool aligned, float* y, float* post_comb) {
    __shared__ float parts[kThreads / kWarpSize];
    __shared__ float weights[kMaxStreams];
    const uint64_t row = blockIdx.x;
    const uint32_t n = args.streams;
    const uint32_t dim = args.dim;
    const uint32_t flat = n * dim;
    const float* state = args.state + row * flat;
    float squares = 0;
#pragma unroll 4
    for (uint32_t quad = threadIdx.x; quad < quads_of(flat); quad += kThreads) {
        // Streams lie one after the other: all of them are one row.
        squares = add_squares(load_quad(state, quad, flat, aligned), squares);
    }
    const float factor = rms_factor(block_sum<kThreads>(squares, parts), flat, args.norm_epsilon);
    const float* mixes = args.mixes + row * (kHead ? n : (2 + n) * n);
    if (threadIdx.x < n) {
        const float m = mixes[threadIdx.x] * factor;
        weights[threadIdx.x] =
            sigmoid(fmaf(m, args.scale[0], args.base[threadIdx.x])) + args.epsilon;
    }
    __syncthreads();
    constexpr uint32_t kMixThreads = kHead ? kThreads : kThreads - kWarpSize;
    if (!kHead && threadIdx.x >= kMixThreads) {
        post_and_comb(args, mixes, factor, post_comb + row * (n + n * n));
        return;
    }
    for (uint32_t quad = threadIdx.x; quad < quads_of(dim); quad += kMixThreads) {
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
        for (uint32_t s = 0; s < n; ++s) {
            const float4 v = load_quad(state + s * dim, quad, dim, aligned);
            const float w = weights[s];
            sum = make_float4(fmaf(w, v.x, sum.x), fmaf(w, v.y, sum.y), fmaf(w, v.z, sum.z),
                              fmaf(w, v.w, sum.w));
        }
        store_quad(y + row * dim, quad, dim, aligned, sum);
    }
}

// kStreams: at least the row's streams.
template <uint32_t kStreams>
__global__ void __launch_bounds__(kPostThreads)
    post_kernel(const float* o, const float* post_comb, uint32_t n_rows, uint32_t streams,
                uint32_t dim, bool aligned, float* state) {
    const uint32_t quad = blockIdx.x * kPostThreads + threadIdx.x;
    if (quad >= quads_of(dim)) return;
    for (uint64_t row = blockIdx.y; row < n_rows; row += gridDim.y) {
        const float* post = post_comb + row * (streams + streams * streams);
        const float* comb = post + streams;
        float* x = state + row * streams * dim;
        const float4 out = load_quad(o + row * dim, quad, dim, aligned);
        float4 old[kStreams];
#pragma unroll
        for (uint32_t j = 0; j < kStreams; ++j) {
            if (j < streams) old[j] = load_quad(x + uint64_t{j} * dim, quad, dim, aligned);
        }
#pragma unroll
        for (uint32_t k = 0; k < kStreams; ++k) {
            if (k >= streams) break;
            const float p = post[k];
            float4 sum = make_float4(p * out.x, p * out.y, p * out.z, p * out.w);
#pragma unroll
            for (uint32_t j = 0; j < kStreams; ++j) {
                if (j >= streams) break;
                const float c = comb[j * streams + k];
                sum = make_float4(fmaf(c, old[j].x, sum.x), fmaf(c, old[j].y, sum.y),
                                  fmaf(c, old[j].z, sum.z), fmaf(c, old[j].w, sum.w));
            }
            store_quad(x + uint64_t{k} * dim, quad, dim, aligned, sum);
        }
    }
}

}  // namespace

void launch_hc_pre(const DeviceHyperConnection& args, uint32_t n_rows, float* y, float* post_comb,
                   cudaStream_t stream) {
    if (n_rows == 0) return;
    const bool aligned = aligned_rows(args.state, args.dim) && aligned_rows(y, args.dim);
    mix_kernel<false><<<n_rows, kThreads, 0, stream>>>(args, aligned, y, post_comb);
}

void launch_hc_post(const float* o, const float* post_comb, uint32_t n_rows, uint32_t streams,
                    uint32_t dim, float* state, cudaStream_t stream) {
    if (n_rows == 0 || dim == 0) return;
    const bool aligned = aligned_rows(o, dim) && aligned_rows(state, dim);
    const dim3 grid((quads_of(dim) + kPostThreads - 1) / kPostThreads, std::min(n_rows, kMaxGridY));
    if (streams <= 4) {
        post_kernel<4><<<grid, kPostThreads, 0, stream>>>(o, post_comb, n_rows, streams, dim,
                                                          aligned, state);
    } else {
        post_kernel<kMaxStreams><<<grid, kPostThreads, 0, stream>>>(o, post_comb, n_rows, streams,
                                                                    dim, aligned, state);
    }
}

void launch_hc_head(const DeviceHyperConnection& args, uint32_t n_rows, float* y,
                    cudaStream_t stream) {
    if (n_rows == 0) return;
    const bool aligned = aligned_rows(args.state, args.dim) && aligned_rows(y, args.dim);
    mix_kernel<true><<<n_rows, kThreads, 0, stream>>>(args, aligned, y, nullptr);
}

}  // namespace xp::cuda
