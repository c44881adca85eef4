// Every type that can be computed with gives the reference's floats, bit for bit.
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/base/hash.h"
#include "daemon/gguf/iq_grids.h"
#include "daemon/gguf/types.h"
#include "tests/gguf/gguf_bytes.h"

namespace xp::test {
namespace {

const Path kGoldens = Path(XP_TEST_DATA) / "quant";
constexpr uint64_t kValues = 1024;  // of every golden

// As the files are named: "q4_K" for Q4_K, "iq2_xxs" for IQ2_XXS.
std::string file_name(std::string_view type) {
    std::string name;
    for (const char c : type) name += c == 'K' ? c : static_cast<char>(std::tolower(c));
    return name;
}

std::vector<float> dequantise(GgmlType type, const char* blocks) {
    std::vector<float> values(kValues, -1.0f);
    traits_of(type).dequantise(reinterpret_cast<const std::byte*>(blocks), values.data(), kValues);
    return values;
}

std::vector<GgmlType> golden_types() {
    std::vector<GgmlType> types;
    for (uint32_t id = 0; id < 64; ++id) {
        const auto type = type_from_id(id);
        if (type && traits_of(*type).dequantise != nullptr && traits_of(*type).block_elements > 1) {
            types.push_back(*type);
        }
    }
    return types;
}

class Golden : public testing::TestWithParam<GgmlType> {
protected:
    std::string read(const char* suffix) const {
        return read_bytes(kGoldens / (file_name(traits_of(GetParam()).name) + suffix));
    }
};
INSTANTIATE_TEST_SUITE_P(Types, Golden, testing::ValuesIn(golden_types()), [](const auto& info) {
    return std::string(traits_of(info.param).name);
});

// Blocks of random bytes reach every code, scale and sign. == on floats: the same bits, with -0
// equal to +0.
TEST_P(Golden, RandomBlocksGiveTheReferencesFloats) {
    const std::string raw = read(".raw.bin");
    const std::string expected = read(".raw_deq_f32.bin");
    ASSERT_EQ(expected.size(), kValues * sizeof(float));
    ASSERT_EQ(raw.size(), row_bytes(GetParam(), kValues));
    std::vector<float> reference(kValues);
    std::memcpy(reference.data(), expected.data(), expected.size());
    EXPECT_EQ(dequantise(GetParam(), raw.data()), reference);
    // Blocks in packs and files are not aligned.
    const std::string shifted = "x" + raw;
    EXPECT_EQ(dequantise(GetParam(), shifted.data() + 1), reference);
}

// The reference's hash of the floats of a really quantised row: FNV-1a over the bytes, from its
// own starting value.
TEST_P(Golden, QuantisedRowGivesTheReferencesFloats) {
    std::map<std::string, std::string> hashes;
    std::istringstream table(read_bytes(kGoldens / "sizes.csv"));
    for (std::string line; std::getline(table, line);) {
        hashes[line.substr(0, line.find(','))] = line.substr(line.rfind(',') + 1);
    }
    const std::string quantised = read(".q.bin");
    ASSERT_EQ(quantised.size(), row_bytes(GetParam(), kValues));
    const std::vector<float> values = dequantise(GetParam(), quantised.data());
    uint64_t hash = 1469598103934665603u;
    for (const std::byte byte : std::as_bytes(std::span(values))) {
        hash = (hash ^ static_cast<uint64_t>(byte)) * 0x100000001b3u;
    }
    EXPECT_EQ(fmt::format("{:016x}", hash), hashes[file_name(traits_of(GetParam()).name)]);
}

TEST(Dequantise, EveryTypeOfWeightsHasIt) {
    std::vector<std::string> without;
    for (uint32_t id = 0; id < 64; ++id) {
        const auto type = type_from_id(id);
        if (!type || traits_of(*type).dequantise != nullptr) continue;
        without.push_back(traits_of(*type).name);
    }
    // The first two are forms of activations that no file holds.
    EXPECT_THAT(without, testing::ElementsAre("Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"));
}

TEST(Dequantise, Mxfp4ScalesReachFromSubnormalToTheLargest) {
    std::byte block[17] = {};
    block[1] = std::byte{0x0f << 4 | 0x02};  // element 0: code 2, element 16: code 15
    float values[32];
    const auto& traits = traits_of(GgmlType::kMXFP4);
    for (int e = 0; e < 255; ++e) {
        block[0] = static_cast<std::byte>(e);
        traits.dequantise(block, values, 32);
        ASSERT_EQ(values[0], std::ldexp(2.0f, e - 128)) << e;
        ASSERT_EQ(values[16], std::ldexp(-12.0f, e - 128)) << e;
        ASSERT_EQ(values[1], 0.0f);
    }
}

TEST(Dequantise, Nvfp4ScalesAreUnsignedE4M3) {
    std::byte block[36] = {};
    block[4] = std::byte{0x02};  // element 0: code 2 = twice a half of the scale
    float values[64];
    for (int x = 0; x < 256; ++x) {
        block[0] = static_cast<std::byte>(x);
        traits_of(GgmlType::kNVFP4).dequantise(block, values, 64);
        const int exponent = x >> 3 & 15, mantissa = x & 7;
        double scale = exponent == 0 ? std::ldexp(mantissa, -9)
                                     : std::ldexp(8 + mantissa, exponent - 10);
        if ((x & 0x7f) == 0x7f) scale = 0;
        ASSERT_EQ(values[0], scale) << x;
    }
}

template <size_t Entries, size_t Width>
std::string digest(const IqGrid<Entries, Width>& grid) {
    return to_hex(sha256(std::as_bytes(std::span(grid))));
}

TEST(Codebooks, AreThoseOfTheFormat) {
    EXPECT_EQ(digest(kIq2XxsGrid),
              "05826b5d3e472a3a78f196be62ac78acf81df0f909626e12ab9fa2a5d490dd54");
    EXPECT_EQ(digest(kIq2XsGrid),
              "06e47aaca60b4dc1d9b5a3f34540437058a6b142b4d7a59d5ded769b4d1bf1de");
    EXPECT_EQ(digest(kIq2SGrid),
              "e1aa1473412b0552c2174c30ef22ab4073f6a181b85a17056e8249bd2932fd88");
    EXPECT_EQ(digest(kIq1Grid),
              "07540ffc1aeaf6ad4d97e96b0fcc765aae39671d4ae4a27bbd0e796fde167c6a");
    EXPECT_EQ(digest(kIq3XxsGrid),
              "46e35f5a997efdee6c99ce57854c8a0d4f0ff8ca57e5e8a60c0793ea580acf5d");
    EXPECT_EQ(digest(kIq3SGrid),
              "bd1af4945a1717c65610b0284e4628b9a1ba3b306fae3a06f6e5f597356e349f");
}

}  // namespace
}  // namespace xp::test
