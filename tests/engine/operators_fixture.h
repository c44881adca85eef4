// What the operators' conformance tests share: a backend under test, random inputs (the seed is
// printed), vectors in the backend's memory, weights of every type, and references in double.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "tests/engine/backends.h"
#include "tests/engine/device_vector.h"
#include "tests/gguf/random_blocks.h"

namespace xp::test {

inline double dot(const float* a, const float* b, uint64_t n) {
    double sum = 0;
    for (uint64_t i = 0; i < n; ++i) sum += double{a[i]} * b[i];
    return sum;
}
inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

inline bool has_nan(const std::vector<float>& values) {
    return std::any_of(values.begin(), values.end(), [](float v) { return std::isnan(v); });
}

template <class T>
std::vector<T> slice(const std::vector<T>& values, uint64_t first, uint64_t n) {
    return std::vector<T>(values.begin() + static_cast<ptrdiff_t>(first),
                          values.begin() + static_cast<ptrdiff_t>(first + n));
}

// The same bits: NaN equals NaN, 0 differs from -0.
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    if (a.size() != b.size()) return false;
    return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// A matrix as it is stored, and its values.
struct HostMatrix {
    Weight shape;  // data is null
    std::vector<std::byte> stored;
    std::vector<float> values;

    Weight at(const std::byte* data) const {
        Weight weight = shape;
        weight.data = data;
        return weight;
    }

    // The sum's value, and what float sums of these terms may differ by.
    struct Product {
        double value = 0, tolerance = 1e-5;
    };
    Product product(uint32_t row, const float* x) const {
        Product sum;
        const float* w = &values[uint64_t{row} * shape.cols];
        double magnitude = 0;
        for (uint32_t i = 0; i < shape.cols; ++i) {
            const double term = double{w[i]} * x[i];
            sum.value += term;
            magnitude += std::fabs(term);
        }
        sum.tolerance += 2e-6 * magnitude;
        return sum;
    }
};

// The types that models mostly come in, for what would take too long with all.
inline std::vector<GgmlType> usual_types() {
    return {GgmlType::kF32, GgmlType::kF16, GgmlType::kBF16, GgmlType::kQ8_0, GgmlType::kMXFP4,
            GgmlType::kQ2_K, GgmlType::kQ3_K, GgmlType::kQ4_K, GgmlType::kQ6_K};
}

class OperatorsFixture {
protected:
    // Skips the test where there is no such device.
    void open_backend(const BackendUnderTest& backend) {
        auto operators = backend.open();
        if (!operators) {
            const Error& error = operators.error();
            if (error.code == ErrorCode::kNotFound || error.code == ErrorCode::kUnsupported) {
                GTEST_SKIP() << error.message;
            }
            FAIL() << error.message;
        }
        ops_ = *std::move(operators);
        std::printf("seed %u\n", seed_);
    }

    std::vector<float> normal(uint64_t n, float deviation = 1) {
        std::normal_distribution<float> distribution(0, deviation);
        std::vector<float> values(n);
        for (float& v : values) v = distribution(random_);
        return values;
    }

    // Values whose sums of products are exact in float32, in any order.
    std::vector<float> small_integers(uint64_t n, int magnitude) {
        std::vector<float> values(n);
        for (float& v : values) {
            v = static_cast<float>(static_cast<int>(random_() % (2 * magnitude + 1)) - magnitude);
        }
        return values;
    }

    HostMatrix matrix(GgmlType type, uint32_t rows, uint32_t cols,
                      StorageLayout layout = StorageLayout::kGgml) {
        HostMatrix m;
        m.stored = random_blocks(type, uint64_t{rows} * cols, random_);
        m.values.resize(uint64_t{rows} * cols);
        traits_of(type).dequantise(m.stored.data(), m.values.data(), m.values.size());
        m.shape = {type, layout, rows, cols, nullptr};
        if (layout == StorageLayout::kGgml) return m;
        const std::vector<std::byte> ggml = m.stored;
        const uint64_t bytes = row_bytes(type, cols);
        for (uint64_t at = 0; at < ggml.size(); at += bytes) {
            row_to_layout(type, layout, &ggml[at], &m.stored[at], cols);
        }
        return m;
    }

    template <class T>
    DeviceVector<T> device(const std::vector<T>& values) {
        return DeviceVector<T>(*ops_, values);
    }
    template <class T = float>
    DeviceVector<T> poisoned(uint64_t n) {
        return DeviceVector<T>::poisoned(*ops_, n);
    }

    // Rows in their stored form; `values` become what was stored.
    static std::vector<std::byte> as_stored(std::vector<float>& values, KvType kv) {
        std::vector<std::byte> rows(values.size() * kv_bytes(kv));
        if (kv == KvType::kF32) {
            if (!rows.empty()) std::memcpy(rows.data(), values.data(), rows.size());
            return rows;
        }
        for (size_t i = 0; i < values.size(); ++i) {
            const uint16_t half = float_to_half(values[i]);
            std::memcpy(&rows[2 * i], &half, 2);
            values[i] = half_to_float(half);
        }
        return rows;
    }
    static std::vector<float> from_stored(const std::vector<std::byte>& rows, KvType kv) {
        std::vector<float> values(rows.size() / kv_bytes(kv));
        for (size_t i = 0; i < values.size(); ++i) {
            if (kv == KvType::kF32) {
                std::memcpy(&values[i], &rows[4 * i], 4);
            } else {
                uint16_t half;
                std::memcpy(&half, &rows[2 * i], 2);
                values[i] = half_to_float(half);
            }
        }
        return values;
    }

    const unsigned seed_ = std::random_device{}();
    std::mt19937 random_{seed_};
    std::unique_ptr<Operators> ops_;
};

// The base of suites that run on every backend.
class OperatorsTest : public OperatorsFixture, public testing::TestWithParam<BackendUnderTest> {
protected:
    void SetUp() override { open_backend(GetParam()); }
};

inline std::string backend_name(const testing::TestParamInfo<BackendUnderTest>& info) {
    return info.param.name;
}

}  // namespace xp::test

// Every suite of the conformance tests is instantiated by this, for all backends of the program.
#define XP_INSTANTIATE_FOR_BACKENDS(suite)                                                         \
    INSTANTIATE_TEST_SUITE_P(Backend, suite, testing::ValuesIn(test::backends_under_test()),       \
                             test::backend_name)
