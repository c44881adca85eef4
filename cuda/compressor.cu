// The compressors that make compressed rows, and the indexer that picks among them.
//
// compress: a window's slots are known without walking through the tokens before it: each holds a
// token of this batch, or what the buffers held before it. So all completed windows are pooled side
// by side, channel by channel, and the buffers are brought up to date last.
//
// index_rows: scores as tiles of heads × keys, then the highest by a radix select on the scores'
// bits. Nothing is sorted: picks are written in the order of their indices.
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/rows.cuh"

namespace xp::cuda {
namespace {

// ---- compress -----------------------------------------------------------------------------------

constexpr uint32_t kThreads = 256;

// Where a slot's value comes from: a row of the batch or a slot of the buffers.
struct Source {
    bool in_batch = false;
    uint64_t row = 0;   // of the batch
    uint32_t slot = 0;  // of the buffers, as they were before the batch
};

// Slot `slot` of window `window`, which is completed in this batch. Slots below `current` hold the
// window before it.
__host__ __device__ inline Source source_of(const DeviceCompressorSegment& segment, uint32_t ratio,
                                            uint32_t current, uint64_t window, uint32_t slot) {
    const bool before = slot < current;
    const uint32_t m = before ? slot : slot - current;
    if (before && window == segment.position / ratio) return {false, 0, m};
    const uint64_t p = (before ? window - 1 : window) * ratio + m;
    if (p < segment.position) return {false, 0, current + m};
    return {true, segment.first_row + (p - segment.position), 0};
}

struct Slot {
    float key, gate;
};

__device__ Slot read_slot(const DeviceCompressor& args, const DeviceCompressorSegment& segment,
                          const Source& source, uint32_t m, uint32_t channel) {
    const uint32_t width = args.factor * args.dim;
    if (!source.in_batch) {
        const uint64_t at = uint64_t{source.slot} * width + channel;
        return {segment.keys[at], segment.gates[at]};
    }
    const uint64_t at = source.row * width + channel;
    return {args.keys[at], args.gates[at] + args.bias[uint64_t{m} * width + channel]};
}

// pooled[w][d]: keys weighted by the softmax of their gates, slots in ascending order.
__global__ void __launch_bounds__(kThreads)
    pool_kernel(const __grid_constant__ DeviceCompressor args) {
    let_next_start();
    after_previous();
    const uint32_t d = blockIdx.x * kThreads + threadIdx.x;
    if (d >= args.dim) return;
    const uint32_t n_slots = args.factor * args.ratio;
    const uint32_t current = n_slots - args.ratio;
    for (uint64_t w = blockIdx.y; w < args.n_pooled; w += gridDim.y) {
        const DeviceCompressorSegment segment = args.segments.of(w);
        const uint64_t window = segment.position / args.ratio + (w - segment.first_pooled);
        // Slots of the window before count with their first half, current ones with the last.
        const auto read = [&](uint32_t slot) {
            const uint32_t half = slot < current ? 0 : args.factor - 1;
            const uint32_t m = slot < current ? slot : slot - current;
            return read_slot(args, segment,
                             source_of(segment, args.ratio, current, window, slot), m,
                             half * args.dim + d);
        };
        float max = -INFINITY;
#pragma unroll 4
        for (uint32_t slot = 0; slot < n_slots; ++slot) max = fmaxf(max, read(slot).gate);
        float sum = 0;
        float weighted = 0;
#pragma unroll 4
        for (uint32_t slot = 0; slot < n_slots; ++slot) {
            const Slot s = read(slot);
            const float weight = expf(s.gate - max);
            sum += weight;
            weighted = fmaf(weight, s.key, weighted);
        }
        args.pooled[w * args.dim + d] = weighted / sum;
    }
}

__device__ void store(std::byte* rows, bool half, uint64_t at, float value) {
    if (half) {
        reinterpret_cast<__half*>(rows)[at] = __float2half_rn(value);
    } else {
        reinterpret_cast<float*>(rows)[at] = value;
    }
}

// Norm, rotation and storing of a pooled row: one block each.
__global__ void __launch_bounds__(kThreads)
    finish_kernel(const __grid_constant__ DeviceCompressor args) {
    __shared__ float parts[kThreads / kWarpSize];
    let_next_start();
    after_previous();
    const uint32_t dim = args.dim;
    const uint64_t w = blockIdx.x;
    const DeviceCompressorSegment segment = args.segments.of(w);
    const uint64_t at = (segment.position / args.ratio + (w - segment.first_pooled)) * dim;
    const float* row = args.pooled + w * dim;
    float squares = 0;
    for (uint32_t d = threadIdx.x; d < dim; d += kThreads) squares = fmaf(row[d], row[d], squares);
    const float factor = rms_factor(block_sum<kThreads>(squares, parts), dim, args.epsilon);
    const auto normed = [&](uint32_t d) {
        return args.norm != nullptr ? row[d] * factor * args.norm[d] : row[d] * factor;
    };
    const uint32_t plain = dim - args.rope_dims;
    for (uint32_t d = threadIdx.x; d < plain; d += kThreads) {
        store(segment.compressed, args.half, at + d, normed(d));
    }
    const float* turn = args.cos_sin + w * args.rope_dims;
    for (uint32_t i = 2 * threadIdx.x; i < args.rope_dims; i += 2 * kThreads) {
        const float c = turn[i];
        const float s = turn[i + 1];
        const float a = normed(plain + i);
        const float b = normed(plain + i + 1);
        store(segment.compressed, args.half, at + plain + i, fmaf(a, c, -(b * s)));
        store(segment.compressed, args.half, at + plain + i + 1, fmaf(a, s, b * c));
    }
}

// Blocks of (channel, m, segment): what position mod ratio = m leaves in the buffers.
__global__ void __launch_bounds__(kThreads)
    buffer_kernel(const __grid_constant__ DeviceCompressor args) {
    let_next_start();
    after_previous();
    const uint32_t width = args.factor * args.dim;
    const uint32_t channel = blockIdx.x * kThreads + threadIdx.x;
    if (channel >= width) return;
    const uint32_t ratio = args.ratio;
    const uint32_t current = (args.factor - 1) * ratio;
    for (uint32_t s = blockIdx.z; s < args.segments.n; s += gridDim.z) {
        const DeviceCompressorSegment segment = args.segments.at(s);
        const uint64_t end = segment.position + segment.n_rows;
        const auto write = [&](uint32_t slot, const Slot& value) {
            segment.keys[uint64_t{slot} * width + channel] = value.key;
            segment.gates[uint64_t{slot} * width + channel] = value.gate;
        };
        for (uint32_t m = blockIdx.y; m < ratio; m += gridDim.y) {
            // The last completed window goes to the lower slots; it may be in the buffers still.
            if (current != 0 && end / ratio > segment.position / ratio) {
                const uint64_t last = end / ratio - 1;
                const Source source = source_of(segment, ratio, current, last, current + m);
                write(m, read_slot(args, segment, source, m, channel));
            }
            // Then the latest of the batch's tokens with this m, if any, to the upper one.
            const uint64_t back = (end % ratio + ratio - 1 - m) % ratio;
            if (back < segment.n_rows) {
                const Source source{true, segment.first_row + (segment.n_rows - 1 - back), 0};
                write(current + m, read_slot(args, segment, source, m, channel));
            }
        }
    }
}

// ---- index_rows ---------------------------------------------------------------------------------

// A tile of scores: 64 heads at a time × 128 keys. Thread (warp g, lane l) has the heads 8·g .. and
// the keys 4·l ..; dots run over ascending dimensions, heads are summed 8 by 8.
constexpr uint32_t kTileHeads = 64;
constexpr uint32_t kTileKeys = 128;
constexpr uint32_t kTileDims = 32;
constexpr uint32_t kScoreThreads = 256;
constexpr uint32_t kHeadsPerThread = 8;
constexpr uint32_t kKeysPerThread = 4;
static_assert(kTileHeads / kHeadsPerThread * kWarpSize == kScoreThreads);
static_assert(kTileKeys == kWarpSize * kKeysPerThread && kTileDims % 4 == 0);

__host__ __device__ inline uint64_t visible_rows(const DeviceIndexSegment& segment, uint32_t ratio,
                                                 uint64_t row) {
    return (segment.position + (row - segment.first_row) + 1) / ratio;
}

// Transposes kRows rows' dimensions d0 .. d0 + kTileDims into to[dimension][row]; what lies beyond
// the rows or the dimensions becomes 0.
template <uint32_t kRows>
__device__ void stage(const std::byte* rows, bool half, uint64_t n_rows, uint32_t dim, uint32_t d0,
                      float (*to)[kRows]) {
    constexpr uint32_t kSteps = kRows * kTileDims / 4 / kScoreThreads;
    const bool aligned = dim % 4 == 0 && reinterpret_cast<uintptr_t>(rows) % 16 == 0;
    const uint64_t row_bytes = uint64_t{dim} * (half ? 2 : 4);
    StoredQuad quads[kSteps];
#pragma unroll
    for (uint32_t step = 0; step < kSteps; ++step) {
        const uint32_t t = threadIdx.x + step * kScoreThreads;
        const uint32_t r = t % kRows;
        const uint32_t quad = d0 / 4 + t / kRows;
        quads[step] = r < n_rows && quad < quads_of(dim)
                          ? load_stored(rows + r * row_bytes, half, quad, dim, aligned)
                          : StoredQuad{make_uint4(0, 0, 0, 0), false};
    }
#pragma unroll
    for (uint32_t step = 0; step < kSteps; ++step) {
        const uint32_t t = threadIdx.x + step * kScoreThreads;
        const float4 v = to_float4(quads[step]);
        float* column = &to[t / kRows * 4][t % kRows];
        column[0] = v.x;
        column[kRows] = v.y;
        column[2 * kRows] = v.z;
        column[3 * kRows] = v.w;
    }
}

// Adds weight · max(0, q·key) of the thread's 8 of the heads head0 .. to its 4 keys' scores.
__device__ void add_heads(const DeviceIndex& args, uint64_t row, uint32_t head0,
                          const std::byte* keys, uint64_t n_keys, float (*q_tile)[kTileHeads],
                          float (*key_tile)[kTileKeys], float* scores) {
    const uint32_t first_head = threadIdx.x / kWarpSize * kHeadsPerThread;
    const uint32_t first_key = threadIdx.x % kWarpSize * kKeysPerThread;
    float dots[kHeadsPerThread][kKeysPerThread] = {};
    const uint64_t q_at = (row * args.n_heads + head0) * args.dim;
    for (uint32_t d0 = 0; d0 < args.dim; d0 += kTileDims) {
        __syncthreads();
        stage<kTileHeads>(reinterpret_cast<const std::byte*>(args.q + q_at), false,
                          args.n_heads - head0, args.dim, d0, q_tile);
        stage<kTileKeys>(keys, args.half, n_keys, args.dim, d0, key_tile);
        __syncthreads();
#pragma unroll 4
        for (uint32_t d = 0; d < kTileDims; ++d) {
            const float4 a = *reinterpret_cast<const float4*>(&q_tile[d][first_head]);
            const float4 b = *reinterpret_cast<const float4*>(&q_tile[d][first_head + 4]);
            const float4 k = *reinterpret_cast<const float4*>(&key_tile[d][first_key]);
            const float q[kHeadsPerThread] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
            for (uint32_t h = 0; h < kHeadsPerThread; ++h) {
                dots[h][0] = fmaf(q[h], k.x, dots[h][0]);
                dots[h][1] = fmaf(q[h], k.y, dots[h][1]);
                dots[h][2] = fmaf(q[h], k.z, dots[h][2]);
                dots[h][3] = fmaf(q[h], k.w, dots[h][3]);
            }
        }
    }
#pragma unroll
    for (uint32_t h = 0; h < kHeadsPerThread; ++h) {
        const uint32_t head = head0 + first_head + h;
        if (head >= args.n_heads) break;
        const float weight = args.weights[row * args.n_heads + head] * args.scale;
#pragma unroll
        for (uint32_t i = 0; i < kKeysPerThread; ++i) {
            // Written so that a NaN stays one: the score counts as −∞ then.
            const float s = dots[h][i];
            scores[i] = fmaf(weight, s < 0 ? 0.0f : s, scores[i]);
        }
    }
}

// Blocks of (tile of keys, row).
__global__ void __launch_bounds__(kScoreThreads, 2)
    score_kernel(const __grid_constant__ DeviceIndex args) {
    __shared__ float q_tile[kTileDims][kTileHeads];
    __shared__ float key_tile[kTileDims][kTileKeys];
    __shared__ float parts[kScoreThreads / kWarpSize][kTileKeys];
    let_next_start();
    after_previous();
    const uint64_t first = uint64_t{blockIdx.x} * kTileKeys;
    const uint32_t warp = threadIdx.x / kWarpSize;
    for (uint64_t row = blockIdx.y; row < args.n_rows; row += gridDim.y) {
        const DeviceIndexSegment segment = args.segments.of(row);
        const uint64_t visible = visible_rows(segment, args.ratio, row);
        if (visible <= args.max_picks || first >= visible) continue;
        const std::byte* keys = segment.keys + first * args.dim * (args.half ? 2 : 4);
        float scores[kKeysPerThread] = {};
        for (uint32_t head0 = 0; head0 < args.n_heads; head0 += kTileHeads) {
            add_heads(args, row, head0, keys, visible - first, q_tile, key_tile, scores);
        }
#pragma unroll
        for (uint32_t i = 0; i < kKeysPerThread; ++i) {
            parts[warp][threadIdx.x % kWarpSize * kKeysPerThread + i] = scores[i];
        }
        __syncthreads();
        if (threadIdx.x < kTileKeys && first + threadIdx.x < visible) {
            float score = parts[0][threadIdx.x];
#pragma unroll
            for (uint32_t w = 1; w < kScoreThreads / kWarpSize; ++w) score += parts[w][threadIdx.x];
            args.scores[row * args.max_visible + first + threadIdx.x] = score;
        }
        __syncthreads();
    }
}

constexpr uint32_t kPickThreads = 1024;
constexpr uint32_t kPickWarps = kPickThreads / kWarpSize;
constexpr uint32_t kDigitBits = 5;  // one lane per value of a digit
constexpr uint32_t kBatch = 8;      // loads that a lane has in flight

// Scores as integers of the same order; NaN as −∞, −0 as 0.
__host__ __device__ inline uint32_t ordered_bits(float score) {
    score = score == score ? score + 0.0f : -INFINITY;
    uint32_t bits = 0;
    memcpy(&bits, &score, sizeof(bits));
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// A warp's share of the scores, 32 at a time in ascending order: visit(index, exists, bits).
template <class Visit>
__device__ void for_share(const float* scores, uint64_t n, Visit visit) {
    const uint32_t lane = threadIdx.x % kWarpSize;
    const uint64_t share = (n + kPickThreads - 1) / kPickThreads * kWarpSize;
    const uint64_t begin = threadIdx.x / kWarpSize * share;
    const uint64_t end = min(begin + share, n);
    for (uint64_t base = begin; base < end; base += kBatch * kWarpSize) {
        float batch[kBatch];
#pragma unroll
        for (uint32_t i = 0; i < kBatch; ++i) {
            const uint64_t at = base + i * kWarpSize + lane;
            batch[i] = at < end ? scores[at] : 0.0f;
        }
#pragma unroll
        for (uint32_t i = 0; i < kBatch; ++i) {
            const uint64_t at = base + i * kWarpSize + lane;
            visit(at, at < end, ordered_bits(batch[i]));
        }
    }
}

struct Threshold {
    uint32_t bits;   // of the lowest score that is picked
    uint32_t equal;  // how many of those with this score are
};

// Finds the `wanted`-th highest digit by digit from the top. A warp counts by ballots: one for each
// bit of the digit tells every lane who has its value, however uneven the values are.
__device__ Threshold find_threshold(const float* scores, uint64_t n, uint32_t wanted) {
    __shared__ uint32_t counts[kPickWarps][kWarpSize];
    __shared__ Threshold found;
    const uint32_t lane = threadIdx.x % kWarpSize;
    const uint32_t warp = threadIdx.x / kWarpSize;
    Threshold threshold{0, wanted};
    for (uint32_t shift = 32; shift > 0;) {
        const uint32_t high = shift;  // bits from here on are decided
        shift = shift > kDigitBits ? shift - kDigitBits : 0;
        const uint32_t digit_mask = (1u << (high - shift)) - 1;
        uint32_t count = 0;
        for_share(scores, n, [&](uint64_t, bool exists, uint32_t bits) {
            const bool matches = high == 32 || bits >> high == threshold.bits >> high;
            uint32_t same = __ballot_sync(kAllLanes, exists && matches);
            const uint32_t digit = bits >> shift & digit_mask;
#pragma unroll
            for (uint32_t b = 0; b < kDigitBits; ++b) {
                const uint32_t ones = __ballot_sync(kAllLanes, digit >> b & 1);
                same &= lane >> b & 1 ? ones : ~ones;
            }
            count += __popc(same);
        });
        counts[warp][lane] = count;
        __syncthreads();
        if (warp == 0) {
            uint32_t total = 0;
            for (uint32_t w = 0; w < kPickWarps; ++w) total += counts[w][lane];
            uint32_t at_least = total;  // of this digit or a higher one
#pragma unroll
            for (uint32_t apart = 1; apart < kWarpSize; apart *= 2) {
                const uint32_t other = __shfl_down_sync(kAllLanes, at_least, apart);
                if (lane + apart < kWarpSize) at_least += other;
            }
            const uint32_t higher = at_least - total;
            if (higher < threshold.equal && at_least >= threshold.equal) {
                found = {threshold.bits | lane << shift, threshold.equal - higher};
            }
        }
        __syncthreads();
        threshold = found;
    }
    return threshold;
}

// The picks above the threshold, and the first of those equal to it.
__device__ void write_picks(const float* scores, uint64_t n, Threshold threshold,
                            uint32_t* picks) {
    __shared__ uint32_t above_counts[kPickWarps];
    __shared__ uint32_t equal_counts[kPickWarps];
    const uint32_t lane = threadIdx.x % kWarpSize;
    const uint32_t warp = threadIdx.x / kWarpSize;
    uint32_t above = 0;
    uint32_t equal = 0;
    for_share(scores, n, [&](uint64_t, bool exists, uint32_t bits) {
        above += __popc(__ballot_sync(kAllLanes, exists && bits > threshold.bits));
        equal += __popc(__ballot_sync(kAllLanes, exists && bits == threshold.bits));
    });
    if (lane == 0) above_counts[warp] = above, equal_counts[warp] = equal;
    __syncthreads();
    above = equal = 0;  // now: before what is visited
    for (uint32_t w = 0; w < warp; ++w) above += above_counts[w], equal += equal_counts[w];
    for_share(scores, n, [&](uint64_t at, bool exists, uint32_t bits) {
        const bool is_above = exists && bits > threshold.bits;
        const bool is_equal = exists && bits == threshold.bits;
        const uint32_t above_mask = __ballot_sync(kAllLanes, is_above);
        const uint32_t equal_mask = __ballot_sync(kAllLanes, is_equal);
        const uint32_t below = (1u << lane) - 1;
        const uint32_t n_above = above + __popc(above_mask & below);
        const uint32_t n_equal = equal + __popc(equal_mask & below);
        if (is_above || (is_equal && n_equal < threshold.equal)) {
            picks[n_above + min(n_equal, threshold.equal)] = static_cast<uint32_t>(at);
        }
        above += __popc(above_mask);
        equal += __popc(equal_mask);
    });
}

// A block per row.
__global__ void __launch_bounds__(kPickThreads)
    pick_kernel(const __grid_constant__ DeviceIndex args) {
    constexpr uint32_t kNoPick = UINT32_MAX;  // as in operators.h
    let_next_start();
    after_previous();
    const uint64_t row = blockIdx.x;
    const DeviceIndexSegment segment = args.segments.of(row);
    const uint64_t visible = visible_rows(segment, args.ratio, row);
    uint32_t* picks = args.picks + row * args.max_picks;
    if (visible <= args.max_picks) {
        for (uint32_t i = threadIdx.x; i < args.max_picks; i += kPickThreads) {
            picks[i] = i < visible ? i : kNoPick;
        }
        return;
    }
    const float* scores = args.scores + row * args.max_visible;
    write_picks(scores, visible, find_threshold(scores, visible, args.max_picks), picks);
}

}  // namespace

void launch_compress(const DeviceCompressor& args, cudaStream_t stream) {
    if (args.segments.n == 0 || args.dim == 0) return;
    if (args.n_pooled > 0) {
        const dim3 grid((args.dim + kThreads - 1) / kThreads, std::min(args.n_pooled, kMaxGridY));
        launch(pool_kernel, grid, kThreads, 0, stream, args);
        launch(finish_kernel, args.n_pooled, kThreads, 0, stream, args);
    }
    const dim3 grid((args.factor * args.dim + kThreads - 1) / kThreads,
                    std::min(args.ratio, kMaxGridY), std::min(args.segments.n, kMaxGridY));
    launch(buffer_kernel, grid, kThreads, 0, stream, args);
}

void launch_index_rows(const DeviceIndex& args, cudaStream_t stream) {
    if (args.n_rows == 0 || args.max_picks == 0) return;
    if (args.max_visible > args.max_picks) {
        const uint64_t tiles = (args.max_visible + kTileKeys - 1) / kTileKeys;
        const dim3 grid(static_cast<uint32_t>(tiles), std::min(args.n_rows, kMaxGridY));
        launch(score_kernel, grid, kScoreThreads, 0, stream, args);
    }
    launch(pick_kernel, args.n_rows, kPickThreads, 0, stream, args);
}

}  // namespace xp::cuda
