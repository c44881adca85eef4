// Every weight type through matmul, matmul_grouped, embed and experts, against sums in double over
// the dequantised values: one row and many, odd sizes, both storage layouts.
#include "tests/engine/operators_fixture.h"

namespace xp::test {
namespace {

class OperatorTypes : public OperatorsFixture,
                      public testing::TestWithParam<std::tuple<BackendUnderTest, GgmlType>> {
protected:
    void SetUp() override { open_backend(std::get<0>(GetParam())); }

    static GgmlType type() { return std::get<1>(GetParam()); }
    static uint32_t block() { return traits_of(type()).block_elements; }
    static std::vector<StorageLayout> layouts() {
        std::vector<StorageLayout> all = {StorageLayout::kGgml};
        if (layout_supported(type(), StorageLayout::kSplit)) all.push_back(StorageLayout::kSplit);
        return all;
    }
    // Columns that are whole blocks, and for types without blocks, none of a vector.
    static uint32_t columns() { return block() == 1 ? 83 : 3 * block(); }

    // Multiplies `n` random rows, and compares samples all over, and the ends.
    void check_matmul(const HostMatrix& m, uint32_t n) {
        const uint32_t rows = m.shape.rows, cols = m.shape.cols;
        SCOPED_TRACE(fmt::format("{}×{} {}, {} rows", rows, cols, layout_name(m.shape.layout), n));
        const auto w = device(m.stored);
        const auto x = normal(uint64_t{n} * cols);
        const auto x_device = device(x);
        const auto y_device = poisoned(uint64_t{n} * rows);
        ops_->matmul(m.at(w.data()), x_device.data(), n, y_device.data());
        const std::vector<float> y = y_device.host();
        ASSERT_FALSE(has_nan(y));
        for (uint32_t i = 0; i < 24; ++i) {
            const uint32_t row = i == 0 ? rows - 1 : i == 1 ? 0 : random_() % rows;
            const uint32_t column = i == 0 ? n - 1 : random_() % n;
            const auto expected = m.product(row, &x[uint64_t{column} * cols]);
            ASSERT_NEAR(y[uint64_t{column} * rows + row], expected.value, expected.tolerance)
                << "output " << row << " of row " << column;
        }
    }

    // All outputs of a block-diagonal product.
    void check_grouped(const HostMatrix& m, uint32_t groups, uint32_t n) {
        const uint32_t rows = m.shape.rows, cols = m.shape.cols;
        SCOPED_TRACE(fmt::format("{} groups, {} rows", groups, n));
        const auto w = device(m.stored);
        const auto x = normal(uint64_t{n} * groups * cols);
        const auto x_device = device(x);
        const auto y_device = poisoned(uint64_t{n} * rows);
        ops_->matmul_grouped(m.at(w.data()), groups, x_device.data(), n, y_device.data());
        const std::vector<float> y = y_device.host();
        for (uint32_t c = 0; c < n; ++c) {
            for (uint32_t row = 0; row < rows; ++row) {
                const float* input = &x[(uint64_t{c} * groups + row / (rows / groups)) * cols];
                const auto expected = m.product(row, input);
                ASSERT_NEAR(y[c * rows + row], expected.value, expected.tolerance)
                    << "output " << row << " of row " << c;
            }
        }
    }
};
class OperatorUsualTypes : public OperatorTypes {};

const auto kTypeTestName = [](const auto& info) {
    return std::get<0>(info.param).name + "_" + traits_of(std::get<1>(info.param)).name;
};
INSTANTIATE_TEST_SUITE_P(Backend, OperatorTypes,
                         testing::Combine(testing::ValuesIn(backends_under_test()),
                                          testing::ValuesIn(weight_types())),
                         kTypeTestName);
INSTANTIATE_TEST_SUITE_P(Backend, OperatorUsualTypes,
                         testing::Combine(testing::ValuesIn(backends_under_test()),
                                          testing::ValuesIn(usual_types())),
                         kTypeTestName);

TEST_P(OperatorTypes, MatmulAndGroupedMatmul) {
    for (const StorageLayout layout : layouts()) {
        const HostMatrix few = matrix(type(), 7, columns(), layout);
        for (const uint32_t n : {1u, 2u, 3u, 5u, 8u, 9u, 33u}) {
            ASSERT_NO_FATAL_FAILURE(check_matmul(few, n));
        }
        // One block, or one value, each way.
        ASSERT_NO_FATAL_FAILURE(check_matmul(matrix(type(), 1, block(), layout), 1));
        const HostMatrix even = matrix(type(), 130, block() == 1 ? 512 : 2 * block(), layout);
        const HostMatrix odd = matrix(type(), 1001, columns(), layout);
        for (const uint32_t n : {1u, 9u}) {
            ASSERT_NO_FATAL_FAILURE(check_matmul(even, n));
            ASSERT_NO_FATAL_FAILURE(check_matmul(odd, n));
        }
        const HostMatrix grouped = matrix(type(), 15, columns(), layout);
        for (const uint32_t n : {1u, 12u}) {
            ASSERT_NO_FATAL_FAILURE(check_grouped(grouped, 3, n));
        }
    }
}

// Each way of multiplying once, with few and with many rows, and no more: for tools that make
// kernels a hundred times slower.
TEST_P(OperatorUsualTypes, ReducedProductsOfFewAndManyRows) {
    for (const StorageLayout layout : layouts()) {
        const HostMatrix m = matrix(type(), 35, block() == 1 ? 160 : 2 * block(), layout);
        for (const uint32_t n : {1u, 3u, 40u}) ASSERT_NO_FATAL_FAILURE(check_matmul(m, n));
        ASSERT_NO_FATAL_FAILURE(check_matmul(matrix(type(), 3, columns(), layout), 2));
        const HostMatrix grouped = matrix(type(), 6, block() == 1 ? 64 : block(), layout);
        for (const uint32_t n : {1u, 20u}) ASSERT_NO_FATAL_FAILURE(check_grouped(grouped, 2, n));
    }
}

TEST_P(OperatorUsualTypes, MatmulOfLongRows) {
    for (const StorageLayout layout : layouts()) {
        // A little more than a power of two, so that there is a last, partial piece.
        const HostMatrix m = matrix(type(), 33, 8192 + (block() == 1 ? 37 : block()), layout);
        for (const uint32_t n : {1u, 5u, 33u}) ASSERT_NO_FATAL_FAILURE(check_matmul(m, n));
    }
}

// As a layer makes all that it needs of x: several matrices, not all of one type or height.
TEST_P(OperatorUsualTypes, SeveralProductsOfTheSameRowsAreThoseAlone) {
    const uint32_t cols = block() == 1 ? 1000 : 4 * block();
    for (const StorageLayout layout : layouts()) {
        std::vector<HostMatrix> matrices;
        for (const uint32_t rows : {1536u, 7u, 512u, 1u, 64u}) {
            matrices.push_back(matrix(type(), rows, cols, layout));
        }
        matrices.insert(matrices.begin() + 2, matrix(GgmlType::kF16, 100, cols));
        for (const uint32_t n : {1u, 2u, 4u, 33u}) {
            SCOPED_TRACE(n);
            const auto x = device(normal(uint64_t{n} * cols));
            std::vector<DeviceVector<std::byte>> weights;
            std::vector<DeviceVector<float>> together;
            std::vector<Product> products;
            for (const HostMatrix& m : matrices) {
                weights.push_back(device(m.stored));
                together.push_back(poisoned(uint64_t{n} * m.shape.rows));
                products.push_back({m.at(weights.back().data()), together.back().data()});
            }
            ops_->matmuls(products, x.data(), n);
            for (size_t i = 0; i < matrices.size(); ++i) {
                const auto alone = poisoned(uint64_t{n} * matrices[i].shape.rows);
                ops_->matmul(products[i].w, x.data(), n, alone.data());
                const auto values = together[i].host();
                ASSERT_FALSE(has_nan(values)) << i;
                ASSERT_TRUE(same_bits(values, alone.host())) << i;
            }
        }
    }
}

// With a weight and without, one row and several, of dimensions that kernels norm themselves and of
// others.
TEST_P(OperatorUsualTypes, NormedProductsAreThoseOfTheNorm) {
    const uint32_t step = block() == 1 ? 8 : block();
    for (const StorageLayout layout : layouts()) {
        for (const uint32_t cols : {step * 2, 1024 / step * step, 4096 / step * step + step}) {
            const HostMatrix m = matrix(type(), 70, cols, layout);
            const HostMatrix other = matrix(GgmlType::kF16, 9, cols);
            const auto weights = device(m.stored), other_weights = device(other.stored);
            const auto norm = device(normal(cols));
            for (const uint32_t n : {1u, 3u}) {
                for (const float* weight : {static_cast<const float*>(nullptr),
                                            static_cast<const float*>(norm.data())}) {
                    SCOPED_TRACE(testing::Message() << n << " rows of " << cols);
                    const auto host_x = normal(uint64_t{n} * cols);
                    const auto x = device(host_x), normed = poisoned(uint64_t{n} * cols);
                    ops_->rms_norm(x.data(), weight, 1e-6f, n, cols, normed.data());
                    const auto want = poisoned(n * 70), want_other = poisoned(n * 9);
                    ops_->matmul(m.at(weights.data()), normed.data(), n, want.data());
                    ops_->matmul(other.at(other_weights.data()), normed.data(), n,
                                 want_other.data());
                    const auto y = poisoned(n * 70), y_other = poisoned(n * 9);
                    const Product products[] = {{m.at(weights.data()), y.data()},
                                                {other.at(other_weights.data()), y_other.data()}};
                    ops_->normed_matmuls(products, x.data(), weight, 1e-6f, n);
                    ASSERT_FALSE(has_nan(y.host()));
                    ASSERT_TRUE(same_bits(y.host(), want.host()));
                    ASSERT_TRUE(same_bits(y_other.host(), want_other.host()));
                }
            }
        }
    }
}

// Clamped above, and on both sides: limits well within the products.
TEST_P(OperatorUsualTypes, GatedProductsAreActivatedAndClamped) {
    const uint32_t cols = block() == 1 ? 83 : 2 * block(), rows = 130;
    for (const StorageLayout layout : layouts()) {
        const HostMatrix gate = matrix(type(), rows, cols, layout);
        for (const GgmlType other : {type(), GgmlType::kF32}) {
            const HostMatrix up = matrix(other, rows, cols, other == type() ? layout
                                                                          : StorageLayout::kGgml);
            const auto gate_device = device(gate.stored), up_device = device(up.stored);
            for (const uint32_t n : {1u, 3u, 20u}) {
                SCOPED_TRACE(n);
                const auto x = normal(n * cols);
                double largest = 0;
                for (uint32_t r = 0; r < rows; ++r) {
                    largest = std::max(largest, std::fabs(up.product(r, x.data()).value));
                }
                const auto limit = static_cast<float>(largest / 3);
                const auto x_device = device(x), y_device = poisoned(n * rows);
                ops_->matmul_gated(gate.at(gate_device.data()), up.at(up_device.data()),
                                   x_device.data(), n, {.limit = limit},
                                   y_device.data());
                const auto y = y_device.host();
                for (uint32_t c = 0; c < n; ++c) {
                    for (uint32_t r = c % 3; r < rows; r += 3) {
                        const auto a = gate.product(r, &x[c * cols]);
                        const auto b = up.product(r, &x[c * cols]);
                        const double g = std::min<double>(a.value, limit);
                        const double u = std::clamp<double>(b.value, -limit, limit);
                        const double tolerance = 1e-5 + 2 * a.tolerance * std::fabs(u) +
                                                 2 * b.tolerance * std::fabs(g);
                        ASSERT_NEAR(y[c * rows + r], g * sigmoid(g) * u, tolerance)
                            << "output " << r << " of row " << c;
                    }
                }
            }
        }
    }
}

// The three matrices of an expert have different types; all of them lie in one object.
TEST_P(OperatorTypes, EmbeddingAndExpertsOfMixedTypes) {
    const uint32_t vocab = 11, cols = columns(), streams = 2;
    const HostMatrix table = matrix(type(), vocab, cols);
    const std::vector<TokenId> tokens = {10, 0, 10, 4};
    const auto state_device = poisoned(tokens.size() * streams * cols);
    ops_->embed(table.at(table.stored.data()), tokens, streams, state_device.data());
    const std::vector<float> state = state_device.host();
    for (size_t i = 0; i < tokens.size() * streams; ++i) {
        const auto token = static_cast<uint64_t>(tokens[i / streams]);
        ASSERT_TRUE(same_bits(slice(state, i * cols, cols),
                              slice(table.values, token * cols, cols))) << i;
    }

    const auto types = weight_types();
    const size_t own = static_cast<size_t>(
        std::find(types.begin(), types.end(), type()) - types.begin());
    const uint32_t dim = 512, ffn = 256, n = 13;
    const HostMatrix gate = matrix(type(), ffn, dim);
    const HostMatrix up = matrix(types[(own + 1) % types.size()], ffn, dim);
    const HostMatrix down = matrix(types[(own + 2) % types.size()], dim, ffn);
    std::vector<std::byte> object;
    std::vector<uint64_t> offsets;
    for (const HostMatrix* m : {&gate, &up, &down}) {
        object.resize((object.size() + 63) / 64 * 64);  // a role begins so in packs
        offsets.push_back(object.size());
        object.insert(object.end(), m->stored.begin(), m->stored.end());
    }
    const auto object_device = device(object);
    const auto x = normal(n * dim);
    const auto x_device = device(x);
    const float limit = 7;
    for (const uint32_t used : {1u, n}) {
        std::vector<uint32_t> rows(used), zeros(used, 0);
        std::vector<float> weights(n, NAN);
        for (uint32_t i = 0; i < used; ++i) {
            rows[i] = n - 1 - i;
            weights[rows[i]] = 0.05f * static_cast<float>(i + 1);
        }
        const auto weights_device = device(weights);
        const ExpertWork work = {object_device.data(), rows, zeros, zeros};
        const auto out_device = poisoned(n * dim);
        ops_->experts({.gate = gate.shape, .up = up.shape, .down = down.shape,
                       .gate_offset = offsets[0], .up_offset = offsets[1],
                       .down_offset = offsets[2], .x = x_device.data(),
                       .weights = weights_device.data(),
                       .activation = {.limit = limit}, .n_slots = 1,
                       .experts = {&work, 1}, .out = out_device.data()});
        const std::vector<float> out = out_device.host();
        // All outputs of one row cost too much for each of many; these differ from row to row.
        const uint32_t step = used == 1 ? 5 : 37;
        for (uint32_t i = 0; i < used; ++i) {
            std::vector<float> mid(ffn);
            for (uint32_t f = 0; f < ffn; ++f) {
                const double g = std::min<double>(gate.product(f, &x[rows[i] * dim]).value, limit);
                const double u =
                    std::clamp<double>(up.product(f, &x[rows[i] * dim]).value, -limit, limit);
                mid[f] = static_cast<float>(g * sigmoid(g) * u * weights[rows[i]]);
            }
            for (uint32_t d = i % step; d < dim; d += step) {
                const auto expected = down.product(d, mid.data());
                ASSERT_NEAR(out[rows[i] * dim + d], expected.value, 10 * expected.tolerance)
                    << traits_of(up.shape.type).name << ", " << traits_of(down.shape.type).name;
            }
        }
    }
}

}  // namespace
}  // namespace xp::test
