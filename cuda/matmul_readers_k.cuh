// How rows of K types are read, see matmul_readers.cuh: super-blocks of 256 elements, in which the
// codes of elements 32 or 64 apart share a byte. A piece is what 16 bytes of (the low bits of)
// codes hold: runs of 16 elements, each with a scale of its own. element() says where a quad of
// the piece lies in its row.
//
// The elements are, bit for bit, those of daemon/gguf/dequantise_k.inl. A code becomes the top
// mantissa bits of a float in [0.5, 1), which is 0.5 + code · step; fmaf(scale / step, that,
// −offset · scale) is then scale · (code − its offset) exactly, since all of these products fit in
// 24 bits.
//
// Rows begin at multiples of 16 bytes, or of the block's alignment after the first: 16 bytes
// for Q4_K, 4 for Q2_K, 2 for Q3_K and Q6_K. Nothing before the first row or behind the last byte
// of a block is touched. The tests compile this for the host, with functions of their own for what
// the device has built in; load() must not look at what it loads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace xp::cuda {

constexpr uint32_t kSuperBlockElements = 256;

__device__ inline uint32_t load_word(const std::byte* at) {
    return __ldg(reinterpret_cast<const uint32_t*>(at));
}
__device__ inline float half_bits_to_float(uint32_t bits) {
    return __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
}
// A small integer: below 2²³.
__device__ inline float small_to_float(uint32_t n, float offset = 0) {
    return __uint_as_float(0x4b000000u | n) - (8388608.0f + offset);
}
// w[i] = factor · u − offset, where u in [0.5, 1) has byte i as its top seven mantissa bits.
__device__ inline void mantissas_to_float(uint32_t bytes, float factor, float offset, float* w) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float u = __uint_as_float(__byte_perm(bytes, 0x3f000000u, 0x7044 + 0x100 * i));
        w[i] = fmaf(factor, u, -offset);
    }
}

// N words of a block that begins at a multiple of two. All that a reader has of a block is as far
// from a multiple of four, which shift_of() tells.
template <int N>
struct LooseWords {
    uint32_t raw[N + 1];
    __device__ void load(const std::byte* at, uint32_t shift) {
        const std::byte* words = at - shift / 8;
#pragma unroll
        for (int i = 0; i < N; ++i) raw[i] = load_word(words + 4 * i);
        raw[N] = shift != 0 ? load_word(words + 4 * N) : 0;
    }
    __device__ uint32_t word(int i, uint32_t shift) const {
        return __funnelshift_r(raw[i], raw[i + 1], shift);
    }
};
__device__ inline uint32_t shift_of(const std::byte* block) {
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(block) & 2) * 8;
}

// Two-bit codes: piece 2·h + s of a block has bytes 16·s .. 16·s + 15 of half
// h, and bit pair k of them is run k.
__device__ inline uint32_t two_bit_element(uint32_t piece, int quad) {
    const uint32_t half = piece / 2 % 2, column = piece % 2;
    return piece / 4 * kSuperBlockElements + 128 * half + 16 * column +
           static_cast<uint32_t>(quad / 4 * 32 + quad % 4 * 4);
}

struct Q2_KReader {
    static constexpr int kElements = 64;
    static constexpr bool kScaled = false;
    static constexpr bool kAligned = true;
    static constexpr uint32_t kBlockBytes = 84;
    uint32_t codes[4];
    uint32_t scales[2];  // of the half: a byte for every 16 elements
    uint32_t d_dmin;
    uint32_t shift;      // to the column's scales
    __device__ static uint32_t element(uint32_t piece, int quad) {
        return two_bit_element(piece, quad);
    }
    __device__ void load(const std::byte* row, uint32_t, uint32_t piece) {
        const std::byte* block = row + piece / 4 * kBlockBytes;
        const uint32_t half = piece / 2 % 2, column = piece % 2;
        shift = 8 * column;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            codes[i] = load_word(block + 16 + 32 * half + 16 * column + 4 * i);
        }
        scales[0] = load_word(block + 8 * half);
        scales[1] = load_word(block + 8 * half + 4);
        d_dmin = load_word(block + 80);
    }
    __device__ void get4(int q, float* w) const {
        const int k = q / 4;
        const uint32_t pair = scales[k / 2] >> shift >> 16 * (k % 2);
        const float scale = half_bits_to_float(d_dmin) * small_to_float(pair & 15);
        const float minimum = half_bits_to_float(d_dmin >> 16) * small_to_float(pair >> 4 & 15);
        const uint32_t code = codes[q % 4];
        const uint32_t placed = (k < 3 ? code << (5 - 2 * k) : code >> 1) & 0x60606060u;
        mantissas_to_float(placed, 8 * scale, 4 * scale, w);
#pragma unroll
        for (int i = 0; i < 4; ++i) w[i] -= minimum;
    }
    __device__ float scale() const { return 1; }
};

struct Q3_KReader {
    static constexpr int kElements = 64;
    static constexpr bool kScaled = false;
    static constexpr bool kAligned = true;
    static constexpr bool kFewerRows = true;
    static constexpr uint32_t kBlockBytes = 110;
    LooseWords<4> codes, high;  // the third bits: bit k of a byte is for elements 32·k on
    LooseWords<3> scales;       // of the whole block
    uint16_t d;
    uint32_t odd;               // shift_of() the block
    uint32_t shift;             // to the scales' low bits, of the half and the column
    __device__ static uint32_t element(uint32_t piece, int quad) {
        return two_bit_element(piece, quad);
    }
    __device__ void load(const std::byte* row, uint32_t, uint32_t piece) {
        const std::byte* block = row + piece / 4 * kBlockBytes;
        const uint32_t half = piece / 2 % 2, column = piece % 2;
        odd = shift_of(block);
        shift = 8 * column + 4 * half;
        high.load(block + 16 * column, odd);
        codes.load(block + 32 + 32 * half + 16 * column, odd);
        scales.load(block + 96, odd);
        d = __ldg(reinterpret_cast<const uint16_t*>(block + 108));
    }
    __device__ void get4(int q, float* w) const {
        const int k = q / 4;
        const uint32_t low_bits = scales.word(k / 2, odd) >> shift >> 16 * (k % 2) & 15;
        const uint32_t high_bits =
            scales.word(2, odd) >> shift >> (16 * (k % 2) + 2 * (k / 2)) & 3;
        const float scale =
            half_bits_to_float(d) * small_to_float(low_bits | high_bits << 4, 32);
        const uint32_t code = codes.word(q % 4, odd);
        const uint32_t third = high.word(q % 4, odd) >> (shift & 4);
        const uint32_t placed = ((k < 3 ? code << (4 - 2 * k) : code >> 2) & 0x30303030u) |
                                (third << (6 - k) & 0x40404040u);
        mantissas_to_float(placed, 16 * scale, 12 * scale, w);
    }
    __device__ float scale() const { return 1; }
};

// Piece 2·j + s of a block has bytes 16·s .. 16·s + 15 of the 32 that hold elements 64·j on: the
// low nibbles are the first run, the high ones the second.
struct Q4_KReader {
    static constexpr int kElements = 32;
    static constexpr bool kScaled = false;
    static constexpr bool kAligned = true;
    static constexpr uint32_t kBlockBytes = 144;
    uint4 head;  // d and dmin, then packed pairs of scales and minima
    uint4 codes;
    uint32_t j;
    __device__ static uint32_t element(uint32_t piece, int quad) {
        return piece / 8 * kSuperBlockElements + piece % 8 / 2 * 64 + piece % 2 * 16 +
               static_cast<uint32_t>(quad / 4 * 32 + quad % 4 * 4);
    }
    __device__ void load(const std::byte* row, uint32_t, uint32_t piece) {
        const auto* block = reinterpret_cast<const uint4*>(row + piece / 8 * kBlockBytes);
        head = __ldg(block);
        codes = __ldg(block + 1 + piece % 8);
        j = piece % 8 / 2;
    }
    __device__ void get4(int q, float* w) const {
        // Pair i: a byte each of y and z for the first four, whose top bits belong to the others.
        const uint32_t shift = j % 2 * 16 + static_cast<uint32_t>(q / 4 * 8);
        const uint32_t y = head.y >> shift, z = head.z >> shift, both = head.w >> shift;
        const bool first = j < 2;
        const uint32_t scale_bits = first ? y & 63 : (both & 15) | (y >> 2 & 48);
        const uint32_t minimum_bits = first ? z & 63 : (both >> 4 & 15) | (z >> 2 & 48);
        const float scale = half_bits_to_float(head.x) * small_to_float(scale_bits);
        const float minimum = half_bits_to_float(head.x >> 16) * small_to_float(minimum_bits);
        const int i = q % 4;
        const uint32_t code = i == 0 ? codes.x : i == 1 ? codes.y : i == 2 ? codes.z : codes.w;
        mantissas_to_float((q < 4 ? code << 3 : code >> 1) & 0x78787878u, 32 * scale, 16 * scale,
                           w);
#pragma unroll
        for (int e = 0; e < 4; ++e) w[e] -= minimum;
    }
    __device__ float scale() const { return 1; }
};

// Piece 4·h + t of a block has bytes 16·t .. 16·t + 15 of half h's low nibbles: the low ones of
// these are the first run, the high ones the second. Of the high bit pairs it has half of 16 bytes.
struct Q6_KReader {
    static constexpr int kElements = 32;
    static constexpr bool kScaled = false;
    static constexpr bool kAligned = true;
    static constexpr bool kFewerRows = true;
    static constexpr uint32_t kBlockBytes = 210;
    LooseWords<4> low, high;
    int8_t scales[2];
    uint16_t d;
    uint32_t odd;    // shift_of() the block
    uint32_t shift;  // to the high bit pairs of the first run
    __device__ static uint32_t element(uint32_t piece, int quad) {
        return piece / 8 * kSuperBlockElements + piece % 8 / 4 * 128 + piece % 4 * 16 +
               static_cast<uint32_t>(quad / 4 * 64 + quad % 4 * 4);
    }
    __device__ void load(const std::byte* row, uint32_t, uint32_t piece) {
        const std::byte* block = row + piece / 8 * kBlockBytes;
        const uint32_t half = piece % 8 / 4, t = piece % 4;
        odd = shift_of(block);
        shift = t & 2;
        low.load(block + 64 * half + 16 * t, odd);
        high.load(block + 128 + 32 * half + 16 * (t % 2), odd);
        const auto* bytes = reinterpret_cast<const int8_t*>(block + 192 + 8 * half + t);
        scales[0] = __ldg(bytes);
        scales[1] = __ldg(bytes + 4);
        d = __ldg(reinterpret_cast<const uint16_t*>(block + 208));
    }
    __device__ void get4(int q, float* w) const {
        const int run = q / 4;
        const float scale = half_bits_to_float(d) * static_cast<float>(scales[run]);
        const uint32_t nibbles = low.word(q % 4, odd);
        const uint32_t pairs = high.word(q % 4, odd) >> shift;
        const uint32_t placed = ((run == 0 ? nibbles << 1 : nibbles >> 3) & 0x1e1e1e1eu) |
                                ((run == 0 ? pairs << 5 : pairs << 1) & 0x60606060u);
        mantissas_to_float(placed, 128 * scale, 96 * scale, w);
    }
    __device__ float scale() const { return 1; }
};

}  // namespace xp::cuda
