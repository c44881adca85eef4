// The kernel behind matmul.h. matmul_FORM.cu instantiates it for each row form, so that they
// compile side by side.
#pragma once

#include <cuda_fp16.h>

#include <algorithm>

#include "cuda/matmul.h"

namespace xp::cuda {

constexpr int kWarps = 8;  // of a thread block
constexpr int kLanes = 32;

// ---- readers ------------------------------------------------------------------------------------
//
// A reader describes pieces of kElements elements: load() fetches the bytes of one into registers,
// get4() gives elements 4·q .. 4·q + 3 without their scale, scale() the factor of the piece's sum.
// kAligned readers load 16 bytes at once: rows and codes must be aligned to that.

struct F32Reader {
    static constexpr int kElements = 4;
    static constexpr bool kScaled = false;
    static constexpr bool kAligned = true;
    float4 raw;
    __device__ void load(const std::byte* row, uint32_t, uint32_t piece) {
        raw = __ldg(reinterpret_cast<const float4*>(row) + piece);
    }
    __device__ void get4(int, float* w) const {
        w[0] = raw.x, w[1] = raw.y, w[2] = raw.z, w[3] = raw.w;
    }
    __device__ float scale() const { return 1; }
};

__device__ inline void halves_to_float(uint32_t word, float* w) {
    const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&word));
    w[0] = pair.x, w[1] = pair.y;
}
__device__ inline void bfloats_to_float(uint32_t word, float* w) {
    w[0] = __uint_as_float(word << 16), w[1] = __uint_as_float(word & 0xffff0000u);
}

// F16 or BF16: eight elements.
template <void (*kConvert)(uint32_t, float*)>
struct HalfReader {
    static constexpr int kElements = 8;
    static constexpr bool kScaled = false;
    static constexpr bool kAligned = true;
    uint4 raw;
    __device__ void load(const std::byte* row, uint32_t, uint32_t piece) {
        raw = __ldg(reinterpret_cast<const uint4*>(row) + piece);
    }
    __device__ void get4(int q, float* w) const {
        kConvert(q == 0 ? raw.x : raw.z, w);
        kConvert(q == 0 ? raw.y : raw.w, w + 2);
    }
    __device__ float scale() const { return 1; }
};
using F16Reader = HalfReader<halves_to_float>;
using BF16Reader = HalfReader<bfloats_to_float>;

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__half x) { return __half2float(x); }
struct Bfloat {
    uint16_t bits;
};
__device__ inline float to_float(Bfloat x) {
    return __uint_as_float(static_cast<uint32_t>(x.bits) << 16);
}

// Floats of any kind in rows that are aligned to an element only, or end within a piece. In pieces
// of the same size as the aligned reader's, so that sums are the same.
template <class T, int N>
struct LooseReader {
    static constexpr int kElements = N;
    static constexpr bool kScaled = false;
    static constexpr bool kAligned = false;
    float raw[N];
    __device__ void load(const std::byte* row, uint32_t cols, uint32_t piece) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const uint32_t at = piece * N + i;
            raw[i] = at < cols ? to_float(reinterpret_cast<const T*>(row)[at]) : 0.0f;
        }
    }
    __device__ void get4(int q, float* w) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) w[i] = raw[4 * q + i];
    }
    __device__ float scale() const { return 1; }
};

// Signed bytes as floats: with the sign bit flipped they are 0..255, which become the low mantissa
// bits of 2²³; subtracting 2²³ + 128 is exact.
__device__ inline void int8_to_float(uint32_t word, float* w) {
    const uint32_t biased = word ^ 0x80808080u;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        w[i] = __uint_as_float(__byte_perm(biased, 0x4b000000u, 0x7540 + i)) - 8388736.0f;
    }
}

// Half a Q8_0 block: 16 codes; two pieces share a scale.
struct Q8_0SplitReader {
    static constexpr int kElements = 16;
    static constexpr bool kScaled = true;
    static constexpr bool kAligned = true;
    uint4 raw;
    uint16_t d;
    __device__ void load(const std::byte* row, uint32_t cols, uint32_t piece) {
        raw = __ldg(reinterpret_cast<const uint4*>(row) + piece);
        d = __ldg(reinterpret_cast<const uint16_t*>(row + cols) + piece / 2);
    }
    __device__ void get4(int q, float* w) const {
        int8_to_float(q == 0 ? raw.x : q == 1 ? raw.y : q == 2 ? raw.z : raw.w, w);
    }
    __device__ float scale() const { return __half2float(__ushort_as_half(d)); }
};

// The same, aligned to two bytes only: blocks as in a GGUF (scale, 32 codes), or split rows of an
// odd number of blocks.
template <bool kSplit>
struct Q8_0LooseReader {
    static constexpr int kElements = 16;
    static constexpr bool kScaled = true;
    static constexpr bool kAligned = false;
    uint32_t raw[4];
    uint16_t d;
    __device__ void load(const std::byte* row, uint32_t cols, uint32_t piece) {
        const auto* words = reinterpret_cast<const uint16_t*>(row);
        d = __ldg(words + (kSplit ? cols / 2 + piece / 2 : piece / 2 * 17));
        const uint16_t* codes = words + (kSplit ? piece * 8 : piece / 2 * 17 + 1 + piece % 2 * 8);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            raw[i] = __ldg(codes + 2 * i) | static_cast<uint32_t>(__ldg(codes + 2 * i + 1)) << 16;
        }
    }
    __device__ void get4(int q, float* w) const { int8_to_float(raw[q], w); }
    __device__ float scale() const { return __half2float(__ushort_as_half(d)); }
};

// Four of 32 E2M1 codes. A nibble s e e m as a half with exponent e e and mantissa m is the code's
// value times 2^−14 (also where e e is 0, as halves have subnormals); e8m0_times() makes up for it.
// Byte j holds element j in its low nibble and j + 16 in its high one.
__device__ inline void e2m1_to_float(const uint32_t* codes, int q, float* w) {
    const uint32_t word = q < 4 ? codes[q] : codes[q - 4] >> 4;
    const uint32_t even = (word << 12 & 0x80008000u) | (word << 9 & 0x0e000e00u);
    const uint32_t odd = (word << 4 & 0x80008000u) | (word << 1 & 0x0e000e00u);
    float a[2], b[2];
    halves_to_float(even, a);
    halves_to_float(odd, b);
    w[0] = a[0], w[1] = b[0], w[2] = a[1], w[3] = b[1];
}
// 2^(e − 127), which is subnormal for e = 0; 255 is NaN.
__device__ inline float e8m0(uint32_t e) {
    return __uint_as_float(e == 255 ? 0x7fc00000u : e == 0 ? 0x00400000u : e << 23);
}

struct Mxfp4SplitReader {
    static constexpr int kElements = 32;
    static constexpr bool kScaled = true;
    static constexpr bool kAligned = true;
    static constexpr float kUnit = 16384.0f;
    uint4 raw;
    uint8_t e;
    __device__ void load(const std::byte* row, uint32_t cols, uint32_t piece) {
        raw = __ldg(reinterpret_cast<const uint4*>(row) + piece);
        e = __ldg(reinterpret_cast<const uint8_t*>(row + cols / 2) + piece);
    }
    __device__ void get4(int q, float* w) const {
        const uint32_t codes[4] = {raw.x, raw.y, raw.z, raw.w};
        e2m1_to_float(codes, q, w);
    }
    __device__ float scale() const { return e8m0(e); }
};

// The same, aligned to nothing.
template <bool kSplit>
struct Mxfp4LooseReader {
    static constexpr int kElements = 32;
    static constexpr bool kScaled = true;
    static constexpr bool kAligned = false;
    static constexpr float kUnit = 16384.0f;
    uint32_t raw[4];
    uint8_t e;
    __device__ void load(const std::byte* row, uint32_t cols, uint32_t piece) {
        const auto* bytes = reinterpret_cast<const uint8_t*>(row);
        e = __ldg(bytes + (kSplit ? cols / 2 + piece : piece * 17));
        const uint8_t* codes = bytes + (kSplit ? piece * 16 : piece * 17 + 1);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            raw[i] = 0;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                raw[i] |= static_cast<uint32_t>(__ldg(codes + 4 * i + j)) << 8 * j;
            }
        }
    }
    __device__ void get4(int q, float* w) const { e2m1_to_float(raw, q, w); }
    __device__ float scale() const { return e8m0(e); }
};

template <class Reader>
__device__ float unit() {
    if constexpr (requires { Reader::kUnit; }) {
        return Reader::kUnit;
    } else {
        return 1;
    }
}

// ---- the kernel ---------------------------------------------------------------------------------

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
    uint32_t steps;          // of 32 pieces per warp, staged at a time
    uint32_t total_steps;    // of a warp
    uint32_t n_pieces;
};

// R rows of weights (of each of two matrices, if gated) times C columns per warp.
//   kPhases false, for few columns: W warps share R rows, each with its own pieces.
//   kPhases true, for many: a warp does the W warps' parts of its R rows one after the other.
template <class Reader, int R, int C, bool kGated, bool kPhases>
__global__ void __launch_bounds__(kWarps * kLanes)
    matmul_kernel(const __grid_constant__ MatmulArgs args, const Tiling tiling) {
    constexpr int kMatrices = kGated ? 2 : 1;
    constexpr int kQuads = Reader::kElements / 4;
    constexpr int kSums = R * C;
    extern __shared__ float4 staged[];  // [C][kQuads][pieces + 1]
    const uint32_t lane = threadIdx.x % kLanes;
    const uint32_t warp = threadIdx.x / kLanes;
    const MatmulJob job = args.jobs != nullptr ? args.jobs[blockIdx.z] : args.few[blockIdx.z];
    const uint32_t column0 = blockIdx.y * C;
    if (column0 >= job.n_columns) return;

    const uint32_t W = tiling.warps_per_row;
    const uint32_t group = kPhases ? warp : warp / W;
    const uint32_t groups = kPhases ? kWarps : kWarps / W;
    const uint32_t row0 = (blockIdx.x * groups + group) * R;
    const std::byte* rows[kMatrices][R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
        const uint64_t at = min(row0 + r, args.rows - 1) * args.row_bytes;
        rows[0][r] = job.weight + at;
        if constexpr (kGated) rows[1][r] = job.weight2 + at;
    }

    const auto load_readers = [&](Reader(&into)[kMatrices][R], uint32_t piece) {
#pragma unroll
        for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
            for (int r = 0; r < R; ++r) into[m][r].load(rows[m][r], args.cols, piece);
        }
    };
    Reader ahead[kPhases ? 1 : kMatrices][kPhases ? 1 : R];
    if constexpr (!kPhases) {
        const uint32_t first = warp % W * kLanes + lane;
        if (first < tiling.n_pieces) load_readers(ahead, first);
    }

    const uint32_t staged_pieces = tiling.steps * kLanes * (kPhases ? 1 : W);
    const uint32_t pitch = staged_pieces + 1;  // spreads a piece's quads over the banks
    float sums[kMatrices][kSums];
    float totals[kMatrices][(kSums + kLanes - 1) / kLanes];
    for (uint32_t phase = 0; phase < (kPhases ? W : 1); ++phase) {
#pragma unroll
        for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
            for (int i = 0; i < kSums; ++i) sums[m][i] = 0;
        }
        for (uint32_t step0 = 0; step0 < tiling.total_steps; step0 += tiling.steps) {
            // The piece that stands at place i of the stage.
            const auto piece_at = [&](uint32_t i) {
                return kPhases ? ((step0 + i / kLanes) * W + phase) * kLanes + i % kLanes
                               : step0 * W * kLanes + i;
            };
            __syncthreads();
#pragma unroll
            for (uint32_t c = 0; c < C; ++c) {
                const uint32_t column = column0 + c;
                const bool inside = column < job.n_columns;
                const uint32_t x_row = !inside                 ? 0
                                       : job.x_rows != nullptr ? job.x_rows[column]
                                                               : job.x_first + column;
                const float* x = args.x + x_row * args.x_stride + job.x_offset;
                for (uint32_t t = threadIdx.x; t < staged_pieces * kQuads; t += blockDim.x) {
                    const uint32_t i = t / kQuads;
                    const uint32_t quad = t % kQuads;
                    const uint32_t element = piece_at(i) * Reader::kElements + 4 * quad;
                    staged[(c * kQuads + quad) * pitch + i] =
                        load_quad<Reader::kAligned>(x, element, inside ? args.cols : 0);
                }
            }
            __syncthreads();
#pragma unroll 1
            for (uint32_t s = 0; s < tiling.steps; ++s) {
                const uint32_t place = (kPhases ? s : s * W + warp % W) * kLanes + lane;
                const uint32_t piece = piece_at(place);
                if (piece >= tiling.n_pieces) break;
                Reader readers[kMatrices][R];
                if constexpr (kPhases) {
                    load_readers(readers, piece);
                } else {
                    // Few columns are a matter of latency: the next step's bytes are on their way.
#pragma unroll
                    for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
                        for (int r = 0; r < R; ++r) readers[m][r] = ahead[m][r];
                    }
                    const uint32_t next = piece + W * kLanes;
                    if (next < tiling.n_pieces) load_readers(ahead, next);
                }
                float parts[kMatrices][kSums];
                float(*into)[kSums] = Reader::kScaled ? parts : sums;
                if constexpr (Reader::kScaled) {
#pragma unroll
                    for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
                        for (int i = 0; i < kSums; ++i) parts[m][i] = 0;
                    }
                }
#pragma unroll
                for (int quad = 0; quad < kQuads; ++quad) {
                    float w[kMatrices][R][4];
#pragma unroll
                    for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
                        for (int r = 0; r < R; ++r) readers[m][r].get4(quad, w[m][r]);
                    }
#pragma unroll
                    for (int c = 0; c < C; ++c) {
                        const float4 x = staged[(c * kQuads + quad) * pitch + place];
#pragma unroll
                        for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
                            for (int r = 0; r < R; ++r) {
                                float& sum = into[m][r * C + c];
                                sum = fmaf(w[m][r][0], x.x, sum);
                                sum = fmaf(w[m][r][1], x.y, sum);
                                sum = fmaf(w[m][r][2], x.z, sum);
                                sum = fmaf(w[m][r][3], x.w, sum);
                            }
                        }
                    }
                }
                if constexpr (Reader::kScaled) {
#pragma unroll
                    for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
                        for (int r = 0; r < R; ++r) {
                            const float scale = readers[m][r].scale();
#pragma unroll
                            for (int c = 0; c < C; ++c) {
                                const int i = r * C + c;
                                sums[m][i] = fmaf(scale, parts[m][i] * unit<Reader>(), sums[m][i]);
                            }
                        }
                    }
                }
            }
        }
#pragma unroll
        for (int m = 0; m < kMatrices; ++m) {
            add_lanes<kSums>(sums[m], lane);
#pragma unroll
            for (int i = 0; i < (kSums + kLanes - 1) / kLanes; ++i) {
                totals[m][i] = phase == 0 ? sums[m][i] : totals[m][i] + sums[m][i];
            }
        }
    }

    if constexpr (!kPhases) {
        // The W warps of a row group, added by the first of them in ascending order.
        if (W > 1) {
            float* shared = reinterpret_cast<float*>(staged);  // [kWarps][kMatrices][kSums]
            __syncthreads();
            if (owns_sums<kSums>(lane)) {
#pragma unroll
                for (int m = 0; m < kMatrices; ++m) {
                    shared[(warp * kMatrices + m) * kSums + first_sum<kSums>(lane)] = totals[m][0];
                }
            }
            __syncthreads();
            if (warp % W != 0) return;
#pragma unroll
            for (int m = 0; m < kMatrices; ++m) {
                for (uint32_t w = 1; w < W; ++w) {
                    totals[m][0] += shared[((warp + w) * kMatrices + m) * kSums +
                                           first_sum<kSums>(lane)];
                }
            }
        }
    }
    if (!owns_sums<kSums>(lane)) return;
#pragma unroll
    for (int i = 0; i < (kSums + kLanes - 1) / kLanes; ++i) {
        const uint32_t sum = first_sum<kSums>(lane) + i;
        const uint32_t row = row0 + sum / C;
        const uint32_t column = column0 + sum % C;
        if (row >= args.rows || column >= job.n_columns) continue;
        float value = totals[0][i];
        if constexpr (kGated) {
            const float g = fminf(value, args.limit);
            const float u = fminf(fmaxf(totals[1][i], -args.limit), args.limit);
            value = g / (1 + expf(-g)) * u;
            value *= job.factors != nullptr ? job.factors[column] : job.factor;
        }
        const uint32_t y_row =
            job.y_rows != nullptr ? job.y_rows[column] : job.y_first + column;
        args.y[y_row * args.y_stride + job.y_offset + row] = value;
    }
}

// ---- launching ----------------------------------------------------------------------------------

constexpr uint32_t kMaxSharedBytes = 96 * 1024;  // every target has 99 KiB

// W: as many warps per row as leave each about two steps. A matter of type and K only. No more than
// whose pieces of x can be staged for four columns at once.
template <class Reader>
uint32_t warps_per_row(uint32_t n_pieces) {
    constexpr uint32_t kStep = kLanes * Reader::kElements * 4 * sizeof(float);
    uint32_t warps = 1;
    while (warps < kWarps && n_pieces > warps * 2 * kLanes &&
           2 * warps * kStep <= kMaxSharedBytes * 3 / 4) {
        warps *= 2;
    }
    return warps;
}

template <class Reader, int R, int C, bool kGated, bool kPhases>
void launch_tiled(const MatmulArgs& args, cudaStream_t stream) {
    constexpr uint32_t kPieceBytes = C * Reader::kElements * sizeof(float);
    Tiling tiling;
    tiling.n_pieces = (args.cols + Reader::kElements - 1) / Reader::kElements;
    tiling.warps_per_row = warps_per_row<Reader>(tiling.n_pieces);
    const uint32_t step_pieces = tiling.warps_per_row * kLanes;
    tiling.total_steps = (tiling.n_pieces + step_pieces - 1) / step_pieces;
    // Few columns: all of K at once, where it fits. Many: what leaves room for several blocks.
    constexpr uint32_t kStageBytes = kPhases ? 40 * 1024 : 64 * 1024;
    const uint32_t staged_step = (kPhases ? kLanes : step_pieces) * kPieceBytes;
    tiling.steps = std::clamp<uint32_t>(kStageBytes / staged_step, 1, tiling.total_steps);
    const uint32_t bytes =
        tiling.steps * staged_step + C * Reader::kElements / 4 * uint32_t{sizeof(float4)};
    const auto kernel = matmul_kernel<Reader, R, C, kGated, kPhases>;
    if (bytes > 48 * 1024) {
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes);
    }
    const uint32_t rows_per_block = R * (kPhases ? kWarps : kWarps / tiling.warps_per_row);
    const dim3 grid((args.rows + rows_per_block - 1) / rows_per_block,
                    (args.max_columns + C - 1) / C, args.n_jobs);
    kernel<<<grid, kWarps * kLanes, bytes, stream>>>(args, tiling);
}

// How many rows a warp takes changes no sum.
template <class Reader, bool kGated>
void launch_columns(const MatmulArgs& args, cudaStream_t stream) {
    constexpr int kRows = kGated ? 2 : 4;
    constexpr uint32_t kFewRows = 1024;  // not enough to keep a large device busy
    if (args.max_columns == 1) {
        return args.rows * args.n_jobs <= kFewRows
                   ? launch_tiled<Reader, 1, 1, kGated, false>(args, stream)
                   : launch_tiled<Reader, kRows, 1, kGated, false>(args, stream);
    }
    if (args.max_columns <= 2) return launch_tiled<Reader, kRows, 2, kGated, false>(args, stream);
    if (args.max_columns <= 4) return launch_tiled<Reader, kRows, 4, kGated, false>(args, stream);
    launch_tiled<Reader, 2 * kRows, 8, kGated, true>(args, stream);
}

template <class Reader>
void launch_form(const MatmulArgs& args, cudaStream_t stream) {
    args.gated ? launch_columns<Reader, true>(args, stream)
               : launch_columns<Reader, false>(args, stream);
}

}  // namespace xp::cuda
