// How rows of weights are read, a piece of consecutive elements at a time; see matmul.h.
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

namespace xp::cuda {

// A reader describes pieces of kElements elements: load() fetches the bytes of one into registers,
// get4() gives elements 4·q .. 4·q + 3 without their scale, scale() the factor of the piece's sum.
// Where there is a kUnit, get4() gives elements divided by it, and x is multiplied by it (a power
// of two, so that products are what they are without).
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
// value times 2^−14 (also where e e is 0, as halves have subnormals).
// Byte j holds element j in its low nibble and j + 16 in its high one.
__device__ inline void e2m1_to_float(const uint32_t* codes, int q, float* w) {
    constexpr uint32_t kSigns = 0x80008000u, kRest = 0x0e000e00u;
    const uint32_t word = codes[q % 4];
    const uint32_t even = q < 4 ? (word << 12 & kSigns) | (word << 9 & kRest)
                                : (word << 8 & kSigns) | (word << 5 & kRest);
    const uint32_t odd = q < 4 ? (word << 4 & kSigns) | (word << 1 & kRest)
                               : (word & kSigns) | (word >> 3 & kRest);
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

}  // namespace xp::cuda
