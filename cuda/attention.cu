// Attention over window and compressed rows. A row's keys are numbered as they are taken (window
// ascending, then compressed ascending) and cut into units of kUnit keys by that number alone. For
// each head a unit gives its largest score m, the sum s of exp(score − m) and acc = Σ exp(..)·K;
// units are merged in ascending order. Where keys lie, how many rows a batch has, and who merges
// play no part in any sum. Operations that the compiler could fuse in one kernel and not in
// another are spelt out.
//   direct, for many rows: a block does all units of its heads one after the other.
//   split, for few: a block does one unit, and a second kernel merges.
// A warp has kHeads heads; lane l has the quads l, l + 32, .. of a row. Keys are in shared memory
// as float32, where all heads of a block read them.
#include <algorithm>
#include <cfloat>
#include <cmath>

#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/rows.cuh"
#include "cuda/shared_memory.h"

namespace xp::cuda {
namespace {

constexpr uint32_t kWarps = 4;  // of a block
constexpr uint32_t kThreads = kWarps * kWarpSize;
// Direct once there are as many blocks as keep every multiprocessor of a large device busy.
constexpr uint64_t kDirectBlocks = 256;
// Heads of a warp.
constexpr uint32_t kDirectHeads = 4;
constexpr uint32_t kSplitHeads = 1;
constexpr uint32_t kWideHeads = 2;    // of the largest rows, either way
// Of scratch memory: a split launch takes rows in groups that fit.
constexpr uint64_t kMaxScratchFloats = 32u << 20;

// Quads per lane: 1, 2, 4 or, up to kMaxAttentionDim, 8. The unit is smaller where its keys would
// not fit.
__host__ __device__ constexpr uint32_t lane_quads(uint32_t dim) {
    return dim <= 128 ? 1 : dim <= 256 ? 2 : dim <= 512 ? 4 : 8;
}
__host__ __device__ constexpr uint32_t unit_keys(uint32_t quads) { return quads == 8 ? 16 : 32; }

// The keys of one row, by number.
struct Keys {
    uint64_t first = 0;            // position of the first in the window
    uint64_t n_window = 0;
    uint64_t n_keys = 0;
    const uint32_t* picks = nullptr;
};

__host__ __device__ inline Keys keys_of(const DeviceAttention& args, const DeviceSegment& segment,
                                        uint64_t row) {
    const uint64_t end = segment.position + (row - segment.first_row) + 1;
    const uint64_t visible = args.ratio != 0 ? end / args.ratio : 0;
    Keys keys;
    keys.first = end > args.window ? end - args.window : 0;
    keys.n_window = end - keys.first;
    keys.n_keys = keys.n_window + visible;
    if (args.picks != nullptr && visible > args.max_picks) {
        keys.picks = args.picks + row * args.max_picks;
        keys.n_keys = keys.n_window + args.max_picks;
    }
    return keys;
}

__host__ __device__ inline const std::byte* key_at(const DeviceAttention& args,
                                                   const DeviceSegment& segment, const Keys& keys,
                                                   uint64_t k) {
    const uint64_t bytes = uint64_t{args.dim} * (args.half ? 2 : 4);
    if (k >= keys.n_window) {
        const uint64_t w = k - keys.n_window;
        return segment.compressed + (keys.picks != nullptr ? keys.picks[w] : w) * bytes;
    }
    const uint64_t p = keys.first + k;
    if (p >= segment.position) {
        return args.rows + (segment.first_row + (p - segment.position)) * bytes;
    }
    // A division of 64 bits takes as long as reading the key.
    const uint64_t place = p >> 32 == 0 ? static_cast<uint32_t>(p) % args.window : p % args.window;
    return segment.ring + place * bytes;
}

// Puts a unit's keys into `tile`, [unit_keys][kQuads · 32] quads. Every lane finds one key's place;
// a warp has kBatch keys on their way at once. How rows are stored is known before, so that the
// code that runs is short.
template <uint32_t kQuads, bool kHalf>
__device__ void load_keys(const DeviceAttention& args, const std::byte* mine, uint32_t n_valid,
                          float4* tile) {
    constexpr uint32_t kBatch = kQuads == 8 ? 1 : 4;  // what registers allow
    const uint32_t lane = threadIdx.x % kWarpSize;
    for (uint32_t k0 = threadIdx.x / kWarpSize; k0 < n_valid; k0 += kBatch * kWarps) {
        StoredQuad batch[kBatch][kQuads];
#pragma unroll
        for (uint32_t b = 0; b < kBatch; ++b) {
            const uint32_t k = min(k0 + b * kWarps, n_valid - 1);  // past the end: the last again
            const auto row = reinterpret_cast<const std::byte*>(
                __shfl_sync(kAllLanes, reinterpret_cast<unsigned long long>(mine), k));
#pragma unroll
            for (uint32_t j = 0; j < kQuads; ++j) {
                const uint32_t quad = lane + j * kWarpSize;
                batch[b][j] = {make_uint4(0, 0, 0, 0), kHalf};
                if (quad < quads_of(args.dim)) {
                    batch[b][j] = load_stored(row, kHalf, quad, args.dim, true);
                }
            }
        }
#pragma unroll
        for (uint32_t b = 0; b < kBatch; ++b) {
            const uint32_t k = k0 + b * kWarps;
            if (k >= n_valid) break;
#pragma unroll
            for (uint32_t j = 0; j < kQuads; ++j) {
                tile[(k * kQuads + j) * kWarpSize + lane] = to_float4(batch[b][j]);
            }
        }
    }
}
template <uint32_t kQuads>
__device__ void load_unit(const DeviceAttention& args, const DeviceSegment& segment,
                          const Keys& keys, uint64_t first_key, uint32_t n_valid, float4* tile) {
    const uint32_t lane = threadIdx.x % kWarpSize;
    const std::byte* mine = nullptr;
    if (lane < n_valid) mine = key_at(args, segment, keys, first_key + lane);
    const uintptr_t bases = reinterpret_cast<uintptr_t>(args.rows) |
                            reinterpret_cast<uintptr_t>(segment.ring) |
                            reinterpret_cast<uintptr_t>(segment.compressed);
    const bool aligned = args.dim % 4 == 0 && bases % 16 == 0;
    if (aligned && args.half) {
        load_keys<kQuads, true>(args, mine, n_valid, tile);
    } else if (aligned) {
        load_keys<kQuads, false>(args, mine, n_valid, tile);
    } else {
        for (uint32_t t = threadIdx.x; t < n_valid * kQuads * kWarpSize; t += kThreads) {
            const uint32_t k = t / (kQuads * kWarpSize), quad = t % (kQuads * kWarpSize);
            tile[t] = make_float4(0, 0, 0, 0);
            if (quad >= quads_of(args.dim)) continue;
            tile[t] = to_float4(load_stored(key_at(args, segment, keys, first_key + k), args.half,
                                            quad, args.dim, false));
        }
    }
}

// What units that were merged so far give, and the factors for merging one more. A maximum is never
// below the sink or −FLT_MAX, so that scores of −∞ weigh nothing.
struct Merged {
    float max, sum;
};
struct Factors {
    float old, unit;
};
__device__ Merged nothing_merged(float sink) { return {fmaxf(sink, -FLT_MAX), 0}; }
__device__ Factors merge(Merged& merged, float unit_max, float unit_sum) {
    const float max = fmaxf(merged.max, unit_max);
    const Factors factors{expf(merged.max - max), expf(unit_max - max)};
    merged = {max, fmaf(merged.sum, factors.old, unit_sum * factors.unit)};
    return factors;
}
__device__ float4 merge_quad(Factors f, float4 old, float4 unit) {
    return make_float4(fmaf(old.x, f.old, unit.x * f.unit), fmaf(old.y, f.old, unit.y * f.unit),
                       fmaf(old.z, f.old, unit.z * f.unit), fmaf(old.w, f.old, unit.w * f.unit));
}
__device__ float final_factor(Merged merged, float sink) {
    return 1 / __fadd_rn(merged.sum, expf(sink - merged.max));
}

// kHeads heads of a warp. Lane kKeys·h + i of a warp has the scores of head h and the keys i,
// i + kKeys, .. of a unit.
template <uint32_t kQuads, uint32_t kHeads>
struct WarpHeads {
    static constexpr uint32_t kKeys = kWarpSize / kHeads;
    static constexpr uint32_t kRounds = unit_keys(kQuads) / kKeys;
    static constexpr uint32_t kPitch = kQuads * kWarpSize;

    float4 q[kHeads][kQuads];
    float max, sum;  // of the unit, for the lane's head

    // A warp may have fewer heads: it computes the last one again, and drops it in the end.
    __device__ void load(const DeviceAttention& args, uint64_t row, uint32_t head0, bool aligned) {
        const uint32_t lane = threadIdx.x % kWarpSize;
#pragma unroll
        for (uint32_t h = 0; h < kHeads; ++h) {
            const uint64_t head = row * args.n_heads + min(head0 + h, args.n_heads - 1);
            const float* from = args.q + head * args.dim;
#pragma unroll
            for (uint32_t j = 0; j < kQuads; ++j) {
                const uint32_t quad = lane + j * kWarpSize;
                q[h][j] = quad < quads_of(args.dim) ? load_quad(from, quad, args.dim, aligned)
                                                    : make_float4(0, 0, 0, 0);
            }
        }
    }

    // Weights of a unit's keys; the sum is a tree over the keys (16, 8, 4, 2, 1 apart), whatever
    // kHeads is. Of keys that do not exist they are 0.
    __device__ void score(const float4* tile, uint32_t n_valid, float scale, float sink,
                          float* weights) {
        const uint32_t lane = threadIdx.x % kWarpSize;
        max = nothing_merged(sink).max;
#pragma unroll
        for (uint32_t round = 0; round < kRounds; ++round) {
            float v[kWarpSize];
#pragma unroll
            for (uint32_t i = 0; i < kKeys; ++i) {
                const float4* key = tile + (round * kKeys + i) * kPitch + lane;
#pragma unroll
                for (uint32_t h = 0; h < kHeads; ++h) v[h * kKeys + i] = 0;
#pragma unroll
                for (uint32_t j = 0; j < kQuads; ++j) {
                    const float4 x = key[j * kWarpSize];
#pragma unroll
                    for (uint32_t h = 0; h < kHeads; ++h) {
                        float& dot = v[h * kKeys + i];
                        dot = fmaf(q[h][j].x, x.x, dot);
                        dot = fmaf(q[h][j].y, x.y, dot);
                        dot = fmaf(q[h][j].z, x.z, dot);
                        dot = fmaf(q[h][j].w, x.w, dot);
                    }
                }
            }
            weights[round] = __fmul_rn(add_32(v, lane), scale);
            if (round * kKeys + lane % kKeys < n_valid) max = fmaxf(max, weights[round]);
        }
#pragma unroll
        for (uint32_t apart = kKeys / 2; apart > 0; apart /= 2) {
            max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, apart));
        }
        float sums[kRounds];
#pragma unroll
        for (uint32_t round = 0; round < kRounds; ++round) {
            const bool exists = round * kKeys + lane % kKeys < n_valid;
            sums[round] = weights[round] = exists ? expf(weights[round] - max) : 0.0f;
        }
#pragma unroll
        for (uint32_t apart = kRounds / 2; apart > 0; apart /= 2) {
#pragma unroll
            for (uint32_t i = 0; i < apart; ++i) sums[i] = __fadd_rn(sums[i], sums[i + apart]);
        }
        sum = sums[0];
#pragma unroll
        for (uint32_t apart = kKeys / 2; apart > 0; apart /= 2) {
            sum += __shfl_xor_sync(kAllLanes, sum, apart);
        }
    }

    // Σ weight·K over the unit's keys in ascending order.
    __device__ void accumulate(const float4* tile, uint32_t n_valid, const float* weights,
                               float4 (&acc)[kHeads][kQuads]) {
        const uint32_t lane = threadIdx.x % kWarpSize;
#pragma unroll
        for (uint32_t h = 0; h < kHeads; ++h) {
#pragma unroll
            for (uint32_t j = 0; j < kQuads; ++j) acc[h][j] = make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (uint32_t round = 0; round < kRounds; ++round) {
#pragma unroll(kQuads == 8 ? 1 : 2)
            for (uint32_t i = 0; i < kKeys; ++i) {
                if (round * kKeys + i >= n_valid) break;
                const float4* key = tile + (round * kKeys + i) * kPitch + lane;
                float w[kHeads];
#pragma unroll
                for (uint32_t h = 0; h < kHeads; ++h) {
                    w[h] = __shfl_sync(kAllLanes, weights[round], h * kKeys + i);
                }
#pragma unroll
                for (uint32_t j = 0; j < kQuads; ++j) {
                    const float4 x = key[j * kWarpSize];
#pragma unroll
                    for (uint32_t h = 0; h < kHeads; ++h) {
                        acc[h][j] = add_scaled(w[h], x, acc[h][j]);
                    }
                }
            }
        }
    }
};

// Split: one number per (row of the launch, head, unit), where its sums are in scratch memory.
struct Split {
    uint64_t first_row = 0;
    uint32_t n_rows = 0;
    uint64_t n_units = 0;          // of the row with most keys
    __host__ __device__ uint64_t at(uint64_t row, uint32_t n_heads, uint32_t head,
                                    uint64_t unit) const {
        return ((row - first_row) * n_heads + head) * n_units + unit;
    }
    __host__ __device__ uint64_t count(uint32_t n_heads) const {
        return uint64_t{n_rows} * n_heads * n_units;
    }
};
// Scratch: [number][quads · 4], then max and sum of each number.
__host__ __device__ inline uint64_t scratch_floats(uint32_t dim) { return 2 + 4 * quads_of(dim); }

// The unit's sums, for merge_kernel.
template <uint32_t kQuads, uint32_t kHeads>
__device__ void store_unit(const DeviceAttention& args, const Split& split, uint64_t row,
                           uint32_t head0, uint64_t unit, const WarpHeads<kQuads, kHeads>& heads,
                           const float4 (&acc)[kHeads][kQuads]) {
    const uint32_t lane = threadIdx.x % kWarpSize;
    const uint32_t quads = quads_of(args.dim);
    auto* sums = reinterpret_cast<float4*>(args.scratch);
    auto* pairs = reinterpret_cast<float2*>(sums + split.count(args.n_heads) * quads);
#pragma unroll
    for (uint32_t h = 0; h < kHeads; ++h) {
        const uint32_t head = head0 + h;
        if (head >= args.n_heads) break;
        const uint64_t at = split.at(row, args.n_heads, head, unit);
        if (lane == h * heads.kKeys) pairs[at] = make_float2(heads.max, heads.sum);
#pragma unroll
        for (uint32_t j = 0; j < kQuads; ++j) {
            const uint32_t quad = lane + j * kWarpSize;
            if (quad < quads) sums[at * quads + quad] = acc[h][j];
        }
    }
}

__device__ float4 turned_back(const DeviceAttention& args, uint64_t row, uint32_t quad, float4 v) {
    if (args.rope_dims == 0) return v;
    return turn_quad(v, quad, args.dim, args.cos_sin + row * args.rope_dims, args.rope_dims, -1);
}

// A warp's merged sums as results; every lane has the factor of its own head.
template <uint32_t kQuads, uint32_t kHeads>
__device__ void store_out(const DeviceAttention& args, uint64_t row, uint32_t head0, float factor,
                          const float4* total, bool aligned) {
    const uint32_t lane = threadIdx.x % kWarpSize;
#pragma unroll
    for (uint32_t h = 0; h < kHeads; ++h) {
        const float f = __shfl_sync(kAllLanes, factor, h * (kWarpSize / kHeads));
        if (head0 + h >= args.n_heads) break;
        float* out = args.out + (row * args.n_heads + head0 + h) * args.dim;
#pragma unroll
        for (uint32_t j = 0; j < kQuads; ++j) {
            const uint32_t quad = lane + j * kWarpSize;
            const float4 v = total[(h * kQuads + j) * kWarpSize];
            if (quad < quads_of(args.dim)) {
                store_quad(out, quad, args.dim, aligned,
                           turned_back(args, row, quad,
                                       make_float4(v.x * f, v.y * f, v.z * f, v.w * f)));
            }
        }
    }
}

// Blocks of (unit, group of heads, row) if kSplit, of (group of heads, row) if not.
template <uint32_t kQuads, uint32_t kHeads, bool kSplit>
__global__ void __launch_bounds__(kThreads, 2)
    attention_kernel(const __grid_constant__ DeviceAttention args, const Split split,
                     bool aligned) {
    extern __shared__ float4 tile[];  // [unit_keys][kQuads · 32], then if direct the merged sums
    let_next_start();
    after_previous();
    constexpr uint32_t kUnit = unit_keys(kQuads);
    const uint32_t lane = threadIdx.x % kWarpSize;
    const uint32_t head0 =
        ((kSplit ? blockIdx.y : blockIdx.x) * kWarps + threadIdx.x / kWarpSize) * kHeads;
    const uint64_t row = split.first_row + (kSplit ? blockIdx.z : blockIdx.y);
    const DeviceSegment segment = args.segments.of(row);
    const Keys keys = keys_of(args, segment, row);
    const uint64_t n_units = (keys.n_keys + kUnit - 1) / kUnit;
    const uint64_t first_unit = kSplit ? blockIdx.x : 0;
    const uint64_t end_unit = kSplit ? first_unit + 1 : n_units;
    if (first_unit >= n_units && kSplit) return;

    WarpHeads<kQuads, kHeads> heads;
    heads.load(args, row, head0, aligned);
    const float sink = args.sinks[min(head0 + lane / heads.kKeys, args.n_heads - 1)];
    Merged merged = nothing_merged(sink);
    // The lane's own quads of its warp's heads: no other thread touches them.
    float4* total = tile + kUnit * heads.kPitch +
                    threadIdx.x / kWarpSize * kHeads * heads.kPitch + lane;
    if constexpr (!kSplit) {
#pragma unroll
        for (uint32_t i = 0; i < kHeads * kQuads; ++i) {
            total[i * kWarpSize] = make_float4(0, 0, 0, 0);
        }
    }

    for (uint64_t unit = first_unit; unit < end_unit; ++unit) {
        const uint64_t left = keys.n_keys - unit * kUnit;
        const uint32_t n_valid = left < kUnit ? static_cast<uint32_t>(left) : kUnit;
        __syncthreads();
        load_unit<kQuads>(args, segment, keys, unit * kUnit, n_valid, tile);
        __syncthreads();
        float weights[heads.kRounds];
        float4 acc[kHeads][kQuads];
        heads.score(tile, n_valid, args.scale, sink, weights);
        heads.accumulate(tile, n_valid, weights, acc);
        if constexpr (kSplit) {
            store_unit<kQuads, kHeads>(args, split, row, head0, unit, heads, acc);
        } else {
            const Factors factors = merge(merged, heads.max, heads.sum);
#pragma unroll
            for (uint32_t h = 0; h < kHeads; ++h) {
                const Factors f{__shfl_sync(kAllLanes, factors.old, h * heads.kKeys),
                                __shfl_sync(kAllLanes, factors.unit, h * heads.kKeys)};
#pragma unroll
                for (uint32_t j = 0; j < kQuads; ++j) {
                    float4& sum = total[(h * kQuads + j) * kWarpSize];
                    sum = merge_quad(f, sum, acc[h][j]);
                }
            }
        }
    }
    if constexpr (!kSplit) {
        store_out<kQuads, kHeads>(args, row, head0, final_factor(merged, sink), total, aligned);
    }
}

// Row i of a segment to its place in the ring.
__device__ void copy_to_ring(const DeviceAttention& args, const DeviceSegment& segment,
                             uint32_t i) {
    const uint64_t bytes = uint64_t{args.dim} * (args.half ? 2 : 4);
    const std::byte* from = args.rows + (uint64_t{segment.first_row} + i) * bytes;
    std::byte* to = segment.ring + (segment.position + i) % args.window * bytes;
    const bool aligned = (reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to) |
                          bytes) % 16 == 0;
    const uint64_t n_pieces = aligned ? bytes / 16 : 0;
    for (uint64_t k = threadIdx.x; k < n_pieces; k += blockDim.x) {
        reinterpret_cast<uint4*>(to)[k] = reinterpret_cast<const uint4*>(from)[k];
    }
    for (uint64_t k = n_pieces * 8 + threadIdx.x; k < bytes / 2; k += blockDim.x) {
        reinterpret_cast<uint16_t*>(to)[k] = reinterpret_cast<const uint16_t*>(from)[k];
    }
}

// Merges what split blocks left: one block per (head, row), a thread per quad. If there is a block
// more than heads, it does the row's part of the rings.
__global__ void merge_kernel(const __grid_constant__ DeviceAttention args, const Split split,
                             bool aligned) {
    let_next_start();
    after_previous();
    const uint32_t head = blockIdx.x;
    const uint64_t row = split.first_row + blockIdx.y;
    const DeviceSegment segment = args.segments.of(row);
    if (head == args.n_heads) {
        const auto i = static_cast<uint32_t>(row - segment.first_row);
        if (segment.n_rows - i <= args.window) copy_to_ring(args, segment, i);
        return;
    }
    const uint32_t quad = threadIdx.x;
    const uint32_t quads = quads_of(args.dim);
    if (quad >= quads) return;
    const uint32_t unit_size = unit_keys(lane_quads(args.dim));
    const uint64_t n_units = (keys_of(args, segment, row).n_keys + unit_size - 1) / unit_size;
    const uint64_t at = split.at(row, args.n_heads, head, 0);
    const auto* sums = reinterpret_cast<const float4*>(args.scratch);
    const auto* pairs =
        reinterpret_cast<const float2*>(sums + split.count(args.n_heads) * quads) + at;
    sums += at * quads + quad;
    const float sink = args.sinks[head];
    Merged merged = nothing_merged(sink);
    float4 total = make_float4(0, 0, 0, 0);
#pragma unroll 8
    for (uint64_t unit = 0; unit < n_units; ++unit) {
        const float2 pair = pairs[unit];
        total = merge_quad(merge(merged, pair.x, pair.y), total, sums[unit * quads]);
    }
    const float f = final_factor(merged, sink);
    store_quad(args.out + (row * args.n_heads + head) * args.dim, quad, args.dim, aligned,
               turned_back(args, row, quad,
                           make_float4(total.x * f, total.y * f, total.z * f, total.w * f)));
}

// Blocks of (row of the last window, segment).
__global__ void ring_kernel(const __grid_constant__ DeviceAttention args) {
    let_next_start();
    after_previous();
    for (uint32_t s = blockIdx.y; s < args.segments.n; s += gridDim.y) {
        const DeviceSegment segment = args.segments.at(s);
        const uint32_t n = min(segment.n_rows, args.window);
        for (uint32_t i = segment.n_rows - n + blockIdx.x; i < segment.n_rows; i += gridDim.x) {
            copy_to_ring(args, segment, i);
        }
    }
}

// Rows that one split launch takes; 0: direct. Bits do not depend on it.
uint32_t split_rows(const DeviceAttention& args, uint64_t n_units) {
    constexpr uint32_t kHeadsPerBlock = kWarps * kDirectHeads;
    const uint64_t groups = (args.n_heads + kHeadsPerBlock - 1) / kHeadsPerBlock;
    if (groups * args.n_rows >= kDirectBlocks || n_units <= 1) return 0;
    const uint64_t per_row = args.n_heads * n_units * scratch_floats(args.dim);
    return static_cast<uint32_t>(std::min<uint64_t>(args.n_rows, kMaxScratchFloats / per_row));
}

uint64_t units_of(const DeviceAttention& args) {
    const uint32_t unit = unit_keys(lane_quads(args.dim));
    return (args.max_keys + unit - 1) / unit;
}

template <uint32_t kQuads>
void launch_for(const DeviceAttention& args, cudaStream_t stream) {
    constexpr uint32_t kHeads = kQuads == 8 ? kWideHeads : kDirectHeads;
    constexpr uint32_t kFewHeads = kQuads == 8 ? kWideHeads : kSplitHeads;
    constexpr uint32_t kRowBytes = kQuads * kWarpSize * sizeof(float4);
    constexpr uint32_t kTileBytes = unit_keys(kQuads) * kRowBytes;
    constexpr uint32_t kDirectBytes = kTileBytes + kWarps * kHeads * kRowBytes;
    static_assert(kDirectBytes <= kMaxSharedBytes);
    const bool aligned = aligned_rows(args.q, args.dim) && aligned_rows(args.out, args.dim);
    Split split;
    split.n_units = units_of(args);
    const uint32_t step = split_rows(args, split.n_units);
    const auto groups = [&](uint32_t heads) {
        return (args.n_heads + kWarps * heads - 1) / (kWarps * heads);
    };
    const auto split_kernel = attention_kernel<kQuads, kFewHeads, true>;
    const auto direct_kernel = attention_kernel<kQuads, kHeads, false>;
    // Must be said once per device; again costs little.
    if (step != 0) {
        cudaFuncSetAttribute(split_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kTileBytes);
    } else {
        cudaFuncSetAttribute(direct_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             kDirectBytes);
    }
    // A ring's old rows are read until all rows are done.
    const bool at_once = step >= args.n_rows;
    for (uint32_t row = 0; row < args.n_rows; row += split.n_rows) {
        split.first_row = row;
        split.n_rows = std::min(args.n_rows - row, step != 0 ? step : kMaxGridY);
        if (step == 0) {
            launch(direct_kernel, dim3(groups(kHeads), split.n_rows), kThreads, kDirectBytes,
                   stream, args, split, aligned);
            continue;
        }
        const dim3 grid(static_cast<uint32_t>(split.n_units), groups(kFewHeads), split.n_rows);
        launch(split_kernel, grid, kThreads, kTileBytes, stream, args, split, aligned);
        const uint32_t merge_threads = (quads_of(args.dim) + kWarpSize - 1) / kWarpSize * kWarpSize;
        launch(merge_kernel, dim3(args.n_heads + (at_once ? 1 : 0), split.n_rows), merge_threads, 0,
               stream, args, split, aligned);
    }
    if (at_once) return;
    const uint32_t n = std::min(args.n_rows, args.window);
    launch(ring_kernel, dim3(n, std::min(args.segments.n, kMaxGridY)), kThreads, 0, stream, args);
}

}  // namespace

uint64_t attention_scratch_floats(const DeviceAttention& args) {
    const uint64_t n_units = units_of(args);
    return uint64_t{split_rows(args, n_units)} * args.n_heads * n_units * scratch_floats(args.dim);
}

void launch_attention(const DeviceAttention& args, cudaStream_t stream) {
    if (args.n_rows == 0 || args.n_heads == 0 || args.dim == 0) return;
    switch (lane_quads(args.dim)) {
        case 1: return launch_for<1>(args, stream);
        case 2: return launch_for<2>(args, stream);
        case 4: return launch_for<4>(args, stream);
        default: return launch_for<8>(args, stream);
    }
}

}  // namespace xp::cuda
