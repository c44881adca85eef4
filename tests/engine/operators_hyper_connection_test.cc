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
        const double max = *std::max_element(c + j * n, c + (j + 1) * n);
        double sum = 0;
        for (uint32_t k = 0; k < n; ++k) sum += c[j * n + k] = std::exp(c[j * n + k] - max);
        for (uint32_t k = 0; k < n; ++k) c[j * n + k] = c[j * n + k] / sum + kEpsilon;
    }
    divide(n, 1, n);
    for (uint32_t i = 1; i < kIterations; ++i) {
        divide(n, n, 1);
        divide(n, 1, n);
    }
}

// A hyper-connection's weights, and what its first step gives in double: the new state and its
// mixes, fn · state over the state's root mean square.
class OperatorsHyperConnection : public OperatorsTest {
protected:
    struct Shape {
        uint32_t n, streams, dim;
        GgmlType type = GgmlType::kF16;
        uint32_t flat() const { return streams * dim; }
        uint32_t width() const { return streams + streams * streams; }
    };

    void make(const Shape& shape, uint32_t outputs, uint32_t scales) {
        fn_ = matrix(shape.type, outputs, shape.flat());
        state_ = normal(uint64_t{shape.n} * shape.flat());
        base_ = normal(outputs);
        scale_ = normal(scales, 0.3f);
        norm_ = normal(shape.dim);
        fn_device_ = device(fn_.stored);
        state_device_ = device(state_);
        base_device_ = device(base_);
        scale_device_ = device(scale_);
        norm_device_ = device(norm_);
    }

    HyperConnectionArgs args(const Shape& shape) const {
        return {.state = state_device_.data(), .fn = fn_.at(fn_device_.data()),
                .base = base_device_.data(), .scale = scale_device_.data(),
                .norm = norm_device_.data(), .streams = shape.streams, .dim = shape.dim,
                .norm_epsilon = 1e-6f, .epsilon = 1e-6f, .iterations = kIterations};
    }

    // (fn · state)[i] · factor · scale + base of a row; `magnitude` is what its error goes with.
    double argument(const float* x, uint32_t flat, uint32_t i, uint32_t group,
                    double& tolerance) const {
        const double factor = 1 / std::sqrt(dot(x, x, flat) / flat + 1e-6);
        const HostMatrix::Product mix = fn_.product(i, x);
        tolerance = std::max(tolerance, mix.tolerance * factor * std::fabs(scale_[group]));
        return mix.value * factor * scale_[group] + base_[i];
    }

    // norm(Σ pre_s·x_s) of a row against y.
    void check_mixed(const Shape& shape, const float* x, const std::vector<double>& pre,
                     double tolerance, const float* y) const {
        std::vector<double> mixed(shape.dim, 0);
        double squares = 0;
        for (uint32_t d = 0; d < shape.dim; ++d) {
            for (uint32_t s = 0; s < shape.streams; ++s) mixed[d] += pre[s] * x[s * shape.dim + d];
            squares += mixed[d] * mixed[d];
        }
        const double factor = 1 / std::sqrt(squares / shape.dim + 1e-6);
        for (uint32_t d = 0; d < shape.dim; ++d) {
            const double expected = mixed[d] * factor * norm_[d];
            ASSERT_NEAR(y[d], expected, (1e-5 + 10 * tolerance) * (1 + std::fabs(norm_[d]))) << d;
        }
    }

    HostMatrix fn_;
    std::vector<float> state_, base_, scale_, norm_;
    DeviceVector<std::byte> fn_device_;
    DeviceVector<float> state_device_, base_device_, scale_device_, norm_device_;
};
XP_INSTANTIATE_FOR_BACKENDS(OperatorsHyperConnection);

TEST_P(OperatorsHyperConnection, SinkhornOfTheReferenceMatrix) {
    // In and out of the oracle of the tiny model (tests/data/deepseek-v4-tiny/golden.json, "unit").
    const std::vector<float> in = {0.1f, -0.3f, 0.7f, 0, 1, 0.5f, -1, 0.2f,
                                   0, 0, 2, -0.5f, -0.7f, 0.3f, 0.1f, 0.9f};
    const std::vector<float> out = {
        0.282801418f, 0.210656015f, 0.265177272f, 0.241364294f, 0.461365931f, 0.31096251f,
        0.032132279f, 0.19553828f, 0.154182734f, 0.171334521f, 0.586272927f, 0.088208818f,
        0.101648917f, 0.307045954f, 0.116416522f, 0.474887607f};
    const Shape shape = {1, 4, 4};
    make(shape, 24, 3);
    // Scale 0 makes `base` the argument, whatever the mixes are.
    base_.assign(8, 0.0f);
    base_.insert(base_.end(), in.begin(), in.end());
    base_device_ = device(base_);
    scale_device_ = device(std::vector<float>(3, 0.0f));
    const auto y = poisoned(shape.dim), post_comb_device = poisoned(20);
    ops_->hc_pre(args(shape), nullptr, 1, y.data(), post_comb_device.data());
    const auto post_comb = post_comb_device.host();
    for (uint32_t i = 0; i < 16; ++i) EXPECT_NEAR(post_comb[4 + i], out[i], 1e-6) << i;
    EXPECT_NEAR(post_comb[0], 1.0f, 1e-6) << "2·σ(0), without epsilon";
    check_mixed(shape, state_.data(), std::vector<double>(4, 0.5 + 1e-6), 0, y.host().data());
}

TEST_P(OperatorsHyperConnection, PreMixesStreamsAndGivesTheWeightsOfPost) {
    for (const Shape& shape : {Shape{1, 4, 4096}, Shape{40, 4, 100}, Shape{5, 2, 33},
                               Shape{3, 4, 512, GgmlType::kF32},
                               Shape{2, 4, 64, GgmlType::kQ8_0}, Shape{2, 8, 72}}) {
        SCOPED_TRACE(fmt::format("{} rows of {}×{}", shape.n, shape.streams, shape.dim));
        const uint32_t streams = shape.streams;
        make(shape, (2 + streams) * streams, 3);
        const auto y_device = poisoned(shape.n * shape.dim);
        const auto post_comb_device = poisoned(shape.n * shape.width());
        ops_->hc_pre(args(shape), nullptr, shape.n, y_device.data(), post_comb_device.data());
        const auto y = y_device.host(), post_comb = post_comb_device.host();
        EXPECT_TRUE(same_bits(state_device_.host(), state_)) << "there was no update";
        for (uint32_t r = 0; r < shape.n; ++r) {
            const float* x = &state_[uint64_t{r} * shape.flat()];
            double tolerance = 0;
            const auto argument_of = [&](uint32_t i, uint32_t group) {
                return argument(x, shape.flat(), i, group, tolerance);
            };
            std::vector<double> pre(streams), comb(streams * streams);
            const float* found = &post_comb[r * shape.width()];
            for (uint32_t i = 0; i < streams; ++i) {
                pre[i] = sigmoid(argument_of(i, 0)) + kEpsilon;
                ASSERT_NEAR(found[i], 2 * sigmoid(argument_of(streams + i, 1)),
                            2e-6 + 2 * tolerance);
            }
            for (uint32_t i = 0; i < comb.size(); ++i) comb[i] = argument_of(2 * streams + i, 2);
            sinkhorn_in_double(comb.data(), streams);
            for (uint32_t i = 0; i < comb.size(); ++i) {
                ASSERT_NEAR(found[streams + i], comb[i], 5e-6 + 4 * tolerance);
            }
            ASSERT_NO_FATAL_FAILURE(
                check_mixed(shape, x, pre, tolerance, &y[uint64_t{r} * shape.dim]));
        }
    }
}

TEST_P(OperatorsHyperConnection, PostMixesTransposedWhatIsSummedInAscendingSlots) {
    for (const auto& [n, streams, dim, slots] :
         {std::tuple{2u, 4u, 3000u, 0u}, {33u, 4u, 100u, 6u}, {3u, 2u, 33u, 1u},
          {1u, 4u, 4096u, 6u}, {1u, 8u, 100u, 2u}}) {
        SCOPED_TRACE(fmt::format("{} rows of {}×{}, {} slots", n, streams, dim, slots));
        const uint32_t width = streams + streams * streams;
        const auto rest = normal(n * dim), post_comb = normal(n * width);
        const auto parts = normal(uint64_t{n} * slots * dim);
        const auto before = normal(uint64_t{n} * streams * dim);
        const auto rest_device = device(rest), post_comb_device = device(post_comb);
        const auto parts_device = device(parts), state_device = device(before);
        const HcUpdate update = {post_comb_device.data(), rest_device.data(),
                                 slots > 0 ? parts_device.data() : nullptr, slots};
        ops_->hc_post(update, n, streams, dim, state_device.data());
        const auto state = state_device.host();
        for (uint32_t r = 0; r < n; ++r) {
            for (uint32_t k = 0; k < streams; ++k) {
                for (uint32_t d = 0; d < dim; d += 7) {
                    float o = rest[r * dim + d];
                    for (uint32_t s = 0; s < slots; ++s) {
                        const float part = parts[(uint64_t{r} * slots + s) * dim + d];
                        o = s == 0 ? part : o + part;
                    }
                    if (slots > 0) o += rest[r * dim + d];
                    double sum = double{post_comb[r * width + k]} * o;
                    for (uint32_t j = 0; j < streams; ++j) {
                        sum += double{post_comb[r * width + streams + streams * j + k]} *
                               before[(r * streams + j) * dim + d];
                    }
                    ASSERT_NEAR(state[(r * streams + k) * dim + d], sum, 2e-5);
                }
            }
        }
    }
}

TEST_P(OperatorsHyperConnection, PreAfterAnUpdateIsPostAndThenPre) {
    for (const Shape& shape : {Shape{1, 4, 4096}, Shape{9, 4, 100}, Shape{20, 2, 33}}) {
        SCOPED_TRACE(fmt::format("{} rows of {}×{}", shape.n, shape.streams, shape.dim));
        make(shape, (2 + shape.streams) * shape.streams, 3);
        const uint32_t slots = 6;
        const auto rest = device(normal(shape.n * shape.dim));
        const auto parts = device(normal(uint64_t{shape.n} * slots * shape.dim));
        const auto post_comb = normal(shape.n * shape.width());
        const auto together = device(post_comb), apart = device(post_comb);
        const auto y = poisoned(shape.n * shape.dim), z = poisoned(shape.n * shape.dim);
        HcUpdate update = {together.data(), rest.data(), parts.data(), slots};
        ops_->hc_pre(args(shape), &update, shape.n, y.data(), together.data());
        const auto state = state_device_.host();
        state_device_ = device(state_);
        update.post_comb = apart.data();
        ops_->hc_post(update, shape.n, shape.streams, shape.dim, state_device_.data());
        ops_->hc_pre(args(shape), nullptr, shape.n, z.data(), apart.data());
        EXPECT_TRUE(same_bits(state, state_device_.host()));
        EXPECT_TRUE(same_bits(y.host(), z.host()));
        EXPECT_TRUE(same_bits(together.host(), apart.host()));
        EXPECT_FALSE(same_bits(state, state_));
    }
}

TEST_P(OperatorsHyperConnection, HeadMixesStreamsByOneScale) {
    for (const Shape& shape : {Shape{1, 4, 4096}, Shape{9, 4, 100}, Shape{3, 2, 33}}) {
        make(shape, shape.streams, 1);
        const auto y_device = poisoned(shape.n * shape.dim);
        ops_->hc_head(args(shape), shape.n, y_device.data());
        const auto y = y_device.host();
        for (uint32_t r = 0; r < shape.n; ++r) {
            const float* x = &state_[uint64_t{r} * shape.flat()];
            double tolerance = 0;
            std::vector<double> pre(shape.streams);
            for (uint32_t s = 0; s < shape.streams; ++s) {
                pre[s] = sigmoid(argument(x, shape.flat(), s, 0, tolerance)) + kEpsilon;
            }
            ASSERT_NO_FATAL_FAILURE(
                check_mixed(shape, x, pre, tolerance, &y[uint64_t{r} * shape.dim]));
        }
    }
}

}  // namespace
}  // namespace xp::test
