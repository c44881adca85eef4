// Rows of any type with random codes, signs and sub-scales, and scales that keep the values within
// about ±1: for tests that compute with them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "daemon/gguf/types.h"

namespace xp::test {

// Where the f16 scales of a block lie; none for the types that have other scales.
inline std::vector<size_t> half_scales(GgmlType type) {
    switch (type) {
        case GgmlType::kQ4_1: case GgmlType::kQ5_1: case GgmlType::kQ4_K: case GgmlType::kQ5_K:
            return {0, 2};
        case GgmlType::kQ2_K: return {80, 82};
        case GgmlType::kQ3_K: return {108};
        case GgmlType::kQ6_K: return {208};
        case GgmlType::kTQ1_0: return {52};
        case GgmlType::kTQ2_0: return {64};
        case GgmlType::kMXFP4: case GgmlType::kNVFP4: case GgmlType::kIQ1_M: return {};
        default: return {0};
    }
}

// About the largest value of a block whose f16 scales are all 1: that of all bits set, but for
// Q6_K, whose sub-scales would then be -1.
inline float reach(GgmlType type) {
    if (type == GgmlType::kQ6_K) return 128 * 32;
    std::vector<std::byte> block(traits_of(type).block_bytes, std::byte{0xff});
    for (const size_t offset : half_scales(type)) {
        const uint16_t one = 0x3c00;
        std::memcpy(&block[offset], &one, 2);
    }
    std::vector<float> values(traits_of(type).block_elements);
    traits_of(type).dequantise(block.data(), values.data(), values.size());
    float largest = 0;
    for (const float value : values) largest = std::max(largest, std::fabs(value));
    return std::max(largest, 1.0f);
}

template <class Random>
void set_scales(GgmlType type, std::byte* block, float largest, Random& random) {
    const uint64_t bits = random();
    if (type == GgmlType::kMXFP4) {
        block[0] = static_cast<std::byte>(118 + bits % 8);
    } else if (type == GgmlType::kNVFP4) {
        for (size_t i = 0; i < 4; ++i) block[i] = static_cast<std::byte>(bits >> 8 * i & 0x27);
    } else if (type == GgmlType::kIQ1_M) {
        // 0x2400 and the next halves: 1/64 and a little more, a nibble in each of four words.
        const uint32_t half = 0x2400 + static_cast<uint32_t>(bits % 256);
        for (size_t i = 0; i < 4; ++i) {
            const uint32_t low = static_cast<uint32_t>(block[49 + 2 * i]) & 15;
            block[49 + 2 * i] = static_cast<std::byte>(low | (half >> 4 * i & 15) << 4);
        }
    } else {
        for (const size_t offset : half_scales(type)) {
            std::uniform_real_distribution<float> unit(-1, 1);
            const uint16_t scale = float_to_half(unit(random) / largest);
            std::memcpy(block + offset, &scale, 2);
        }
    }
}

template <class Random>
std::vector<std::byte> random_blocks(GgmlType type, uint64_t n_elements, Random& random) {
    std::vector<std::byte> data(row_bytes(type, n_elements));
    std::uniform_real_distribution<float> unit(-1, 1);
    if (traits_of(type).block_elements == 1) {
        for (uint64_t i = 0; i < n_elements; ++i) {
            const float value = unit(random);
            uint32_t bits;
            std::memcpy(&bits, &value, 4);
            if (type == GgmlType::kF16) bits = float_to_half(value);
            if (type == GgmlType::kBF16) bits >>= 16;
            const size_t bytes = traits_of(type).block_bytes;
            std::memcpy(&data[i * bytes], &bits, std::min<size_t>(bytes, 4));
        }
        return data;
    }
    for (std::byte& byte : data) byte = static_cast<std::byte>(random());
    const float largest = reach(type);
    for (uint64_t i = 0; i < data.size(); i += traits_of(type).block_bytes) {
        set_scales(type, &data[i], largest, random);
    }
    return data;
}

// Every type that can be computed with.
inline std::vector<GgmlType> weight_types() {
    std::vector<GgmlType> types;
    for (uint32_t id = 0; id < 64; ++id) {
        const auto type = type_from_id(id);
        if (type && traits_of(*type).dequantise != nullptr) types.push_back(*type);
    }
    return types;
}

}  // namespace xp::test
