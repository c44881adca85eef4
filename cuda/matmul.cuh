// The kernels behind matmul.h. matmul_FORM.cu instantiates them for each row form, so that they
// compile side by side.
#pragma once

#include <algorithm>

#include "cuda/matmul.h"
#include "cuda/matmul_readers.cuh"
#include "cuda/matmul_readers_k.cuh"
#include "cuda/shared_memory.h"

namespace xp::cuda {

constexpr int kWarps = 8;       // of a thread block
constexpr int kManyWarps = 32;  // of one that does a single long row
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
template <bool kAligned>
__device__ float4 load_quad(const float* x, uint32_t element, uint32_t n) {
    float4 value = make_float4(0, 0, 0, 0);
    if (element >= n) return value;
    if constexpr (kAligned) return *reinterpret_cast<const float4*>(x + element);
    value.x = x[element];
    if (element + 1 < n) value.y = x[element + 1];
    if (element + 2 < n) value.z = x[element + 2];
    if (element + 3 < n) value.w = x[element + 3];
    return value;
}

struct Tiling {
    uint32_t warps_per_row;  // W
    uint32_t n_pieces;
    uint32_t total_steps;    // of 32 pieces per warp
    uint32_t steps;          // many columns: as many are staged at a time
    uint32_t n_tiles;        // few columns: of rows, over which the blocks walk
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
                sum = fmaf(scale, parts[i / R][i % R * C + c] * unit<Reader>(), sum);
            }
        }
    }
}

template <bool kGated>
__device__ void store(const MatmulArgs& args, const MatmulJob& job, uint32_t row, uint32_t column,
                      float value, float up) {
    if (row >= args.rows || column >= job.n_columns) return;
    if constexpr (kGated) {
        const float g = fminf(value, args.limit);
        const float u = fminf(fmaxf(up, -args.limit), args.limit);
        value = g / (1 + expf(-g)) * u;
        value *= job.factors != nullptr ? job.factors[column] : job.factor;
    }
    const uint32_t y_row = job.y_rows != nullptr ? job.y_rows[column] : job.y_first + column;
    args.y[y_row * args.y_stride + job.y_offset + row] = value;
}

// Few columns are a matter of latency and bandwidth: all of x is staged once, blocks walk over
// tiles of rows, W warps share R rows, and the bytes of the next step are always on their way.
template <class Reader, int R, int C, bool kGated, int kWarps>
__global__ void __launch_bounds__(kWarps * kLanes)
    few_columns(const __grid_constant__ MatmulArgs args, const Tiling tiling) {
    constexpr int M = kGated ? 2 : 1;
    constexpr int kQuads = Reader::kElements / 4;
    constexpr int kSums = R * C;
    extern __shared__ float4 staged[];  // [C][kQuads][pitch], then [2][kWarps][M][kSums] floats
    const MatmulJob job = args.jobs != nullptr ? args.jobs[blockIdx.z] : args.few[blockIdx.z];
    const uint32_t column0 = blockIdx.y * C;
    if (column0 >= job.n_columns) return;
    const uint32_t lane = threadIdx.x % kLanes;
    const uint32_t warp = threadIdx.x / kLanes;
    const uint32_t W = tiling.warps_per_row;
    const uint32_t first_piece = warp % W * kLanes + lane;
    const uint32_t staged_pieces = tiling.total_steps * W * kLanes;
    const uint32_t pitch = staged_pieces + 1;  // spreads a piece's quads over the banks
    const auto first_row = [&](uint32_t tile) { return (tile * (kWarps / W) + warp / W) * R; };

    Reader ahead[M][R];
    const auto load_ahead = [&](uint32_t tile, uint32_t piece) {
        const uint32_t row0 = first_row(tile);
#pragma unroll
        for (int r = 0; r < R; ++r) {
            const uint64_t at = min(row0 + r, args.rows - 1) * args.row_bytes;
            ahead[0][r].load(job.weight + at, args.cols, piece);
            if constexpr (kGated) ahead[1][r].load(job.weight2 + at, args.cols, piece);
        }
    };
    if (first_piece < tiling.n_pieces) load_ahead(blockIdx.x, first_piece);

#pragma unroll
    for (uint32_t c = 0; c < C; ++c) {
        const bool inside = column0 + c < job.n_columns;
        const float* x = column_of_x(args, job, inside ? column0 + c : column0);
        for (uint32_t t = threadIdx.x; t < staged_pieces * kQuads; t += blockDim.x) {
            const uint32_t element = element_of<Reader>(t / kQuads, static_cast<int>(t % kQuads));
            staged[(c * kQuads + t % kQuads) * pitch + t / kQuads] =
                load_quad<Reader::kAligned>(x, element, inside ? args.cols : 0);
        }
    }
    float* const shared = reinterpret_cast<float*>(staged + C * kQuads * pitch);
    __syncthreads();

    uint32_t turn = 0;
    for (uint32_t tile = blockIdx.x; tile < tiling.n_tiles; tile += gridDim.x, turn ^= 1) {
        float sums[M][kSums] = {};
#pragma unroll 1
        for (uint32_t s = 0; s < tiling.total_steps; ++s) {
            const uint32_t place = s * W * kLanes + first_piece;
            Reader readers[M][R];
#pragma unroll
            for (int i = 0; i < M * R; ++i) readers[i / R][i % R] = ahead[i / R][i % R];
            const bool last = s + 1 == tiling.total_steps;
            const uint32_t next_tile = last ? tile + gridDim.x : tile;
            const uint32_t next_piece = last ? first_piece : place + W * kLanes;
            if (next_tile < tiling.n_tiles && next_piece < tiling.n_pieces) {
                load_ahead(next_tile, next_piece);
            }
            if (place < tiling.n_pieces) {
                multiply<Reader, M, R, C>(readers, staged, pitch, place, sums);
            }
        }
#pragma unroll
        for (int m = 0; m < M; ++m) add_lanes<kSums>(sums[m], lane);
        if (W > 1) {
            float* const partial = shared + (turn * kWarps + warp) * M * kSums;
            if (owns_sums<kSums>(lane)) {
#pragma unroll
                for (int m = 0; m < M; ++m) {
                    partial[m * kSums + first_sum<kSums>(lane)] = sums[m][0];
                }
            }
            // One barrier a tile: the other half of the space is written before this half is read.
            __syncthreads();
            if (warp % W == 0) {
#pragma unroll
                for (int m = 0; m < M; ++m) {
                    for (uint32_t w = 1; w < W; ++w) {
                        sums[m][0] += partial[(w * M + m) * kSums + first_sum<kSums>(lane)];
                    }
                }
            }
        }
        if (warp % W == 0 && owns_sums<kSums>(lane)) {
            const uint32_t i = first_sum<kSums>(lane);
            store<kGated>(args, job, first_row(tile) + i / C, column0 + i % C, sums[0][0],
                          sums[M - 1][0]);
        }
    }
}

// Many columns are a matter of arithmetic: a warp takes R rows times C columns, and does the parts
// of the W warps one after the other.
template <class Reader, int R, int C, bool kGated>
__global__ void __launch_bounds__(kWarps * kLanes)
    many_columns(const __grid_constant__ MatmulArgs args, const Tiling tiling) {
    constexpr int M = kGated ? 2 : 1;
    constexpr int kQuads = Reader::kElements / 4;
    constexpr int kSums = R * C;
    constexpr int kPerLane = (kSums + kLanes - 1) / kLanes;
    extern __shared__ float4 staged[];  // [C][kQuads][pitch]
    const MatmulJob job = args.jobs != nullptr ? args.jobs[blockIdx.z] : args.few[blockIdx.z];
    const uint32_t column0 = blockIdx.y * C;
    if (column0 >= job.n_columns) return;
    const uint32_t lane = threadIdx.x % kLanes;
    const uint32_t W = tiling.warps_per_row;
    const uint32_t row0 = (blockIdx.x * kWarps + threadIdx.x / kLanes) * R;
    const uint32_t staged_pieces = tiling.steps * kLanes;
    const uint32_t pitch = staged_pieces + 1;
    const std::byte* rows[M][R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
        const uint64_t at = min(row0 + r, args.rows - 1) * args.row_bytes;
        rows[0][r] = job.weight + at;
        if constexpr (kGated) rows[1][r] = job.weight2 + at;
    }

    float totals[M][kPerLane] = {};
    for (uint32_t w = 0; w < W; ++w) {
        float sums[M][kSums] = {};
        for (uint32_t step0 = 0; step0 < tiling.total_steps; step0 += tiling.steps) {
            // The piece that stands at place i of the stage.
            const auto piece_at = [&](uint32_t i) {
                return ((step0 + i / kLanes) * W + w) * kLanes + i % kLanes;
            };
            __syncthreads();
#pragma unroll
            for (uint32_t c = 0; c < C; ++c) {
                const bool inside = column0 + c < job.n_columns;
                const float* x = column_of_x(args, job, inside ? column0 + c : column0);
                for (uint32_t t = threadIdx.x; t < staged_pieces * kQuads; t += blockDim.x) {
                    const uint32_t i = t / kQuads;
                    const uint32_t element =
                        element_of<Reader>(piece_at(i), static_cast<int>(t % kQuads));
                    staged[(c * kQuads + t % kQuads) * pitch + i] =
                        load_quad<Reader::kAligned>(x, element, inside ? args.cols : 0);
                }
            }
            __syncthreads();
#pragma unroll 1
            for (uint32_t s = 0; s < tiling.steps; ++s) {
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

// ---- launching ----------------------------------------------------------------------------------

// A handful of rows, each long enough for a block of its own (the mixes of hyper-connections,
// which are never of K types).
template <class Reader>
bool is_long(uint32_t n_pieces, uint32_t rows) {
    return !has_runs<Reader>() && rows <= 64 && n_pieces >= kManyWarps * kLanes;
}

// W: as many warps per row as make the rows busy a large device, but no more than have a step each.
// A matter of type, K and rows only. Gated products come for several experts at a time.
template <class Reader>
uint32_t warps_per_row(uint32_t n_pieces, uint32_t rows, bool gated) {
    constexpr uint32_t kBusy = 16384;  // rows times warps, with four rows a warp
    if (!gated && is_long<Reader>(n_pieces, rows)) return kManyWarps;
    const uint32_t at_a_time = gated ? 4 * rows : rows;
    uint32_t warps = 1;
    while (warps < kWarps && at_a_time * warps < kBusy && n_pieces > warps * kLanes) warps *= 2;
    return warps;
}

template <class Reader>
Tiling tiling_of(const MatmulArgs& args) {
    Tiling tiling{};
    tiling.n_pieces = (args.cols + Reader::kElements - 1) / Reader::kElements;
    tiling.warps_per_row = warps_per_row<Reader>(tiling.n_pieces, args.rows, args.gated);
    const uint32_t step_pieces = tiling.warps_per_row * kLanes;
    tiling.total_steps = (tiling.n_pieces + step_pieces - 1) / step_pieces;
    return tiling;
}

// Blocks of a kernel that are on the device at a time. Asked once for each amount of shared memory
// in a row, since asking takes longer than launching.
template <auto kKernel>
uint32_t resident_blocks(int threads, uint32_t bytes) {
    static thread_local uint32_t asked_bytes = 0, blocks = 0;
    if (asked_bytes != bytes || blocks == 0) {
        int device = 0, processors = 0, each = 0;
        cudaGetDevice(&device);
        cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
        cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes);
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kKernel, threads, bytes);
        asked_bytes = bytes;
        blocks = static_cast<uint32_t>(std::max(1, processors * each));
    }
    return blocks;
}

// False when x is too large to be staged.
template <class Reader, int R, int C, bool kGated, int kBlockWarps = kWarps>
bool launch_few(const MatmulArgs& args, cudaStream_t stream) {
    constexpr uint32_t kQuads = Reader::kElements / 4;
    Tiling tiling = tiling_of<Reader>(args);
    const uint32_t pitch = tiling.total_steps * tiling.warps_per_row * kLanes + 1;
    const uint32_t bytes = C * kQuads * pitch * uint32_t{sizeof(float4)} +
                           2 * kBlockWarps * (kGated ? 2 : 1) * R * C * uint32_t{sizeof(float)};
    if (bytes > kMaxSharedBytes) return false;
    const uint32_t tile_rows = kBlockWarps / tiling.warps_per_row * R;
    tiling.n_tiles = (args.rows + tile_rows - 1) / tile_rows;
    constexpr auto kKernel = few_columns<Reader, R, C, kGated, kBlockWarps>;
    constexpr int kThreads = kBlockWarps * kLanes;
    const uint32_t column_tiles = (args.max_columns + C - 1) / C;
    const uint32_t share =
        resident_blocks<kKernel>(kThreads, bytes) / (column_tiles * args.n_jobs);
    const dim3 grid(std::clamp(share, 1u, tiling.n_tiles), column_tiles, args.n_jobs);
    kKernel<<<grid, kThreads, bytes, stream>>>(args, tiling);
    return true;
}

template <class Reader, int R, int C, bool kGated>
void launch_many(const MatmulArgs& args, cudaStream_t stream) {
    constexpr uint32_t kStepBytes = C * kLanes * Reader::kElements * sizeof(float);
    constexpr uint32_t kStageBytes = 40 * 1024;  // leaves room for several blocks
    Tiling tiling = tiling_of<Reader>(args);
    tiling.steps = std::clamp<uint32_t>(kStageBytes / kStepBytes, 1, tiling.total_steps);
    const uint32_t bytes =
        tiling.steps * kStepBytes + C * Reader::kElements / 4 * uint32_t{sizeof(float4)};
    const dim3 grid((args.rows + R * kWarps - 1) / (R * kWarps), (args.max_columns + C - 1) / C,
                    args.n_jobs);
    many_columns<Reader, R, C, kGated><<<grid, kWarps * kLanes, bytes, stream>>>(args, tiling);
}

// Of readers that need many registers for a piece, a warp takes fewer rows at a time.
template <class Reader>
constexpr bool has_fewer_rows() {
    return requires { Reader::kFewerRows; };
}

// How many rows and columns a warp takes changes no sum.
template <class Reader, bool kGated>
void launch_columns(const MatmulArgs& args, cudaStream_t stream) {
    constexpr int kRows = (kGated ? 2 : 4) / (has_fewer_rows<Reader>() ? 2 : 1);
    constexpr uint32_t kFewRows = 1024;  // not enough to keep a large device busy
    const uint32_t n_pieces = (args.cols + Reader::kElements - 1) / Reader::kElements;
    bool launched = false;
    if (!kGated && is_long<Reader>(n_pieces, args.rows)) {
        if constexpr (!kGated && !has_runs<Reader>()) {
            launched = args.max_columns == 1
                           ? launch_few<Reader, 1, 1, false, kManyWarps>(args, stream)
                           : args.max_columns <= 4 &&
                                 launch_few<Reader, 1, 4, false, kManyWarps>(args, stream);
        }
    } else if (args.max_columns == 1) {
        launched = args.rows <= kFewRows ? launch_few<Reader, 1, 1, kGated>(args, stream)
                                         : launch_few<Reader, kRows, 1, kGated>(args, stream);
    } else if (args.max_columns == 2) {
        launched = launch_few<Reader, kRows, 2, kGated>(args, stream);
    } else if (args.max_columns <= 4) {
        launched = launch_few<Reader, kRows, 4, kGated>(args, stream);
    }
    if (!launched) launch_many<Reader, 2 * kRows, 8, kGated>(args, stream);
}

template <class Reader>
void launch_form(const MatmulArgs& args, cudaStream_t stream) {
    args.gated ? launch_columns<Reader, true>(args, stream)
               : launch_columns<Reader, false>(args, stream);
}

}  // namespace xp::cuda
