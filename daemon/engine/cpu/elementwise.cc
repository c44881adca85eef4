// Everything that is neither a matrix product nor attention: embeddings, norms, activations, rotary
// positions, hyper-connections.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "daemon/engine/cpu/operators.h"

namespace xp {
namespace {

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

// 1 / sqrt(mean(x²) + epsilon)
float rms_factor(const CpuKernels& kernels, const float* x, uint64_t n, float epsilon) {
    return 1 / std::sqrt(kernels.dot(x, x, n) / static_cast<float>(n) + epsilon);
}

constexpr uint32_t kMaxStreams = 8;

// Makes exp(c) nearly doubly stochastic: softmax over each row plus epsilon, then columns and rows
// divided by their sums in turn, beginning and ending with columns (DeepSeek-V4, mHC).
void sinkhorn(float* c, uint32_t n, float epsilon, uint32_t iterations) {
    const auto normalise_columns = [&] {
        for (uint32_t k = 0; k < n; ++k) {
            float sum = 0;
            for (uint32_t j = 0; j < n; ++j) sum += c[j * n + k];
            for (uint32_t j = 0; j < n; ++j) c[j * n + k] /= sum + epsilon;
        }
    };
    for (uint32_t j = 0; j < n; ++j) {
        float* row = c + j * n;
        const float max = *std::max_element(row, row + n);
        float sum = 0;
        for (uint32_t k = 0; k < n; ++k) sum += row[k] = std::exp(row[k] - max);
        for (uint32_t k = 0; k < n; ++k) row[k] = row[k] / sum + epsilon;
    }
    normalise_columns();
    for (uint32_t i = 1; i < iterations; ++i) {
        for (uint32_t j = 0; j < n; ++j) {
            float sum = 0;
            for (uint32_t k = 0; k < n; ++k) sum += c[j * n + k];
            for (uint32_t k = 0; k < n; ++k) c[j * n + k] /= sum + epsilon;
        }
        normalise_columns();
    }
}

// y = Σ_s weights[s]·streams[s]
void mix_streams(const float* state, const float* weights, uint32_t streams, uint32_t dim,
                 float* y) {
    for (uint32_t d = 0; d < dim; ++d) y[d] = weights[0] * state[d];
    for (uint32_t s = 1; s < streams; ++s) {
        const float* stream = state + uint64_t{s} * dim;
        for (uint32_t d = 0; d < dim; ++d) y[d] += weights[s] * stream[d];
    }
}

}  // namespace

void CpuOperators::embed(const Weight& table, std::span<const TokenId> host_tokens,
                         uint32_t streams, float* state) {
    const TypeTraits& traits = traits_of(table.type);
    const uint64_t bytes = row_bytes(table.type, table.cols);
    const uint64_t dim = table.cols;
    for_ranges(host_tokens.size(), dim * streams, [&](uint64_t begin, uint64_t end) {
        for (uint64_t row = begin; row < end; ++row) {
            float* first = state + row * streams * dim;
            traits.dequantise(table.data + static_cast<uint64_t>(host_tokens[row]) * bytes, first,
                              dim);
            for (uint32_t s = 1; s < streams; ++s) std::copy_n(first, dim, first + s * dim);
        }
    });
}

void CpuOperators::rms_norm(const float* x, const float* weight, float epsilon, uint32_t n_rows,
                            uint32_t dim, float* y) {
    for_ranges(n_rows, 2 * uint64_t{dim}, [&](uint64_t begin, uint64_t end) {
        for (uint64_t row = begin; row < end; ++row) {
            const float* from = x + row * dim;
            float* to = y + row * dim;
            const float factor = rms_factor(kernels_, from, dim, epsilon);
            for (uint32_t d = 0; d < dim; ++d) {
                to[d] = weight != nullptr ? from[d] * factor * weight[d] : from[d] * factor;
            }
        }
    });
}

void CpuOperators::copy(const float* x, uint64_t n, float* y) { std::copy_n(x, n, y); }

void CpuOperators::scale(float* x, float factor, uint64_t n) {
    for (uint64_t i = 0; i < n; ++i) x[i] *= factor;
}

void CpuOperators::add(const float* x, uint64_t n, float* y) {
    for_ranges(n, 1, [&](uint64_t begin, uint64_t end) {
        for (uint64_t i = begin; i < end; ++i) y[i] += x[i];
    });
}

void CpuOperators::swiglu(const float* gate, const float* up, float limit, uint64_t n, float* y) {
    for_ranges(n, 16, [&](uint64_t begin, uint64_t end) {
        for (uint64_t i = begin; i < end; ++i) {
            const float g = std::min(gate[i], limit);
            y[i] = g * sigmoid(g) * std::clamp(up[i], -limit, limit);
        }
    });
}

void CpuOperators::rope(float* x, const float* cos_sin, uint32_t n_rows, uint32_t n_heads,
                        uint32_t dim, uint32_t rope_dims, bool inverse) {
    const float direction = inverse ? -1.0f : 1.0f;
    for_ranges(n_rows, uint64_t{n_heads} * rope_dims, [&](uint64_t begin, uint64_t end) {
        for (uint64_t row = begin; row < end; ++row) {
            const float* turn = cos_sin + row * rope_dims;
            for (uint32_t h = 0; h < n_heads; ++h) {
                float* v = x + (row * n_heads + h + 1) * dim - rope_dims;
                for (uint32_t i = 0; i < rope_dims; i += 2) {
                    const float c = turn[i];
                    const float s = turn[i + 1] * direction;
                    const float a = v[i];
                    const float b = v[i + 1];
                    v[i] = a * c - b * s;
                    v[i + 1] = a * s + b * c;
                }
            }
        }
    });
}

void CpuOperators::hc_pre(const HyperConnectionArgs& args, uint32_t n_rows, float* y,
                          float* post_comb) {
    const uint32_t n = args.streams;
    const uint32_t n_outputs = (2 + n) * n;
    const uint64_t flat = uint64_t{n} * args.dim;
    for_ranges(n_rows, 4 * flat, [&](uint64_t begin, uint64_t end) {
        for (uint64_t row = begin; row < end; ++row) {
            const float* state = args.state + row * flat;
            const float factor = rms_factor(kernels_, state, flat, args.norm_epsilon);
            const float* mixes = args.mixes + row * n_outputs;
            float* post = post_comb + row * (n + n * n);
            float* comb = post + n;
            std::array<float, kMaxStreams> pre;
            for (uint32_t i = 0; i < n; ++i) {
                pre[i] = sigmoid(mixes[i] * factor * args.scale[0] + args.base[i]) + args.epsilon;
                post[i] = 2 * sigmoid(mixes[n + i] * factor * args.scale[1] + args.base[n + i]);
            }
            for (uint32_t i = 0; i < n * n; ++i) {
                comb[i] = mixes[2 * n + i] * factor * args.scale[2] + args.base[2 * n + i];
            }
            sinkhorn(comb, n, args.epsilon, args.iterations);
            mix_streams(state, pre.data(), n, args.dim, y + row * args.dim);
        }
    });
}

void CpuOperators::hc_post(const float* o, const float* post_comb, uint32_t n_rows,
                           uint32_t streams, uint32_t dim, float* state) {
    for_ranges(n_rows, uint64_t{streams} * streams * dim, [&](uint64_t begin, uint64_t end) {
        for (uint64_t row = begin; row < end; ++row) {
            const float* post = post_comb + row * (streams + streams * streams);
            const float* comb = post + streams;
            float* x = state + row * streams * dim;
            for (uint32_t d = 0; d < dim; ++d) {
                std::array<float, kMaxStreams> old;
                for (uint32_t j = 0; j < streams; ++j) old[j] = x[uint64_t{j} * dim + d];
                for (uint32_t k = 0; k < streams; ++k) {
                    float sum = post[k] * o[row * dim + d];
                    for (uint32_t j = 0; j < streams; ++j) sum += comb[j * streams + k] * old[j];
                    x[uint64_t{k} * dim + d] = sum;
                }
            }
        }
    });
}

void CpuOperators::hc_head(const HyperConnectionArgs& args, uint32_t n_rows, float* y) {
    const uint32_t n = args.streams;
    const uint64_t flat = uint64_t{n} * args.dim;
    for_ranges(n_rows, 4 * flat, [&](uint64_t begin, uint64_t end) {
        for (uint64_t row = begin; row < end; ++row) {
            const float* state = args.state + row * flat;
            const float factor = rms_factor(kernels_, state, flat, args.norm_epsilon);
            std::array<float, kMaxStreams> weights;
            for (uint32_t i = 0; i < n; ++i) {
                const float m = args.mixes[row * n + i] * factor;
                weights[i] = sigmoid(m * args.scale[0] + args.base[i]) + args.epsilon;
            }
            mix_streams(state, weights.data(), n, args.dim, y + row * args.dim);
        }
    });
}

}  // namespace xp
