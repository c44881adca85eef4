#include "daemon/gguf/dequantise.h"

#include <bit>
#include <cstring>

#include "daemon/gguf/types.h"

namespace xp {
namespace {

// Blocks have odd sizes, so their fields are not aligned.
template <class T>
T load(const std::byte* source) {
    T value;
    std::memcpy(&value, source, sizeof(value));
    return value;
}

float load_half(const std::byte* source) { return half_to_float(load<uint16_t>(source)); }

// E2M1 values doubled. Code 8 is minus zero in the format and plain zero here: 0·scale is +0.
constexpr int8_t kE2M1Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Half of the E8M0 value 2^(e-127), since the code table is doubled. The first two are subnormal.
float half_of_e8m0(uint8_t e) {
    const uint32_t bits = e < 2 ? 0x00200000u << e : static_cast<uint32_t>(e - 1) << 23;
    return std::bit_cast<float>(bits);
}

}  // namespace

void dequantise_f32(const std::byte* source, float* destination, uint64_t n) {
    std::memcpy(destination, source, n * sizeof(float));
}

void dequantise_f16(const std::byte* source, float* destination, uint64_t n) {
    for (uint64_t i = 0; i < n; ++i) destination[i] = load_half(source + 2 * i);
}

void dequantise_bf16(const std::byte* source, float* destination, uint64_t n) {
    for (uint64_t i = 0; i < n; ++i) {
        const uint32_t bits = static_cast<uint32_t>(load<uint16_t>(source + 2 * i)) << 16;
        destination[i] = std::bit_cast<float>(bits);
    }
}

// Scale (f16), then 16 bytes; the low nibbles are the first 16 elements, the high ones the rest.
void dequantise_q4_0(const std::byte* source, float* destination, uint64_t n) {
    for (uint64_t i = 0; i < n; i += 32, source += 18, destination += 32) {
        const float scale = load_half(source);
        for (int j = 0; j < 16; ++j) {
            const int codes = static_cast<int>(source[2 + j]);
            destination[j] = scale * static_cast<float>((codes & 15) - 8);
            destination[j + 16] = scale * static_cast<float>((codes >> 4) - 8);
        }
    }
}

// Scale (f16), then 32 signed bytes.
void dequantise_q8_0(const std::byte* source, float* destination, uint64_t n) {
    for (uint64_t i = 0; i < n; i += 32, source += 34, destination += 32) {
        const float scale = load_half(source);
        for (int j = 0; j < 32; ++j) {
            destination[j] = scale * static_cast<float>(static_cast<int8_t>(source[2 + j]));
        }
    }
}

// Scale (E8M0), then 16 bytes with nibbles in the order of Q4_0.
void dequantise_mxfp4(const std::byte* source, float* destination, uint64_t n) {
    for (uint64_t i = 0; i < n; i += 32, source += 17, destination += 32) {
        const float scale = half_of_e8m0(static_cast<uint8_t>(source[0]));
        for (int j = 0; j < 16; ++j) {
            const int codes = static_cast<int>(source[1 + j]);
            destination[j] = scale * static_cast<float>(kE2M1Doubled[codes & 15]);
            destination[j + 16] = scale * static_cast<float>(kE2M1Doubled[codes >> 4]);
        }
    }
}

}  // namespace xp
