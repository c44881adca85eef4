// The IQ types: codebook entries (or a non-linear table of 16 values) times scales of a 256-element
// super-block, in groups of 32 elements.
// Included by dequantise.cc, inside a namespace.

namespace {

constexpr int kGroups = 8;  // of 32 elements

XP_DEVICE int nibble_at(const std::byte* source, int i) {
    return byte_at(source, i / 2) >> 4 * (i % 2) & 15;
}

// Eight signs from seven stored ones: the eighth makes the number of minus signs even.
XP_DEVICE int with_parity(uint32_t signs) {
    return static_cast<int>(signs | static_cast<uint32_t>(std::popcount(signs) & 1) << 7);
}

// Bit j of `signs` set: element j is negative.
template <size_t Width>
XP_DEVICE void write_signed(const std::array<int8_t, Width>& values, float scale, int signs,
                  float* destination) {
    for (size_t j = 0; j < Width; ++j) {
        const int value = signs >> j & 1 ? -values[j] : values[j];
        destination[j] = scale * static_cast<float>(value);
    }
}

XP_DEVICE void write_shifted(const std::array<int8_t, 8>& values, float scale, float shift,
                   float* destination) {
    for (size_t j = 0; j < 8; ++j) {
        destination[j] = scale * (static_cast<float>(values[j]) + shift);
    }
}

XP_TABLE constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};
XP_TABLE constexpr float kIq1Shift = 0.125f;

// 16 bytes: low nibbles are elements 0..15, high ones 16..31.
XP_DEVICE void write_iq4(const std::byte* codes, float scale, float* destination) {
    for (int j = 0; j < 16; ++j) {
        destination[j] = scale * static_cast<float>(kIq4Values[byte_at(codes, j) & 15]);
        destination[j + 16] = scale * static_cast<float>(kIq4Values[byte_at(codes, j) >> 4]);
    }
}

}  // namespace

// Per group: four indices, then a word of four 7-bit signs and a 4-bit scale.
XP_DEVICE void dequantise_iq2_xxs(const std::byte* source, float* destination, uint64_t n) {
    for (uint64_t i = 0; i < n; i += kSuperBlock, source += 66) {
        const float d = load_half(source);
        for (int group = 0; group < kGroups; ++group) {
            const std::byte* indices = source + 2 + 8 * group;
            const uint32_t word = load_field<uint32_t>(indices + 4);
            const float scale = d * (0.5f + static_cast<float>(word >> 28)) * 0.25f;
            for (int l = 0; l < 4; ++l, destination += 8) {
                write_signed(kIq2XxsGrid[static_cast<size_t>(indices[l])], scale,
                             with_parity(word >> 7 * l & 127), destination);
            }
        }
    }
}

// 16-bit words of 9-bit index and 7-bit signs; 4-bit scales, one per 16 elements.
XP_DEVICE void dequantise_iq2_xs(const std::byte* source, float* destination, uint64_t n) {
    for (uint64_t i = 0; i < n; i += kSuperBlock, source += 74) {
        const float d = load_half(source);
        for (int l = 0; l < 4 * kGroups; ++l, destination += 8) {
            const uint32_t word = load_field<uint16_t>(source + 2 + 2 * l);
            const float step = static_cast<float>(nibble_at(source + 66, l / 2));
            write_signed(kIq2XsGrid[word & 511], d * (0.5f + step) * 0.25f, with_parity(word >> 9),
                         destination);
        }
    }
}

// Low bytes of the indices, all eight signs, two high bits per index, scales as in IQ2_XS.
XP_DEVICE void dequantise_iq2_s(const std::byte* source, float* destination, uint64_t n) {
    for (uint64_t i = 0; i < n; i += kSuperBlock, source += 82) {
        const float d = load_half(source);
        for (int l = 0; l < 4 * kGroups; ++l, destination += 8) {
            const int high = byte_at(source + 66, l / 4) >> 2 * (l % 4) & 3;
            const auto index = static_cast<size_t>(byte_at(source + 2, l) | high << 8);
            const float step = static_cast<float>(nibble_at(source + 74, l / 2));
            write_signed(kIq2SGrid[index], d * (0.5f + step) * 0.25f, byte_at(source + 34, l),
                         destination);
        }
    }
}

// Indices of four elements each, then per group a word as in IQ2_XXS.
XP_DEVICE void dequantise_iq3_xxs(const std::byte* source, float* destination, uint64_t n) {
    for (uint64_t i = 0; i < n; i += kSuperBlock, source += 98) {
        const float d = load_half(source);
        for (int group = 0; group < kGroups; ++group) {
            const std::byte* indices = source + 2 + 8 * group;
            const uint32_t word = load_field<uint32_t>(source + 66 + 4 * group);
            const float scale = d * (0.5f + static_cast<float>(word >> 28)) * 0.5f;
            for (int l = 0; l < 8; ++l, destination += 4) {
                const int signs = with_parity(word >> 7 * (l / 2) & 127) >> 4 * (l % 2);
                write_signed(kIq3XxsGrid[static_cast<size_t>(indices[l])], scale, signs,
                             destination);
            }
        }
    }
}

// Low bytes of the indices, their ninth bits, all eight signs, 4-bit scales, one per group.
XP_DEVICE void dequantise_iq3_s(const std::byte* source, float* destination, uint64_t n) {
    for (uint64_t i = 0; i < n; i += kSuperBlock, source += 110) {
        const float d = load_half(source);
        for (int l = 0; l < 8 * kGroups; ++l, destination += 4) {
            const int high = byte_at(source + 66, l / 8) >> l % 8 & 1;
            const auto index = static_cast<size_t>(byte_at(source + 2, l) | high << 8);
            const float scale = d * static_cast<float>(1 + 2 * nibble_at(source + 106, l / 8));
            write_signed(kIq3SGrid[index], scale, nibble_at(source + 74, l), destination);
        }
    }
}

// Low bytes of the indices, then per group a word: four times 3 high bits, 3-bit scale, shift sign.
XP_DEVICE void dequantise_iq1_s(const std::byte* source, float* destination, uint64_t n) {
    for (uint64_t i = 0; i < n; i += kSuperBlock, source += 50) {
        const float d = load_half(source);
        for (int l = 0; l < 4 * kGroups; ++l, destination += 8) {
            const int word = load_field<uint16_t>(source + 34 + 2 * (l / 4));
            const int high = word >> 3 * (l % 4) & 7;
            const auto index = static_cast<size_t>(byte_at(source + 2, l) | high << 8);
            const float scale = d * static_cast<float>(2 * (word >> 12 & 7) + 1);
            write_shifted(kIq1Grid[index], scale, word & 0x8000 ? -kIq1Shift : kIq1Shift,
                          destination);
        }
    }
}

XP_DEVICE uint16_t iq1_m_scale(const std::byte* block) {
    uint32_t half = 0;
    for (int i = 0; i < 4; ++i) {
        half |= static_cast<uint32_t>(load_field<uint16_t>(block + 48 + 2 * i) >> 12) << 4 * i;
    }
    return static_cast<uint16_t>(half);
}

// Low bytes of the indices; nibbles of 3 high bits and shift sign; four words of four 3-bit scales
// (one per 16 elements), whose top nibbles together are the f16 scale.
XP_DEVICE void dequantise_iq1_m(const std::byte* source, float* destination, uint64_t n) {
    for (uint64_t i = 0; i < n; i += kSuperBlock, source += 56) {
        const float d = half_to_float(iq1_m_scale(source));
        for (int l = 0; l < 4 * kGroups; ++l, destination += 8) {
            const int high = nibble_at(source + 32, l);
            const auto index = static_cast<size_t>(byte_at(source, l) | (high & 7) << 8);
            const int word = load_field<uint16_t>(source + 48 + 2 * (l / 8));
            const float scale = d * static_cast<float>(2 * (word >> 3 * (l % 8 / 2) & 7) + 1);
            write_shifted(kIq1Grid[index], scale, high & 8 ? -kIq1Shift : kIq1Shift, destination);
        }
    }
}

// 32-element blocks: scale (f16), codes.
XP_DEVICE void dequantise_iq4_nl(const std::byte* source, float* destination, uint64_t n) {
    for (uint64_t i = 0; i < n; i += 32, source += 18, destination += 32) {
        write_iq4(source + 2, load_half(source), destination);
    }
}

// Scale, two high bits of each group's scale, four low ones, codes.
XP_DEVICE void dequantise_iq4_xs(const std::byte* source, float* destination, uint64_t n) {
    for (uint64_t i = 0; i < n; i += kSuperBlock, source += 136) {
        const float d = load_half(source);
        const int high = load_field<uint16_t>(source + 2);
        for (int group = 0; group < kGroups; ++group, destination += 32) {
            const int scale = nibble_at(source + 4, group) | (high >> 2 * group & 3) << 4;
            write_iq4(source + 8 + 16 * group, d * static_cast<float>(scale - 32), destination);
        }
    }
}
