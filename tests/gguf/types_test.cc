#include "daemon/gguf/types.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/gguf/gguf_bytes.h"

namespace xp::test {
namespace {

using testing::HasSubstr;

TEST(Traits, SizesAreThoseOfTheFormat) {
    std::istringstream table(read_bytes(Path(XP_TEST_DATA) / "quant/sizes.csv"));
    std::string line;
    std::getline(table, line);
    int n_types = 0;
    while (std::getline(table, line)) {
        std::replace(line.begin(), line.end(), ',', ' ');
        std::istringstream row(line);
        std::string name;
        uint32_t id = 0, block = 0, bytes = 0;
        row >> name >> id >> block >> bytes;
        const auto type = type_from_id(id);
        ASSERT_TRUE(type) << name;
        const TypeTraits& traits = traits_of(*type);
        std::string lower;
        for (const char* c = traits.name; *c != 0; ++c) lower += static_cast<char>(tolower(*c));
        std::string wanted;
        for (const char c : name) wanted += static_cast<char>(tolower(c));
        EXPECT_EQ(lower, wanted);
        EXPECT_EQ(traits.block_elements, block) << name;
        EXPECT_EQ(traits.block_bytes, bytes) << name;
        ++n_types;
    }
    EXPECT_GE(n_types, 25);
    EXPECT_EQ(row_bytes(GgmlType::kQ8_1, 64), 72u);
    EXPECT_EQ(row_bytes(GgmlType::kQ8_K, 256), 292u);
    EXPECT_EQ(row_bytes(GgmlType::kF64, 3), 24u);
}

TEST(Traits, EveryIdEitherHasARowOrAReason) {
    int n_types = 0;
    for (uint32_t id = 0; id < 50; ++id) {
        const auto type = type_from_id(id);
        if (!type) {
            const bool gone =
                id == 4 || id == 5 || (id >= 31 && id <= 33) || (id >= 36 && id <= 38);
            EXPECT_STREQ(unknown_type_reason(id), gone ? "removed from the format" : "unknown");
            continue;
        }
        ++n_types;
        const TypeTraits& traits = traits_of(*type);
        EXPECT_EQ(static_cast<uint32_t>(traits.type), id);
        EXPECT_EQ(type_from_name(traits.name), type);
    }
    EXPECT_EQ(n_types, 35);
    EXPECT_THAT(unknown_type_reason(137), HasSubstr("ik_llama.cpp"));
    EXPECT_STREQ(unknown_type_reason(UINT32_MAX), "unknown");
    EXPECT_FALSE(type_from_name("Q9_Z"));
    EXPECT_FALSE(type_from_id(UINT32_MAX));
}

double half_by_definition(uint16_t half) {
    const int exponent = half >> 10 & 31;
    const int mantissa = half & 1023;
    const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24)
                                           : std::ldexp(1024 + mantissa, exponent - 25);
    return half & 0x8000 ? -magnitude : magnitude;
}

TEST(Half, EveryFiniteHalfConvertsExactlyAndBack) {
    for (uint32_t h = 0; h < 0x10000; ++h) {
        const uint16_t half = static_cast<uint16_t>(h);
        if ((half & 0x7c00) == 0x7c00) continue;
        const float value = half_to_float(half);
        ASSERT_EQ(value, static_cast<float>(half_by_definition(half))) << h;
        ASSERT_EQ(std::signbit(value), (half & 0x8000) != 0) << h;
        ASSERT_EQ(float_to_half(value), half);
    }
}

// Between two neighbours, everything below the middle goes down, above goes up, the middle to the
// even one. The last step goes from the largest half to infinity.
TEST(Half, RoundsToNearestEven) {
    for (uint16_t half = 0; half < 0x7c00; ++half) {
        const double low = half_by_definition(half);
        const double high = half == 0x7bff ? 65536.0 : half_by_definition(half + 1);
        const float middle = static_cast<float>((low + high) / 2);
        ASSERT_EQ(float_to_half(middle), half % 2 == 0 ? half : half + 1) << half;
        ASSERT_EQ(float_to_half(std::nextafter(middle, 0.0f)), half) << half;
        ASSERT_EQ(float_to_half(std::nextafter(middle, 1e9f)), half + 1) << half;
        ASSERT_EQ(float_to_half(-std::nextafter(middle, 1e9f)), (half + 1) | 0x8000) << half;
    }
}

TEST(Half, InfinityAndNanStay) {
    const float infinity = std::numeric_limits<float>::infinity();
    EXPECT_EQ(half_to_float(0x7c00), infinity);
    EXPECT_EQ(half_to_float(0xfc00), -infinity);
    for (const uint16_t nan : {0x7c01, 0x7e00, 0xffff}) EXPECT_TRUE(std::isnan(half_to_float(nan)));
    EXPECT_EQ(float_to_half(infinity), 0x7c00);
    EXPECT_EQ(float_to_half(-1e30f), 0xfc00);
    EXPECT_EQ(float_to_half(std::numeric_limits<float>::quiet_NaN()), 0x7e00);
}

TEST(Floats, F16Bf16AndF32RowsConvert) {
    const uint16_t halves[] = {0x3c00, 0xc000, 0x0001};
    const uint16_t brains[] = {0x3f80, 0xc000, 0x0001};
    const float floats[] = {1.0f, -2.0f, 1e-40f};
    float values[3];
    traits_of(GgmlType::kF16).dequantise(reinterpret_cast<const std::byte*>(halves), values, 3);
    EXPECT_THAT(values, testing::ElementsAre(1.0f, -2.0f, 0x1p-24f));
    traits_of(GgmlType::kBF16).dequantise(reinterpret_cast<const std::byte*>(brains), values, 3);
    EXPECT_THAT(values, testing::ElementsAre(1.0f, -2.0f, std::bit_cast<float>(0x00010000)));
    traits_of(GgmlType::kF32).dequantise(reinterpret_cast<const std::byte*>(floats), values, 3);
    EXPECT_THAT(values, testing::ElementsAreArray(floats));
}

TEST(Layout, NamesAndSupport) {
    for (const StorageLayout layout : {StorageLayout::kGgml, StorageLayout::kSplit}) {
        EXPECT_EQ(layout_from_name(layout_name(layout)), layout);
    }
    EXPECT_FALSE(layout_from_name("spilt"));
    EXPECT_TRUE(layout_supported(GgmlType::kMXFP4, StorageLayout::kSplit));
    EXPECT_TRUE(layout_supported(GgmlType::kQ8_0, StorageLayout::kSplit));
    EXPECT_FALSE(layout_supported(GgmlType::kQ4_0, StorageLayout::kSplit));
    EXPECT_TRUE(layout_supported(GgmlType::kQ2_K, StorageLayout::kGgml));
}

TEST(Layout, SplitPutsCodesFirstAndScalesLast) {
    std::string row;
    for (int block = 0; block < 3; ++block) {
        row += static_cast<char>('A' + block) + std::string(16, static_cast<char>('a' + block));
    }
    std::string stored(row.size(), '\0');
    row_to_layout(GgmlType::kMXFP4, StorageLayout::kSplit,
                  reinterpret_cast<const std::byte*>(row.data()),
                  reinterpret_cast<std::byte*>(stored.data()), 96);
    EXPECT_EQ(stored, std::string(16, 'a') + std::string(16, 'b') + std::string(16, 'c') + "ABC");

    row = "AA" + std::string(32, 'a') + "BC" + std::string(32, 'b');
    stored = std::string(row.size(), '\0');
    row_to_layout(GgmlType::kQ8_0, StorageLayout::kSplit,
                  reinterpret_cast<const std::byte*>(row.data()),
                  reinterpret_cast<std::byte*>(stored.data()), 64);
    EXPECT_EQ(stored, std::string(32, 'a') + std::string(32, 'b') + "AABC");
}

TEST(Layout, EveryLayoutIsReversible) {
    std::mt19937_64 random(random_seed());
    for (const GgmlType type : {GgmlType::kMXFP4, GgmlType::kQ8_0}) {
        for (const StorageLayout layout : {StorageLayout::kGgml, StorageLayout::kSplit}) {
            for (const uint64_t n : {32u, 64u, 2048u, 4096u, 7168u}) {
                std::vector<std::byte> row(row_bytes(type, n));
                for (std::byte& byte : row) byte = static_cast<std::byte>(random());
                std::vector<std::byte> stored(row.size()), back(row.size());
                row_to_layout(type, layout, row.data(), stored.data(), n);
                row_from_layout(type, layout, stored.data(), back.data(), n);
                EXPECT_EQ(back, row) << traits_of(type).name << layout_name(layout) << " " << n;
            }
        }
    }
}

TEST(TypesDeathTest, ProgrammingFaultsAbort) {
    EXPECT_DEATH(traits_of(static_cast<GgmlType>(4)), "assertion failed");
    EXPECT_DEATH(row_bytes(GgmlType::kMXFP4, 33), "assertion failed");
    std::byte block[34];
    EXPECT_DEATH(row_to_layout(GgmlType::kQ4_0, StorageLayout::kSplit, block, block, 32),
                 "assertion failed");
}

}  // namespace
}  // namespace xp::test
