// Conformance of attention over window and compressed rows, and of the rings.
#include "tests/engine/operators_fixture.h"

namespace xp::test {
namespace {

struct AttentionShape {
    uint32_t heads = 9, dim = 24, window = 6, ratio = 0;
    uint32_t max_picks = 0;  // 0: no picks
    KvType kv = KvType::kF32;
    float scale = 0.25f;
    uint32_t rope_dims = 0;
};

// Part of one sequence: n rows from `position`.
struct AttentionPart {
    uint64_t position;
    uint32_t n;
};

class OperatorsAttention : public OperatorsTest {
protected:
    // One part with its state: rows by position from `first` on, values as stored.
    struct Sequence {
        AttentionPart part;
        uint64_t first;
        std::vector<float> rows, compressed;
        DeviceVector<std::byte> ring, compressed_device;
        uint32_t first_row;
    };

    Sequence sequence(const AttentionShape& s, const AttentionPart& part, uint32_t first_row) {
        const uint64_t first = part.position > s.window ? part.position - s.window : 0;
        const uint64_t end = part.position + part.n;
        auto rows = normal((end - first) * s.dim);
        const auto stored = as_stored(rows, s.kv);
        const uint64_t bytes = s.dim * kv_bytes(s.kv);
        // All bits set are NaN: slots of positions that were never seen must not be read.
        std::vector<std::byte> ring(s.window * bytes, std::byte{0xff});
        for (uint64_t p = first; p < part.position; ++p) {
            std::memcpy(&ring[p % s.window * bytes], &stored[(p - first) * bytes], bytes);
        }
        auto compressed = normal(s.ratio == 0 ? 0 : end / s.ratio * s.dim);
        const auto compressed_stored = as_stored(compressed, s.kv);
        batch_.insert(batch_.end(), stored.end() - static_cast<ptrdiff_t>(part.n * bytes),
                      stored.end());
        return {part, first, std::move(rows), std::move(compressed), device(ring),
                device(compressed_stored), first_row};
    }

    // The picks of all rows: a random choice where there are too many.
    std::vector<uint32_t> choose(const AttentionShape& s, const std::vector<Sequence>& sequences) {
        std::vector<uint32_t> picks;
        for (const Sequence& sequence : sequences) {
            for (uint32_t r = 0; r < sequence.part.n; ++r) {
                const uint64_t visible = (sequence.part.position + r + 1) / s.ratio;
                std::vector<uint32_t> own;
                uint64_t left = std::min<uint64_t>(s.max_picks, visible);
                for (uint32_t w = 0; w < visible; ++w) {
                    if (random_() % (visible - w) >= left) continue;
                    own.push_back(w);
                    --left;
                }
                own.resize(s.max_picks, kNoPick);
                picks.insert(picks.end(), own.begin(), own.end());
            }
        }
        return picks;
    }

    void check(const AttentionShape& s, const std::vector<AttentionPart>& parts) {
        batch_.clear();
        std::vector<Sequence> sequences;
        uint32_t n = 0;
        for (const AttentionPart& part : parts) {
            sequences.push_back(sequence(s, part, n));
            n += part.n;
        }
        const auto q = normal(uint64_t{n} * s.heads * s.dim), sinks = normal(s.heads);
        const auto picks = s.max_picks > 0 ? choose(s, sequences) : std::vector<uint32_t>();
        const auto q_device = device(q), sinks_device = device(sinks);
        const auto turns = normal(uint64_t{n} * s.rope_dims);
        const auto turns_device = device(turns);
        const auto rows_device = device(batch_);
        const auto picks_device = device(picks);
        const auto out_device = poisoned(q.size());
        std::vector<AttentionSegment> segments;
        for (const Sequence& sequence : sequences) {
            segments.push_back({sequence.first_row, sequence.part.n, sequence.part.position,
                                sequence.ring.data(), sequence.compressed_device.data()});
        }
        const AttentionArgs args = {
            .q = q_device.data(), .rows = rows_device.data(), .kv = s.kv, .n_heads = s.heads,
            .dim = s.dim, .window = s.window, .ratio = s.ratio,
            .picks = s.max_picks > 0 ? picks_device.data() : nullptr, .max_picks = s.max_picks,
            .sinks = sinks_device.data(), .scale = s.scale, .cos_sin = turns_device.data(),
            .rope_dims = s.rope_dims, .segments = segments, .out = out_device.data()};
        ops_->attention(args);
        const auto out = out_device.host();
        ASSERT_FALSE(has_nan(out));
        for (const Sequence& sequence : sequences) {
            for (uint32_t r = 0; r < sequence.part.n; ++r) {
                SCOPED_TRACE(fmt::format("position {}", sequence.part.position + r));
                const uint64_t row = sequence.first_row + r;
                const auto keys = visible_rows(
                    s, sequence, r, picks.empty() ? nullptr : &picks[row * s.max_picks]);
                // Few heads where there are many rows, and not the same ones each time.
                const uint32_t step = s.heads > 9 ? 13 : keys.size() > 500 ? 4 : 1;
                for (uint32_t h = static_cast<uint32_t>(row) % step; h < s.heads; h += step) {
                    const uint64_t at = (row * s.heads + h) * s.dim;
                    ASSERT_NO_FATAL_FAILURE(check_head(s, keys, &q[at], sinks[h],
                                                       turns.data() + row * s.rope_dims, &out[at]))
                        << h;
                }
            }
        }
        for (const Sequence& sequence : sequences) check_ring(s, sequence);
    }

private:
    static std::vector<const float*> visible_rows(const AttentionShape& s, const Sequence& sequence,
                                                  uint32_t r, const uint32_t* picks) {
        const uint64_t p = sequence.part.position + r;
        std::vector<const float*> keys;
        for (uint64_t j = p + 1 > s.window ? p + 1 - s.window : 0; j <= p; ++j) {
            keys.push_back(&sequence.rows[(j - sequence.first) * s.dim]);
        }
        const uint64_t visible = s.ratio == 0 ? 0 : (p + 1) / s.ratio;
        const uint64_t n = picks == nullptr ? visible : s.max_picks;
        for (uint64_t j = 0; j < n; ++j) {
            const uint64_t w = picks == nullptr ? j : picks[j];
            if (w != kNoPick) keys.push_back(&sequence.compressed[w * s.dim]);
        }
        return keys;
    }

    static void check_head(const AttentionShape& s, const std::vector<const float*>& keys,
                           const float* q, float sink, const float* turns, const float* out) {
        double sum = std::exp(double{sink});
        std::vector<double> weights, expected(s.dim, 0);
        for (const float* key : keys) {
            weights.push_back(std::exp(dot(q, key, s.dim) * s.scale));
            sum += weights.back();
        }
        for (size_t k = 0; k < keys.size(); ++k) {
            for (uint32_t d = 0; d < s.dim; ++d) expected[d] += weights[k] / sum * keys[k][d];
        }
        for (uint32_t i = 0; i < s.rope_dims; i += 2) {
            double* pair = &expected[s.dim - s.rope_dims + i];
            const double a = pair[0], b = pair[1];
            pair[0] = a * turns[i] + b * turns[i + 1];
            pair[1] = b * turns[i] - a * turns[i + 1];
        }
        for (uint32_t d = 0; d < s.dim; ++d) ASSERT_NEAR(out[d], expected[d], 2e-5);
    }

    static void check_ring(const AttentionShape& s, const Sequence& sequence) {
        const auto ring = from_stored(sequence.ring.host(), s.kv);
        const uint64_t end = sequence.part.position + sequence.part.n;
        for (uint64_t p = end > s.window ? end - s.window : 0; p < end; ++p) {
            ASSERT_TRUE(same_bits(slice(ring, p % s.window * s.dim, s.dim),
                                  slice(sequence.rows, (p - sequence.first) * s.dim, s.dim)))
                << "position " << p << " of " << end;
        }
        for (uint64_t slot = end; slot < s.window; ++slot) {
            ASSERT_TRUE(std::isnan(ring[slot * s.dim])) << "slot " << slot << " was written";
        }
    }

    std::vector<std::byte> batch_;
};
XP_INSTANTIATE_FOR_BACKENDS(OperatorsAttention);

// At the start, inside the first window, when it is just full, and far; more rows than the window.
const std::vector<AttentionPart> kPlaces = {{0, 5}, {0, 1}, {3, 5}, {6, 1}, {25, 5}, {25, 17},
                                            {1, 40}, {100003, 3}};

TEST_P(OperatorsAttention, OverTheWindowOnly) {
    for (const KvType kv : {KvType::kF32, KvType::kF16}) {
        for (const AttentionPart& place : kPlaces) {
            ASSERT_NO_FATAL_FAILURE(check({.kv = kv}, {place})) << place.position;
        }
    }
}

TEST_P(OperatorsAttention, OverWindowCompressedRowsAndSinkInOneSoftmax) {
    for (const KvType kv : {KvType::kF32, KvType::kF16}) {
        for (const AttentionPart& place : kPlaces) {
            if (place.position > 1000) continue;
            ASSERT_NO_FATAL_FAILURE(check({.ratio = 4, .kv = kv}, {place})) << place.position;
        }
        for (const uint64_t position : {0u, 126u, 127u, 1000u}) {
            ASSERT_NO_FATAL_FAILURE(check({.ratio = 128, .kv = kv}, {{position, 3}})) << position;
        }
    }
}

TEST_P(OperatorsAttention, OverPickedCompressedRows) {
    for (const KvType kv : {KvType::kF32, KvType::kF16}) {
        for (const AttentionPart& place : kPlaces) {
            ASSERT_NO_FATAL_FAILURE(check({.ratio = 4, .max_picks = 3, .kv = kv}, {place}))
                << place.position;
        }
    }
}

TEST_P(OperatorsAttention, OfSeveralSequencesInOneCall) {
    for (const uint32_t max_picks : {0u, 3u}) {
        ASSERT_NO_FATAL_FAILURE(check({.ratio = 4, .max_picks = max_picks},
                                      {{25, 1}, {0, 3}, {1000, 1}, {7, 20}, {5, 1}}));
    }
    ASSERT_NO_FATAL_FAILURE(check({.kv = KvType::kF16}, {{0, 1}, {3, 2}, {60, 9}}));
}

// As in the large models: 64 heads of 512, a window of 128.
TEST_P(OperatorsAttention, OfManyWideHeads) {
    const AttentionShape shape = {.heads = 64, .dim = 512, .window = 128, .ratio = 4,
                                  .max_picks = 40, .kv = KvType::kF16, .scale = 0.04419417f};
    ASSERT_NO_FATAL_FAILURE(check(shape, {{126, 3}, {600, 1}, {0, 1}}));
    AttentionShape all = shape;
    all.ratio = 128;
    all.max_picks = 0;
    all.kv = KvType::kF32;
    ASSERT_NO_FATAL_FAILURE(check(all, {{1000, 2}, {50, 1}}));
}

TEST_P(OperatorsAttention, TurnsItsResultsBack) {
    for (const AttentionPart& place : kPlaces) {
        ASSERT_NO_FATAL_FAILURE(check({.rope_dims = 8}, {place})) << place.position;
        ASSERT_NO_FATAL_FAILURE(check({.dim = 22, .rope_dims = 22}, {place, {1, 3}}));
    }
    ASSERT_NO_FATAL_FAILURE(check({.heads = 64, .dim = 512, .window = 128, .scale = 0.04f,
                                   .rope_dims = 64}, {{600, 1}, {0, 2}}));
}

TEST_P(OperatorsAttention, OverThousandsOfCompressedRows) {
    const AttentionShape shape = {.heads = 8, .dim = 64, .window = 16, .ratio = 4,
                                  .kv = KvType::kF16, .scale = 0.125f};
    ASSERT_NO_FATAL_FAILURE(check(shape, {{12001, 2}, {30, 1}}));
}

// Products far beyond what exp can take, above and below, against sinks of both kinds: the maximum
// of all must be taken out first.
TEST_P(OperatorsAttention, OfLargeProductsStaysFinite) {
    const uint32_t dim = 24, heads = 2;
    std::vector<float> rows(2 * dim, 30);
    std::fill_n(rows.begin(), dim, -30.0f);
    const auto q = device(std::vector<float>(2 * heads * dim, 30)), rows_device = device(rows);
    const auto ring = poisoned(6 * dim), out_device = poisoned(2 * heads * dim);
    const auto sinks = device(std::vector<float>{1, -1e6f});
    const AttentionSegment segment = {0, 2, 0, ring.bytes(), nullptr};
    ops_->attention({.q = q.data(), .rows = rows_device.bytes(), .kv = KvType::kF32,
                     .n_heads = heads, .dim = dim, .window = 6, .sinks = sinks.data(), .scale = 1,
                     .segments = {&segment, 1}, .out = out_device.data()});
    const auto out = out_device.host();
    for (uint32_t d = 0; d < dim; ++d) {
        EXPECT_NEAR(out[d], 0, 1e-30) << "all weight is the sink's";
        EXPECT_EQ(out[dim + d], -30) << "all weight is the only row's";
        EXPECT_EQ(out[2 * dim + d], 30) << "all weight is one row's";
        EXPECT_EQ(out[3 * dim + d], 30) << "all weight is one row's";
    }
}

}  // namespace
}  // namespace xp::test
