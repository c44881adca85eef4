// The CPU kernels: every instruction set gives the same bits for every type, layout, size and
// number of columns, and the right ones (against double sums of the dequantised weights).
#include "daemon/engine/cpu/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "tests/gguf/random_blocks.h"

namespace xp {
namespace {

struct Kind {
    GgmlType type;
    StorageLayout layout;
};

std::vector<Kind> all_kinds() {
    std::vector<Kind> kinds;
    for (const GgmlType type : test::weight_types()) {
        for (const StorageLayout layout : {StorageLayout::kGgml, StorageLayout::kSplit}) {
            if (layout_supported(type, layout)) kinds.push_back({type, layout});
        }
    }
    return kinds;
}

class CpuKernelsTest : public testing::Test {
protected:
    void SetUp() override {
        if (best_cpu_kernels() == nullptr) GTEST_SKIP() << "no AVX2 here";
        RecordProperty("seed", std::to_string(seed_));
        std::printf("seed %u\n", seed_);
        random_.seed(seed_);
    }

    static bool has_avx512() { return best_cpu_kernels() == &avx512_kernels(); }

    std::vector<float> random_floats(uint64_t n) {
        std::normal_distribution<float> normal;
        std::vector<float> values(n);
        for (float& v : values) v = normal(random_);
        return values;
    }

    const unsigned seed_ = std::random_device{}();
    std::mt19937 random_;
};

TEST_F(CpuKernelsTest, ProductsAreRightAndTheSameOnEveryInstructionSet) {
    for (const Kind& kind : all_kinds()) {
        const TypeTraits& traits = traits_of(kind.type);
        for (const uint32_t cols : {32u, 96u, 256u, 768u, 1000u, 17u}) {
            if (cols % traits.block_elements != 0) continue;
            for (const uint32_t rows : {1u, 3u, 4u, 9u}) {
                SCOPED_TRACE(fmt::format("{} {} {}×{}", traits.name, layout_name(kind.layout),
                                         rows, cols));
                const std::vector<std::byte> ggml =
                    test::random_blocks(kind.type, uint64_t{rows} * cols, random_);
                std::vector<std::byte> stored(ggml.size());
                const uint64_t bytes = row_bytes(kind.type, cols);
                std::vector<float> w(uint64_t{rows} * cols);
                for (uint32_t r = 0; r < rows; ++r) {
                    row_to_layout(kind.type, kind.layout, &ggml[r * bytes], &stored[r * bytes],
                                  cols);
                    traits.dequantise(&ggml[r * bytes], &w[uint64_t{r} * cols], cols);
                }
                const Weight weight = {kind.type, kind.layout, rows, cols, stored.data()};
                constexpr uint32_t kColumns = 11;
                const std::vector<float> x = random_floats(uint64_t{kColumns} * cols);
                std::vector<float> scratch(scratch_floats(cols));
                const auto product = [&](const CpuKernels& kernels, uint32_t n) {
                    // Poison: every output must be written.
                    std::vector<float> y(uint64_t{n} * rows, NAN);
                    kernels.matmul(weight, 0, rows, x.data(), cols, n, y.data(), rows,
                                   scratch.data());
                    return y;
                };
                const std::vector<float> all = product(avx2_kernels(), kColumns);
                const Weight floats = {GgmlType::kF32, StorageLayout::kGgml, rows, cols,
                                       reinterpret_cast<const std::byte*>(w.data())};
                std::vector<float> same(all.size(), NAN);
                avx2_kernels().matmul(floats, 0, rows, x.data(), cols, kColumns, same.data(), rows,
                                      scratch.data());
                ASSERT_EQ(std::memcmp(same.data(), all.data(), all.size() * 4), 0)
                    << "differs from the same values stored as F32";
                for (uint32_t c = 0; c < kColumns; ++c) {
                    for (uint32_t r = 0; r < rows; ++r) {
                        double sum = 0, magnitude = 0;
                        for (uint32_t i = 0; i < cols; ++i) {
                            const double term =
                                double{w[uint64_t{r} * cols + i]} * x[uint64_t{c} * cols + i];
                            sum += term;
                            magnitude += std::fabs(term);
                        }
                        ASSERT_NEAR(all[c * rows + r], sum, 1e-6 * magnitude + 1e-30);
                    }
                }
                for (uint32_t n = 1; n <= kColumns; ++n) {
                    const std::vector<float> few = product(avx2_kernels(), n);
                    ASSERT_EQ(std::memcmp(few.data(), all.data(), few.size() * 4), 0)
                        << n << " columns differ from " << kColumns;
                    if (!has_avx512()) continue;
                    const std::vector<float> wide = product(avx512_kernels(), n);
                    ASSERT_EQ(std::memcmp(wide.data(), few.data(), few.size() * 4), 0)
                        << "AVX-512 differs from AVX2 for " << n << " columns";
                }
            }
        }
    }
}

TEST_F(CpuKernelsTest, VectorHelpersAreRightAndTheSameOnEveryInstructionSet) {
    for (const uint64_t n : {1u, 7u, 15u, 16u, 17u, 64u, 511u}) {
        SCOPED_TRACE(n);
        const std::vector<float> a = random_floats(n);
        const std::vector<float> b = random_floats(n);
        double sum = 0;
        for (uint64_t i = 0; i < n; ++i) sum += double{a[i]} * b[i];
        const float dot = avx2_kernels().dot(a.data(), b.data(), n);
        EXPECT_NEAR(dot, sum, 1e-5 * std::sqrt(static_cast<double>(n)));
        std::vector<float> y = b;
        avx2_kernels().axpy(0.3f, a.data(), y.data(), n);
        for (uint64_t i = 0; i < n; ++i) EXPECT_EQ(y[i], std::fma(0.3f, a[i], b[i]));
        std::vector<uint16_t> halves(n);
        std::vector<float> back(n);
        avx2_kernels().float_to_half_row(a.data(), halves.data(), n);
        avx2_kernels().half_to_float_row(halves.data(), back.data(), n);
        for (uint64_t i = 0; i < n; ++i) {
            EXPECT_EQ(halves[i], float_to_half(a[i]));
            EXPECT_EQ(back[i], half_to_float(halves[i]));
        }
        if (!has_avx512()) continue;
        EXPECT_EQ(avx512_kernels().dot(a.data(), b.data(), n), dot);
        std::vector<float> z = b;
        avx512_kernels().axpy(0.3f, a.data(), z.data(), n);
        EXPECT_EQ(z, y);
        std::vector<uint16_t> wide(n);
        avx512_kernels().float_to_half_row(a.data(), wide.data(), n);
        EXPECT_EQ(wide, halves);
    }
}

}  // namespace
}  // namespace xp
