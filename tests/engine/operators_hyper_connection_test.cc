// Conformance of the hyper-connections: the mixing weights with their Sinkhorn normalisation, the
// streams' mixtures, and the head.
#include "tests/engine/operators_fixture.h"

namespace xp::test {
namespace {

constexpr uint32_t kIterations = 20;
constexpr double kEpsilon = 1e-6;

// softmax over rows plus epsilon; then columns, rows, columns .. are divided by their sums.
void sinkhorn_in_double(double* c, uint32_t n) {
    const auto divide = [&](uint32_t lines, uint32_t line_step, uint32_t step) {
        for (uint32_t line = 0; line < lines; ++line) {
            double sum = kEpsilon;
            for (uint32_t i = 0; i < n; ++i) sum += c[line * line_step + i * step];
            for (uint32_t i = 0; i < n; ++i) c[line * line_step + i * step] /= sum;
        }
    };
    for (uint32_t j = 0; j < n; ++j) {
        double sum = 0;
        for (uint32_t k = 0; k < n; ++k) sum += c[j * n + k] = std::exp(c[j * n + k]);
        for (uint32_t k = 0; k < n; ++k) c[j * n + k] = c[j * n + k] / sum + kEpsilon;
    }
    divide(n, 1, n);
    for (uint32_t i = 1; i < kIterations; ++i) {
        divide(n, n, 1);
        divide(n, 1, n);
    }
}

class OperatorsHyperConnection : public OperatorsTest {};
XP_INSTANTIATE_FOR_BACKENDS(OperatorsHyperConnection);

TEST_P(OperatorsHyperConnection, SinkhornOfTheReferenceMatrix) {
    // In and out of the oracle of the tiny model (tests/data/deepseek-v4-tiny/golden.json, "unit").
    const std::vector<float> in = {0.1f, -0.3f, 0.7f, 0, 1, 0.5f, -1, 0.2f,
                                   0, 0, 2, -0.5f, -0.7f, 0.3f, 0.1f, 0.9f};
    const std::vector<float> out = {
        0.282801418f, 0.210656015f, 0.265177272f, 0.241364294f, 0.461365931f, 0.31096251f,
        0.032132279f, 0.19553828f, 0.154182734f, 0.171334521f, 0.586272927f, 0.088208818f,
        0.101648917f, 0.307045954f, 0.116416522f, 0.474887607f};
    const uint32_t streams = 4, dim = 4;
    // Scale 0 makes `base` the argument, whatever the mixes are.
    std::vector<float> base(8, 0.0f);
    base.insert(base.end(), in.begin(), in.end());
    const auto state = normal(streams * dim);
    const auto state_device = device(state), mixes = device(normal(base.size()));
    const auto base_device = device(base), scale = device(std::vector<float>(3, 0.0f));
    const auto y_device = poisoned(dim), post_comb_device = poisoned(20);
    ops_->hc_pre({.state = state_device.data(), .mixes = mixes.data(), .base = base_device.data(),
                  .scale = scale.data(), .streams = streams, .dim = dim, .norm_epsilon = 1e-6f,
                  .epsilon = 1e-6f, .iterations = kIterations},
                 1, y_device.data(), post_comb_device.data());
    const auto y = y_device.host(), post_comb = post_comb_device.host();
    for (uint32_t i = 0; i < 16; ++i) EXPECT_NEAR(post_comb[4 + i], out[i], 1e-6) << i;
    for (uint32_t d = 0; d < dim; ++d) {
        double sum = 0;
        for (uint32_t s = 0; s < streams; ++s) sum += (0.5 + 1e-6) * state[s * dim + d];
        EXPECT_NEAR(y[d], sum, 1e-6);
    }
    EXPECT_NEAR(post_comb[0], 1.0f, 1e-6) << "2·σ(0), without epsilon";
}

TEST_P(OperatorsHyperConnection, PreMixesStreamsAndGivesTheWeightsOfPost) {
    for (const auto& [n, streams, dim] : {std::tuple{1u, 4u, 4096u}, {40u, 4u, 100u},
                                          {3u, 4u, 512u}, {5u, 2u, 33u}}) {
        SCOPED_TRACE(fmt::format("{} rows of {}×{}", n, streams, dim));
        const uint32_t outputs = (2 + streams) * streams, flat = streams * dim;
        const auto state = normal(uint64_t{n} * flat), mixes = normal(n * outputs, 3);
        const auto base = normal(outputs), scale = normal(3, 0.3f);
        const auto state_device = device(state), mixes_device = device(mixes);
        const auto base_device = device(base), scale_device = device(scale);
        const auto y_device = poisoned(n * dim);
        const auto post_comb_device = poisoned(n * (streams + streams * streams));
        ops_->hc_pre({.state = state_device.data(), .mixes = mixes_device.data(),
                      .base = base_device.data(), .scale = scale_device.data(),
                      .streams = streams, .dim = dim, .norm_epsilon = 1e-6f, .epsilon = 1e-6f,
                      .iterations = kIterations},
                     n, y_device.data(), post_comb_device.data());
        const auto y = y_device.host(), post_comb = post_comb_device.host();
        for (uint32_t r = 0; r < n; ++r) {
            const float* x = &state[uint64_t{r} * flat];
            const double factor = 1 / std::sqrt(dot(x, x, flat) / flat + 1e-6);
            const auto argument = [&](uint32_t i, uint32_t group) {
                return double{mixes[r * outputs + i]} * factor * scale[group] + base[i];
            };
            std::vector<double> pre(streams), comb(streams * streams);
            const float* found = &post_comb[r * (streams + streams * streams)];
            for (uint32_t i = 0; i < streams; ++i) {
                pre[i] = sigmoid(argument(i, 0)) + kEpsilon;
                ASSERT_NEAR(found[i], 2 * sigmoid(argument(streams + i, 1)), 2e-6);
            }
            for (uint32_t i = 0; i < comb.size(); ++i) comb[i] = argument(2 * streams + i, 2);
            sinkhorn_in_double(comb.data(), streams);
            for (uint32_t i = 0; i < comb.size(); ++i) {
                ASSERT_NEAR(found[streams + i], comb[i], 5e-6);
            }
            for (uint32_t d = 0; d < dim; ++d) {
                double sum = 0;
                for (uint32_t s = 0; s < streams; ++s) sum += pre[s] * x[s * dim + d];
                ASSERT_NEAR(y[r * dim + d], sum, 1e-5);
            }
        }
    }
}

TEST_P(OperatorsHyperConnection, PostMixesTransposed) {
    for (const auto& [n, streams, dim] : {std::tuple{2u, 4u, 3000u}, {33u, 4u, 100u},
                                          {3u, 2u, 33u}, {1u, 4u, 4096u}}) {
        const uint32_t width = streams + streams * streams;
        const auto o = normal(n * dim), post_comb = normal(n * width);
        const auto before = normal(uint64_t{n} * streams * dim);
        const auto o_device = device(o), post_comb_device = device(post_comb);
        const auto state_device = device(before);
        ops_->hc_post(o_device.data(), post_comb_device.data(), n, streams, dim,
                      state_device.data());
        const auto state = state_device.host();
        for (uint32_t r = 0; r < n; ++r) {
            for (uint32_t k = 0; k < streams; ++k) {
                for (uint32_t d = 0; d < dim; d += 7) {
                    double sum = double{post_comb[r * width + k]} * o[r * dim + d];
                    for (uint32_t j = 0; j < streams; ++j) {
                        sum += double{post_comb[r * width + streams + streams * j + k]} *
                               before[(r * streams + j) * dim + d];
                    }
                    ASSERT_NEAR(state[(r * streams + k) * dim + d], sum, 1e-5);
                }
            }
        }
    }
}

TEST_P(OperatorsHyperConnection, HeadMixesStreamsByOneScale) {
    for (const auto& [n, streams, dim] : {std::tuple{1u, 4u, 4096u}, {9u, 4u, 100u},
                                          {3u, 2u, 33u}}) {
        const uint32_t flat = streams * dim;
        const auto state = normal(uint64_t{n} * flat), mixes = normal(n * streams, 3);
        const auto base = normal(streams), scale = normal(1, 0.3f);
        const auto state_device = device(state), mixes_device = device(mixes);
        const auto base_device = device(base), scale_device = device(scale);
        const auto y_device = poisoned(n * dim);
        ops_->hc_head({.state = state_device.data(), .mixes = mixes_device.data(),
                       .base = base_device.data(), .scale = scale_device.data(),
                       .streams = streams, .dim = dim, .norm_epsilon = 1e-6f, .epsilon = 1e-6f},
                      n, y_device.data());
        const auto y = y_device.host();
        for (uint32_t r = 0; r < n; ++r) {
            const float* x = &state[uint64_t{r} * flat];
            const double factor = 1 / std::sqrt(dot(x, x, flat) / flat + 1e-6);
            for (uint32_t d = 0; d < dim; ++d) {
                double sum = 0;
                for (uint32_t s = 0; s < streams; ++s) {
                    const double m = mixes[r * streams + s] * factor * scale[0] + base[s];
                    sum += (sigmoid(m) + kEpsilon) * x[s * dim + d];
                }
                ASSERT_NEAR(y[r * dim + d], sum, 1e-5);
            }
        }
    }
}

}  // namespace
}  // namespace xp::test
