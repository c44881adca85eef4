#include "daemon/gguf/payload.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/gguf/gguf_bytes.h"
#include "tests/gguf/random_blocks.h"

namespace xp::test {
namespace {

using testing::HasSubstr;
using testing::Optional;

TEST(Payload, FiniteBlocksOfEveryTypeAreWell) {
    std::mt19937_64 random(random_seed());
    for (const GgmlType type : weight_types()) {
        const auto blocks = random_blocks(type, 40 * traits_of(type).block_elements, random);
        EXPECT_EQ(find_payload_fault(type, blocks, 0), std::nullopt) << traits_of(type).name;
    }
}

// Infinity and NaN in every scale of every type: found in its block, wherever the blocks begin.
TEST(Payload, EveryScaleThatIsNotFiniteIsFound) {
    std::mt19937_64 random(random_seed());
    int n_scales = 0;
    for (const GgmlType type : weight_types()) {
        const TypeTraits& traits = traits_of(type);
        if (traits.block_elements == 1) continue;
        for (const size_t offset : half_scales(type)) {
            for (const uint16_t half : {0x7c00, 0xfc00, 0x7e01}) {
                auto blocks = random_blocks(type, 5 * traits.block_elements, random);
                std::memcpy(&blocks[3 * traits.block_bytes + offset], &half, 2);
                EXPECT_THAT(find_payload_fault(type, blocks, 100),
                            Optional(HasSubstr(fmt::format(
                                "block 103 (elements {} to {}) has a scale that is not finite",
                                103 * traits.block_elements, 104 * traits.block_elements - 1))))
                    << traits.name << " " << half << " at " << offset;
            }
            ++n_scales;
        }
    }
    EXPECT_EQ(n_scales, 27) << "17 types with one f16 scale, 5 with two";
}

TEST(Payload, TheFirstOfSeveralFaultsIsTold) {
    std::vector<std::byte> blocks(4 * 84);
    blocks[3 * 84 + 81] = blocks[84 + 83] = std::byte{0x7c};
    EXPECT_THAT(find_payload_fault(GgmlType::kQ2_K, blocks, 0), Optional(HasSubstr("block 1 ")));
}

TEST(Payload, OtherScalesAndFloats) {
    std::vector<std::byte> mxfp4(3 * 17);
    mxfp4[17] = std::byte{254};
    EXPECT_EQ(find_payload_fault(GgmlType::kMXFP4, mxfp4, 0), std::nullopt);
    mxfp4[17] = std::byte{255};
    EXPECT_THAT(find_payload_fault(GgmlType::kMXFP4, mxfp4, 0), Optional(HasSubstr("block 1 ")));

    std::vector<std::byte> iq1_m(56);
    for (const size_t i : {53, 55}) iq1_m[i] = std::byte{0xc0};  // top nibbles 0xc
    EXPECT_EQ(find_payload_fault(GgmlType::kIQ1_M, iq1_m, 0), std::nullopt);
    iq1_m[55] = std::byte{0x70};
    EXPECT_THAT(find_payload_fault(GgmlType::kIQ1_M, iq1_m, 9), Optional(HasSubstr("block 9 ")));

    const std::string f32 = number(1.0f) + number(0x7f800000u);
    EXPECT_THAT(find_payload_fault(GgmlType::kF32, std::as_bytes(std::span(f32)), 7),
                Optional(std::string("element 8 is not finite")));
    const std::string f64 = number(1e300) + number(0xfff0000000000001u);
    EXPECT_THAT(find_payload_fault(GgmlType::kF64, std::as_bytes(std::span(f64)), 0),
                Optional(std::string("element 1 is not finite")));
    const std::string halves = number<uint16_t>(0x7bff) + number<uint16_t>(0x7f80);
    EXPECT_THAT(find_payload_fault(GgmlType::kF16, std::as_bytes(std::span(halves)), 0),
                Optional(std::string("element 1 is not finite")));
    EXPECT_THAT(find_payload_fault(GgmlType::kBF16, std::as_bytes(std::span(halves)), 0),
                Optional(std::string("element 1 is not finite")));
    const std::string ones(64, '\xff');
    for (const GgmlType type : {GgmlType::kI8, GgmlType::kI16, GgmlType::kI32, GgmlType::kI64}) {
        EXPECT_EQ(find_payload_fault(type, std::as_bytes(std::span(ones)), 0), std::nullopt);
    }
    EXPECT_EQ(find_payload_fault(GgmlType::kNVFP4, std::as_bytes(std::span(ones).first(36)), 0),
              std::nullopt);
}

}  // namespace
}  // namespace xp::test
