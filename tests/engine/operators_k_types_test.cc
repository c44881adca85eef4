// Types with super-blocks where their blocks are not the tame ones of the other suites: scales of
// all magnitudes, rows at any alignment that their type allows, and a grid of sizes.
#include "tests/engine/operators_fixture.h"

namespace xp::test {
namespace {

class OperatorsKTypes : public OperatorsFixture,
                        public testing::TestWithParam<std::tuple<BackendUnderTest, GgmlType>> {
protected:
    void SetUp() override { open_backend(std::get<0>(GetParam())); }

    static GgmlType type() { return std::get<1>(GetParam()); }

    // Replaces the f16 scales of some blocks by zeros, subnormals and the largest there are.
    HostMatrix with_extreme_scales(HostMatrix m) {
        constexpr uint16_t kExtremes[] = {0, 0x8000, 1, 0x8001, 0x3ff, 0x400, 0x7bff, 0xfbff};
        for (size_t at = 0; at < m.stored.size(); at += traits_of(type()).block_bytes) {
            for (const size_t offset : half_scales(type())) {
                const uint32_t choice = random_() % (3 * std::size(kExtremes));
                if (choice >= std::size(kExtremes)) continue;
                std::memcpy(&m.stored[at + offset], &kExtremes[choice], sizeof(uint16_t));
            }
        }
        traits_of(type()).dequantise(m.stored.data(), m.values.data(), m.values.size());
        return m;
    }

    // A product of `groups` blocks on the diagonal, with weights and x so many bytes and elements
    // behind what an allocation begins with; samples of the outputs.
    void check(const HostMatrix& m, uint32_t groups, uint32_t n, uint32_t weight_offset = 0,
               uint32_t x_offset = 0) {
        const uint32_t rows = m.shape.rows, cols = m.shape.cols;
        SCOPED_TRACE(fmt::format("{}×{}, {} groups, {} rows, offsets {} and {}", rows, cols, groups,
                                 n, weight_offset, x_offset));
        std::vector<std::byte> stored(weight_offset);
        stored.insert(stored.end(), m.stored.begin(), m.stored.end());
        auto x = normal(x_offset + uint64_t{n} * groups * cols);
        const auto w = device(stored);
        const auto x_device = device(x);
        const auto y_device = poisoned(uint64_t{n} * rows);
        ops_->matmul_grouped(m.at(w.data() + weight_offset), groups, x_device.data() + x_offset, n,
                             y_device.data());
        const std::vector<float> y = y_device.host();
        ASSERT_FALSE(has_nan(y));
        for (uint32_t i = 0; i < 16; ++i) {
            const uint32_t row = i == 0 ? rows - 1 : i == 1 ? 0 : random_() % rows;
            const uint32_t column = i == 0 ? n - 1 : random_() % n;
            const uint64_t at = (uint64_t{column} * groups + row / (rows / groups)) * cols;
            const auto expected = m.product(row, &x[x_offset + at]);
            ASSERT_NEAR(y[uint64_t{column} * rows + row], expected.value, expected.tolerance)
                << "output " << row << " of row " << column;
        }
    }
};

INSTANTIATE_TEST_SUITE_P(
    Backend, OperatorsKTypes,
    testing::Combine(testing::ValuesIn(backends_under_test()),
                     testing::Values(GgmlType::kQ2_K, GgmlType::kQ3_K, GgmlType::kQ4_K,
                                     GgmlType::kQ5_K, GgmlType::kQ6_K)),
    [](const auto& info) {
        return std::get<0>(info.param).name + "_" + traits_of(std::get<1>(info.param)).name;
    });

TEST_P(OperatorsKTypes, ProductsOfManySizes) {
    for (const auto& [rows, cols] : {std::pair{1u, 256u}, {7u, 512u}, {63u, 1280u}, {257u, 2048u},
                                    {2051u, 512u}}) {
        const HostMatrix m = matrix(type(), rows, cols);
        for (const uint32_t n : {1u, 2u, 3u, 5u, 8u, 33u}) {
            ASSERT_NO_FATAL_FAILURE(check(m, 1, n));
        }
    }
    // So long that a few columns cannot be kept near the processors.
    ASSERT_NO_FATAL_FAILURE(check(matrix(type(), 5, 28'672), 1, 3));
}

TEST_P(OperatorsKTypes, ScalesOfAllMagnitudes) {
    for (const auto& [rows, cols] : {std::pair{15u, 256u}, {33u, 2048u}}) {
        const HostMatrix m = with_extreme_scales(matrix(type(), rows, cols));
        for (const uint32_t n : {1u, 2u, 4u, 9u}) ASSERT_NO_FATAL_FAILURE(check(m, 1, n));
    }
}

// The sub-scales' and codes' smallest and largest values; then d is all that keeps them apart.
TEST_P(OperatorsKTypes, BlocksOfEqualBits) {
    for (const std::byte fill : {std::byte{0}, std::byte{0xff}, std::byte{0x80}}) {
        HostMatrix m = matrix(type(), 9, 768);
        const uint64_t bytes = traits_of(type()).block_bytes;
        for (uint64_t at = 0; at < m.stored.size(); at += bytes) {
            std::fill_n(m.stored.begin() + static_cast<ptrdiff_t>(at), bytes, fill);
            set_scales(type(), &m.stored[at], 4096, random_);
        }
        traits_of(type()).dequantise(m.stored.data(), m.values.data(), m.values.size());
        for (const uint32_t n : {1u, 9u}) ASSERT_NO_FATAL_FAILURE(check(m, 1, n));
    }
}

TEST_P(OperatorsKTypes, GroupsOfRows) {
    const HostMatrix m = matrix(type(), 3 * 21, 768);
    for (const uint32_t n : {1u, 2u, 5u, 33u}) ASSERT_NO_FATAL_FAILURE(check(m, 3, n));
}

// Backends may read in wide pieces where everything is aligned to them, but must not need it.
TEST_P(OperatorsKTypes, AnyAlignment) {
    const HostMatrix m = matrix(type(), 11, 512);
    for (const uint32_t n : {1u, 12u}) {
        for (const uint32_t weight_offset : {0u, 8u, 2u, 1u}) {
            for (const uint32_t x_offset : {0u, 1u, 2u}) {
                ASSERT_NO_FATAL_FAILURE(check(m, 1, n, weight_offset, x_offset));
            }
        }
    }
}

}  // namespace
}  // namespace xp::test
