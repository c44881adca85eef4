// Kimi Delta Attention and the short convolution in front of it.
#include <algorithm>
#include <cmath>

#include "daemon/engine/cpu/operators.h"

namespace xp {
namespace {

constexpr float kNormEpsilon = 1e-6f;  // of the keys' and queries' norm

// One channel of one segment. `history`: its taps − 1 values, `stride` apart.
void convolve(float* x, uint32_t n_rows, uint64_t x_stride, const float* weight, uint32_t taps,
              float* history, uint64_t stride, std::vector<float>& inputs) {
    const uint32_t before = taps - 1;
    inputs.resize(before + n_rows);
    for (uint32_t i = 0; i < before; ++i) inputs[i] = history[i * stride];
    for (uint32_t t = 0; t < n_rows; ++t) inputs[before + t] = x[t * x_stride];
    for (uint32_t t = 0; t < n_rows; ++t) {
        float y = weight[0] * inputs[t];
        for (uint32_t j = 1; j < taps; ++j) y += weight[j] * inputs[t + j];
        x[t * x_stride] = y * sigmoid(y);
    }
    for (uint32_t i = 0; i < before; ++i) history[i * stride] = inputs[n_rows + i];
}

// to = x / sqrt(Σ x² + epsilon) · scale
void unit_row(const CpuKernels& kernels, const float* x, uint32_t n, float scale, float* to) {
    const float factor = 1 / std::sqrt(kernels.dot(x, x, n) + kNormEpsilon) * scale;
    for (uint32_t i = 0; i < n; ++i) to[i] = x[i] * factor;
}

// One row of one head.
void delta_step(const CpuKernels& kernels, const DeltaAttentionArgs& args, uint64_t row,
                uint32_t head, float* state, std::span<float> scratch) {
    const uint32_t dim = args.dim;
    const uint64_t at = (row * args.n_heads + head) * dim;
    float* const q = scratch.data();
    float* const k = q + dim;
    float* const d = k + dim;  // r at first
    float* const out = args.out + at;
    unit_row(kernels, args.q + at, dim, 1 / std::sqrt(static_cast<float>(dim)), q);
    unit_row(kernels, args.k + at, dim, 1, k);
    std::fill_n(d, dim, 0.0f);
    for (uint32_t e = 0; e < dim; ++e) {
        const float z = args.gate[at + e] + args.gate_bias[uint64_t{head} * dim + e];
        const float decay = args.decay[head];
        const float g = args.lower_bound != 0 ? args.lower_bound * sigmoid(decay * z)
                                              : -decay * softplus(z);
        const float a = std::exp(g);
        float* const s = state + uint64_t{e} * dim;
        for (uint32_t c = 0; c < dim; ++c) s[c] *= a;
        kernels.axpy(k[e], s, d, dim);
    }
    const float beta = sigmoid(args.beta[row * args.n_heads + head]);
    for (uint32_t c = 0; c < dim; ++c) d[c] = beta * (args.v[at + c] - d[c]);
    std::fill_n(out, dim, 0.0f);
    for (uint32_t e = 0; e < dim; ++e) {
        float* const s = state + uint64_t{e} * dim;
        kernels.axpy(k[e], d, s, dim);
        kernels.axpy(q[e], s, out, dim);
    }
    norm_row(kernels, out, args.norm, args.epsilon, dim, out);
    for (uint32_t c = 0; c < dim; ++c) out[c] *= sigmoid(args.out_gate[at + c]);
}

}  // namespace

void CpuOperators::short_conv(const ShortConvArgs& args) {
    const uint64_t channels = args.channels;
    for (const ConvSegment& segment : args.segments) {
        const uint64_t n = args.inputs.size() * channels;
        for_ranges(n, uint64_t{segment.n_rows} * 32, [&](uint64_t begin, uint64_t end) {
            std::vector<float> inputs;
            for (uint64_t i = begin; i < end; ++i) {
                const ConvInput& input = args.inputs[i / channels];
                const uint64_t channel = i % channels;
                float* const history =
                    segment.history + i / channels * (args.taps - 1) * channels + channel;
                convolve(input.x + segment.first_row * channels + channel, segment.n_rows,
                         channels, input.weight + channel * args.taps, args.taps, history,
                         channels, inputs);
            }
        });
    }
}

void CpuOperators::delta_attention(const DeltaAttentionArgs& args) {
    const uint64_t head_state = uint64_t{args.dim} * args.dim;
    uint64_t n_rows = 0;
    for (const DeltaSegment& segment : args.segments) n_rows += segment.n_rows;
    const uint64_t n = args.segments.size() * args.n_heads;
    const uint64_t cost = 4 * head_state * n_rows / std::max<uint64_t>(args.segments.size(), 1);
    for_ranges(n, cost, [&](uint64_t begin, uint64_t end) {
        std::vector<float> scratch(uint64_t{3} * args.dim);
        for (uint64_t i = begin; i < end; ++i) {
            const DeltaSegment& segment = args.segments[i / args.n_heads];
            const auto head = static_cast<uint32_t>(i % args.n_heads);
            for (uint32_t row = 0; row < segment.n_rows; ++row) {
                delta_step(kernels_, args, segment.first_row + row, head,
                           segment.state + head * head_state, scratch);
            }
        }
    });
}

}  // namespace xp
