// What the device's readers of K types make of stored rows, on the host: every element, once, with
// the bits that dequantisation gives; aligned loads only, and none outside of the rows (heap blocks
// of exactly their size, for the address sanitizer).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "daemon/gguf/types.h"
#include "tests/gguf/random_blocks.h"

// ---- what the device has built in --------------------------------------------------------------

#define __device__

struct uint4 {
    uint32_t x, y, z, w;
};

namespace {

// The rows that may be read; loads elsewhere, or of what is not aligned, are counted.
struct Rows {
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
    int faults = 0;
} rows_to_read;

template <class T>
T __ldg(const T* at) {
    const auto* bytes = reinterpret_cast<const std::byte*>(at);
    if (bytes < rows_to_read.begin || bytes + sizeof(T) > rows_to_read.end ||
        reinterpret_cast<uintptr_t>(at) % sizeof(T) != 0) {
        ++rows_to_read.faults;
        return {};
    }
    T value;
    std::memcpy(&value, bytes, sizeof(T));
    return value;
}
uint16_t __ushort_as_half(uint16_t bits) { return bits; }
float __half2float(uint16_t half) { return xp::half_to_float(half); }
float __uint_as_float(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}
uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
    uint32_t result = 0;
    for (int i = 0; i < 4; ++i) {
        const uint32_t from = selector >> 4 * i & 7;
        result |= static_cast<uint32_t>(bytes >> 8 * from & 0xff) << 8 * i;
    }
    return result;
}
uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift) {
    return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) >> (shift & 31));
}

}  // namespace

#include "cuda/matmul_readers_k.cuh"

namespace xp::cuda {
namespace {

using test::half_scales;
using test::random_blocks;

constexpr uint32_t kRows = 3;  // so that rows of an odd number of blocks begin at odd places

template <class Reader>
void expect_values(const std::vector<std::byte>& stored, GgmlType type, uint32_t cols) {
    std::vector<float> expected(uint64_t{kRows} * cols), values(expected.size(), NAN);
    traits_of(type).dequantise(stored.data(), expected.data(), expected.size());
    rows_to_read = {stored.data(), stored.data() + stored.size(), 0};
    ASSERT_EQ(reinterpret_cast<uintptr_t>(stored.data()) % 16, 0u);
    for (uint32_t r = 0; r < kRows; ++r) {
        for (uint32_t piece = 0; piece < cols / Reader::kElements; ++piece) {
            Reader reader;
            reader.load(stored.data() + r * row_bytes(type, cols), cols, piece);
            for (int quad = 0; quad < Reader::kElements / 4; ++quad) {
                const uint32_t at = r * cols + Reader::element(piece, quad);
                ASSERT_LE(at + 4, values.size());
                ASSERT_TRUE(std::isnan(values[at])) << "element " << at << " twice";
                reader.get4(quad, &values[at]);
            }
            // The first piece behind the row stands for no element of it.
            ASSERT_GE(Reader::element(cols / Reader::kElements, 0), cols);
        }
    }
    EXPECT_EQ(rows_to_read.faults, 0) << "loads outside of the rows, or not aligned";
    for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(values[i], expected[i]) << "element " << i % cols << " of row " << i / cols;
    }
}

struct Case {
    GgmlType type;
    std::function<void(const std::vector<std::byte>&, GgmlType, uint32_t)> expect;
};

class CudaReaders : public testing::TestWithParam<Case> {
protected:
    const unsigned seed_ = std::random_device{}();
    std::mt19937 random_{seed_};
};

const Case kCases[] = {{GgmlType::kQ2_K, expect_values<Q2_KReader>},
                       {GgmlType::kQ3_K, expect_values<Q3_KReader>},
                       {GgmlType::kQ4_K, expect_values<Q4_KReader>},
                       {GgmlType::kQ6_K, expect_values<Q6_KReader>}};
INSTANTIATE_TEST_SUITE_P(Types, CudaReaders, testing::ValuesIn(kCases), [](const auto& info) {
    return std::string(traits_of(info.param.type).name);
});

TEST_P(CudaReaders, GiveWhatDequantisationGives) {
    SCOPED_TRACE(seed_);
    const Case& test = GetParam();
    for (const uint32_t blocks : {1u, 2u, 3u, 8u, 9u}) {
        SCOPED_TRACE(blocks);
        const uint32_t cols = 256 * blocks;
        auto stored = random_blocks(test.type, uint64_t{kRows} * cols, random_);
        ASSERT_NO_FATAL_FAILURE(test.expect(stored, test.type, cols));
        // Scales of all magnitudes: any finite half, and the largest, smallest, and zeros.
        for (size_t at = 0; at < stored.size(); at += traits_of(test.type).block_bytes) {
            for (const size_t offset : half_scales(test.type)) {
                constexpr uint16_t kExtremes[] = {0, 0x8000, 1, 0x8001, 0x3ff, 0x7bff, 0xfbff};
                const uint32_t choice = random_() % 14;
                const uint16_t half = choice < std::size(kExtremes)
                                          ? kExtremes[choice]
                                          : static_cast<uint16_t>(random_() & 0xbfff);
                std::memcpy(&stored[at + offset], &half, 2);
            }
        }
        ASSERT_NO_FATAL_FAILURE(test.expect(stored, test.type, cols));
    }
}

}  // namespace
}  // namespace xp::cuda
