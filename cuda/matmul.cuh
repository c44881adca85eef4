// The kernels behind matmul.h; matmul_launch.cuh launches them.
#pragma once

#include "cuda/launch.cuh"
#include "cuda/matmul.h"
#include "cuda/matmul_readers.cuh"
#include "cuda/matmul_readers_k.cuh"
#include "cuda/rows.cuh"

namespace xp::cuda {

constexpr int kWarps = 8;  // of a thread block
constexpr int kLanes = 32;

// Adds N values over the 32 lanes as a butterfly. While a lane has several values, it gives half of
// them away and keeps the sums of the other half: afterwards value i of a lane is the sum number
// first_sum<N>(lane) + i, for i < max(N / 32, 1).
template <int N>
__device__ void add_lanes(float* v, uint32_t lane) {
    int left = N;
#pragma unroll
    for (uint32_t apart = 16; apart > 0; apart /= 2) {
        if (left > 1) {
            left /= 2;
#pragma unroll
            for (int i = 0; i < N / 2; ++i) {
                if (i >= left) break;
                const bool upper = lane & apart;
                const float mine = upper ? v[i + left] : v[i];
                const float other = upper ? v[i] : v[i + left];
                v[i] = mine + __shfl_xor_sync(0xffffffffu, other, apart);
            }
        } else {
            v[0] += __shfl_xor_sync(0xffffffffu, v[0], apart);
        }
    }
}
template <int N>
__device__ uint32_t first_sum(uint32_t lane) {
    uint32_t first = 0, left = N;
    for (uint32_t apart = 16; apart > 0 && left > 1; apart /= 2) {
        left /= 2;
        if (lane & apart) first += left;
    }
    return first;
}
// Whether no lane below has the same sums.
template <int N>
__device__ bool owns_sums(uint32_t lane) {
    return N >= kLanes || lane % (kLanes / (N < kLanes ? N : kLanes)) == 0;
}

// Whether a piece is several runs of elements of one super-block, which the reader knows.
template <class Reader>
constexpr bool has_runs() {
    return requires { Reader::element(0u, 0); };
}
// Where a quad of a piece begins in its row.
template <class Reader>
__device__ uint32_t element_of(uint32_t piece, int quad) {
    if constexpr (has_runs<Reader>()) {
        return Reader::element(piece, quad);
    } else {
        return piece * Reader::kElements + 4 * static_cast<uint32_t>(quad);
    }
}

// Elements `element` .. `element` + 3 of a row of n, zero behind its end.
template <class Reader>
__device__ float4 load_quad(const float* x, uint32_t element, uint32_t n) {
    float4 value = make_float4(0, 0, 0, 0);
    if (element >= n) return value;
    if constexpr (Reader::kAligned) {
        value = *reinterpret_cast<const float4*>(x + element);
    } else {
        value.x = x[element];
        if (element + 1 < n) value.y = x[element + 1];
        if (element + 2 < n) value.z = x[element + 2];
        if (element + 3 < n) value.w = x[element + 3];
    }
    return value;
}
template <class Reader>
__device__ float4 in_unit(float4 v) {
    if constexpr (requires { Reader::kUnit; }) {
        v.x *= Reader::kUnit, v.y *= Reader::kUnit, v.z *= Reader::kUnit, v.w *= Reader::kUnit;
    }
    return v;
}

// W: as many warps per row as make `rows` busy a large device, but no more than have a step each.
__host__ __device__ inline uint32_t warps_per_row(uint32_t n_pieces, uint64_t rows, bool gated) {
    constexpr uint64_t kBusy = 8192;  // rows times warps, with four rows a warp
    const uint64_t at_a_time = gated ? 2 * rows : rows;
    uint32_t warps = 1;
    while (warps < kWarps && at_a_time * warps < kBusy && n_pieces > warps * kLanes) warps *= 2;
    return warps;
}

// How a job's rows are cut.
struct Tiling {
    uint32_t n_pieces = 0;
    uint32_t warps_per_row = 1;  // W
    uint32_t total_steps = 0;    // of 32 pieces per warp

    Tiling() = default;
    // Of a job of `rows` rows; `piece`: elements.
    __host__ __device__ Tiling(const MatmulArgs& args, uint32_t piece, uint32_t rows)
        : n_pieces((args.cols + piece - 1) / piece),
          warps_per_row(cuda::warps_per_row(n_pieces, uint64_t{rows} * args.alike, args.gated)) {
        const uint32_t step = warps_per_row * kLanes;
        total_steps = (n_pieces + step - 1) / step;
    }
    // Of pieces, in whole steps.
    __host__ __device__ uint32_t places() const { return total_steps * warps_per_row * kLanes; }
};

// Row of x that a column stands for.
__device__ inline const float* column_of_x(const MatmulArgs& args, const MatmulJob& job,
                                           uint32_t column) {
    const uint32_t row = job.x_rows != nullptr ? job.x_rows[column] : job.x_first + column;
    return args.x + row * args.x_stride + job.x_offset;
}

// sums += a piece of R rows (of M matrices) times C columns of x, which stand at `place` of the
// stage: [C][quads of a piece][pitch].
template <class Reader, int M, int R, int C>
__device__ void multiply(const Reader (&readers)[M][R], const float4* staged, uint32_t pitch,
                         uint32_t place, float (&sums)[M][R * C]) {
    constexpr int kQuads = Reader::kElements / 4;
    float parts[M][R * C];
    float(&into)[M][R * C] = Reader::kScaled ? parts : sums;
    if constexpr (Reader::kScaled) {
#pragma unroll
        for (int i = 0; i < M * R * C; ++i) parts[i / (R * C)][i % (R * C)] = 0;
    }
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
        float w[M][R][4];
#pragma unroll
        for (int i = 0; i < M * R; ++i) readers[i / R][i % R].get4(quad, w[i / R][i % R]);
#pragma unroll
        for (int c = 0; c < C; ++c) {
            const float4 x = staged[(c * kQuads + quad) * pitch + place];
#pragma unroll
            for (int i = 0; i < M * R; ++i) {
                const float(&row)[4] = w[i / R][i % R];
                float& sum = into[i / R][i % R * C + c];
                sum = fmaf(row[0], x.x, sum);
                sum = fmaf(row[1], x.y, sum);
                sum = fmaf(row[2], x.z, sum);
                sum = fmaf(row[3], x.w, sum);
            }
        }
    }
    if constexpr (Reader::kScaled) {
#pragma unroll
        for (int i = 0; i < M * R; ++i) {
            const float scale = readers[i / R][i % R].scale();
#pragma unroll
            for (int c = 0; c < C; ++c) {
                float& sum = sums[i / R][i % R * C + c];
                sum = fmaf(scale, parts[i / R][i % R * C + c], sum);
            }
        }
    }
}

template <bool kGated>
__device__ void store(const MatmulArgs& args, const MatmulJob& job, uint32_t row, uint32_t column,
                      float value, float up) {
    if (row >= job.rows || column >= job.n_columns) return;
    if constexpr (kGated) {
        const float g = fminf(value, args.limit);
        const float u = fminf(fmaxf(up, -args.limit), args.limit);
        value = g / (1 + expf(-g)) * u;
        if (args.factors != nullptr) {
            value *= args.factors[job.factor_at != nullptr ? job.factor_at[column]
                                                           : job.factor_first + column];
        }
    }
    const uint32_t y_row = job.y_rows != nullptr ? job.y_rows[column] : job.y_first + column;
    job.y[uint64_t{y_row} * job.y_stride + row] = value;
}

// Adds up the sums of a tile's lanes and warps, and stores them. `shared`: [2][kWarps][M][R·C].
template <int R, int C, bool kGated>
__device__ void finish_tile(const MatmulArgs& args, const MatmulJob& job, uint32_t row0,
                            uint32_t column0, uint32_t W, uint32_t turn, float* shared,
                            float (&sums)[kGated ? 2 : 1][R * C]) {
    constexpr int M = kGated ? 2 : 1;
    constexpr int kSums = R * C;
    const uint32_t lane = threadIdx.x % kLanes;
    const uint32_t warp = threadIdx.x / kLanes;
    const bool first_warp = (warp & (W - 1)) == 0;
#pragma unroll
    for (int m = 0; m < M; ++m) add_lanes<kSums>(sums[m], lane);
    if (!owns_sums<kSums>(lane) && W == 1) return;
    const uint32_t own = first_sum<kSums>(lane);
    if (W > 1) {
        float* const partial = shared + (turn * kWarps + warp) * M * kSums + own;
        if (owns_sums<kSums>(lane)) {
#pragma unroll
            for (int m = 0; m < M; ++m) partial[m * kSums] = sums[m][0];
        }
        // One barrier a tile: the other half of the space is written before this half is read.
        __syncthreads();
        if (!first_warp || !owns_sums<kSums>(lane)) return;
#pragma unroll
        for (uint32_t w = 1; w < kWarps; ++w) {
            if (w >= W) break;
#pragma unroll
            for (int m = 0; m < M; ++m) sums[m][0] += partial[(w * M + m) * kSums];
        }
    }
    store<kGated>(args, job, row0 + own / C, column0 + own % C, sums[0][0], sums[M - 1][0]);
}

constexpr uint32_t kLine = 128;

// Blocks of the grid that walk over the tiles of each job; how many tiles before its turn a tile is
// brought near, and how much of its rows.
struct Shares {
    uint32_t blocks[MatmulArgs::kFewJobs] = {};
    uint32_t tiles_ahead = 1;
    uint32_t near_bytes = 0;
};

// Blocks of few_columns that a multiprocessor shall hold: enough loads on their way.
template <class Reader, int C>
constexpr int kFewBlocks = C > 1 || !Reader::kAligned ? 1 : has_runs<Reader>() ? 2 : 3;

// Few columns are a matter of latency and bandwidth: all of x is staged once, blocks walk over
// tiles of rows, W warps share R rows, and the bytes of the next step are always on their way.
// Jobs are read where the launch put them, never from device memory, which answers late.
template <class Reader, int R, int C, bool kGated>
__global__ void __launch_bounds__(kWarps * kLanes, (kFewBlocks<Reader, C>))
    few_columns(const __grid_constant__ MatmulArgs args, const __grid_constant__ Shares shares) {
    constexpr int M = kGated ? 2 : 1;
    constexpr int kQuads = Reader::kElements / 4;
    constexpr int kSums = R * C;
    extern __shared__ float4 staged[];  // [C][kQuads][pitch], then [2][kWarps][M][kSums] floats
    const MatmulJob& job = args.few[blockIdx.z];
    const uint32_t n_blocks = shares.blocks[blockIdx.z];
    const uint32_t column0 = blockIdx.y * C;
    const uint32_t lane = threadIdx.x % kLanes;
    const uint32_t warp = threadIdx.x / kLanes;
    const Tiling tiling(args, Reader::kElements, job.rows);
    const uint32_t W = tiling.warps_per_row;
    const uint32_t tile_rows = kWarps * R >> (__ffs(W) - 1);
    const uint32_t warp_row = (warp >> (__ffs(W) - 1)) * R;
    const uint32_t n_tiles = (job.rows + tile_rows - 1) / tile_rows;
    const uint32_t first_piece = (warp & (W - 1)) * kLanes + lane;
    const uint32_t step_pieces = W * kLanes;
    const uint32_t n_pieces = tiling.n_pieces;
    const uint32_t staged_pieces = tiling.places();
    const uint32_t pitch = staged_pieces + 1;  // spreads a piece's quads over the banks
    let_next_start();
    if (blockIdx.x >= n_blocks || column0 >= job.n_columns) return after_previous();

    const std::byte* rows[M][R];
    const auto find_rows = [&](uint32_t tile) {
        const uint32_t row0 = tile * tile_rows + warp_row;
#pragma unroll
        for (int r = 0; r < R; ++r) {
            const uint64_t at = min(row0 + r, job.rows - 1) * args.row_bytes;
            rows[0][r] = job.weight + at;
            if constexpr (kGated) rows[1][r] = job.weight2 + at;
        }
    };
    const auto load = [&](Reader(&readers)[M][R], uint32_t piece) {
#pragma unroll
        for (int i = 0; i < M * R; ++i) {
            readers[i / R][i % R].load(rows[i / R][i % R], args.cols, piece);
        }
    };
    Reader even[M][R], odd[M][R];  // pieces in turn: one is computed while the other comes
    find_rows(blockIdx.x);
    if (first_piece < n_pieces) load(even, first_piece);
    // Registers do not hold as many bytes as memory needs on their way: a tile's are brought near
    // some tiles before it. What runs before this kernel is often small and leaves memory idle: the
    // first tiles are brought near meanwhile.
    const uint64_t tile_bytes = tile_rows * args.row_bytes;
    const auto bring_near = [&](uint32_t tile) {
        if (tile >= n_tiles) return;
        const uint64_t end =
            min(tile * tile_bytes + shares.near_bytes, job.rows * args.row_bytes);
        for (uint64_t at = tile * tile_bytes + threadIdx.x * kLine; at < end;
             at += kWarps * kLanes * kLine) {
            prefetch(job.weight + at);
            if constexpr (kGated) prefetch(job.weight2 + at);
        }
    };
    for (uint32_t i = 0; i < shares.tiles_ahead; ++i) bring_near(blockIdx.x + i * n_blocks);
    after_previous();

    float* const shared = reinterpret_cast<float*>(staged + C * kQuads * pitch);
    const auto place_of = [&](uint32_t c, uint32_t t) -> float4& {
        return staged[(c * kQuads + t % kQuads) * pitch + t / kQuads];
    };
    float squares = 0;  // of a normed column, whose quads are in order
#pragma unroll
    for (uint32_t c = 0; c < C; ++c) {
        const bool inside = column0 + c < job.n_columns;
        const float* x = column_of_x(args, job, inside ? column0 + c : column0);
        // Several on their way at a time: one after the other they take longer than the rest.
        constexpr uint32_t kBatch = 4;
        const uint32_t n = staged_pieces * kQuads;
        for (uint32_t t0 = threadIdx.x; t0 < n; t0 += kBatch * kWarps * kLanes) {
            float4 v[kBatch];
#pragma unroll
            for (uint32_t b = 0; b < kBatch; ++b) {
                const uint32_t t = t0 + b * kWarps * kLanes;
                const uint32_t element =
                    element_of<Reader>(t / kQuads, static_cast<int>(t % kQuads));
                v[b] = load_quad<Reader>(x, element, inside && t < n ? args.cols : 0);
            }
#pragma unroll
            for (uint32_t b = 0; b < kBatch; ++b) {
                const uint32_t t = t0 + b * kWarps * kLanes;
                if (t >= n) break;
                if (args.normed) squares = add_squares(v[b], squares);
                place_of(c, t) = args.normed ? v[b] : in_unit<Reader>(v[b]);
            }
        }
    }
    if (args.normed) {
        const float factor =
            rms_factor(block_sum<kWarps * kLanes>(squares, shared), args.cols, args.norm_epsilon);
        for (uint32_t t = threadIdx.x; t < args.cols / 4; t += blockDim.x) {
            float4& v = place_of(0, t);  // by the thread that put it there
            v = make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor);
            if (args.norm != nullptr) {
                const float4 w = reinterpret_cast<const float4*>(args.norm)[t];
                v = make_float4(v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w);
            }
            v = in_unit<Reader>(v);
        }
    }
    __syncthreads();

    float sums[M][kSums] = {};
    uint32_t tile = blockIdx.x, piece = first_piece, turn = 0;
    bool last = false;  // of the tile's pieces
    const auto compute = [&](const Reader(&now)[M][R], Reader(&next)[M][R]) {
        const uint32_t following = last ? first_piece : piece + step_pieces;
        if (following < n_pieces && (!last || tile + n_blocks < n_tiles)) load(next, following);
        if (piece < n_pieces) multiply<Reader, M, R, C>(now, staged, pitch, piece, sums);
        piece = following;
    };
    for (bool is_even = true; tile < n_tiles; is_even = !is_even) {
        last = piece + step_pieces >= n_pieces;
        if (last && tile + n_blocks < n_tiles) find_rows(tile + n_blocks);
        if (is_even) {
            compute(even, odd);
        } else {
            compute(odd, even);
        }
        if (!last) continue;
        finish_tile<R, C, kGated>(args, job, tile * tile_rows + warp_row, column0, W, turn, shared,
                                  sums);
#pragma unroll
        for (int i = 0; i < M * kSums; ++i) sums[i / kSums][i % kSums] = 0;
        bring_near(tile + shares.tiles_ahead * n_blocks);
        tile += n_blocks;
        turn ^= 1;
    }
}

// How the rows of each of a few jobs are cut, or of all, and how many steps are staged at a time.
struct Cuts {
    uint32_t stage_steps = 1;
    Tiling of_job[MatmulArgs::kFewJobs];
};

// Many columns are a matter of arithmetic: a warp takes R rows times C columns, and does the parts
// of the W warps one after the other.
template <class Reader, int R, int C, bool kGated>
__global__ void __launch_bounds__(kWarps * kLanes)
    many_columns(const __grid_constant__ MatmulArgs args, const __grid_constant__ Cuts cuts) {
    constexpr int M = kGated ? 2 : 1;
    constexpr int kQuads = Reader::kElements / 4;
    constexpr int kSums = R * C;
    constexpr int kPerLane = (kSums + kLanes - 1) / kLanes;
    extern __shared__ float4 staged[];  // [C][kQuads][pitch]
    const MatmulJob& job = args.jobs != nullptr ? args.jobs[blockIdx.z] : args.few[blockIdx.z];
    const uint32_t column0 = blockIdx.y * C;
    const uint32_t lane = threadIdx.x % kLanes;
    const uint32_t row0 = (blockIdx.x * kWarps + threadIdx.x / kLanes) * R;
    // All from the launch: registers are scarce here.
    const Tiling& tiling = cuts.of_job[args.jobs != nullptr ? 0 : blockIdx.z];
    const uint32_t W = tiling.warps_per_row;
    const uint32_t steps = min(cuts.stage_steps, tiling.total_steps);
    const uint32_t staged_pieces = steps * kLanes;
    let_next_start();
    after_previous();
    if (column0 >= job.n_columns || blockIdx.x * kWarps * R >= job.rows) return;
    const uint32_t pitch = staged_pieces + 1;
    const std::byte* rows[M][R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
        const uint64_t at = min(row0 + r, job.rows - 1) * args.row_bytes;
        rows[0][r] = job.weight + at;
        if constexpr (kGated) rows[1][r] = job.weight2 + at;
    }

    float totals[M][kPerLane] = {};
    for (uint32_t w = 0; w < W; ++w) {
        float sums[M][kSums] = {};
        for (uint32_t step0 = 0; step0 < tiling.total_steps; step0 += steps) {
            // The piece that stands at place i of the stage.
            const auto piece_at = [&](uint32_t i) {
                return ((step0 + i / kLanes) * W + w) * kLanes + i % kLanes;
            };
            __syncthreads();
            constexpr uint32_t kBatch = 2;  // columns that are on their way together
#pragma unroll 1
            for (uint32_t c0 = 0; c0 < C; c0 += kBatch) {
                const float* x[kBatch];
#pragma unroll
                for (uint32_t b = 0; b < kBatch; ++b) {
                    x[b] = column_of_x(args, job, min(column0 + c0 + b, job.n_columns - 1));
                }
                for (uint32_t t = threadIdx.x; t < staged_pieces * kQuads; t += blockDim.x) {
                    const uint32_t i = t / kQuads;
                    const uint32_t element =
                        element_of<Reader>(piece_at(i), static_cast<int>(t % kQuads));
                    float4 v[kBatch];
#pragma unroll
                    for (uint32_t b = 0; b < kBatch; ++b) {
                        v[b] = load_quad<Reader>(
                            x[b], element, column0 + c0 + b < job.n_columns ? args.cols : 0);
                    }
#pragma unroll
                    for (uint32_t b = 0; b < kBatch; ++b) {
                        staged[((c0 + b) * kQuads + t % kQuads) * pitch + i] =
                            in_unit<Reader>(v[b]);
                    }
                }
            }
            __syncthreads();
#pragma unroll 1
            for (uint32_t s = 0; s < steps; ++s) {
                const uint32_t place = s * kLanes + lane;
                const uint32_t piece = piece_at(place);
                if (piece >= tiling.n_pieces) break;
                Reader readers[M][R];
#pragma unroll
                for (int i = 0; i < M * R; ++i) {
                    readers[i / R][i % R].load(rows[i / R][i % R], args.cols, piece);
                }
                multiply<Reader, M, R, C>(readers, staged, pitch, place, sums);
            }
        }
#pragma unroll
        for (int m = 0; m < M; ++m) {
            add_lanes<kSums>(sums[m], lane);
#pragma unroll
            for (int i = 0; i < kPerLane; ++i) {
                totals[m][i] = w == 0 ? sums[m][i] : totals[m][i] + sums[m][i];
            }
        }
    }
    if (!owns_sums<kSums>(lane)) return;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
        const uint32_t sum = first_sum<kSums>(lane) + i;
        store<kGated>(args, job, row0 + sum / C, column0 + sum % C, totals[0][i],
                      totals[M - 1][i]);
    }
}

}  // namespace xp::cuda
