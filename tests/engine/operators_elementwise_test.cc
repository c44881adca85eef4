// Conformance of memory, norms, activations, copies, rotary positions and stored rows.
#include <tuple>

#include "tests/engine/operators_fixture.h"

namespace xp::test {
namespace {

class OperatorsElementwise : public OperatorsTest {};
XP_INSTANTIATE_FOR_BACKENDS(OperatorsElementwise);

TEST_P(OperatorsElementwise, AllocatedMemoryIsZeroAndKeepsWhatIsUploaded) {
    // Twice, so that the second time memory may be what was written before.
    for (int round = 0; round < 2; ++round) {
        for (const uint64_t n : {uint64_t{1}, uint64_t{4097}, uint64_t{1} << 20}) {
            auto buffer = ops_->allocate(n, "a test");
            ASSERT_TRUE(buffer) << buffer.error().message;
            ASSERT_EQ(buffer->bytes(), n);
            std::vector<std::byte> host(n, std::byte{1});
            ops_->download(host, buffer->data());
            ASSERT_EQ(host, std::vector<std::byte>(n)) << n;
            for (size_t i = 0; i < n; ++i) host[i] = static_cast<std::byte>(1 + i % 251);
            ops_->upload(buffer->data(), host);
            std::vector<std::byte> part(n - n / 3);
            ops_->download(part, buffer->data() + n / 3);
            ASSERT_EQ(part, slice(host, n / 3, n - n / 3)) << n;
        }
    }
}

TEST_P(OperatorsElementwise, RmsNormWithAndWithoutWeightAndInPlace) {
    for (const auto& [dim, n] : {std::pair{1u, 5u}, {100u, 400u}, {512u, 130u}, {4096u, 3u},
                                 {16384u, 2u}}) {
        SCOPED_TRACE(dim);
        const auto x = normal(uint64_t{n} * dim), w = normal(dim);
        const auto x_device = device(x), w_device = device(w), in_place = device(x);
        const auto y_device = poisoned(x.size()), z_device = poisoned(x.size());
        ops_->rms_norm(x_device.data(), w_device.data(), 1e-6f, n, dim, y_device.data());
        ops_->rms_norm(x_device.data(), nullptr, 1e-6f, n, dim, z_device.data());
        ops_->rms_norm(in_place.data(), w_device.data(), 1e-6f, n, dim, in_place.data());
        const auto y = y_device.host(), z = z_device.host();
        for (uint32_t r = 0; r < n; ++r) {
            const float* row = &x[r * dim];
            const double factor = 1 / std::sqrt(dot(row, row, dim) / dim + 1e-6);
            for (uint32_t d = 0; d < dim; ++d) {
                ASSERT_NEAR(z[r * dim + d], row[d] * factor, 1e-5);
                ASSERT_NEAR(y[r * dim + d], row[d] * factor * w[d], 1e-5 * (1 + std::fabs(w[d])));
            }
        }
        EXPECT_TRUE(same_bits(in_place.host(), y));
        EXPECT_TRUE(same_bits(x_device.host(), x)) << "the input was written";
    }
}

TEST_P(OperatorsElementwise, RmsNormOfZerosIsZero) {
    const auto x = device(std::vector<float>(200, 0.0f));
    const auto y = poisoned(200);
    ops_->rms_norm(x.data(), nullptr, 1e-6f, 2, 100, y.data());
    EXPECT_EQ(y.host(), std::vector<float>(200, 0.0f));
}

TEST_P(OperatorsElementwise, CopyScaleAndAdd) {
    for (const uint64_t n : {1u, 3u, 4u, 1000u, 70001u}) {
        SCOPED_TRACE(n);
        const auto x = normal(n), y = normal(n);
        const auto x_device = device(x), sum = device(y), copied = poisoned(n);
        ops_->copy(x_device.data(), n, copied.data());
        EXPECT_TRUE(same_bits(copied.host(), x));
        ops_->add(x_device.data(), n, sum.data());
        ops_->scale(copied.data(), 0.3f, n);
        const auto added = sum.host(), scaled = copied.host();
        for (uint64_t i = 0; i < n; ++i) {
            ASSERT_EQ(added[i], x[i] + y[i]);
            ASSERT_EQ(scaled[i], x[i] * 0.3f);
        }
    }
}

TEST_P(OperatorsElementwise, SwigluClampsGateAboveAndUpOnBothSides) {
    std::vector<float> gate = {-50, -3, 0, 2, 9, 50, -200}, up = {20, -20, 1, -7, 8, 3, 1};
    for (const float v : normal(3000, 2)) {
        gate.push_back(v);
        up.push_back(-v / 2 + 1);
    }
    const auto gate_device = device(gate), up_device = device(up), y_device = poisoned(gate.size());
    ops_->swiglu(gate_device.data(), up_device.data(), 7, gate.size(), y_device.data());
    const auto y = y_device.host();
    for (size_t i = 0; i < y.size(); ++i) {
        const double g = std::min(double{gate[i]}, 7.0);
        EXPECT_NEAR(y[i], g * sigmoid(g) * std::clamp(double{up[i]}, -7.0, 7.0), 1e-5) << i;
    }
    // As the shared expert does it.
    ops_->swiglu(gate_device.data(), up_device.data(), 7, gate.size(), gate_device.data());
    EXPECT_TRUE(same_bits(gate_device.host(), y)) << "in place";
}

TEST_P(OperatorsElementwise, RopeTurnsTrailingPairsAndInverseTurnsBack) {
    for (const auto& [n, heads, dim, rope_dims] :
         {std::tuple{5u, 3u, 20u, 8u}, {3u, 64u, 512u, 64u}, {40u, 1u, 64u, 64u}}) {
        SCOPED_TRACE(dim);
        const auto original = normal(uint64_t{n} * heads * dim);
        std::vector<float> cos_sin(n * rope_dims);
        const auto angle = [](uint32_t r, uint32_t i) { return 0.3 * r * (i + 1); };
        for (uint32_t r = 0; r < n; ++r) {
            for (uint32_t i = 0; i < rope_dims / 2; ++i) {
                cos_sin[r * rope_dims + 2 * i] = static_cast<float>(std::cos(angle(r, i)));
                cos_sin[r * rope_dims + 2 * i + 1] = static_cast<float>(std::sin(angle(r, i)));
            }
        }
        const auto turns = device(cos_sin), x_device = device(original);
        ops_->rope(x_device.data(), turns.data(), n, heads, dim, rope_dims, false);
        const auto x = x_device.host();
        for (uint32_t r = 0; r < n; ++r) {
            for (uint32_t h = 0; h < heads; ++h) {
                const uint32_t base = (r * heads + h) * dim;
                ASSERT_TRUE(same_bits(slice(x, base, dim - rope_dims),
                                      slice(original, base, dim - rope_dims)));
                for (uint32_t i = 0; i < rope_dims / 2; ++i) {
                    const uint32_t at = base + dim - rope_dims + 2 * i;
                    const double c = std::cos(angle(r, i)), s = std::sin(angle(r, i));
                    ASSERT_NEAR(x[at], original[at] * c - original[at + 1] * s, 1e-5);
                    ASSERT_NEAR(x[at + 1], original[at] * s + original[at + 1] * c, 1e-5);
                }
            }
        }
        ops_->rope(x_device.data(), turns.data(), n, heads, dim, rope_dims, true);
        const auto back = x_device.host();
        for (size_t i = 0; i < back.size(); ++i) ASSERT_NEAR(back[i], original[i], 1e-5);
    }
}

TEST_P(OperatorsElementwise, StoredRowsAreTheRowsOrTheirNearestHalves) {
    for (const auto& [n, dim] : {std::pair{1u, 1u}, {3u, 7u}, {40u, 512u}}) {
        auto x = normal(uint64_t{n} * dim);
        x[0] = 1 + 0x1p-11f;  // halfway: to even
        if (x.size() > 3) {
            x[1] = 1e6f;      // infinite as half
            x[2] = 1e-6f;     // subnormal as half
            x[3] = -0.0f;
        }
        for (const KvType kv : {KvType::kF32, KvType::kF16}) {
            const auto x_device = device(x);
            const auto rows = poisoned<std::byte>(x.size() * kv_bytes(kv));
            ops_->store_rows(x_device.data(), kv, n, dim, rows.bytes());
            auto values = x;
            EXPECT_TRUE(same_bits(rows.host(), as_stored(values, kv))) << n << "×" << dim;
        }
    }
}

TEST_P(OperatorsElementwise, EmbeddingCopiesIntoEveryStream) {
    const uint32_t vocab = 10, dim = 33, streams = 4;
    const auto table = normal(vocab * dim);
    const auto table_device = device(table);
    const std::vector<TokenId> tokens = {9, 0, 3};
    const auto state_device = poisoned(tokens.size() * streams * dim);
    ops_->embed({GgmlType::kF32, StorageLayout::kGgml, vocab, dim, table_device.bytes()}, tokens,
                streams, state_device.data());
    const auto state = state_device.host();
    for (size_t r = 0; r < tokens.size() * streams; ++r) {
        const auto token = static_cast<uint64_t>(tokens[r / streams]);
        EXPECT_TRUE(same_bits(slice(state, r * dim, dim), slice(table, token * dim, dim))) << r;
    }
}

TEST_P(OperatorsElementwise, SlotsAreAddedInAscendingOrder) {
    for (const auto& [n, slots, dim] : {std::tuple{1u, 1u, 5u}, {7u, 6u, 4096u}, {33u, 8u, 130u}}) {
        const auto parts = normal(uint64_t{n} * slots * dim);
        const auto parts_device = device(parts), y_device = poisoned(n * dim);
        ops_->sum_slots(parts_device.data(), n, slots, dim, y_device.data());
        const auto y = y_device.host();
        for (uint32_t r = 0; r < n; ++r) {
            for (uint32_t d = 0; d < dim; ++d) {
                float sum = parts[r * slots * dim + d];
                for (uint32_t s = 1; s < slots; ++s) sum += parts[(r * slots + s) * dim + d];
                ASSERT_EQ(y[r * dim + d], sum);
            }
        }
    }
}

}  // namespace
}  // namespace xp::test
