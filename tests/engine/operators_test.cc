// Conformance of a backend's operators, against the formulas computed in double. Inputs are random
// with a printed seed; outputs are poisoned first, so that one left unwritten is found.
#include "daemon/engine/operators.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "tests/engine/model_fixture.h"

namespace xp {
namespace {

class OperatorsTest : public testing::TestWithParam<unsigned> {
protected:
    void SetUp() override {
        auto operators = make_cpu_operators(GetParam());
        ASSERT_TRUE(operators) << operators.error().message;
        ops_ = *std::move(operators);
        std::printf("seed %u\n", seed_);
        random_.seed(seed_);
    }
    std::vector<float> normal(uint64_t n, float deviation = 1) {
        std::normal_distribution<float> distribution(0, deviation);
        std::vector<float> values(n);
        for (float& v : values) v = distribution(random_);
        return values;
    }
    static std::vector<float> poisoned(uint64_t n) { return std::vector<float>(n, NAN); }
    static Weight weight(const std::vector<float>& values, uint32_t rows, uint32_t cols) {
        return {GgmlType::kF32, StorageLayout::kGgml, rows, cols,
                reinterpret_cast<const std::byte*>(values.data())};
    }
    static double dot(const float* a, const float* b, uint64_t n) {
        double sum = 0;
        for (uint64_t i = 0; i < n; ++i) sum += double{a[i]} * b[i];
        return sum;
    }
    static double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

    std::unique_ptr<Operators> ops_;
    const unsigned seed_ = std::random_device{}();
    std::mt19937 random_;
};
INSTANTIATE_TEST_SUITE_P(Cpu, OperatorsTest, testing::Values(1u, 3u));

TEST_P(OperatorsTest, GroupedMatmulIsBlockDiagonal) {
    const uint32_t groups = 3, in = 40, out_per_group = 700, n = 3;
    const auto w = normal(uint64_t{groups} * out_per_group * in);
    const auto x = normal(uint64_t{n} * groups * in);
    auto y = poisoned(uint64_t{n} * groups * out_per_group);
    ops_->matmul_grouped(weight(w, groups * out_per_group, in), groups, x.data(), n, y.data());
    for (uint32_t r = 0; r < n; ++r) {
        for (uint32_t o = 0; o < groups * out_per_group; ++o) {
            const uint32_t g = o / out_per_group;
            EXPECT_NEAR(y[r * groups * out_per_group + o],
                        dot(&w[o * in], &x[(r * groups + g) * in], in), 1e-4);
        }
    }
}

TEST_P(OperatorsTest, RmsNormWithAndWithoutWeight) {
    const uint32_t dim = 100, n = 400;
    const auto x = normal(n * dim);
    const auto w = normal(dim);
    auto y = poisoned(n * dim), z = poisoned(n * dim);
    ops_->rms_norm(x.data(), w.data(), 1e-6f, n, dim, y.data());
    ops_->rms_norm(x.data(), nullptr, 1e-6f, n, dim, z.data());
    for (uint32_t r = 0; r < n; ++r) {
        const double factor = 1 / std::sqrt(dot(&x[r * dim], &x[r * dim], dim) / dim + 1e-6);
        for (uint32_t d = 0; d < dim; ++d) {
            EXPECT_NEAR(z[r * dim + d], x[r * dim + d] * factor, 1e-5);
            EXPECT_NEAR(y[r * dim + d], x[r * dim + d] * factor * w[d], 1e-4);
        }
    }
}

TEST_P(OperatorsTest, SwigluClampsGateAboveAndUpOnBothSides) {
    const std::vector<float> gate = {-50, -3, 0, 2, 9, 50};
    const std::vector<float> up = {20, -20, 1, -7, 8, 3};
    auto y = poisoned(6);
    ops_->swiglu(gate.data(), up.data(), 7, 6, y.data());
    for (size_t i = 0; i < 6; ++i) {
        const double g = std::min(double{gate[i]}, 7.0);
        EXPECT_NEAR(y[i], g * sigmoid(g) * std::clamp(double{up[i]}, -7.0, 7.0), 1e-5) << i;
    }
}

TEST_P(OperatorsTest, RopeTurnsTrailingPairsAndInverseTurnsBack) {
    const uint32_t n = 5, heads = 3, dim = 20, rope_dims = 8;
    const auto original = normal(n * heads * dim);
    std::vector<float> cos_sin(n * rope_dims);
    for (uint32_t r = 0; r < n; ++r) {
        for (uint32_t i = 0; i < rope_dims / 2; ++i) {
            cos_sin[r * rope_dims + 2 * i] = std::cos(0.3f * r * (i + 1));
            cos_sin[r * rope_dims + 2 * i + 1] = std::sin(0.3f * r * (i + 1));
        }
    }
    auto x = original;
    ops_->rope(x.data(), cos_sin.data(), n, heads, dim, rope_dims, false);
    for (uint32_t r = 0; r < n; ++r) {
        for (uint32_t h = 0; h < heads; ++h) {
            const uint32_t base = (r * heads + h) * dim;
            for (uint32_t d = 0; d < dim - rope_dims; ++d) {
                EXPECT_EQ(x[base + d], original[base + d]);
            }
            for (uint32_t i = 0; i < rope_dims / 2; ++i) {
                const uint32_t at = base + dim - rope_dims + 2 * i;
                const double c = std::cos(0.3 * r * (i + 1)), s = std::sin(0.3 * r * (i + 1));
                EXPECT_NEAR(x[at], original[at] * c - original[at + 1] * s, 1e-5);
                EXPECT_NEAR(x[at + 1], original[at] * s + original[at + 1] * c, 1e-5);
            }
        }
    }
    ops_->rope(x.data(), cos_sin.data(), n, heads, dim, rope_dims, true);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], original[i], 1e-5);
}

// Rows from the ring, from the batch and compressed ones, with a sink, before and after the window
// is full; picks choose among compressed rows once there are more than the limit.
TEST_P(OperatorsTest, AttentionIsOneSoftmaxOverWindowCompressedRowsAndSink) {
    const uint32_t heads = 9, dim = 24, window = 6, ratio = 4, max_picks = 3;
    const float scale = 0.25f;
    for (const uint64_t position : {0u, 3u, 6u, 25u}) {
        const uint32_t n = 5;
        SCOPED_TRACE(position);
        const auto q = normal(n * heads * dim);
        const auto rows = normal((position + n) * dim);  // by position
        const auto compressed = normal((position + n) / ratio * dim + dim);
        const auto sinks = normal(heads);
        std::vector<float> ring(window * dim, NAN);
        for (uint64_t p = position > window ? position - window : 0; p < position; ++p) {
            std::copy_n(&rows[p * dim], dim, &ring[p % window * dim]);
        }
        std::vector<uint32_t> picks(n * max_picks, kNoPick);
        for (uint32_t r = 0; r < n; ++r) {
            const uint64_t visible = (position + r + 1) / ratio;
            for (uint32_t j = 0; j < std::min<uint64_t>(max_picks, visible); ++j) {
                picks[r * max_picks + j] = static_cast<uint32_t>(visible > max_picks ? 2 * j : j);
            }
        }
        const AttentionSegment segment = {0, n, position, reinterpret_cast<std::byte*>(ring.data()),
                                          reinterpret_cast<const std::byte*>(compressed.data())};
        auto out = poisoned(n * heads * dim);
        const AttentionArgs args = {
            .q = q.data(), .rows = reinterpret_cast<const std::byte*>(&rows[position * dim]),
            .kv = KvType::kF32, .n_heads = heads, .dim = dim, .window = window, .ratio = ratio,
            .picks = picks.data(), .max_picks = max_picks, .sinks = sinks.data(), .scale = scale,
            .segments = {&segment, 1}, .out = out.data()};
        ops_->attention(args);
        for (uint32_t r = 0; r < n; ++r) {
            const uint64_t p = position + r;
            std::vector<const float*> keys;
            for (uint64_t j = p + 1 > window ? p + 1 - window : 0; j <= p; ++j) {
                keys.push_back(&rows[j * dim]);
            }
            for (uint32_t j = 0; j < max_picks; ++j) {
                const uint32_t pick = picks[r * max_picks + j];
                if (pick != kNoPick) keys.push_back(&compressed[pick * dim]);
            }
            for (uint32_t h = 0; h < heads; ++h) {
                const float* query = &q[(r * heads + h) * dim];
                double sum = std::exp(double{sinks[h]});
                std::vector<double> expected(dim, 0);
                for (const float* key : keys) sum += std::exp(dot(query, key, dim) * scale);
                for (const float* key : keys) {
                    const double a = std::exp(dot(query, key, dim) * scale) / sum;
                    for (uint32_t d = 0; d < dim; ++d) expected[d] += a * key[d];
                }
                for (uint32_t d = 0; d < dim; ++d) {
                    ASSERT_NEAR(out[(r * heads + h) * dim + d], expected[d], 1e-5);
                }
            }
        }
        ops_->update_rings(args);
        for (uint64_t p = position + n > window ? position + n - window : 0; p < position + n;
             ++p) {
            for (uint32_t d = 0; d < dim; ++d) {
                EXPECT_EQ(ring[p % window * dim + d], rows[p * dim + d]) << "position " << p;
            }
        }
    }
}

TEST_P(OperatorsTest, CompressorPoolsOverlappingWindows) {
    for (const uint32_t factor : {1u, 2u}) {
        const uint32_t ratio = 4, dim = 10, rope_dims = 4, n = 23;
        SCOPED_TRACE(factor);
        const uint32_t width = factor * dim;
        const auto keys = normal(n * width), gates = normal(n * width);
        const auto bias = normal(ratio * width), norm = normal(dim);
        const std::vector<double> frequencies = {1.0, 0.1};
        std::vector<float> key_buffer(factor * ratio * width, 0);
        std::vector<float> gate_buffer(factor * ratio * width, -INFINITY);
        auto compressed = poisoned((n / ratio) * dim);
        // In two calls, so that state is carried over inside a window.
        for (const auto& [first, count] : {std::pair{0u, 9u}, std::pair{9u, n - 9}}) {
            const CompressorSegment segment = {0, count, first,
                                               key_buffer.data(), gate_buffer.data(),
                                               reinterpret_cast<std::byte*>(compressed.data())};
            ops_->compress({.keys = &keys[first * width], .gates = &gates[first * width],
                            .bias = bias.data(), .norm = norm.data(), .epsilon = 1e-6f,
                            .ratio = ratio, .factor = factor, .dim = dim, .rope_dims = rope_dims,
                            .host_frequencies = frequencies, .kv = KvType::kF32,
                            .segments = {&segment, 1}});
        }
        for (uint32_t w = 0; w < n / ratio; ++w) {
            std::vector<double> pooled(dim);
            for (uint32_t d = 0; d < dim; ++d) {
                double sum = 0, weighted = 0;
                const auto take = [&](uint32_t token, uint32_t channel) {
                    const double e = std::exp(double{gates[token * width + channel]} +
                                              bias[token % ratio * width + channel]);
                    sum += e;
                    weighted += e * keys[token * width + channel];
                };
                for (uint32_t m = 0; factor == 2 && w > 0 && m < ratio; ++m) {
                    take((w - 1) * ratio + m, d);
                }
                for (uint32_t m = 0; m < ratio; ++m) take(w * ratio + m, (factor - 1) * dim + d);
                pooled[d] = weighted / sum;
            }
            double square = 0;
            for (const double v : pooled) square += v * v;
            for (uint32_t d = 0; d < dim; ++d) {
                pooled[d] *= norm[d] / std::sqrt(square / dim + 1e-6);
            }
            for (uint32_t i = 0; i < rope_dims / 2; ++i) {
                const double angle = w * ratio * frequencies[i];
                double& a = pooled[dim - rope_dims + 2 * i];
                double& b = pooled[dim - rope_dims + 2 * i + 1];
                const double turned = a * std::cos(angle) - b * std::sin(angle);
                b = a * std::sin(angle) + b * std::cos(angle);
                a = turned;
            }
            for (uint32_t d = 0; d < dim; ++d) {
                ASSERT_NEAR(compressed[w * dim + d], pooled[d], 2e-5) << "row " << w;
            }
        }
    }
}

TEST_P(OperatorsTest, IndexerPicksTheHighestAndLowestIndexAmongEquals) {
    const uint32_t heads = 3, dim = 8, ratio = 4, max_picks = 4, n = 6;
    const uint64_t position = 40;
    const uint64_t total = (position + n) / ratio;
    const auto q = normal(n * heads * dim);
    const auto weights = normal(n * heads);
    auto keys = normal(total * dim);
    // Rows 2 and 7 tie by being the same.
    std::copy_n(&keys[2 * dim], dim, &keys[7 * dim]);
    std::vector<uint32_t> picks(n * max_picks, 12345);
    const IndexSegment segment = {0, n, position, reinterpret_cast<const std::byte*>(keys.data())};
    ops_->index_rows({.q = q.data(), .weights = weights.data(), .n_heads = heads, .dim = dim,
                      .ratio = ratio, .kv = KvType::kF32, .max_picks = max_picks,
                      .segments = {&segment, 1}, .picks = picks.data()});
    for (uint32_t r = 0; r < n; ++r) {
        const uint64_t visible = (position + r + 1) / ratio;
        std::vector<double> scores(visible, 0);
        std::vector<uint32_t> order(visible);
        std::iota(order.begin(), order.end(), 0u);
        for (uint64_t w = 0; w < visible; ++w) {
            for (uint32_t h = 0; h < heads; ++h) {
                scores[w] += weights[r * heads + h] *
                             std::max(dot(&q[(r * heads + h) * dim], &keys[w * dim], dim), 0.0);
            }
        }
        std::stable_sort(order.begin(), order.end(),
                         [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
        order.resize(max_picks);
        std::sort(order.begin(), order.end());
        EXPECT_EQ(std::vector(&picks[r * max_picks], &picks[(r + 1) * max_picks]), order) << r;
    }
}

TEST_P(OperatorsTest, SinkhornOfTheReferenceMatrix) {
    const nlohmann::json unit =
        test::read_json(Path(XP_TEST_DATA) / "deepseek-v4-tiny" / "golden.json")["unit"];
    const uint32_t streams = 4, dim = 4, outputs = 24;
    // Scale 0 makes `base` the argument, whatever the mixes are.
    std::vector<float> base(outputs, 0.0f);
    for (uint32_t j = 0; j < 4; ++j) {
        for (uint32_t k = 0; k < 4; ++k) base[8 + 4 * j + k] = unit["sinkhorn_in"][j][k];
    }
    const std::vector<float> scale(3, 0.0f);
    const auto state = normal(streams * dim), mixes = normal(outputs);
    auto y = poisoned(dim), post_comb = poisoned(20);
    ops_->hc_pre({.state = state.data(), .mixes = mixes.data(), .base = base.data(),
                  .scale = scale.data(), .streams = streams, .dim = dim, .norm_epsilon = 1e-6f,
                  .epsilon = 1e-6f, .iterations = 20}, 1, y.data(), post_comb.data());
    for (uint32_t j = 0; j < 4; ++j) {
        for (uint32_t k = 0; k < 4; ++k) {
            EXPECT_NEAR(post_comb[4 + 4 * j + k], unit["sinkhorn_out"][j][k].get<float>(), 1e-6);
        }
    }
    for (uint32_t d = 0; d < dim; ++d) {
        double sum = 0;
        for (uint32_t s = 0; s < streams; ++s) sum += (0.5 + 1e-6) * state[s * dim + d];
        EXPECT_NEAR(y[d], sum, 1e-6);
    }
    EXPECT_NEAR(post_comb[0], 1.0f, 1e-6) << "2·σ(0), without epsilon";
}

TEST_P(OperatorsTest, HyperConnectionPostMixesTransposed) {
    const uint32_t streams = 4, dim = 3000, n = 2;
    const auto o = normal(n * dim), post_comb = normal(n * 20);
    const auto before = normal(n * streams * dim);
    auto state = before;
    ops_->hc_post(o.data(), post_comb.data(), n, streams, dim, state.data());
    for (uint32_t r = 0; r < n; ++r) {
        for (uint32_t k = 0; k < streams; ++k) {
            for (uint32_t d = 0; d < dim; d += 7) {
                double sum = double{post_comb[r * 20 + k]} * o[r * dim + d];
                for (uint32_t j = 0; j < streams; ++j) {
                    sum += double{post_comb[r * 20 + 4 + 4 * j + k]} *
                           before[(r * streams + j) * dim + d];
                }
                EXPECT_NEAR(state[(r * streams + k) * dim + d], sum, 1e-5);
            }
        }
    }
}

TEST_P(OperatorsTest, RouterBiasActsOnTheChoiceOnly) {
    const std::vector<float> logits = {0.5f, 2, -1, 2, -80};
    const std::vector<float> bias = {0, 0, 5, 0, 0};
    std::vector<uint32_t> ids(3, 99);
    auto weights = poisoned(3);
    const auto score = [&](size_t e) {
        return std::sqrt(std::log1p(std::exp(double{logits[e]})));
    };
    RouteArgs args = {.logits = logits.data(), .bias = bias.data(), .scale = 1.5f, .n_experts = 5,
                      .top_k = 3};
    ops_->route(args, 1, ids.data(), weights.data());
    EXPECT_EQ(ids, (std::vector<uint32_t>{2, 1, 3})) << "the biased one first, then a tie by id";
    const double sum = score(2) + score(1) + score(3);
    for (size_t j = 0; j < 3; ++j) EXPECT_NEAR(weights[j], score(ids[j]) / sum * 1.5, 1e-6);
    // Hash routing: the ids are given; a very negative logit must not become 0 / 0.
    const std::vector<uint32_t> fixed = {4, 4, 4};
    args.host_fixed = fixed.data();
    ops_->route(args, 1, ids.data(), weights.data());
    EXPECT_EQ(ids, fixed);
    for (const float weight : weights) EXPECT_NEAR(weight, 0.5f, 1e-6);
}

TEST_P(OperatorsTest, ExpertsFillTheirSlotsAndSumsAscend) {
    const uint32_t dim = 64, ffn = 32, n = 7, n_experts = 3, top_k = 2;
    std::vector<std::vector<float>> objects;
    for (uint32_t e = 0; e < n_experts; ++e) objects.push_back(normal(3 * dim * ffn, 0.2f));
    const auto x = normal(n * dim);
    auto out = poisoned(n * top_k * dim);
    std::vector<std::vector<uint32_t>> rows(n_experts), slots(n_experts);
    std::vector<std::vector<float>> weights(n_experts);
    for (uint32_t r = 0; r < n; ++r) {
        const uint32_t skipped = r % n_experts;
        uint32_t slot = 0;
        for (uint32_t e = 0; e < n_experts; ++e) {
            if (e == skipped) continue;
            rows[e].push_back(r);
            slots[e].push_back(slot++);
            weights[e].push_back(0.1f * static_cast<float>(e + r + 1));
        }
    }
    const ExpertArgs shape = {.gate = {GgmlType::kF32, StorageLayout::kGgml, ffn, dim, nullptr},
                              .up = {GgmlType::kF32, StorageLayout::kGgml, ffn, dim, nullptr},
                              .down = {GgmlType::kF32, StorageLayout::kGgml, dim, ffn, nullptr},
                              .gate_offset = 0, .up_offset = 4 * dim * ffn,
                              .down_offset = 8 * dim * ffn, .x = x.data(), .limit = 2,
                              .n_slots = top_k, .experts = {}, .out = out.data()};
    // In two groups, as they would arrive.
    const auto work = [&](uint32_t e) {
        return ExpertWork{reinterpret_cast<const std::byte*>(objects[e].data()), rows[e], slots[e],
                          weights[e]};
    };
    for (const std::vector<ExpertWork>& group :
         {std::vector{work(2)}, std::vector{work(0), work(1)}}) {
        ExpertArgs args = shape;
        args.experts = group;
        ops_->experts(args);
    }
    auto summed = poisoned(n * dim);
    ops_->sum_slots(out.data(), n, top_k, dim, summed.data());
    for (uint32_t e = 0; e < n_experts; ++e) {
        const float* w = objects[e].data();
        for (size_t i = 0; i < rows[e].size(); ++i) {
            const float* in = &x[rows[e][i] * dim];
            std::vector<float> mid(ffn);
            for (uint32_t f = 0; f < ffn; ++f) {
                const double g = std::min(dot(w + f * dim, in, dim), 2.0);
                const double u = std::clamp(dot(w + (ffn + f) * dim, in, dim), -2.0, 2.0);
                mid[f] = static_cast<float>(g * sigmoid(g) * u * weights[e][i]);
            }
            for (uint32_t d = 0; d < dim; ++d) {
                ASSERT_NEAR(out[(rows[e][i] * top_k + slots[e][i]) * dim + d],
                            dot(w + 2 * dim * ffn + d * ffn, mid.data(), ffn), 1e-4);
            }
        }
    }
    for (uint32_t r = 0; r < n; ++r) {
        for (uint32_t d = 0; d < dim; ++d) {
            EXPECT_EQ(summed[r * dim + d], out[r * 2 * dim + d] + out[(r * 2 + 1) * dim + d]);
        }
    }
}

TEST_P(OperatorsTest, EmbeddingCopiesIntoEveryStream) {
    const uint32_t vocab = 10, dim = 33, streams = 4;
    const auto table = normal(vocab * dim);
    const std::vector<TokenId> tokens = {9, 0, 3};
    auto state = poisoned(tokens.size() * streams * dim);
    ops_->embed(weight(table, vocab, dim), tokens, streams, state.data());
    for (size_t r = 0; r < tokens.size(); ++r) {
        for (uint32_t s = 0; s < streams; ++s) {
            for (uint32_t d = 0; d < dim; ++d) {
                EXPECT_EQ(state[(r * streams + s) * dim + d],
                          table[static_cast<size_t>(tokens[r]) * dim + d]);
            }
        }
    }
}

}  // namespace
}  // namespace xp
