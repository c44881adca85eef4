// Everything that is neither a matrix product nor attention: embeddings, norms, activations, rotary
// positions, hyper-connections, attention residuals.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "daemon/engine/cpu/operators.h"

namespace xp {
namespace {

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

void norm_row(const CpuKernels& kernels, const float* x, const float* weight, float epsilon,
              uint32_t dim, float* y) {
    const float factor = rms_factor(kernels, x, dim, epsilon);
    for (uint32_t d = 0; d < dim; ++d) {
        y[d] = weight != nullptr ? x[d] * factor * weight[d] : x[d] * factor;
    }
}

void turn(float* v, const float* cos_sin, uint32_t rope_dims, bool back) {
    for (uint32_t i = 0; i < rope_dims; i += 2) {
        const float c = cos_sin[i];
        const float s = back ? -cos_sin[i + 1] : cos_sin[i + 1];
        const float a = v[i];
        const float b = v[i + 1];
        v[i] = a * c - b * s;
        v[i + 1] = a * s + b * c;
    }
}

void CpuOperators::embed(const Weight& host_table, std::span<const TokenId> host_tokens,
                         uint32_t streams, float* state) {
    const TypeTraits& traits = traits_of(host_table.type);
    const uint64_t bytes = row_bytes(host_table.type, host_table.cols);
    const uint64_t dim = host_table.cols;
    for_ranges(host_tokens.size(), dim * streams, [&](uint64_t begin, uint64_t end) {
        for (uint64_t row = begin; row < end; ++row) {
            float* first = state + row * streams * dim;
            traits.dequantise(host_table.data + static_cast<uint64_t>(host_tokens[row]) * bytes,
                              first, dim);
            for (uint32_t s = 1; s < streams; ++s) std::copy_n(first, dim, first + s * dim);
        }
    });
}

void CpuOperators::rms_norm(const float* x, const float* weight, float epsilon, uint32_t n_rows,
                            uint32_t dim, float* y) {
    for_ranges(n_rows, 2 * uint64_t{dim}, [&](uint64_t begin, uint64_t end) {
        for (uint64_t row = begin; row < end; ++row) {
            norm_row(kernels_, x + row * dim, weight, epsilon, dim, y + row * dim);
        }
    });
}

void CpuOperators::copy(const float* x, uint64_t n, float* y) { std::copy_n(x, n, y); }

void CpuOperators::norm_rope(std::span<const NormRopeArgs> all, uint32_t n_rows) {
    for (const NormRopeArgs& args : all) {
        const uint32_t dim = args.dim;
        const auto head = [&](uint64_t row, uint64_t index) {
            thread_local std::vector<float> scratch;
            float* const x = args.x + index * dim;
            float* to = x;
            if (args.stored != nullptr) {
                scratch.assign(x, x + dim);
                to = scratch.data();
            }
            if (args.normed) norm_row(kernels_, x, args.norm, args.epsilon, dim, to);
            turn(to + dim - args.rope_dims, args.cos_sin + row * args.rope_dims, args.rope_dims,
                 false);
            if (args.stored != nullptr) {
                write_stored_row(kernels_, to, args.kv, index, dim, args.stored);
            }
        };
        for_ranges(n_rows, uint64_t{args.n_heads} * dim * 2, [&](uint64_t begin, uint64_t end) {
            for (uint64_t row = begin; row < end; ++row) {
                for (uint32_t h = 0; h < args.n_heads; ++h) head(row, row * args.n_heads + h);
            }
        });
    }
}

void CpuOperators::hc_post(const HcUpdate& update, uint32_t n_rows, uint32_t streams, uint32_t dim,
                           float* state) {
    for_ranges(n_rows, uint64_t{streams} * streams * dim, [&](uint64_t begin, uint64_t end) {
        std::vector<float> o(dim);
        for (uint64_t row = begin; row < end; ++row) {
            const float* rest = update.rest + row * dim;
            const float* part = update.parts + row * update.n_slots * dim;
            if (update.parts == nullptr) {
                std::copy_n(rest, dim, o.data());
            } else {
                std::copy_n(part, dim, o.data());
                for (uint32_t s = 1; s < update.n_slots; ++s) {
                    for (uint32_t d = 0; d < dim; ++d) o[d] += part[uint64_t{s} * dim + d];
                }
                for (uint32_t d = 0; d < dim; ++d) o[d] += rest[d];
            }
            const float* post = update.post_comb + row * (streams + streams * streams);
            const float* comb = post + streams;
            float* x = state + row * streams * dim;
            for (uint32_t d = 0; d < dim; ++d) {
                std::array<float, kMaxStreams> old;
                for (uint32_t j = 0; j < streams; ++j) old[j] = x[uint64_t{j} * dim + d];
                for (uint32_t k = 0; k < streams; ++k) {
                    float sum = post[k] * o[d];
                    for (uint32_t j = 0; j < streams; ++j) sum += comb[j * streams + k] * old[j];
                    x[uint64_t{k} * dim + d] = sum;
                }
            }
        }
    });
}

const float* CpuOperators::mixes_of(const HyperConnectionArgs& args, uint32_t n_rows) {
    mixes_.resize(uint64_t{n_rows} * args.fn.rows);
    matmul(args.fn, args.state, n_rows, mixes_.data());
    return mixes_.data();
}

void CpuOperators::hc_pre(const HyperConnectionArgs& args, const HcUpdate* update, uint32_t n_rows,
                          float* y, float* post_comb) {
    const uint32_t n = args.streams;
    const uint32_t n_outputs = (2 + n) * n;
    const uint64_t flat = uint64_t{n} * args.dim;
    if (update != nullptr) hc_post(*update, n_rows, n, args.dim, args.state);
    const float* const all_mixes = mixes_of(args, n_rows);
    for_ranges(n_rows, 4 * flat, [&](uint64_t begin, uint64_t end) {
        for (uint64_t row = begin; row < end; ++row) {
            const float* state = args.state + row * flat;
            const float factor = rms_factor(kernels_, state, flat, args.norm_epsilon);
            const float* mixes = all_mixes + row * n_outputs;
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
            float* to = y + row * args.dim;
            mix_streams(state, pre.data(), n, args.dim, to);
            norm_row(kernels_, to, args.norm, args.norm_epsilon, args.dim, to);
        }
    });
}

void CpuOperators::hc_head(const HyperConnectionArgs& args, uint32_t n_rows, float* y) {
    const uint32_t n = args.streams;
    const uint64_t flat = uint64_t{n} * args.dim;
    const float* const mixes = mixes_of(args, n_rows);
    for_ranges(n_rows, 4 * flat, [&](uint64_t begin, uint64_t end) {
        for (uint64_t row = begin; row < end; ++row) {
            const float* state = args.state + row * flat;
            const float factor = rms_factor(kernels_, state, flat, args.norm_epsilon);
            std::array<float, kMaxStreams> weights;
            for (uint32_t i = 0; i < n; ++i) {
                const float m = mixes[row * n + i] * factor;
                weights[i] = sigmoid(m * args.scale[0] + args.base[i]) + args.epsilon;
            }
            float* to = y + row * args.dim;
            mix_streams(state, weights.data(), n, args.dim, to);
            norm_row(kernels_, to, args.norm, args.norm_epsilon, args.dim, to);
        }
    });
}

void CpuOperators::residual_mix(const ResidualMixArgs& args, uint32_t n_rows) {
    const uint32_t dim = args.dim;
    const uint64_t cost = (3 * uint64_t{args.n_banked} + 6) * dim;
    for_ranges(n_rows, cost, [&](uint64_t begin, uint64_t end) {
        std::vector<float> weights(args.n_banked + 1);
        for (uint64_t row = begin; row < end; ++row) {
            float* const stream = args.stream + row * dim;
            float* const bank = args.bank + row * args.bank_rows * dim;
            if (args.given[0] != nullptr) {
                const float* const first = args.given[0] + row * dim;
                const float* const second =
                    args.given[1] != nullptr ? args.given[1] + row * dim : nullptr;
                for (uint32_t d = 0; d < dim; ++d) {
                    const float given = second != nullptr ? first[d] + second[d] : first[d];
                    stream[d] = args.restart ? given : stream[d] + given;
                }
            }
            if (args.y != nullptr) {
                const auto source = [&](uint32_t r) {
                    return r < args.n_banked ? bank + uint64_t{r} * dim : stream;
                };
                for (uint32_t r = 0; r <= args.n_banked; ++r) {
                    weights[r] = kernels_.dot(args.score, source(r), dim) *
                                 rms_factor(kernels_, source(r), dim, args.epsilon);
                }
                const float max = *std::max_element(weights.begin(), weights.end());
                float sum = 0;
                for (float& weight : weights) sum += weight = std::exp(weight - max);
                for (float& weight : weights) weight /= sum;
                float* const y = args.y + row * dim;
                for (uint32_t d = 0; d < dim; ++d) y[d] = weights[0] * source(0)[d];
                for (uint32_t r = 1; r <= args.n_banked; ++r) {
                    const float* const v = source(r);
                    for (uint32_t d = 0; d < dim; ++d) y[d] += weights[r] * v[d];
                }
                norm_row(kernels_, y, args.norm, args.epsilon, dim, y);
            }
            if (args.keep) std::copy_n(stream, dim, bank + uint64_t{args.n_banked} * dim);
        }
    });
}

void CpuOperators::sigmoid_gate(const float* gate, uint64_t n, float* x) {
    for_ranges(n, 16, [&](uint64_t begin, uint64_t end) {
        for (uint64_t i = begin; i < end; ++i) x[i] *= sigmoid(gate[i]);
    });
}

void CpuOperators::sum_slots(const float* parts, uint32_t n_rows, uint32_t n_slots, uint32_t dim,
                             float* y) {
    for_ranges(n_rows, uint64_t{n_slots} * dim, [&](uint64_t begin, uint64_t end) {
        for (uint64_t row = begin; row < end; ++row) {
            const float* part = parts + row * n_slots * dim;
            float* const sum = y + row * dim;
            std::copy_n(part, dim, sum);
            for (uint32_t s = 1; s < n_slots; ++s) {
                for (uint32_t d = 0; d < dim; ++d) sum[d] += part[uint64_t{s} * dim + d];
            }
        }
    });
}

}  // namespace xp
