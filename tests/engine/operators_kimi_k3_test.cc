// Conformance of the operators that Kimi-K3 needs, against sums in double over odd sizes, and that
// a row's result does not depend on how its sequence is cut into calls or what is computed beside.
#include "tests/engine/operators_fixture.h"

namespace xp::test {
namespace {

class OperatorsKimiK3 : public OperatorsTest {
protected:
    void SetUp() override {
        OperatorsTest::SetUp();
        if (ops_ && !ops_->has_kimi_k3()) GTEST_SKIP() << "not on this backend";
    }

    // Uniform in [from, to).
    std::vector<float> uniform(uint64_t n, float from, float to) {
        std::uniform_real_distribution<float> distribution(from, to);
        std::vector<float> values(n);
        for (float& v : values) v = distribution(random_);
        return values;
    }
    static void expect_near(const std::vector<float>& found, const std::vector<double>& expected,
                            double tolerance, const std::string& what) {
        ASSERT_EQ(found.size(), expected.size()) << what;
        for (size_t i = 0; i < found.size(); ++i) {
            ASSERT_NEAR(found[i], expected[i], tolerance * (1 + std::fabs(expected[i])))
                << what << ", value " << i;
        }
    }
    // Ways to cut 20 rows into calls.
    static std::vector<std::vector<uint32_t>> cuts() {
        return {{20}, std::vector<uint32_t>(20, 1), {1, 19}, {7, 7, 6}, {3, 1, 16}};
    }
};
XP_INSTANTIATE_FOR_BACKENDS(OperatorsKimiK3);
constexpr uint32_t kRows = 20;

// Rows of another sequence, in front of those of interest.
std::vector<float> behind(const std::vector<float>& others, const std::vector<float>& values,
                          uint64_t first, uint64_t n) {
    std::vector<float> all = others;
    const auto part = slice(values, first, n);
    all.insert(all.end(), part.begin(), part.end());
    return all;
}

// ---- short convolution

TEST_P(OperatorsKimiK3, ShortConvOfThreeInputs) {
    for (const uint32_t channels : {1u, 37u, 300u}) {
        constexpr uint32_t kTaps = 4, kInputs = 3;
        SCOPED_TRACE(fmt::format("{} channels", channels));
        std::vector<std::vector<float>> x, weights;
        std::vector<DeviceVector<float>> weights_device;
        for (uint32_t i = 0; i < kInputs; ++i) {
            x.push_back(normal(kRows * channels, 2));
            weights.push_back(normal(channels * kTaps));
            weights_device.push_back(device(weights[i]));
        }
        const auto history = normal(kInputs * (kTaps - 1) * channels);
        const auto other_x = normal(5 * channels);
        const auto other_history = normal(history.size());
        struct Out {
            std::vector<float> y, history;
        };
        const auto run = [&](const std::vector<uint32_t>& cut) {
            Out out;
            std::vector<std::vector<float>> y(kInputs);
            const auto state = device(history);
            uint32_t done = 0;
            for (const uint32_t n : cut) {
                const uint32_t others = done % 2 == 0 ? 0 : 5;
                const auto before = others != 0 ? other_x : std::vector<float>();
                const auto other_state = device(other_history);
                std::vector<DeviceVector<float>> buffers;
                std::vector<ConvInput> inputs;
                for (uint32_t i = 0; i < kInputs; ++i) {
                    buffers.push_back(device(behind(before, x[i], done * channels, n * channels)));
                    inputs.push_back({buffers[i].data(), weights_device[i].data()});
                }
                std::vector<ConvSegment> segments;
                if (others != 0) segments.push_back({0, others, other_state.data()});
                segments.push_back({others, n, state.data()});
                ops_->short_conv({inputs, channels, kTaps, segments});
                for (uint32_t i = 0; i < kInputs; ++i) {
                    const auto all = buffers[i].host();
                    y[i].insert(y[i].end(), all.begin() + ptrdiff_t{others} * channels, all.end());
                }
                done += n;
            }
            for (const auto& values : y) out.y.insert(out.y.end(), values.begin(), values.end());
            out.history = state.host();
            return out;
        };
        const Out whole = run({kRows});
        std::vector<double> expected;
        std::vector<float> last;
        for (uint32_t i = 0; i < kInputs; ++i) {
            std::vector<float> all = slice(history, i * 3 * channels, 3 * channels);
            all.insert(all.end(), x[i].begin(), x[i].end());
            for (uint32_t t = 0; t < kRows; ++t) {
                for (uint32_t c = 0; c < channels; ++c) {
                    double sum = 0;
                    for (uint32_t j = 0; j < kTaps; ++j) {
                        sum += double{weights[i][c * kTaps + j]} * all[(t + j) * channels + c];
                    }
                    expected.push_back(sum * sigmoid(sum));
                }
            }
            const auto tail = slice(all, kRows * channels, 3 * channels);
            last.insert(last.end(), tail.begin(), tail.end());
        }
        ASSERT_NO_FATAL_FAILURE(expect_near(whole.y, expected, 1e-5, "y"));
        ASSERT_TRUE(same_bits(whole.history, last)) << "the inputs themselves are kept";
        for (const auto& cut : cuts()) {
            const Out pieces = run(cut);
            ASSERT_TRUE(same_bits(pieces.y, whole.y)) << cut.size() << " pieces";
            ASSERT_TRUE(same_bits(pieces.history, whole.history)) << cut.size() << " pieces";
        }
    }
}

// ---- delta attention

struct DeltaShape {
    uint32_t heads, dim;
    float lower_bound;
};

struct DeltaInputs {
    std::vector<float> q, k, v, gate, beta, out_gate;  // of all rows
};

std::vector<double> delta_reference(const DeltaShape& shape, const DeltaInputs& in,
                                    const std::vector<float>& bias, const std::vector<float>& decay,
                                    const std::vector<float>& norm, std::vector<double>& state) {
    const uint32_t dim = shape.dim;
    std::vector<double> out(uint64_t{kRows} * shape.heads * dim);
    for (uint32_t t = 0; t < kRows; ++t) {
        for (uint32_t h = 0; h < shape.heads; ++h) {
            const uint64_t at = (uint64_t{t} * shape.heads + h) * dim;
            double* const s = &state[uint64_t{h} * dim * dim];
            const double qn = 1 / std::sqrt(dot(&in.q[at], &in.q[at], dim) + 1e-6) / std::sqrt(dim);
            const double kn = 1 / std::sqrt(dot(&in.k[at], &in.k[at], dim) + 1e-6);
            for (uint32_t e = 0; e < dim; ++e) {
                const double z = double{in.gate[at + e]} + bias[h * dim + e];
                const double g = shape.lower_bound != 0
                                     ? shape.lower_bound * sigmoid(decay[h] * z)
                                     : -decay[h] * (std::max(z, 0.0) +
                                                    std::log1p(std::exp(-std::fabs(z))));
                for (uint32_t c = 0; c < dim; ++c) s[e * dim + c] *= std::exp(g);
            }
            double squares = 0;
            for (uint32_t c = 0; c < dim; ++c) {
                double r = 0;
                for (uint32_t e = 0; e < dim; ++e) r += in.k[at + e] * kn * s[e * dim + c];
                const double d =
                    sigmoid(in.beta[t * shape.heads + h]) * (in.v[at + c] - r);
                double o = 0;
                for (uint32_t e = 0; e < dim; ++e) {
                    s[e * dim + c] += in.k[at + e] * kn * d;
                    o += in.q[at + e] * qn * s[e * dim + c];
                }
                out[at + c] = o;
                squares += o * o;
            }
            const double factor = 1 / std::sqrt(squares / dim + 1e-5);
            for (uint32_t c = 0; c < dim; ++c) {
                out[at + c] *= factor * norm[c] * sigmoid(in.out_gate[at + c]);
            }
        }
    }
    return out;
}

TEST_P(OperatorsKimiK3, DeltaAttentionWithBothGates) {
    for (const DeltaShape& shape : {DeltaShape{1, 16, -5}, DeltaShape{3, 50, -5},
                                    DeltaShape{2, 128, -5}, DeltaShape{5, 33, 0},
                                    DeltaShape{2, 128, 0}}) {
        const uint32_t heads = shape.heads, dim = shape.dim, width = heads * dim;
        SCOPED_TRACE(fmt::format("{} heads of {}, bound {}", heads, dim, shape.lower_bound));
        const auto inputs = [&](uint32_t n) {
            return DeltaInputs{normal(n * width), normal(n * width), normal(n * width, 2),
                               normal(n * width, 2), normal(n * heads), normal(n * width, 2)};
        };
        const DeltaInputs in = inputs(kRows), other = inputs(5);
        const auto bias = uniform(width, -3, 1), decay = uniform(heads, 0.6f, 3.3f);
        const auto norm = uniform(dim, 0.5f, 1.5f);
        const auto initial = normal(uint64_t{width} * dim, 0.3f);
        const auto bias_device = device(bias), decay_device = device(decay);
        const auto norm_device = device(norm);
        struct Out {
            std::vector<float> y, state;
        };
        const auto run = [&](const std::vector<uint32_t>& cut) {
            Out result;
            const auto state = device(initial);
            uint32_t done = 0;
            for (const uint32_t n : cut) {
                const uint32_t others = done % 2 == 0 ? 0 : 5;
                const auto rows = [&](const std::vector<float>& beside,
                                      const std::vector<float>& own, uint32_t w) {
                    return device(behind(others != 0 ? beside : std::vector<float>(), own,
                                         done * w, n * w));
                };
                const auto q = rows(other.q, in.q, width), k = rows(other.k, in.k, width);
                const auto v = rows(other.v, in.v, width), gate = rows(other.gate, in.gate, width);
                const auto beta = rows(other.beta, in.beta, heads);
                const auto out_gate = rows(other.out_gate, in.out_gate, width);
                const auto out = poisoned((others + n) * width);
                const auto other_state = device(initial);
                std::vector<DeltaSegment> segments;
                if (others != 0) segments.push_back({0, others, other_state.data()});
                segments.push_back({others, n, state.data()});
                ops_->delta_attention(
                    {.q = q.data(), .k = k.data(), .v = v.data(), .gate = gate.data(),
                     .gate_bias = bias_device.data(), .decay = decay_device.data(),
                     .lower_bound = shape.lower_bound, .beta = beta.data(),
                     .out_gate = out_gate.data(), .norm = norm_device.data(), .epsilon = 1e-5f,
                     .n_heads = heads, .dim = dim, .segments = segments, .out = out.data()});
                const auto all = out.host();
                result.y.insert(result.y.end(), all.begin() + ptrdiff_t{others} * width, all.end());
                done += n;
            }
            result.state = state.host();
            return result;
        };
        const Out whole = run({kRows});
        std::vector<double> state(initial.begin(), initial.end());
        const auto expected = delta_reference(shape, in, bias, decay, norm, state);
        ASSERT_NO_FATAL_FAILURE(expect_near(whole.y, expected, 1e-4, "out"));
        ASSERT_NO_FATAL_FAILURE(expect_near(whole.state, state, 1e-5, "state"));
        for (const auto& cut : cuts()) {
            const Out pieces = run(cut);
            ASSERT_TRUE(same_bits(pieces.y, whole.y)) << cut.size() << " pieces";
            ASSERT_TRUE(same_bits(pieces.state, whole.state)) << cut.size() << " pieces";
        }
    }
}

// ---- latent attention

struct LatentShape {
    uint32_t heads, latent, tail, q_dim;
    uint64_t position;
    KvType kv;
};

TEST_P(OperatorsKimiK3, LatentAttentionOverAllPositions) {
    for (const LatentShape& shape : {LatentShape{2, 12, 4, 12, 3, KvType::kF32},
                                     LatentShape{11, 70, 10, 25, 0, KvType::kF32},
                                     LatentShape{3, 512, 64, 192, 130, KvType::kF32},
                                     LatentShape{9, 512, 64, 192, 61, KvType::kF16}}) {
        const uint32_t heads = shape.heads, latent = shape.latent, tail = shape.tail;
        const uint32_t width = latent + tail, q_width = heads * shape.q_dim;
        SCOPED_TRACE(fmt::format("{} heads, {} + {}, from {}, {}", heads, latent, tail,
                                 shape.position, shape.kv == KvType::kF16 ? "f16" : "f32"));
        const uint64_t n_positions = shape.position + kRows;
        const auto q_latent = normal(uint64_t{kRows} * heads * latent);
        const auto q = normal(uint64_t{kRows} * q_width), kv = normal(uint64_t{kRows} * width, 2);
        const auto norm = uniform(latent, 0.5f, 1.5f);
        const auto norm_device = device(norm);
        const float scale = 1 / std::sqrt(static_cast<float>(shape.q_dim));
        auto past = normal(shape.position * width);
        const auto past_stored = as_stored(past, shape.kv);
        struct Out {
            std::vector<float> y;
            std::vector<std::byte> rows;
        };
        const auto run = [&](const std::vector<uint32_t>& cut) {
            Out result;
            std::vector<std::byte> cache = past_stored;
            cache.resize(n_positions * width * kv_bytes(shape.kv), std::byte{0xff});
            const auto rows = device(cache);
            uint32_t done = 0;
            for (const uint32_t n : cut) {
                const uint32_t others = done % 2 == 0 ? 0 : 2;
                const auto beside = [&](const std::vector<float>& own, uint32_t w) {
                    return device(behind(slice(own, 0, others * w), own, done * w, n * w));
                };
                const auto q_latent_device = beside(q_latent, heads * latent);
                const auto q_device = beside(q, q_width), kv_device = beside(kv, width);
                const auto other_rows = poisoned<std::byte>(2 * width * kv_bytes(shape.kv));
                const auto out = poisoned(uint64_t{others + n} * heads * latent);
                std::vector<LatentSegment> segments;
                if (others != 0) segments.push_back({0, others, 0, other_rows.data()});
                segments.push_back({others, n, shape.position + done, rows.data()});
                ops_->latent_attention(
                    {.q_latent = q_latent_device.data(), .q = q_device.data(),
                     .kv = kv_device.data(), .norm = norm_device.data(), .epsilon = 1e-5f,
                     .kv_type = shape.kv, .n_heads = heads, .latent = latent, .tail = tail,
                     .q_dim = shape.q_dim, .scale = scale, .segments = segments,
                     .out = out.data()});
                const auto all = out.host();
                result.y.insert(result.y.end(),
                                all.begin() + ptrdiff_t{others} * heads * latent, all.end());
                done += n;
            }
            result.rows = rows.host();
            return result;
        };
        const Out whole = run({kRows});
        // The rows as stored are what counts; they are checked on their own.
        const auto stored = from_stored(whole.rows, shape.kv);
        const double rounding = shape.kv == KvType::kF16 ? 1e-3 : 1e-5;
        for (uint32_t t = 0; t < kRows; ++t) {
            const float* row = &kv[uint64_t{t} * width];
            const double factor = 1 / std::sqrt(dot(row, row, latent) / latent + 1e-5);
            for (uint32_t d = 0; d < width; ++d) {
                const double expected = d < latent ? row[d] * factor * norm[d] : row[d];
                ASSERT_NEAR(stored[(shape.position + t) * width + d], expected,
                            rounding * (1 + std::fabs(expected)));
            }
        }
        ASSERT_TRUE(same_bits(slice(stored, 0, past.size()), past));
        std::vector<double> expected;
        for (uint32_t t = 0; t < kRows; ++t) {
            for (uint32_t h = 0; h < heads; ++h) {
                const float* ql = &q_latent[(uint64_t{t} * heads + h) * latent];
                const float* qt = &q[uint64_t{t} * q_width + (h + 1) * shape.q_dim - tail];
                std::vector<double> w;
                for (uint64_t s = 0; s <= shape.position + t; ++s) {
                    const float* key = &stored[s * width];
                    w.push_back((dot(ql, key, latent) + dot(qt, key + latent, tail)) * scale);
                }
                const double max = *std::max_element(w.begin(), w.end());
                double sum = 0;
                for (double& v : w) sum += v = std::exp(v - max);
                for (uint32_t d = 0; d < latent; ++d) {
                    double o = 0;
                    for (size_t s = 0; s < w.size(); ++s) o += w[s] / sum * stored[s * width + d];
                    expected.push_back(o);
                }
            }
        }
        ASSERT_NO_FATAL_FAILURE(expect_near(whole.y, expected, 2e-5, "out"));
        for (const auto& cut : cuts()) {
            const Out pieces = run(cut);
            ASSERT_TRUE(same_bits(pieces.y, whole.y)) << cut.size() << " pieces";
            ASSERT_TRUE(same_bits(pieces.rows, whole.rows)) << cut.size() << " pieces";
        }
    }
}

// Queries' heads are wider than what a group of the product takes.
TEST_P(OperatorsKimiK3, GroupsOfWiderRows) {
    for (const auto& [type, cols, x_group] :
         {std::tuple{GgmlType::kF32, 24u, 32u}, {GgmlType::kQ4_0, 128u, 192u},
          {GgmlType::kQ2_K, 256u, 256u}}) {
        const uint32_t groups = 3, rows = 20, n = 5;
        const HostMatrix m = matrix(type, groups * rows, cols);
        const auto w = device(m.stored);
        const auto x = normal(n * groups * x_group);
        const auto x_device = device(x), y = poisoned(n * groups * rows);
        ops_->matmul_grouped(m.at(w.data()), groups, x_device.data(), n, y.data(), x_group);
        const auto found = y.host();
        for (uint32_t r = 0; r < n; ++r) {
            for (uint32_t o = 0; o < groups * rows; ++o) {
                const auto expected = m.product(o, &x[(r * groups + o / rows) * x_group]);
                ASSERT_NEAR(found[r * groups * rows + o], expected.value, expected.tolerance);
            }
        }
    }
}

// ---- attention residuals

TEST_P(OperatorsKimiK3, ResidualMix) {
    for (const uint32_t dim : {16u, 83u, 256u}) {
        for (const uint32_t n_banked : {0u, 1u, 3u, 8u}) {
            for (const bool restart : {false, true}) {
                SCOPED_TRACE(fmt::format("{} of {}, {}", n_banked, dim, restart ? "restart" : ""));
                constexpr uint32_t kBankRows = 9;
                auto bank = normal(kRows * kBankRows * dim);
                const auto stream = normal(kRows * dim), score = normal(dim, 0.5f);
                const auto first = normal(kRows * dim), second = normal(kRows * dim);
                const auto norm = uniform(dim, 0.5f, 1.5f);
                // A tiny row, whose epsilon matters and which is averaged as it is.
                for (uint32_t d = 0; d < dim; ++d) bank[d] *= 1e-4f;
                const auto score_device = device(score), norm_device = device(norm);
                struct Out {
                    std::vector<float> stream, bank, y;
                };
                const auto run = [&](uint32_t from, uint32_t n, bool with_y) {
                    const auto part = [&](const std::vector<float>& all) {
                        const uint64_t width = all.size() / kRows;
                        return device(slice(all, from * width, n * width));
                    };
                    const auto p = part(stream), b = part(bank), f = part(first), g = part(second);
                    const auto y = poisoned(n * dim);
                    ops_->residual_mix({.stream = p.data(), .bank = b.data(),
                                        .bank_rows = kBankRows, .n_banked = n_banked,
                                        .given = {f.data(), restart ? nullptr : g.data()},
                                        .restart = restart, .keep = with_y,
                                        .score = score_device.data(), .norm = norm_device.data(),
                                        .epsilon = 1e-5f, .dim = dim,
                                        .y = with_y ? y.data() : nullptr}, n);
                    return Out{p.host(), b.host(), y.host()};
                };
                const Out whole = run(0, kRows, true);
                ASSERT_TRUE(same_bits(run(0, kRows, false).stream, whole.stream));
                std::vector<double> expected;
                for (uint32_t r = 0; r < kRows; ++r) {
                    for (uint32_t d = 0; d < dim; ++d) {
                        const uint32_t i = r * dim + d;
                        const double p = restart ? double{first[i]}
                                                 : double{stream[i]} + first[i] + second[i];
                        ASSERT_NEAR(whole.stream[i], p, 1e-5);
                        const uint32_t kept = (r * kBankRows + n_banked) * dim + d;
                        ASSERT_EQ(whole.bank[kept], whole.stream[i]);
                    }
                    std::vector<double> w, mixed(dim);
                    const auto v = [&](uint32_t i) {
                        return i < n_banked ? &bank[(r * kBankRows + i) * dim]
                                            : &whole.stream[r * dim];
                    };
                    double sum = 0;
                    for (uint32_t i = 0; i <= n_banked; ++i) {
                        w.push_back(std::exp(dot(score.data(), v(i), dim) /
                                             std::sqrt(dot(v(i), v(i), dim) / dim + 1e-5)));
                        sum += w.back();
                    }
                    double squares = 0;
                    for (uint32_t d = 0; d < dim; ++d) {
                        for (uint32_t i = 0; i <= n_banked; ++i) mixed[d] += w[i] / sum * v(i)[d];
                        squares += mixed[d] * mixed[d];
                    }
                    for (uint32_t d = 0; d < dim; ++d) {
                        expected.push_back(mixed[d] / std::sqrt(squares / dim + 1e-5) * norm[d]);
                    }
                }
                ASSERT_NO_FATAL_FAILURE(expect_near(whole.y, expected, 3e-5, "y"));
                for (const auto& [from, n] : {std::pair{0u, 1u}, {19u, 1u}, {3u, 7u}}) {
                    ASSERT_TRUE(same_bits(run(from, n, true).y,
                                          slice(whole.y, from * dim, n * dim)));
                }
            }
        }
    }
}

TEST_P(OperatorsKimiK3, SigmoidGateAndSumsOfSlots) {
    const uint32_t n = 1003;
    const auto x = normal(n), gate = normal(n, 4);
    const auto x_device = device(x), gate_device = device(gate);
    ops_->sigmoid_gate(gate_device.data(), n, x_device.data());
    std::vector<double> expected;
    for (uint32_t i = 0; i < n; ++i) expected.push_back(x[i] * sigmoid(gate[i]));
    expect_near(x_device.host(), expected, 1e-6, "gated");

    const uint32_t rows = 7, slots = 16, dim = 83;
    const auto parts = normal(rows * slots * dim);
    const auto parts_device = device(parts), y = poisoned(rows * dim);
    ops_->sum_slots(parts_device.data(), rows, slots, dim, y.data());
    std::vector<double> sums(rows * dim);
    for (uint32_t i = 0; i < parts.size(); ++i) {
        sums[i / (slots * dim) * dim + i % dim] += parts[i];
    }
    expect_near(y.host(), sums, 1e-5, "sums");
}

// ---- feed-forward

double situ(double g, double u) {
    return 4 * std::tanh(g / 4) * sigmoid(g) * 25 * std::tanh(u / 25);
}
constexpr Activation kSiTu = {.kind = Activation::Kind::kSiTu, .beta = 4, .linear_beta = 25};

TEST_P(OperatorsKimiK3, SiTuProducts) {
    for (const GgmlType type : {GgmlType::kF32, GgmlType::kQ2_K, GgmlType::kQ3_K}) {
        const uint32_t rows = 45, cols = 256, n = 6;
        const HostMatrix gate = matrix(type, rows, cols), up = matrix(type, rows, cols);
        const auto gate_device = device(gate.stored), up_device = device(up.stored);
        // Products of about 5: the caps bite.
        const auto x = normal(n * cols, 5.0f / std::sqrt(static_cast<float>(cols)) /
                                            std::max(1e-3f, std::fabs(gate.values[7])));
        const auto x_device = device(x), y = poisoned(n * rows);
        ops_->matmul_gated(gate.at(gate_device.data()), up.at(up_device.data()), x_device.data(),
                           n, kSiTu, y.data());
        const auto found = y.host();
        for (uint32_t r = 0; r < n; ++r) {
            for (uint32_t o = 0; o < rows; ++o) {
                const auto g = gate.product(o, &x[r * cols]), u = up.product(o, &x[r * cols]);
                const double expected = situ(g.value, u.value);
                ASSERT_NEAR(found[r * rows + o], expected,
                            2e-5 + 30 * g.tolerance + 5 * u.tolerance + 1e-5 * std::fabs(expected));
            }
        }
    }
}

TEST_P(OperatorsKimiK3, ExpertsWithWeighedOutputs) {
    const uint32_t latent = 256, ffn = 256, n = 5, slots = 3;
    struct Expert {
        HostMatrix gate, up, down;
        DeviceVector<std::byte> object;
    };
    std::vector<Expert> set;
    for (uint32_t e = 0; e < slots; ++e) {
        HostMatrix g = matrix(GgmlType::kF16, ffn, latent), u = matrix(GgmlType::kF16, ffn, latent);
        HostMatrix d = matrix(GgmlType::kQ3_K, latent, ffn);
        std::vector<std::byte> bytes = g.stored;
        bytes.insert(bytes.end(), u.stored.begin(), u.stored.end());
        bytes.insert(bytes.end(), d.stored.begin(), d.stored.end());
        auto object = device(bytes);
        set.push_back({std::move(g), std::move(u), std::move(d), std::move(object)});
    }
    std::vector<uint32_t> rows(n);
    for (uint32_t r = 0; r < n; ++r) rows[r] = r;
    std::vector<std::vector<uint32_t>> slot(slots), choice(slots);
    std::vector<ExpertWork> works;
    for (uint32_t e = 0; e < slots; ++e) {
        slot[e].assign(n, e);
        choice[e].assign(n, slots - 1 - e);  // the router's order is another
        works.push_back({set[e].object.data(), rows, slot[e], choice[e]});
    }
    const auto x = normal(n * latent, 0.1f), weights = uniform(n * slots, 0, 1);
    const auto x_device = device(x), weights_device = device(weights);
    const auto out = poisoned(n * slots * latent);
    ops_->experts({.gate = set[0].gate.shape, .up = set[0].up.shape, .down = set[0].down.shape,
                   .up_offset = set[0].gate.stored.size(),
                   .down_offset = 2 * set[0].gate.stored.size(), .x = x_device.data(),
                   .weights = weights_device.data(), .activation = kSiTu, .weigh_outputs = true,
                   .n_slots = slots, .experts = works, .out = out.data()});
    const auto found = out.host();
    for (uint32_t r = 0; r < n; ++r) {
        for (uint32_t e = 0; e < slots; ++e) {
            std::vector<float> mid(ffn);
            for (uint32_t f = 0; f < ffn; ++f) {
                mid[f] = static_cast<float>(situ(set[e].gate.product(f, &x[r * latent]).value,
                                                 set[e].up.product(f, &x[r * latent]).value));
            }
            const double weight = weights[r * slots + slots - 1 - e];
            for (uint32_t d = 0; d < latent; d += 3) {
                const auto expected = set[e].down.product(d, mid.data());
                ASSERT_NEAR(found[(r * slots + e) * latent + d], expected.value * weight,
                            20 * expected.tolerance)
                    << "row " << r << ", expert " << e;
            }
        }
    }
}

TEST_P(OperatorsKimiK3, SigmoidScores) {
    const uint32_t n = 17, experts = 896, top_k = 16;
    const auto logits = normal(n * experts, 2), bias = uniform(experts, -0.2f, 0.2f);
    const auto logits_device = device(logits), bias_device = device(bias);
    const auto weights_device = poisoned(n * top_k);
    ops_->route({.score = RouterScore::kSigmoid, .logits = logits_device.data(),
                 .bias = bias_device.data(), .scale = 1.5f, .n_experts = experts, .top_k = top_k,
                 .weights = weights_device.data()}, n);
    std::vector<uint32_t> ids(n * top_k);
    std::vector<float> weights(n * top_k);
    ops_->routed(ids, weights);
    for (uint32_t r = 0; r < n; ++r) {
        const float* const row = &logits[r * experts];
        std::vector<double> choice(experts);
        for (uint32_t e = 0; e < experts; ++e) choice[e] = sigmoid(row[e]) + bias[e];
        double sum = 0, last = INFINITY;
        for (uint32_t j = 0; j < top_k; ++j) sum += sigmoid(row[ids[r * top_k + j]]);
        for (uint32_t j = 0; j < top_k; ++j) {
            const uint32_t id = ids[r * top_k + j];
            ASSERT_TRUE(std::isfinite(choice[id])) << id << " was chosen twice";
            ASSERT_LE(choice[id], last + 1e-6);
            last = choice[id];
            choice[id] = -INFINITY;
            ASSERT_NEAR(weights[r * top_k + j], 1.5 * sigmoid(row[id]) / sum, 1e-6);
        }
        ASSERT_LE(*std::max_element(choice.begin(), choice.end()), last + 1e-6);
    }
}

}  // namespace
}  // namespace xp::test
