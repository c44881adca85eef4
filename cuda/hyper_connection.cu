// Hyper-connections: what a sublayer gave is spread over a row's streams, and the streams are mixed
// into the next sublayer's input.
//
// Two kernels do both. products_kernel cuts the dimensions into slices; a warp takes a slice of a
// row, brings it up to date in place (no dimension needs another), and gives the slice's part of
// every product fn · state and of the sum of squares. mix_kernel adds the parts of a row, which
// gives its mixing weights, mixes and norms; a second block does the Sinkhorn iterations beside it.
#include <cuda_fp16.h>

#include <algorithm>

#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/rows.cuh"

namespace xp::cuda {
namespace {

constexpr uint32_t kPostThreads = 256;
constexpr uint32_t kUsualStreams = 4;
// Of a block that mixes a row: as many as registers for the streams of a quad each allow.
__host__ __device__ constexpr uint32_t mix_threads(uint32_t streams) {
    return streams <= kUsualStreams ? 1024 : 512;
}
constexpr uint32_t kProductWarps = 8;   // of a block, each with rows of its own
constexpr uint32_t kRowGroups = 16;     // at most: warps walk over the rows of theirs

__device__ float sigmoid(float x) { return 1 / (1 + expf(-x)); }

// A matrix of n × n streams in the registers of every lane: each step is one of few operations in a
// row, where a warp that shared it would wait for its lanes. What lies beyond n is never used; n is
// a constant in the kernels that matter.
template <uint32_t kStreams>
struct Matrix {
    float at[kStreams][kStreams];
};

// 1 / x of a normal number, to a unit in the last place: without the branches of a division, which
// would stand in the way of doing several at once.
__device__ float reciprocal(float x) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return fmaf(fmaf(-x, r, 1.0f), r, r);
}

// Divides every row, or every column, by its sum plus epsilon.
template <bool kColumns, uint32_t kStreams>
__device__ void normalise(Matrix<kStreams>& c, uint32_t n, float epsilon) {
#pragma unroll
    for (uint32_t i = 0; i < kStreams; ++i) {
        if (i >= n) break;
        float sum = 0;
#pragma unroll
        for (uint32_t j = 0; j < kStreams; ++j) {
            if (j < n) sum += kColumns ? c.at[j][i] : c.at[i][j];
        }
        const float factor = reciprocal(sum + epsilon);
#pragma unroll
        for (uint32_t j = 0; j < kStreams; ++j) (kColumns ? c.at[j][i] : c.at[i][j]) *= factor;
    }
}

// Makes exp(c) nearly doubly stochastic: softmax over each row plus epsilon, then columns and rows
// divided by their sums in turn, beginning and ending with columns.
template <uint32_t kStreams>
__device__ void sinkhorn(Matrix<kStreams>& c, uint32_t n, float epsilon, uint32_t iterations) {
#pragma unroll
    for (uint32_t i = 0; i < kStreams; ++i) {
        if (i >= n) break;
        float max = c.at[i][0];
#pragma unroll
        for (uint32_t j = 1; j < kStreams; ++j) max = j < n ? fmaxf(max, c.at[i][j]) : max;
#pragma unroll
        for (uint32_t j = 0; j < kStreams; ++j) c.at[i][j] = expf(c.at[i][j] - max);
    }
    normalise<false>(c, n, 0);
#pragma unroll
    for (uint32_t i = 0; i < kStreams * kStreams; ++i) c.at[i / kStreams][i % kStreams] += epsilon;
    normalise<true>(c, n, epsilon);
#pragma unroll 1
    for (uint32_t i = 1; i < iterations; ++i) {
        normalise<false>(c, n, epsilon);
        normalise<true>(c, n, epsilon);
    }
}

// post and comb of a row, by one warp.
template <uint32_t kStreams>
__device__ void post_and_comb(const DeviceHyperConnection& args, const float* mixes, float factor,
                              float* post) {
    const uint32_t lane = threadIdx.x % kWarpSize;
    const uint32_t n = kStreams == kUsualStreams ? kUsualStreams : args.streams;
    if (lane < n) {
        post[lane] = 2 * sigmoid(fmaf(mixes[n + lane] * factor, args.scale[1],
                                      args.base[n + lane]));
    }
    Matrix<kStreams> c;
#pragma unroll
    for (uint32_t e = 0; e < kStreams * kStreams; ++e) {
        const uint32_t j = e / kStreams, k = e % kStreams;
        const uint32_t i = 2 * n + j * n + k;
        c.at[j][k] = j < n && k < n ? fmaf(mixes[i] * factor, args.scale[2], args.base[i]) : 0.0f;
    }
    sinkhorn(c, n, args.epsilon, args.iterations);
    if (lane != 0) return;
#pragma unroll
    for (uint32_t e = 0; e < kStreams * kStreams; ++e) {
        const uint32_t j = e / kStreams, k = e % kStreams;
        if (j < n && k < n) post[n + j * n + k] = c.at[j][k];
    }
}

__device__ float4 add(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
// o of a row: the parts in ascending order, then the rest.
__device__ float4 output_of(const DeviceHcUpdate& update, uint64_t row, uint32_t quad, uint32_t dim,
                            bool aligned) {
    const float4 rest = load_quad(update.rest + row * dim, quad, dim, aligned);
    if (update.parts == nullptr) return rest;
    const float* part = update.parts + row * update.n_slots * dim;
    float4 sum = load_quad(part, quad, dim, aligned);
#pragma unroll 4
    for (uint32_t s = 1; s < update.n_slots; ++s) {
        sum = add(sum, load_quad(part + uint64_t{s} * dim, quad, dim, aligned));
    }
    return add(sum, rest);
}

// state'_k of a quad, from what all streams were.
template <uint32_t kStreams>
__device__ float4 updated(const float* post_comb, uint32_t streams, uint32_t k, float4 o,
                          const float4 (&old)[kStreams]) {
    const float p = post_comb[k];
    float4 sum = make_float4(p * o.x, p * o.y, p * o.z, p * o.w);
#pragma unroll
    for (uint32_t j = 0; j < kStreams; ++j) {
        if (j >= streams) break;
        sum = add_scaled(post_comb[streams + j * streams + k], old[j], sum);
    }
    return sum;
}

// kStreams: at least the row's streams.
template <uint32_t kStreams>
__global__ void __launch_bounds__(kPostThreads)
    post_kernel(const DeviceHcUpdate update, uint32_t n_rows, uint32_t streams, uint32_t dim,
                bool aligned, float* state) {
    let_next_start();
    after_previous();
    const uint32_t quad = blockIdx.x * kPostThreads + threadIdx.x;
    if (quad >= quads_of(dim)) return;
    for (uint64_t row = blockIdx.y; row < n_rows; row += gridDim.y) {
        float* x = state + row * streams * dim;
        float4 old[kStreams];
#pragma unroll
        for (uint32_t j = 0; j < kStreams; ++j) {
            if (j < streams) old[j] = load_quad(x + uint64_t{j} * dim, quad, dim, aligned);
        }
        const float4 o = output_of(update, row, quad, dim, aligned);
        const float* post_comb = update.post_comb + row * (streams + streams * streams);
#pragma unroll
        for (uint32_t k = 0; k < kStreams; ++k) {
            if (k >= streams) break;
            store_quad(x + uint64_t{k} * dim, quad, dim, aligned,
                       updated<kStreams>(post_comb, streams, k, o, old));
        }
    }
}

// Four weights of one output of fn, as they are stored.
template <bool kHalf>
struct FnQuad;
template <>
struct FnQuad<true> {
    uint2 raw;
    __device__ static FnQuad load(const void* fn, uint64_t at) {
        return {__ldg(reinterpret_cast<const uint2*>(static_cast<const __half*>(fn) + at))};
    }
    __device__ float4 value() const { return to_float4({make_uint4(raw.x, raw.y, 0, 0), true}); }
};
template <>
struct FnQuad<false> {
    float4 raw;
    __device__ static FnQuad load(const void* fn, uint64_t at) {
        return {__ldg(reinterpret_cast<const float4*>(static_cast<const float*>(fn) + at))};
    }
    __device__ float4 value() const { return raw; }
};

// The same from rows of any alignment, `n` of the four exist.
template <bool kHalf>
__device__ float4 fn_quad(const void* fn, uint64_t at, uint32_t n) {
    if constexpr (!kHalf) return load_quad(static_cast<const float*>(fn) + at, 0, n, false);
    const auto value = [&](uint32_t i) {
        return i < n ? __half2float(static_cast<const __half*>(fn)[at + i]) : 0.0f;
    };
    return make_float4(value(0), value(1), value(2), value(3));
}

constexpr uint32_t kSliceQuads = 8;
__host__ __device__ inline uint32_t slices_of(uint32_t dim) {
    return (quads_of(dim) + kSliceQuads - 1) / kSliceQuads;
}

// Blocks of (slice, group of rows). Lane (k, q) has stream k's quad q of the slice; with 8 streams
// also that of stream k + 4. parts: [row][outputs + 1][slices], the squares last. With kAhead (of
// aligned rows of up to 4 streams) a lane has its weights in registers before the wait.
template <uint32_t kStreams, bool kHalf, bool kAhead>
__global__ void __launch_bounds__(kProductWarps * kWarpSize)
    products_kernel(const DeviceHyperConnection args, const DeviceHcUpdate update, uint32_t n_rows,
                    bool aligned) {
    constexpr uint32_t kPerLane = kStreams * kSliceQuads / kWarpSize;
    constexpr uint32_t kAheadOutputs = kAhead ? (2 + kStreams) * kStreams : 1;
    const uint32_t lane = threadIdx.x % kWarpSize;
    const uint32_t n = args.streams;
    const uint32_t dim = args.dim;
    const uint32_t flat = n * dim;
    const uint32_t quad = blockIdx.x * kSliceQuads + lane % kSliceQuads;
    const bool inside = quad < quads_of(dim);
    const auto stream_of = [&](uint32_t m) { return lane / kSliceQuads + 4 * m; };
    let_next_start();
    FnQuad<kHalf> ahead[kAheadOutputs];
    if constexpr (kAhead) {
#pragma unroll
        for (uint32_t i = 0; i < kAheadOutputs; ++i) {
            if (i >= args.outputs || !inside || stream_of(0) >= n) break;
            ahead[i] = FnQuad<kHalf>::load(args.fn, uint64_t{i} * flat + stream_of(0) * dim +
                                                        4 * quad);
        }
    }
    after_previous();
    for (uint64_t row = blockIdx.y * kProductWarps + threadIdx.x / kWarpSize; row < n_rows;
         row += uint64_t{gridDim.y} * kProductWarps) {
        float* x = args.state + row * flat;
        float4 mine[kPerLane];
        if (inside && update.post_comb != nullptr) {
            float4 old[kStreams];
            const float4 o = output_of(update, row, quad, dim, aligned);
#pragma unroll
            for (uint32_t j = 0; j < kStreams; ++j) {
                if (j < n) old[j] = load_quad(x + uint64_t{j} * dim, quad, dim, aligned);
            }
            const float* post_comb = update.post_comb + row * (n + n * n);
#pragma unroll
            for (uint32_t m = 0; m < kPerLane; ++m) {
                if (stream_of(m) < n) {
                    mine[m] = updated<kStreams>(post_comb, n, stream_of(m), o, old);
                }
            }
        }
        __syncwarp();  // all have read what is written now
        float squares = 0;
#pragma unroll
        for (uint32_t m = 0; m < kPerLane; ++m) {
            float* at = x + uint64_t{stream_of(m)} * dim;
            if (!inside || stream_of(m) >= n) {
                mine[m] = make_float4(0, 0, 0, 0);
            } else if (update.post_comb != nullptr) {
                store_quad(at, quad, dim, aligned, mine[m]);
            } else {
                mine[m] = load_quad(at, quad, dim, aligned);
            }
            squares = add_squares(mine[m], squares);
        }
        float* const parts = args.parts + row * (args.outputs + 1) * slices_of(dim) + blockIdx.x;
        for (uint32_t first = 0; first <= args.outputs; first += kWarpSize) {
            float v[kWarpSize];
#pragma unroll
            for (uint32_t i = 0; i < kWarpSize; ++i) {
                v[i] = first + i == args.outputs ? squares : 0.0f;
                if (!inside || first + i >= args.outputs) continue;
#pragma unroll
                for (uint32_t m = 0; m < kPerLane; ++m) {
                    if (stream_of(m) >= n) continue;
                    float4 w;
                    if constexpr (kAhead) {
                        if (i < kAheadOutputs) w = ahead[i < kAheadOutputs ? i : 0].value();
                    } else {
                        w = fn_quad<kHalf>(args.fn,
                                           uint64_t{first + i} * flat + stream_of(m) * dim +
                                               4 * quad,
                                           dim - 4 * quad);
                    }
                    v[i] = fmaf(w.x, mine[m].x, v[i]);
                    v[i] = fmaf(w.y, mine[m].y, v[i]);
                    v[i] = fmaf(w.z, mine[m].z, v[i]);
                    v[i] = fmaf(w.w, mine[m].w, v[i]);
                }
            }
            const float sum = add_32(v, lane);
            const uint32_t output = first + lane;
            if (output <= args.outputs) parts[uint64_t{output} * slices_of(dim)] = sum;
        }
    }
}

constexpr uint32_t kMaxOutputs = (2 + kMaxStreams) * kMaxStreams;

// Blocks of (row, task): 0 mixes, 1 gives post and comb.
// kStreams is kUsualStreams for exactly as many, kMaxStreams for any number.
template <bool kHead, uint32_t kStreams>
__global__ void __launch_bounds__(mix_threads(kStreams))
    mix_kernel(const DeviceHyperConnection args, bool aligned, float* y, float* post_comb) {
    constexpr uint32_t kThreads = mix_threads(kStreams);
    // Aligned, since four are read at once: where they were not, that took in a neighbour's word
    // while others wrote it, unused but a race all the same.
    __shared__ alignas(16) float sums[kMaxOutputs + 1];
    __shared__ alignas(16) float parts[kThreads / kWarpSize];
    __shared__ alignas(16) float weights[kMaxStreams];
    const uint64_t row = blockIdx.x;
    const uint32_t n = kStreams == kUsualStreams ? kUsualStreams : args.streams;
    const uint32_t dim = args.dim;
    const uint32_t flat = n * dim;
    const uint32_t slices = slices_of(dim);
    const bool mixes = kHead || blockIdx.y == 0;
    // All that memory has for the first quads is asked for before any of it is used: of most models
    // there are no others.
    const uint32_t first = threadIdx.x;
    const bool has_first = mixes && first < quads_of(dim);
    float4 norm_quad = make_float4(0, 0, 0, 0), old[kStreams];
    let_next_start();
    if (has_first) norm_quad = load_quad(args.norm, first, dim, aligned);
    after_previous();
    const float* state = args.state + row * flat;
    const auto load_state = [&](uint32_t quad) {
#pragma unroll
        for (uint32_t s = 0; s < kStreams; ++s) {
            if (s < n) old[s] = load_quad(state + uint64_t{s} * dim, quad, dim, aligned);
        }
    };
    if (has_first) load_state(first);
    const float* row_parts = args.parts + row * (args.outputs + 1) * slices;
    for (uint32_t i = threadIdx.x / kWarpSize; i <= args.outputs; i += kThreads / kWarpSize) {
        float sum = 0;
#pragma unroll 4
        for (uint32_t s = threadIdx.x % kWarpSize; s < slices; s += kWarpSize) {
            sum += row_parts[uint64_t{i} * slices + s];
        }
        sum = warp_sum(sum);
        if (threadIdx.x % kWarpSize == 0) sums[i] = sum;
    }
    __syncthreads();
    const float factor = rms_factor(sums[args.outputs], flat, args.norm_epsilon);
    if (!mixes) {
        if (threadIdx.x < kWarpSize) {
            post_and_comb<kStreams>(args, sums, factor, post_comb + row * (n + n * n));
        }
        return;
    }
    if (threadIdx.x < n) {
        weights[threadIdx.x] = sigmoid(fmaf(sums[threadIdx.x] * factor, args.scale[0],
                                            args.base[threadIdx.x])) + args.epsilon;
    }
    __syncthreads();
    const auto mixed = [&] {
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (uint32_t s = 0; s < kStreams; ++s) {
            if (s < n) sum = add_scaled(weights[s], old[s], sum);
        }
        return sum;
    };
    float* const to = y + row * dim;
    const float4 first_mixed = has_first ? mixed() : make_float4(0, 0, 0, 0);
    float squares = add_squares(first_mixed, 0);
    for (uint32_t quad = first + kThreads; quad < quads_of(dim); quad += kThreads) {
        load_state(quad);
        const float4 sum = mixed();
        squares = add_squares(sum, squares);
        store_quad(to, quad, dim, aligned, sum);  // read again by the same thread
    }
    const float norm = rms_factor(block_sum<kThreads>(squares, parts), dim, args.norm_epsilon);
    const auto store = [&](uint32_t quad, float4 v, float4 w) {
        store_quad(to, quad, dim, aligned,
                   make_float4(v.x * norm * w.x, v.y * norm * w.y, v.z * norm * w.z,
                               v.w * norm * w.w));
    };
    if (has_first) store(first, first_mixed, norm_quad);
    for (uint32_t quad = first + kThreads; quad < quads_of(dim); quad += kThreads) {
        store(quad, load_quad(to, quad, dim, aligned), load_quad(args.norm, quad, dim, aligned));
    }
}

bool aligned_update(const DeviceHcUpdate& update, uint32_t dim) {
    return update.post_comb == nullptr ||
           (aligned_rows(update.rest, dim) && aligned_rows(update.parts, dim));
}

template <uint32_t kStreams, bool kAhead>
void launch_products(const DeviceHyperConnection& args, const DeviceHcUpdate& update,
                     uint32_t n_rows, bool aligned, cudaStream_t stream) {
    const uint32_t groups =
        std::min((n_rows + kProductWarps - 1) / kProductWarps, kRowGroups);
    const uint32_t warps = std::min(n_rows, kProductWarps);
    launch(args.half_fn ? products_kernel<kStreams, true, kAhead>
                        : products_kernel<kStreams, false, kAhead>,
           dim3(slices_of(args.dim), groups), warps * kWarpSize, 0, stream, args, update, n_rows,
           aligned);
}

void mix(const DeviceHyperConnection& args, const DeviceHcUpdate& update, uint32_t n_rows, float* y,
         float* post_comb, cudaStream_t stream) {
    if (n_rows == 0 || args.dim == 0) return;
    const bool aligned = aligned_rows(args.state, args.dim) && aligned_rows(y, args.dim) &&
                         aligned_rows(args.norm, args.dim) && aligned_rows(args.fn, args.dim) &&
                         aligned_update(update, args.dim);
    if (args.streams > 4) {
        launch_products<kMaxStreams, false>(args, update, n_rows, aligned, stream);
    } else if (aligned) {
        launch_products<4, true>(args, update, n_rows, aligned, stream);
    } else {
        launch_products<4, false>(args, update, n_rows, aligned, stream);
    }
    const bool head = post_comb == nullptr;
    const bool usual = args.streams == kUsualStreams && !head;
    launch(head    ? mix_kernel<true, kMaxStreams>
           : usual ? mix_kernel<false, kUsualStreams>
                   : mix_kernel<false, kMaxStreams>,
           dim3(n_rows, head ? 1 : 2), mix_threads(usual ? kUsualStreams : kMaxStreams), 0, stream,
           args, aligned, y, post_comb);
}

}  // namespace

uint64_t hc_part_floats(const DeviceHyperConnection& args, uint32_t n_rows) {
    return uint64_t{n_rows} * (args.outputs + 1) * slices_of(args.dim);
}

void launch_hc_pre(const DeviceHyperConnection& args, const DeviceHcUpdate& update, uint32_t n_rows,
                   float* y, float* post_comb, cudaStream_t stream) {
    mix(args, update, n_rows, y, post_comb, stream);
}

void launch_hc_head(const DeviceHyperConnection& args, uint32_t n_rows, float* y,
                    cudaStream_t stream) {
    mix(args, DeviceHcUpdate{}, n_rows, y, nullptr, stream);
}

void launch_hc_post(const DeviceHcUpdate& update, uint32_t n_rows, uint32_t streams, uint32_t dim,
                    float* state, cudaStream_t stream) {
    if (n_rows == 0 || dim == 0) return;
    const bool aligned = aligned_update(update, dim) && aligned_rows(state, dim);
    const dim3 grid((quads_of(dim) + kPostThreads - 1) / kPostThreads, std::min(n_rows, kMaxGridY));
    launch(streams <= 4 ? post_kernel<4> : post_kernel<kMaxStreams>, grid, kPostThreads, 0, stream,
           update, n_rows, streams, dim, aligned, state);
}

}  // namespace xp::cuda
