// Conformance of the compressors and of the indexer that picks among their rows.
#include <numeric>

#include "tests/engine/operators_fixture.h"

namespace xp::test {
namespace {

struct CompressorShape {
    uint32_t factor = 1, ratio = 4, dim = 10, rope_dims = 4;
    KvType kv = KvType::kF32;
    std::vector<double> frequencies = {1.0, 0.1};
};

class OperatorsCompressor : public OperatorsTest {
protected:
    // One sequence from `start`, a multiple of the ratio, with nothing before it.
    struct Sequence {
        uint64_t start = 0;
        uint32_t n = 0;
        std::vector<float> keys, gates;
        DeviceVector<float> key_buffer, gate_buffer;
        DeviceVector<std::byte> compressed;
    };

    Sequence sequence(const CompressorShape& s, uint64_t start, uint32_t n) {
        const uint64_t slots = uint64_t{s.factor} * s.ratio, width = s.factor * s.dim;
        return {start, n, normal(n * width), normal(n * width, 2),
                device(std::vector<float>(slots * width, 0)),
                device(std::vector<float>(slots * width, -INFINITY)),
                poisoned<std::byte>((start + n) / s.ratio * s.dim * kv_bytes(s.kv))};
    }

    // Feeds the sequences in several calls: call c takes cuts[c][i] rows of sequence i.
    void check(const CompressorShape& s, std::vector<Sequence> sequences,
               const std::vector<std::vector<uint32_t>>& cuts) {
        const uint32_t width = s.factor * s.dim;
        const auto bias = normal(s.ratio * width), norm = normal(s.dim);
        const auto bias_device = device(bias), norm_device = device(norm);
        std::vector<uint32_t> done(sequences.size(), 0);
        for (const std::vector<uint32_t>& cut : cuts) {
            std::vector<float> keys, gates;
            std::vector<CompressorSegment> segments;
            uint32_t first_row = 0;
            for (size_t i = 0; i < sequences.size(); ++i) {
                if (cut[i] == 0) continue;
                const Sequence& own = sequences[i];
                for (const auto& [from, to] : {std::pair{&own.keys, &keys}, {&own.gates, &gates}}) {
                    const auto part = slice(*from, done[i] * width, cut[i] * width);
                    to->insert(to->end(), part.begin(), part.end());
                }
                segments.push_back({first_row, cut[i], own.start + done[i], own.key_buffer.data(),
                                    own.gate_buffer.data(), own.compressed.data()});
                first_row += cut[i];
                done[i] += cut[i];
            }
            const auto keys_device = device(keys), gates_device = device(gates);
            ops_->compress({.keys = keys_device.data(), .gates = gates_device.data(),
                            .bias = bias_device.data(), .norm = norm_device.data(),
                            .epsilon = 1e-6f, .ratio = s.ratio, .factor = s.factor, .dim = s.dim,
                            .rope_dims = s.rope_dims, .host_frequencies = s.frequencies,
                            .kv = s.kv, .segments = segments});
        }
        for (size_t i = 0; i < sequences.size(); ++i) {
            ASSERT_EQ(done[i], sequences[i].n) << "the cuts are those of the test";
            const auto stored = sequences[i].compressed.host();
            const auto rows = from_stored(stored, s.kv);
            const uint64_t first = sequences[i].start / s.ratio;
            const uint64_t before = first * s.dim * kv_bytes(s.kv);
            EXPECT_TRUE(std::all_of(stored.begin(), stored.begin() + static_cast<ptrdiff_t>(before),
                                    [](std::byte b) { return b == std::byte{0xab}; }));
            for (uint64_t w = 0; w < sequences[i].n / s.ratio; ++w) {
                const auto expected = pooled_row(s, sequences[i], w, bias, norm);
                for (uint32_t d = 0; d < s.dim; ++d) {
                    const double rounding =
                        s.kv == KvType::kF16 ? std::fabs(expected[d]) * 0x1p-11 + 0x1p-25 : 0;
                    ASSERT_NEAR(rows[(first + w) * s.dim + d], expected[d], 2e-5 + rounding)
                        << "sequence " << i << ", row " << first + w;
                }
            }
        }
    }

private:
    static std::vector<double> pooled_row(const CompressorShape& s, const Sequence& own,
                                          uint64_t w, const std::vector<float>& bias,
                                          const std::vector<float>& norm) {
        const uint32_t width = s.factor * s.dim;
        std::vector<double> pooled(s.dim);
        for (uint32_t d = 0; d < s.dim; ++d) {
            double sum = 0, weighted = 0;
            const auto take = [&](uint64_t token, uint32_t channel) {
                const double e = std::exp(double{own.gates[token * width + channel]} +
                                          bias[token % s.ratio * width + channel]);
                sum += e;
                weighted += e * own.keys[token * width + channel];
            };
            for (uint32_t m = 0; s.factor == 2 && w > 0 && m < s.ratio; ++m) {
                take((w - 1) * s.ratio + m, d);
            }
            for (uint32_t m = 0; m < s.ratio; ++m) {
                take(w * s.ratio + m, (s.factor - 1) * s.dim + d);
            }
            pooled[d] = weighted / sum;
        }
        double square = 0;
        for (const double v : pooled) square += v * v;
        for (uint32_t d = 0; d < s.dim; ++d) {
            pooled[d] *= norm[d] / std::sqrt(square / s.dim + 1e-6);
        }
        for (uint32_t i = 0; i < s.rope_dims / 2; ++i) {
            const double angle = static_cast<double>(own.start + w * s.ratio) * s.frequencies[i];
            double& a = pooled[s.dim - s.rope_dims + 2 * i];
            double& b = pooled[s.dim - s.rope_dims + 2 * i + 1];
            const double turned = a * std::cos(angle) - b * std::sin(angle);
            b = a * std::sin(angle) + b * std::cos(angle);
            a = turned;
        }
        return pooled;
    }
};
XP_INSTANTIATE_FOR_BACKENDS(OperatorsCompressor);

template <class T>
std::vector<T> list_of(T a, T b) {
    std::vector<T> list;
    list.push_back(std::move(a));
    list.push_back(std::move(b));
    return list;
}

TEST_P(OperatorsCompressor, PoolsWindowsThatEndInAnyCall) {
    for (const uint32_t factor : {1u, 2u}) {
        for (const KvType kv : {KvType::kF32, KvType::kF16}) {
            SCOPED_TRACE(factor);
            const CompressorShape shape = {.factor = factor, .kv = kv};
            // No window, one, several; starting and ending inside of one, and at its border.
            check(shape, list_of(sequence(shape, 0, 23), sequence(shape, 0, 12)),
                  {{9, 0}, {1, 4}, {1, 1}, {0, 2}, {1, 5}, {11, 0}});
        }
    }
}

TEST_P(OperatorsCompressor, PoolsFarFromTheStart) {
    for (const uint32_t factor : {1u, 2u}) {
        const CompressorShape shape = {.factor = factor};
        check(shape, list_of(sequence(shape, 40000, 21), sequence(shape, 4, 3)),
              {{17, 2}, {1, 1}, {3, 0}});
    }
}

// As in the large models: every 128th token one row of 512.
TEST_P(OperatorsCompressor, PoolsLongWindows) {
    CompressorShape shape = {.factor = 1, .ratio = 128, .dim = 512, .rope_dims = 64,
                             .frequencies = {}};
    for (uint32_t i = 0; i < 32; ++i) shape.frequencies.push_back(std::pow(0.8, i));
    check(shape, list_of(sequence(shape, 0, 300), sequence(shape, 0, 128)),
          {{100, 127}, {1, 1}, {199, 0}});
    shape.factor = 2;
    shape.ratio = 4;
    check(shape, list_of(sequence(shape, 0, 30), sequence(shape, 0, 9)), {{7, 8}, {23, 1}});
}

class OperatorsIndexer : public OperatorsTest {
protected:
    struct Sequence {
        uint64_t position;
        uint32_t n;
        std::vector<float> keys;  // of all rows visible at the end, as stored
    };
    struct Shape {
        uint32_t heads = 3, dim = 8, ratio = 4, max_picks = 4;
        KvType kv = KvType::kF32;
    };

    std::vector<uint32_t> pick(const Shape& s, std::vector<Sequence>& sequences,
                               const std::vector<float>& q, const std::vector<float>& weights) {
        std::vector<DeviceVector<std::byte>> keys;
        std::vector<IndexSegment> segments;
        uint32_t n = 0;
        for (Sequence& own : sequences) {
            keys.push_back(device(as_stored(own.keys, s.kv)));
            segments.push_back({n, own.n, own.position, keys.back().data()});
            n += own.n;
        }
        const auto q_device = device(q), weights_device = device(weights);
        const auto picks = poisoned<uint32_t>(n * s.max_picks);
        ops_->index_rows({.q = q_device.data(), .weights = weights_device.data(),
                          .n_heads = s.heads, .dim = s.dim, .ratio = s.ratio, .kv = s.kv,
                          .max_picks = s.max_picks, .segments = segments,
                          .picks = picks.data()});
        return picks.host();
    }

    // The scores of the rows visible to batch row `row`, which is row i of its sequence.
    static std::vector<double> scores_of(const Shape& s, const Sequence& own, uint32_t i,
                                         uint32_t row, const std::vector<float>& q,
                                         const std::vector<float>& weights) {
        std::vector<double> scores((own.position + i + 1) / s.ratio, 0);
        for (size_t w = 0; w < scores.size(); ++w) {
            for (uint32_t h = 0; h < s.heads; ++h) {
                const double product = dot(&q[(row * s.heads + h) * s.dim], &own.keys[w * s.dim],
                                           s.dim);
                // Not std::max, so that a NaN stays one.
                scores[w] += weights[row * s.heads + h] * (product < 0 ? 0 : product);
            }
        }
        return scores;
    }

    // The right picks where scores are exact: NaN loses, equal ones go to the lowest index.
    static std::vector<uint32_t> exact_picks(const Shape& s, std::vector<double> scores) {
        for (double& score : scores) {
            if (std::isnan(score)) score = -INFINITY;
        }
        std::vector<uint32_t> order(scores.size());
        std::iota(order.begin(), order.end(), 0u);
        std::stable_sort(order.begin(), order.end(),
                         [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
        order.resize(std::min<size_t>(s.max_picks, order.size()));
        std::sort(order.begin(), order.end());
        order.resize(s.max_picks, kNoPick);
        return order;
    }

    // Products of small integers, whose scores are exact and often equal.
    void check_exact(const Shape& s, std::vector<Sequence> sequences, bool with_nan) {
        uint32_t n = 0;
        for (const Sequence& own : sequences) n += own.n;
        auto q = small_integers(n * s.heads * s.dim, 2);
        const auto weights = small_integers(n * s.heads, 2);
        if (with_nan) {
            for (Sequence& own : sequences) {
                for (size_t w = 0; w * s.dim < own.keys.size(); w += 3) own.keys[w * s.dim] = NAN;
            }
            q[0] = NAN;  // all scores of row 0
        }
        const auto picks = pick(s, sequences, q, weights);
        uint32_t row = 0;
        for (const Sequence& own : sequences) {
            for (uint32_t i = 0; i < own.n; ++i, ++row) {
                const auto expected =
                    exact_picks(s, scores_of(s, own, i, row, q, weights));
                ASSERT_EQ(slice(picks, row * s.max_picks, s.max_picks), expected)
                    << "position " << own.position + i;
            }
        }
    }
    Sequence integer_sequence(const Shape& s, uint64_t position, uint32_t n) {
        return {position, n, small_integers((position + n) / s.ratio * s.dim, 2)};
    }
};
XP_INSTANTIATE_FOR_BACKENDS(OperatorsIndexer);

// Fewer visible rows than picks, as many, one more, and many more.
TEST_P(OperatorsIndexer, PicksTheHighestAndTheLowestIndexAmongEquals) {
    for (const KvType kv : {KvType::kF32, KvType::kF16}) {
        const Shape shape = {.kv = kv};
        check_exact(shape, {integer_sequence(shape, 0, 25), integer_sequence(shape, 40, 6),
                            integer_sequence(shape, 400, 1)}, false);
        const Shape wide = {.heads = 64, .dim = 128, .max_picks = 512, .kv = kv};
        check_exact(wide, {integer_sequence(wide, 2046, 3), integer_sequence(wide, 2100, 1),
                           integer_sequence(wide, 7, 1)}, false);
    }
}

TEST_P(OperatorsIndexer, NanScoresLose) {
    const Shape shape;
    check_exact(shape, {integer_sequence(shape, 40, 6), integer_sequence(shape, 17, 3)}, true);
}

TEST_P(OperatorsIndexer, PicksTheHighestOfThousands) {
    for (const KvType kv : {KvType::kF32, KvType::kF16}) {
        const Shape s = {.heads = 4, .dim = 32, .max_picks = 512, .kv = kv};
        std::vector<Sequence> sequences = {{20000, 2, normal(5000 * s.dim)}};
        const auto q = normal(2 * s.heads * s.dim), weights = normal(2 * s.heads, 0.1f);
        const auto picks = pick(s, sequences, q, weights);
        for (uint32_t row = 0; row < 2; ++row) {
            const auto scores = scores_of(s, sequences[0], row, row, q, weights);
            std::vector<bool> chosen(scores.size());
            double lowest = INFINITY, highest_left = -INFINITY;
            int64_t last = -1;
            for (const uint32_t w : slice(picks, row * s.max_picks, s.max_picks)) {
                ASSERT_LT(w, scores.size());
                ASSERT_GT(int64_t{w}, last) << "not ascending";
                last = w;
                chosen[w] = true;
                lowest = std::min(lowest, scores[w]);
            }
            for (size_t w = 0; w < scores.size(); ++w) {
                if (!chosen[w]) highest_left = std::max(highest_left, scores[w]);
            }
            // Scores nearer to each other than floats tell apart may change places.
            EXPECT_LE(highest_left, lowest + 1e-5);
        }
    }
}

}  // namespace
}  // namespace xp::test
