// Every weight type through every operator that takes weights, against sums in double over the
// dequantised values: one row and many, odd sizes, several threads.
#include "daemon/engine/operators.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/gguf/random_blocks.h"

namespace xp::test {
namespace {

struct Matrix {
    Weight weight;
    std::vector<std::byte> stored;
    std::vector<float> values;

    // Near enough: the sum's value, and what float sums of these terms may differ by.
    struct Product {
        double value = 0, tolerance = 1e-5;
    };
    Product product(uint32_t row, const float* x) const {
        Product sum;
        for (uint32_t i = 0; i < weight.cols; ++i) {
            const double term = double{values[uint64_t{row} * weight.cols + i]} * x[i];
            sum.value += term;
            sum.tolerance += 2e-6 * std::fabs(term);
        }
        return sum;
    }
};

class OperatorTypes : public testing::TestWithParam<GgmlType> {
protected:
    void SetUp() override {
        auto operators = make_cpu_operators(3);
        ASSERT_TRUE(operators) << operators.error().message;
        ops_ = *std::move(operators);
        std::printf("seed %u\n", seed_);
    }
    Matrix matrix(GgmlType type, uint32_t rows, uint32_t cols) {
        Matrix m;
        m.stored = random_blocks(type, uint64_t{rows} * cols, random_);
        m.values.resize(uint64_t{rows} * cols);
        traits_of(type).dequantise(m.stored.data(), m.values.data(), m.values.size());
        m.weight = {type, StorageLayout::kGgml, rows, cols, m.stored.data()};
        return m;
    }
    std::vector<float> normal(uint64_t n) {
        std::normal_distribution<float> distribution;
        std::vector<float> values(n);
        for (float& v : values) v = distribution(random_);
        return values;
    }
    static std::vector<float> poisoned(uint64_t n) { return std::vector<float>(n, NAN); }
    // Columns that are whole blocks, and for types without blocks, none of a vector.
    static uint32_t columns() {
        const uint32_t block = traits_of(GetParam()).block_elements;
        return block == 1 ? 83 : 3 * block;
    }

    std::unique_ptr<Operators> ops_;
    const unsigned seed_ = std::random_device{}();
    std::mt19937 random_{seed_};
};
INSTANTIATE_TEST_SUITE_P(Cpu, OperatorTypes, testing::ValuesIn(weight_types()),
                         [](const auto& info) { return traits_of(info.param).name; });

TEST_P(OperatorTypes, Matmul) {
    const uint32_t rows = 1001, cols = columns();
    const Matrix w = matrix(GetParam(), rows, cols);
    for (const uint32_t n : {1u, 7u, 33u}) {
        const auto x = normal(uint64_t{n} * cols);
        auto y = poisoned(uint64_t{n} * rows);
        ops_->matmul(w.weight, x.data(), n, y.data());
        // Samples all over, and the ends.
        for (uint32_t i = 0; i < 64; ++i) {
            const uint32_t row = i == 0 ? rows - 1 : i == 1 ? 0 : random_() % rows;
            const uint32_t column = i == 0 ? n - 1 : random_() % n;
            const auto expected = w.product(row, &x[column * cols]);
            ASSERT_NEAR(y[uint64_t{column} * rows + row], expected.value, expected.tolerance);
        }
        for (const float value : y) ASSERT_FALSE(std::isnan(value));
    }
}

TEST_P(OperatorTypes, GroupedMatmul) {
    const uint32_t groups = 3, per_group = 5, cols = columns();
    const Matrix w = matrix(GetParam(), groups * per_group, cols);
    for (const uint32_t n : {1u, 12u}) {
        const auto x = normal(uint64_t{n} * groups * cols);
        auto y = poisoned(uint64_t{n} * groups * per_group);
        ops_->matmul_grouped(w.weight, groups, x.data(), n, y.data());
        for (uint32_t c = 0; c < n; ++c) {
            for (uint32_t row = 0; row < groups * per_group; ++row) {
                const float* input = &x[(uint64_t{c} * groups + row / per_group) * cols];
                const auto expected = w.product(row, input);
                ASSERT_NEAR(y[c * groups * per_group + row], expected.value, expected.tolerance);
            }
        }
    }
}

TEST_P(OperatorTypes, Embedding) {
    const uint32_t vocab = 11, cols = columns(), streams = 2;
    const Matrix table = matrix(GetParam(), vocab, cols);
    const std::vector<TokenId> tokens = {10, 0, 10, 4};
    auto state = poisoned(tokens.size() * streams * cols);
    ops_->embed(table.weight, tokens, streams, state.data());
    for (size_t i = 0; i < tokens.size() * streams; ++i) {
        for (uint32_t d = 0; d < cols; ++d) {
            const auto token = static_cast<uint64_t>(tokens[i / streams]);
            ASSERT_EQ(state[i * cols + d], table.values[token * cols + d]);
        }
    }
}

// The three matrices of an expert have different types; all of them lie in one object.
TEST_P(OperatorTypes, ExpertsOfMixedTypes) {
    const auto types = weight_types();
    const size_t own = static_cast<size_t>(
        std::find(types.begin(), types.end(), GetParam()) - types.begin());
    const uint32_t dim = 512, ffn = 256, n = 13;
    const Matrix gate = matrix(GetParam(), ffn, dim);
    const Matrix up = matrix(types[(own + 1) % types.size()], ffn, dim);
    const Matrix down = matrix(types[(own + 2) % types.size()], dim, ffn);
    std::vector<std::byte> object;
    for (const Matrix* m : {&gate, &up, &down}) {
        object.insert(object.end(), m->stored.begin(), m->stored.end());
    }
    const auto x = normal(n * dim);
    const float limit = 7;
    for (const uint32_t used : {1u, n}) {
        std::vector<uint32_t> rows(used), slots(used, 0);
        std::vector<float> weights(used);
        for (uint32_t i = 0; i < used; ++i) {
            rows[i] = n - 1 - i;
            weights[i] = 0.05f * static_cast<float>(i + 1);
        }
        const ExpertWork work = {object.data(), rows, slots, weights};
        auto out = poisoned(n * dim);
        ops_->experts({.gate = gate.weight, .up = up.weight, .down = down.weight, .gate_offset = 0,
                       .up_offset = gate.stored.size(),
                       .down_offset = gate.stored.size() + up.stored.size(), .x = x.data(),
                       .limit = limit, .n_slots = 1, .experts = {&work, 1}, .out = out.data()});
        for (uint32_t i = 0; i < used; ++i) {
            std::vector<float> mid(ffn);
            for (uint32_t f = 0; f < ffn; ++f) {
                const double g = std::min<double>(gate.product(f, &x[rows[i] * dim]).value, limit);
                const double u =
                    std::clamp<double>(up.product(f, &x[rows[i] * dim]).value, -limit, limit);
                mid[f] = static_cast<float>(g / (1 + std::exp(-g)) * u * weights[i]);
            }
            for (uint32_t d = 0; d < dim; d += 5) {
                const auto expected = down.product(d, mid.data());
                ASSERT_NEAR(out[rows[i] * dim + d], expected.value, 10 * expected.tolerance)
                    << traits_of(up.weight.type).name << ", " << traits_of(down.weight.type).name;
            }
        }
    }
}

}  // namespace
}  // namespace xp::test
