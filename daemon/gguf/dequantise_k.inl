// Super-blocks of 256 elements with scales of their own inside (K-quants), and the ternary types,
// which share their two-bit layout.
// Included by dequantise.cc, inside a namespace.

namespace {

// Two-bit codes: 32 bytes serve 128 elements, bit pair k of byte l is element 32·k + l.
XP_DEVICE int two_bits(const std::byte* codes, int element) {
    return byte_at(codes, element / 128 * 32 + element % 32) >> 2 * (element % 128 / 32) & 3;
}

// Four-bit codes: 32 bytes serve 64 elements, the low nibbles the first 32 of them.
XP_DEVICE int four_bits(const std::byte* codes, int element) {
    return byte_at(codes, element / 64 * 32 + element % 32) >> 4 * (element / 32 % 2) & 15;
}

// One more bit per element in 32 bytes: bit k of byte l is element 32·k + l.
XP_DEVICE int one_bit(const std::byte* bits, int element) {
    return byte_at(bits, element % 32) >> element / 32 & 1;
}

struct ScaleAndMinimum {
    int scale, minimum;
};

// Eight pairs of six bits in twelve bytes. The first four pairs have a byte each for scale and
// minimum; the others have their low bits in the last four bytes and their high bits in the two
// bits that the first eight bytes have left.
XP_DEVICE ScaleAndMinimum six_bit_pair(const std::byte* packed, int i) {
    if (i < 4) return {byte_at(packed, i) & 63, byte_at(packed, i + 4) & 63};
    return {(byte_at(packed, i + 4) & 15) | byte_at(packed, i - 4) >> 6 << 4,
            byte_at(packed, i + 4) >> 4 | byte_at(packed, i) >> 6 << 4};
}

// Sixteen six-bit scales with an offset of 32: nibbles in eight bytes, high bits in four more.
XP_DEVICE int six_bit_scale(const std::byte* packed, int i) {
    const int low = byte_at(packed, i % 8) >> 4 * (i / 8) & 15;
    const int high = byte_at(packed, 8 + i % 4) >> 2 * (i / 4) & 3;
    return (low | high << 4) - 32;
}

}  // namespace

// Nibbles (scale, minimum) per 16 elements, two-bit codes, scales of both.
XP_DEVICE void dequantise_q2_k(const std::byte* source, float* destination, uint64_t n) {
    for (uint64_t i = 0; i < n; i += kSuperBlock, source += 84, destination += kSuperBlock) {
        const float d = load_half(source + 80);
        const float dmin = load_half(source + 82);
        for (int group = 0; group < 16; ++group) {
            const float scale = d * static_cast<float>(byte_at(source, group) & 15);
            const float minimum = dmin * static_cast<float>(byte_at(source, group) >> 4);
            for (int e = 16 * group; e < 16 * group + 16; ++e) {
                destination[e] = scale * static_cast<float>(two_bits(source + 16, e)) - minimum;
            }
        }
    }
}

// Third bits (set: no offset of 4), two-bit codes, six-bit scales per 16 elements, their scale.
XP_DEVICE void dequantise_q3_k(const std::byte* source, float* destination, uint64_t n) {
    for (uint64_t i = 0; i < n; i += kSuperBlock, source += 110, destination += kSuperBlock) {
        const float d = load_half(source + 108);
        for (int group = 0; group < 16; ++group) {
            const float scale = d * static_cast<float>(six_bit_scale(source + 96, group));
            for (int e = 16 * group; e < 16 * group + 16; ++e) {
                const int code = two_bits(source + 32, e) - 4 + 4 * one_bit(source, e);
                destination[e] = scale * static_cast<float>(code);
            }
        }
    }
}

// Scales of scales and minima, six-bit pairs per 32 elements, four-bit codes.
XP_DEVICE void dequantise_q4_k(const std::byte* source, float* destination, uint64_t n) {
    for (uint64_t i = 0; i < n; i += kSuperBlock, source += 144, destination += kSuperBlock) {
        const float d = load_half(source);
        const float dmin = load_half(source + 2);
        for (int group = 0; group < 8; ++group) {
            const ScaleAndMinimum pair = six_bit_pair(source + 4, group);
            const float scale = d * static_cast<float>(pair.scale);
            const float minimum = dmin * static_cast<float>(pair.minimum);
            for (int e = 32 * group; e < 32 * group + 32; ++e) {
                destination[e] = scale * static_cast<float>(four_bits(source + 16, e)) - minimum;
            }
        }
    }
}

// As Q4_K, with fifth bits ahead of the codes.
XP_DEVICE void dequantise_q5_k(const std::byte* source, float* destination, uint64_t n) {
    for (uint64_t i = 0; i < n; i += kSuperBlock, source += 176, destination += kSuperBlock) {
        const float d = load_half(source);
        const float dmin = load_half(source + 2);
        for (int group = 0; group < 8; ++group) {
            const ScaleAndMinimum pair = six_bit_pair(source + 4, group);
            const float scale = d * static_cast<float>(pair.scale);
            const float minimum = dmin * static_cast<float>(pair.minimum);
            for (int e = 32 * group; e < 32 * group + 32; ++e) {
                const int code = four_bits(source + 48, e) | one_bit(source + 16, e) << 4;
                destination[e] = scale * static_cast<float>(code) - minimum;
            }
        }
    }
}

// Low nibbles (64 bytes serve 128 elements: low ones the first 64), high bit pairs, signed byte
// scales per 16 elements, their scale.
XP_DEVICE void dequantise_q6_k(const std::byte* source, float* destination, uint64_t n) {
    for (uint64_t i = 0; i < n; i += kSuperBlock, source += 210, destination += kSuperBlock) {
        const float d = load_half(source + 208);
        for (int group = 0; group < 16; ++group) {
            const float scale = d * static_cast<float>(static_cast<int8_t>(source[192 + group]));
            for (int e = 16 * group; e < 16 * group + 16; ++e) {
                const int low = byte_at(source, e / 128 * 64 + e % 64) >> 4 * (e % 128 / 64) & 15;
                const int code = (low | two_bits(source + 128, e) << 4) - 32;
                destination[e] = scale * static_cast<float>(code);
            }
        }
    }
}

// Five trits per byte as a fraction of 256: trit k is the first digit after multiplying by 3^k.
// 32 bytes for elements 0..159, 16 for 160..239, and four trits of each of 4 bytes for the rest.
XP_DEVICE void dequantise_tq1_0(const std::byte* source, float* destination, uint64_t n) {
    constexpr int kPowers[] = {1, 3, 9, 27, 81};
    constexpr struct {
        int begin, end, first_byte, bytes;
    } kParts[] = {{0, 160, 0, 32}, {160, 240, 32, 16}, {240, 256, 48, 4}};
    for (uint64_t i = 0; i < n; i += kSuperBlock, source += 54, destination += kSuperBlock) {
        const float d = load_half(source + 52);
        for (const auto& part : kParts) {
            for (int e = part.begin; e < part.end; ++e) {
                const int in_part = e - part.begin;
                const int byte = byte_at(source, part.first_byte + in_part % part.bytes);
                const int trit = (byte * kPowers[in_part / part.bytes] & 255) * 3 >> 8;
                destination[e] = d * static_cast<float>(trit - 1);
            }
        }
    }
}

// Two-bit codes with an offset of 1, scale.
XP_DEVICE void dequantise_tq2_0(const std::byte* source, float* destination, uint64_t n) {
    for (uint64_t i = 0; i < n; i += kSuperBlock, source += 66, destination += kSuperBlock) {
        const float d = load_half(source + 64);
        for (int e = 0; e < 256; ++e) {
            destination[e] = d * static_cast<float>(two_bits(source, e) - 1);
        }
    }
}
