// A row gets the same bits alone, in a batch of any size and at any place in it, and however its
// sequence is cut into calls: what makes decode, prefill and batches give the same text.
#include <numeric>

#include "tests/engine/operators_fixture.h"

namespace xp::test {
namespace {

// Batches that the rows are cut into and put together to again: every size up to the whole one, and
// the places differ from those in the whole one.
constexpr uint32_t kWhole = 40;
struct Batch {
    uint32_t first, n;
};
constexpr Batch kBatches[] = {{0, 1}, {17, 1}, {39, 1}, {5, 2}, {30, 3}, {13, 4},  {1, 5},
                              {20, 8}, {31, 9}, {3, 16}, {22, 17}, {7, 33}};

// run(x, n) gives n rows of outputs for n rows of `width` inputs.
template <class Run>
void expect_rows_alike(const std::vector<float>& x, const Run& run) {
    const uint64_t width = x.size() / kWhole;
    const std::vector<float> whole = run(x, kWhole);
    ASSERT_FALSE(has_nan(whole));
    const uint64_t out_width = whole.size() / kWhole;
    for (const Batch& batch : kBatches) {
        const auto part = run(slice(x, batch.first * width, batch.n * width), batch.n);
        ASSERT_TRUE(same_bits(part, slice(whole, batch.first * out_width, batch.n * out_width)))
            << batch.n << " rows from " << batch.first;
    }
}

class OperatorsInvariance : public OperatorsTest {};
XP_INSTANTIATE_FOR_BACKENDS(OperatorsInvariance);

class OperatorsMatmulInvariance : public OperatorsInvariance {
protected:
    void check(GgmlType type, uint32_t rows, uint32_t cols) {
        for (const StorageLayout layout : {StorageLayout::kGgml, StorageLayout::kSplit}) {
            if (!layout_supported(type, layout)) continue;
            SCOPED_TRACE(fmt::format("{} {}, {} columns", traits_of(type).name,
                                     layout_name(layout), cols));
            const HostMatrix m = matrix(type, rows, cols, layout);
            const auto w = device(m.stored);
            expect_rows_alike(normal(kWhole * cols), [&](const std::vector<float>& x, uint32_t n) {
                const auto x_device = device(x), y = poisoned(n * rows);
                ops_->matmul(m.at(w.data()), x_device.data(), n, y.data());
                return y.host();
            });
        }
    }
};
XP_INSTANTIATE_FOR_BACKENDS(OperatorsMatmulInvariance);

TEST_P(OperatorsMatmulInvariance, OfEveryType) {
    for (const GgmlType type : weight_types()) {
        const uint32_t block = traits_of(type).block_elements;
        ASSERT_NO_FATAL_FAILURE(check(type, 19, block == 1 ? 83 : 3 * block));
        ASSERT_NO_FATAL_FAILURE(check(type, 19, 2048));
    }
}

TEST_P(OperatorsMatmulInvariance, OfLongRows) {
    for (const GgmlType type : usual_types()) ASSERT_NO_FATAL_FAILURE(check(type, 5, 8448));
}

TEST_P(OperatorsMatmulInvariance, OfManyOutputs) {
    ASSERT_NO_FATAL_FAILURE(check(GgmlType::kQ8_0, 3000, 96));
    ASSERT_NO_FATAL_FAILURE(check(GgmlType::kF32, 3000, 100));
}

TEST_P(OperatorsInvariance, OfGroupedMatmul) {
    const uint32_t groups = 4, cols = 512;
    const HostMatrix m = matrix(GgmlType::kQ8_0, groups * 10, cols);
    const auto w = device(m.stored);
    expect_rows_alike(normal(kWhole * groups * cols),
                      [&](const std::vector<float>& x, uint32_t n) {
        const auto x_device = device(x), y = poisoned(n * m.shape.rows);
        ops_->matmul_grouped(m.at(w.data()), groups, x_device.data(), n, y.data());
        return y.host();
    });
}

TEST_P(OperatorsInvariance, OfRmsNorm) {
    for (const uint32_t dim : {100u, 512u, 4096u}) {
        const auto weight = device(normal(dim));
        expect_rows_alike(normal(kWhole * dim), [&](const std::vector<float>& x, uint32_t n) {
            const auto x_device = device(x), y = poisoned(x.size());
            ops_->rms_norm(x_device.data(), weight.data(), 1e-6f, n, dim, y.data());
            return y.host();
        });
    }
}

TEST_P(OperatorsInvariance, OfGatedMatmul) {
    const uint32_t rows = 300, cols = 512;
    const HostMatrix gate = matrix(GgmlType::kQ8_0, rows, cols);
    const HostMatrix up = matrix(GgmlType::kQ8_0, rows, cols);
    const auto gate_device = device(gate.stored), up_device = device(up.stored);
    expect_rows_alike(normal(kWhole * cols), [&](const std::vector<float>& x, uint32_t n) {
        const auto x_device = device(x), y = poisoned(n * rows);
        ops_->matmul_gated(gate.at(gate_device.data()), up.at(up_device.data()), x_device.data(),
                           n, {.limit = 7}, y.data());
        return y.host();
    });
}

TEST_P(OperatorsInvariance, OfNormRope) {
    const uint32_t heads = 3, dim = 512, rope_dims = 64, width = heads * dim + rope_dims;
    expect_rows_alike(normal(kWhole * width), [&](const std::vector<float>& in, uint32_t n) {
        std::vector<float> values, turns;
        for (uint32_t r = 0; r < n; ++r) {
            const auto row = in.begin() + ptrdiff_t{r} * width;
            values.insert(values.end(), row, row + heads * dim);
            turns.insert(turns.end(), row + heads * dim, row + width);
        }
        const auto x = device(values), turns_device = device(turns);
        const NormRopeArgs args = {.x = x.data(), .normed = true, .epsilon = 1e-6f,
                                   .n_heads = heads, .dim = dim, .cos_sin = turns_device.data(),
                                   .rope_dims = rope_dims};
        ops_->norm_rope({&args, 1}, n);
        return x.host();
    });
}

// A row's state goes in with what a sublayer gave; its y, post_comb and new state come out.
TEST_P(OperatorsInvariance, OfHyperConnections) {
    const uint32_t streams = 4, outputs = 24, slots = 3;
    for (const uint32_t dim : {1000u, 33u}) {
        const uint32_t flat = streams * dim;
        const HostMatrix fn = matrix(GgmlType::kF16, outputs, flat);
        const auto fn_device = device(fn.stored);
        const auto base = device(normal(outputs)), scale = device(normal(3));
        const auto norm = device(normal(dim));
        const std::vector<uint32_t> widths = {flat, 20, dim, slots * dim};
        const uint32_t width = std::accumulate(widths.begin(), widths.end(), 0u);
        expect_rows_alike(normal(kWhole * width), [&](const std::vector<float>& in, uint32_t n) {
            std::vector<std::vector<float>> parts(widths.size());
            auto at = in.begin();
            for (uint32_t r = 0; r < n; ++r) {
                for (size_t i = 0; i < widths.size(); at += widths[i++]) {
                    parts[i].insert(parts[i].end(), at, at + widths[i]);
                }
            }
            const auto state = device(parts[0]), post_comb = device(parts[1]);
            const auto rest = device(parts[2]), experts = device(parts[3]);
            const auto y = poisoned(n * dim), head = poisoned(n * dim);
            const HcUpdate update = {post_comb.data(), rest.data(), experts.data(), slots};
            HyperConnectionArgs args = {
                .state = state.data(), .fn = fn.at(fn_device.data()), .base = base.data(),
                .scale = scale.data(), .norm = norm.data(), .streams = streams, .dim = dim,
                .norm_epsilon = 1e-6f, .epsilon = 1e-6f, .iterations = 20};
            ops_->hc_pre(args, &update, n, y.data(), post_comb.data());
            args.fn.rows = streams;
            ops_->hc_head(args, n, head.data());
            std::vector<float> all;
            const std::vector<std::vector<float>> results = {state.host(), post_comb.host(),
                                                             y.host(), head.host()};
            for (uint32_t r = 0; r < n; ++r) {
                for (const std::vector<float>& result : results) {
                    const auto part = slice(result, r * (result.size() / n), result.size() / n);
                    all.insert(all.end(), part.begin(), part.end());
                }
            }
            return all;
        });
    }
}

// Rows of one expert, beside those of others in the same call.
TEST_P(OperatorsInvariance, OfExperts) {
    struct Kind {
        GgmlType type;
        StorageLayout layout = StorageLayout::kGgml;
        uint32_t dim = 512, ffn = 256;
    };
    for (const Kind& kind : {Kind{GgmlType::kMXFP4}, Kind{GgmlType::kMXFP4, StorageLayout::kSplit},
                             Kind{GgmlType::kMXFP4, StorageLayout::kSplit, 2048, 768},
                             Kind{GgmlType::kQ8_0}, Kind{GgmlType::kQ2_K}, Kind{GgmlType::kQ4_K},
                             Kind{GgmlType::kIQ3_S}, Kind{GgmlType::kF16}}) {
        SCOPED_TRACE(fmt::format("{} {}", traits_of(kind.type).name, layout_name(kind.layout)));
        const uint32_t dim = kind.dim, ffn = kind.ffn;
        const HostMatrix gate = matrix(kind.type, 2 * ffn, dim, kind.layout);
        const HostMatrix down = matrix(kind.type, dim, ffn, kind.layout);
        std::vector<std::byte> object = gate.stored;
        object.insert(object.end(), down.stored.begin(), down.stored.end());
        const auto object_device = device(object);
        Weight half = gate.shape;
        half.rows = ffn;
        // Every row goes to one expert; each third also to a second one, which has the same
        // weights, and is computed in the same call.
        ASSERT_NO_FATAL_FAILURE(expect_rows_alike(
            normal(kWhole * dim), [&](const std::vector<float>& x, uint32_t n) {
                std::vector<uint32_t> rows, some, zeros(n, 0), ones(n, 1);
                for (uint32_t r = 0; r < n; ++r) {
                    rows.push_back(r);
                    if (r % 3 == 0) some.push_back(r);
                }
                const auto weights = device(std::vector<float>(2 * n, 0.3f));
                const auto some_ones = std::span(ones).first(some.size());
                const std::vector<ExpertWork> works = {
                    {object_device.data(), some, some_ones, some_ones},
                    {object_device.data(), rows, zeros, zeros}};
                const auto x_device = device(x), out = poisoned(uint64_t{n} * 2 * dim);
                ops_->experts({.gate = half, .up = half, .down = down.shape, .gate_offset = 0,
                               .up_offset = gate.stored.size() / 2,
                               .down_offset = gate.stored.size(), .x = x_device.data(),
                               .weights = weights.data(), .activation = {.limit = 7}, .n_slots = 2,
                               .experts = works, .out = out.data()});
                const auto slots = out.host();
                std::vector<float> first;
                for (uint32_t r = 0; r < n; ++r) {
                    const auto own = slice(slots, uint64_t{r} * 2 * dim, dim);
                    first.insert(first.end(), own.begin(), own.end());
                    if (r % 3 == 0) {
                        EXPECT_TRUE(same_bits(own, slice(slots, (uint64_t{r} * 2 + 1) * dim, dim)))
                            << "another number of rows in the same call";
                    }
                }
                return first;
            }));
    }
}

// A sequence of kWhole rows that begins at a position, cut into calls; another sequence stands
// before it in each of them, so that its rows are at other places of the batch.
class OperatorsCuts : public OperatorsTest {
protected:
    static std::vector<std::vector<uint32_t>> cuts() {
        return {{kWhole}, std::vector<uint32_t>(kWhole, 1), {8, 32}, {3, 1, 1, 20, 8, 7},
                {39, 1}, {1, 39}, {17, 16, 7}};
    }

    template <class T>
    static std::vector<T> after(const std::vector<T>& before, const std::vector<T>& all,
                                uint64_t first, uint64_t n) {
        std::vector<T> batch = before;
        batch.insert(batch.end(), all.begin() + static_cast<ptrdiff_t>(first),
                     all.begin() + static_cast<ptrdiff_t>(first + n));
        return batch;
    }

    struct Shape {
        uint32_t heads, dim, window, ratio, max_picks;
        KvType kv;
        uint64_t position;
    };
    struct Inputs {
        std::vector<float> q, q_other;
        std::vector<std::byte> rows, rows_other, ring, compressed;
        std::vector<uint32_t> picks, picks_other;
        std::vector<float> turns;
    };
    static constexpr uint32_t kRopeDims = 8;

    Inputs inputs(const Shape& s) {
        Inputs in;
        in.q = normal(uint64_t{kWhole} * s.heads * s.dim);
        in.turns = normal(kWhole * kRopeDims);
        const auto stored = [&](uint64_t n) {
            auto values = normal(n * s.dim);
            return as_stored(values, s.kv);
        };
        in.rows = stored(kWhole);
        in.ring = stored(s.window);
        in.compressed = stored(s.ratio == 0 ? 0 : (s.position + kWhole) / s.ratio);
        for (uint32_t r = 0; s.max_picks > 0 && r < kWhole; ++r) {
            const uint64_t visible = (s.position + r + 1) / s.ratio;
            for (uint32_t j = 0; j < s.max_picks; ++j) {
                const uint64_t w = visible > s.max_picks ? j * visible / s.max_picks : j;
                in.picks.push_back(w < visible ? static_cast<uint32_t>(w) : kNoPick);
            }
        }
        in.q_other = normal(uint64_t{3} * s.heads * s.dim);
        in.rows_other = stored(3);
        in.picks_other.assign(uint64_t{3} * s.max_picks, kNoPick);
        return in;
    }

    // What attention gives the sequence when it comes in these pieces.
    std::vector<float> attend(const Shape& s, const Inputs& in, const std::vector<float>& sinks,
                              const std::vector<uint32_t>& cut) {
        const auto ring = device(in.ring), ring_other = device(in.ring);
        const auto compressed = device(in.compressed);
        const auto sinks_device = device(sinks);
        const uint64_t row_bytes = s.dim * kv_bytes(s.kv), out_width = uint64_t{s.heads} * s.dim;
        std::vector<float> all;
        uint32_t done = 0;
        for (const uint32_t n : cut) {
            const uint32_t others = done % 2 == 0 ? 0 : 3;
            const auto q = device(after(others != 0 ? in.q_other : std::vector<float>(), in.q,
                                        done * out_width, n * out_width));
            const auto rows = device(after(others != 0 ? in.rows_other : std::vector<std::byte>(),
                                           in.rows, done * row_bytes, n * row_bytes));
            const auto picks = device(after(
                others != 0 ? in.picks_other : std::vector<uint32_t>(), in.picks,
                uint64_t{done} * s.max_picks, uint64_t{n} * s.max_picks));
            const auto turns = device(after(
                others != 0 ? std::vector<float>(3 * kRopeDims, 1) : std::vector<float>(), in.turns,
                uint64_t{done} * kRopeDims, uint64_t{n} * kRopeDims));
            const auto out = poisoned((others + n) * out_width);
            std::vector<AttentionSegment> segments;
            if (others != 0) segments.push_back({0, others, 0, ring_other.data(), nullptr});
            segments.push_back({others, n, s.position + done, ring.data(), compressed.data()});
            ops_->attention({
                .q = q.data(), .rows = rows.data(), .kv = s.kv, .n_heads = s.heads, .dim = s.dim,
                .window = s.window, .ratio = s.ratio,
                .picks = s.max_picks > 0 ? picks.data() : nullptr, .max_picks = s.max_picks,
                .sinks = sinks_device.data(), .scale = 0.2f, .cos_sin = turns.data(),
                .rope_dims = kRopeDims, .segments = segments, .out = out.data()});
            const auto outputs = slice(out.host(), others * out_width, n * out_width);
            all.insert(all.end(), outputs.begin(), outputs.end());
            done += n;
        }
        return all;
    }
};
XP_INSTANTIATE_FOR_BACKENDS(OperatorsCuts);

TEST_P(OperatorsCuts, DoNotChangeAttention) {
    for (const KvType kv : {KvType::kF32, KvType::kF16}) {
        for (const Shape& shape : {Shape{9, 24, 6, 0, 0, kv, 0}, Shape{3, 64, 16, 4, 0, kv, 0},
                                   Shape{3, 64, 16, 4, 5, kv, 0}, Shape{8, 512, 16, 4, 5, kv, 403},
                                   Shape{8, 64, 16, 128, 0, kv, 1000},
                                   Shape{2, 64, 16, 4, 0, kv, 2000}}) {
            SCOPED_TRACE(fmt::format("window {}, ratio {}, {} picks, from {}", shape.window,
                                     shape.ratio, shape.max_picks, shape.position));
            const Inputs in = inputs(shape);
            const auto sinks = normal(shape.heads);
            const auto whole = attend(shape, in, sinks, cuts()[0]);
            ASSERT_FALSE(has_nan(whole));
            for (const auto& cut : cuts()) {
                ASSERT_TRUE(same_bits(attend(shape, in, sinks, cut), whole))
                    << cut.size() << " pieces, the first of " << cut[0];
            }
        }
    }
}

TEST_P(OperatorsCuts, DoNotChangeCompressedRows) {
    struct Compressor {
        uint32_t factor, ratio, dim;
    };
    for (const Compressor& c : {Compressor{1, 4, 64}, Compressor{2, 4, 512}, Compressor{1, 16, 40},
                                Compressor{2, 8, 10}}) {
        const uint32_t factor = c.factor, ratio = c.ratio, dim = c.dim;
        const uint32_t width = factor * dim, slots = factor * ratio;
        const auto keys = normal(kWhole * width), gates = normal(kWhole * width);
        const auto other = normal(3 * width);
        const auto bias = device(normal(ratio * width)), norm = device(normal(dim));
        const std::vector<double> frequencies = {1.0, 0.1};
        const auto run = [&](const std::vector<uint32_t>& cut) {
            const auto buffer = [&](float value) {
                return device(std::vector<float>(uint64_t{slots} * width, value));
            };
            const auto key_buffer = buffer(0), gate_buffer = buffer(-INFINITY);
            const auto compressed = poisoned<std::byte>(kWhole / ratio * dim * 4);
            uint32_t done = 0;
            for (const uint32_t n : cut) {
                const uint32_t others = done % 2 == 0 ? 0 : 3;
                const auto before = others != 0 ? other : std::vector<float>();
                const auto keys_device = device(after(before, keys, done * width, n * width));
                const auto gates_device = device(after(before, gates, done * width, n * width));
                // Three rows of a window that does not end.
                const auto key_other = buffer(0), gate_other = buffer(-INFINITY);
                std::vector<CompressorSegment> segments;
                if (others != 0) {
                    segments.push_back({0, others, 0, key_other.data(), gate_other.data(),
                                        nullptr});
                }
                segments.push_back({others, n, done, key_buffer.data(), gate_buffer.data(),
                                    compressed.data()});
                ops_->compress({.keys = keys_device.data(), .gates = gates_device.data(),
                                .bias = bias.data(), .norm = norm.data(), .epsilon = 1e-6f,
                                .ratio = ratio, .factor = factor, .dim = dim, .rope_dims = 4,
                                .host_frequencies = frequencies, .kv = KvType::kF32,
                                .segments = segments});
                done += n;
            }
            return from_stored(compressed.host(), KvType::kF32);
        };
        const auto whole = run(cuts()[0]);
        for (const auto& cut : cuts()) {
            ASSERT_TRUE(same_bits(run(cut), whole))
                << "factor " << factor << ", ratio " << ratio << ": " << cut.size() << " pieces";
        }
    }
}

// Scores that differ in their last bits only: another order of a sum would pick others.
TEST_P(OperatorsCuts, DoNotChangePicks) {
    const uint32_t heads = 8, dim = 128, max_picks = 16, position = 600;
    const auto q = normal(kWhole * heads * dim), weights = normal(kWhole * heads);
    const auto row = normal(dim);
    std::vector<float> values;
    for (uint32_t w = 0; w < (position + kWhole) / 4; ++w) {
        for (const float v : row) values.push_back(v + 1e-6f * normal(1)[0]);
    }
    const auto keys = device(as_stored(values, KvType::kF32));
    const auto run = [&](const std::vector<uint32_t>& cut) {
        std::vector<uint32_t> all;
        uint32_t done = 0;
        for (const uint32_t n : cut) {
            const auto q_device = device(slice(q, done * heads * dim, n * heads * dim));
            const auto weights_device = device(slice(weights, done * heads, n * heads));
            const auto picks = poisoned<uint32_t>(n * max_picks);
            const IndexSegment segment = {0, n, position + done, keys.data()};
            ops_->index_rows({.q = q_device.data(), .weights = weights_device.data(),
                              .n_heads = heads, .dim = dim, .ratio = 4, .kv = KvType::kF32,
                              .max_picks = max_picks, .segments = {&segment, 1},
                              .picks = picks.data()});
            const auto own = picks.host();
            all.insert(all.end(), own.begin(), own.end());
            done += n;
        }
        return all;
    };
    const auto whole = run(cuts()[0]);
    for (const auto& cut : cuts()) {
        ASSERT_EQ(run(cut), whole) << cut.size() << " pieces, the first of " << cut[0];
    }
}

}  // namespace
}  // namespace xp::test
