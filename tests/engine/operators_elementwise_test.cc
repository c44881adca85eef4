// Conformance of memory, norms, copies, rotary positions and stored rows.
#include <cstring>
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

TEST_P(OperatorsElementwise, CopyIsTheSame) {
    for (const uint64_t n : {1u, 3u, 4u, 1000u, 70001u}) {
        const auto x = normal(n);
        const auto x_device = device(x), copied = poisoned(n);
        ops_->copy(x_device.data(), n, copied.data());
        EXPECT_TRUE(same_bits(copied.host(), x)) << n;
    }
}

struct Heads {
    uint32_t n_heads, dim, rope_dims;
    bool normed = true, weighted = false;
};

class OperatorsNormRope : public OperatorsTest {
protected:
    static double angle(uint32_t row, uint32_t i) { return 0.3 * row * (i + 1); }
    static std::vector<float> turns(uint32_t n, uint32_t rope_dims) {
        std::vector<float> cos_sin;
        for (uint32_t r = 0; r < n; ++r) {
            for (uint32_t i = 0; i < rope_dims / 2; ++i) {
                cos_sin.push_back(static_cast<float>(std::cos(angle(r, i))));
                cos_sin.push_back(static_cast<float>(std::sin(angle(r, i))));
            }
        }
        return cos_sin;
    }

    // One head's result.
    static std::vector<double> expected(const Heads& h, const float* x, const float* norm,
                                        uint32_t row) {
        const double factor = h.normed ? 1 / std::sqrt(dot(x, x, h.dim) / h.dim + 1e-6) : 1;
        std::vector<double> y(h.dim);
        for (uint32_t d = 0; d < h.dim; ++d) {
            y[d] = x[d] * factor * (h.weighted ? norm[d] : 1.0f);
        }
        for (uint32_t i = 0; i < h.rope_dims / 2; ++i) {
            double* pair = &y[h.dim - h.rope_dims + 2 * i];
            const double a = pair[0], b = pair[1];
            const double c = std::cos(angle(row, i)), s = std::sin(angle(row, i));
            pair[0] = a * c - b * s;
            pair[1] = a * s + b * c;
        }
        return y;
    }
};
XP_INSTANTIATE_FOR_BACKENDS(OperatorsNormRope);

// Several kinds of heads in one call, as a layer has them.
TEST_P(OperatorsNormRope, NormsThenTurnsTrailingPairs) {
    for (const auto& [n, kinds] :
         {std::pair{1u, std::vector<Heads>{{64, 512, 64}, {1, 512, 64, true, true},
                                           {64, 128, 64, false}}},
          {37u, std::vector<Heads>{{3, 20, 8}, {2, 22, 6, true, true}}},
          {5u, std::vector<Heads>{{1, 64, 64, false}}},
          {300u, std::vector<Heads>{{9, 30, 0, true, true}}}}) {
        SCOPED_TRACE(n);
        std::vector<std::vector<float>> x, norms;
        std::vector<DeviceVector<float>> x_device, norm_device, turns_device;
        std::vector<NormRopeArgs> args;
        for (const Heads& h : kinds) {
            x.push_back(normal(uint64_t{n} * h.n_heads * h.dim));
            norms.push_back(normal(h.dim));
            x_device.push_back(device(x.back()));
            norm_device.push_back(device(norms.back()));
            turns_device.push_back(device(turns(n, h.rope_dims)));
            args.push_back({.x = x_device.back().data(), .normed = h.normed,
                            .norm = h.weighted ? norm_device.back().data() : nullptr,
                            .epsilon = 1e-6f, .n_heads = h.n_heads, .dim = h.dim,
                            .cos_sin = turns_device.back().data(), .rope_dims = h.rope_dims});
        }
        ops_->norm_rope(args, n);
        for (size_t k = 0; k < kinds.size(); ++k) {
            const Heads& h = kinds[k];
            const auto y = x_device[k].host();
            for (uint32_t i = 0; i < n * h.n_heads; ++i) {
                const auto values = expected(h, &x[k][i * h.dim], norms[k].data(), i / h.n_heads);
                for (uint32_t d = 0; d < h.dim; ++d) {
                    ASSERT_NEAR(y[i * h.dim + d], values[d], 1e-5 * (1 + std::fabs(values[d])))
                        << "kind " << k << ", head " << i << ", " << d;
                }
                if (h.normed) continue;
                ASSERT_TRUE(same_bits(slice(y, i * h.dim, h.dim - h.rope_dims),
                                      slice(x[k], i * h.dim, h.dim - h.rope_dims)));
            }
        }
    }
}

TEST_P(OperatorsNormRope, StoresResultsInsteadWhereAsked) {
    for (const auto& h : {Heads{1, 512, 64, true, true}, Heads{3, 22, 6}}) {
        for (const KvType kv : {KvType::kF32, KvType::kF16}) {
            const uint32_t n = 6;
            const auto x = normal(n * h.n_heads * h.dim), norm = normal(h.dim);
            const auto in_place = device(x), kept = device(x), norm_device = device(norm);
            const auto turns_device = device(turns(n, h.rope_dims));
            const auto rows = poisoned<std::byte>(x.size() * kv_bytes(kv));
            NormRopeArgs args = {.x = in_place.data(), .normed = true,
                                 .norm = h.weighted ? norm_device.data() : nullptr,
                                 .epsilon = 1e-6f, .n_heads = h.n_heads, .dim = h.dim,
                                 .cos_sin = turns_device.data(), .rope_dims = h.rope_dims};
            ops_->norm_rope({&args, 1}, n);
            args.x = kept.data();
            args.stored = rows.bytes();
            args.kv = kv;
            ops_->norm_rope({&args, 1}, n);
            EXPECT_TRUE(same_bits(kept.host(), x)) << "the input was written";
            auto values = in_place.host();
            EXPECT_TRUE(same_bits(rows.host(), as_stored(values, kv))) << "not the same results";
        }
    }
}

TEST_P(OperatorsNormRope, StoredHalvesAreTheNearest) {
    std::vector<float> x = normal(16);
    x[0] = 1 + 0x1p-11f;  // halfway: to even
    x[1] = 1e6f;          // infinite as half
    x[2] = 1e-6f;         // subnormal as half
    x[3] = -0.0f;
    const auto x_device = device(x);
    const auto rows = poisoned<std::byte>(2 * x.size());
    const NormRopeArgs args = {.x = x_device.data(), .n_heads = 1, .dim = 8,
                               .stored = rows.bytes(), .kv = KvType::kF16};
    ops_->norm_rope({&args, 1}, 2);
    EXPECT_TRUE(same_bits(rows.host(), as_stored(x, KvType::kF16)));
}

TEST_P(OperatorsElementwise, EmbeddingCopiesIntoEveryStream) {
    const uint32_t vocab = 10, dim = 33, streams = 4;
    const auto table = normal(vocab * dim);
    const std::vector<TokenId> tokens = {9, 0, 3};
    const auto state_device = poisoned(tokens.size() * streams * dim);
    ops_->embed({GgmlType::kF32, StorageLayout::kGgml, vocab, dim,
                 reinterpret_cast<const std::byte*>(table.data())}, tokens, streams,
                state_device.data());
    const auto state = state_device.host();
    for (size_t r = 0; r < tokens.size() * streams; ++r) {
        const auto token = static_cast<uint64_t>(tokens[r / streams]);
        EXPECT_TRUE(same_bits(slice(state, r * dim, dim), slice(table, token * dim, dim))) << r;
    }
}

// More than goes to a device at a time.
TEST_P(OperatorsElementwise, EmbeddingOfManyLargeRows) {
    const uint32_t vocab = 5, dim = 16384, streams = 1, n = 300;
    const auto table = normal(vocab * dim);
    std::vector<TokenId> tokens(n);
    for (uint32_t i = 0; i < n; ++i) tokens[i] = static_cast<TokenId>(i * i % vocab);
    const auto state_device = poisoned(uint64_t{n} * dim);
    ops_->embed({GgmlType::kF32, StorageLayout::kGgml, vocab, dim,
                 reinterpret_cast<const std::byte*>(table.data())}, tokens, streams,
                state_device.data());
    const auto state = state_device.host();
    for (uint32_t r = 0; r < n; ++r) {
        const auto token = static_cast<uint64_t>(tokens[r]);
        ASSERT_EQ(std::memcmp(&state[uint64_t{r} * dim], &table[token * dim], dim * sizeof(float)),
                  0) << r;
    }
}

}  // namespace
}  // namespace xp::test
