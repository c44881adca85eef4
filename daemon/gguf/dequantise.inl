// Floats, and blocks with one or two scales.
// Included by dequantise.cc, inside a namespace.

namespace {

// The nibbles of 16 bytes are 32 codes: the low ones are elements 0..15, the high ones 16..31.
XP_DEVICE int nibble(const std::byte* codes, int element) {
    const int byte = static_cast<int>(codes[element % 16]);
    return element < 16 ? byte & 15 : byte >> 4;
}

// The fifth bits of 32 codes, element i in bit i.
XP_DEVICE int fifth_bit(uint32_t bits, int element) {
    return static_cast<int>(bits >> element & 1) << 4;
}

// E2M1 values doubled. Code 8 is minus zero in the format and plain zero here: 0·scale is +0.
XP_TABLE constexpr int8_t kE2M1Doubled[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                              0, -1, -2, -3, -4, -6, -8, -12};

// Half of the E8M0 value 2^(e-127), since the code table is doubled. The first two are subnormal.
XP_DEVICE float half_of_e8m0(uint8_t e) {
    const uint32_t bits = e < 2 ? 0x00200000u << e : static_cast<uint32_t>(e - 1) << 23;
    return std::bit_cast<float>(bits);
}

// Half of an unsigned E4M3 value, as above; 0x7f is not a number in the format and 0 here.
XP_DEVICE float half_of_e4m3(uint8_t x) {
    const uint32_t exponent = x >> 3 & 15;
    const uint32_t mantissa = x & 7;
    if ((x & 0x7f) == 0x7f) return 0;
    if (exponent == 0) return static_cast<float>(mantissa) * 0x1p-10f;
    return std::bit_cast<float>((exponent + 119) << 23 | mantissa << 20);
}

}  // namespace

XP_DEVICE void dequantise_f32(const std::byte* source, float* destination, uint64_t n) {
    std::memcpy(destination, source, n * sizeof(float));
}

XP_DEVICE void dequantise_f16(const std::byte* source, float* destination, uint64_t n) {
    for (uint64_t i = 0; i < n; ++i) destination[i] = load_half(source + 2 * i);
}

XP_DEVICE void dequantise_bf16(const std::byte* source, float* destination, uint64_t n) {
    for (uint64_t i = 0; i < n; ++i) {
        const uint32_t bits = static_cast<uint32_t>(load_field<uint16_t>(source + 2 * i)) << 16;
        destination[i] = std::bit_cast<float>(bits);
    }
}

// Scale (f16), codes with an offset of 8.
XP_DEVICE void dequantise_q4_0(const std::byte* source, float* destination, uint64_t n) {
    for (uint64_t i = 0; i < n; i += 32, source += 18, destination += 32) {
        const float scale = load_half(source);
        for (int j = 0; j < 32; ++j) {
            destination[j] = scale * static_cast<float>(nibble(source + 2, j) - 8);
        }
    }
}

// Scale and minimum (f16), codes.
XP_DEVICE void dequantise_q4_1(const std::byte* source, float* destination, uint64_t n) {
    for (uint64_t i = 0; i < n; i += 32, source += 20, destination += 32) {
        const float scale = load_half(source);
        const float minimum = load_half(source + 2);
        for (int j = 0; j < 32; ++j) {
            destination[j] = scale * static_cast<float>(nibble(source + 4, j)) + minimum;
        }
    }
}

// Scale (f16), fifth bits, codes with an offset of 16.
XP_DEVICE void dequantise_q5_0(const std::byte* source, float* destination, uint64_t n) {
    for (uint64_t i = 0; i < n; i += 32, source += 22, destination += 32) {
        const float scale = load_half(source);
        const uint32_t high = load_field<uint32_t>(source + 2);
        for (int j = 0; j < 32; ++j) {
            const int code = nibble(source + 6, j) | fifth_bit(high, j);
            destination[j] = scale * static_cast<float>(code - 16);
        }
    }
}

// Scale and minimum (f16), fifth bits, codes.
XP_DEVICE void dequantise_q5_1(const std::byte* source, float* destination, uint64_t n) {
    for (uint64_t i = 0; i < n; i += 32, source += 24, destination += 32) {
        const float scale = load_half(source);
        const float minimum = load_half(source + 2);
        const uint32_t high = load_field<uint32_t>(source + 4);
        for (int j = 0; j < 32; ++j) {
            const int code = nibble(source + 8, j) | fifth_bit(high, j);
            destination[j] = scale * static_cast<float>(code) + minimum;
        }
    }
}

// Scale (f16), then 32 signed bytes.
XP_DEVICE void dequantise_q8_0(const std::byte* source, float* destination, uint64_t n) {
    for (uint64_t i = 0; i < n; i += 32, source += 34, destination += 32) {
        const float scale = load_half(source);
        for (int j = 0; j < 32; ++j) {
            destination[j] = scale * static_cast<float>(static_cast<int8_t>(source[2 + j]));
        }
    }
}

// Scale (f16), then 128 bits: plus or minus the scale.
XP_DEVICE void dequantise_q1_0(const std::byte* source, float* destination, uint64_t n) {
    for (uint64_t i = 0; i < n; i += 128, source += 18, destination += 128) {
        const float scale = load_half(source);
        for (int j = 0; j < 128; ++j) {
            const int bit = static_cast<int>(source[2 + j / 8]) >> j % 8 & 1;
            destination[j] = scale * static_cast<float>(2 * bit - 1);
        }
    }
}

// Scale (f16), then 64 codes of two bits, adjacent elements in one byte, with an offset of 1.
XP_DEVICE void dequantise_q2_0(const std::byte* source, float* destination, uint64_t n) {
    for (uint64_t i = 0; i < n; i += 64, source += 18, destination += 64) {
        const float scale = load_half(source);
        for (int j = 0; j < 64; ++j) {
            const int code = static_cast<int>(source[2 + j / 4]) >> 2 * (j % 4) & 3;
            destination[j] = scale * static_cast<float>(code - 1);
        }
    }
}

// Scale (E8M0), codes.
XP_DEVICE void dequantise_mxfp4(const std::byte* source, float* destination, uint64_t n) {
    for (uint64_t i = 0; i < n; i += 32, source += 17, destination += 32) {
        const float scale = half_of_e8m0(static_cast<uint8_t>(source[0]));
        for (int j = 0; j < 32; ++j) {
            destination[j] = scale * static_cast<float>(kE2M1Doubled[nibble(source + 1, j)]);
        }
    }
}

// Four scales (E4M3), each for 16 elements whose codes are 8 bytes: low nibbles, then high ones.
XP_DEVICE void dequantise_nvfp4(const std::byte* source, float* destination, uint64_t n) {
    for (uint64_t i = 0; i < n; i += 64, source += 36) {
        for (int group = 0; group < 4; ++group, destination += 16) {
            const float scale = half_of_e4m3(static_cast<uint8_t>(source[group]));
            const std::byte* codes = source + 4 + 8 * group;
            for (int j = 0; j < 8; ++j) {
                const int byte = static_cast<int>(codes[j]);
                destination[j] = scale * static_cast<float>(kE2M1Doubled[byte & 15]);
                destination[j + 8] = scale * static_cast<float>(kE2M1Doubled[byte >> 4]);
            }
        }
    }
}
