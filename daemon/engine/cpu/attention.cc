// Attention over window and compressed rows, the compressors that make those rows, and the indexer
// that picks among them.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>

#include "daemon/engine/cpu/operators.h"

namespace xp {

void write_stored_row(const CpuKernels& kernels, const float* row, KvType kv, uint64_t index,
                      uint32_t dim, std::byte* rows) {
    if (kv == KvType::kF32) {
        std::memcpy(reinterpret_cast<float*>(rows) + index * dim, row, dim * sizeof(float));
    } else {
        kernels.float_to_half_row(row, reinterpret_cast<uint16_t*>(rows) + index * dim, dim);
    }
}

void CpuOperators::attention(const AttentionArgs& args) {
    const uint32_t dim = args.dim;
    const uint32_t head_blocks = (args.n_heads + kHeadsPerTask - 1) / kHeadsPerTask;
    uint64_t n_rows = 0;
    for (const AttentionSegment& segment : args.segments) n_rows += segment.n_rows;
    const uint64_t row_cost = uint64_t{2} * kHeadsPerTask * dim * args.window;

    const auto attend = [&](const AttentionSegment& segment, uint32_t i, uint32_t head_block) {
        const uint64_t p = segment.position + i;
        const uint32_t row = segment.first_row + i;
        const uint64_t first = p + 1 > args.window ? p + 1 - args.window : 0;
        const uint64_t visible = args.ratio != 0 ? (p + 1) / args.ratio : 0;
        const uint32_t* picks = nullptr;
        uint64_t n_compressed = visible;
        if (args.picks != nullptr && visible > args.max_picks) {
            picks = args.picks + uint64_t{row} * args.max_picks;
            n_compressed = args.max_picks;
        }
        const uint64_t n_window = p + 1 - first;
        const uint64_t n_keys = n_window + n_compressed;
        thread_local std::vector<const float*> keys;
        thread_local std::vector<float> halves;
        thread_local std::vector<float> weights;
        keys.resize(n_keys);
        weights.resize(n_keys);
        if (args.kv == KvType::kF16) halves.resize(n_keys * dim);
        for (uint64_t k = 0; k < n_keys; ++k) {
            float* scratch = halves.data() + k * dim;
            if (k >= n_window) {
                const uint64_t w = k - n_window;
                keys[k] = stored_row(kernels_, segment.compressed, args.kv,
                                     picks != nullptr ? picks[w] : w, dim, scratch);
            } else if (first + k >= segment.position) {
                keys[k] = stored_row(kernels_, args.rows, args.kv,
                                     segment.first_row + (first + k - segment.position), dim,
                                     scratch);
            } else {
                keys[k] = stored_row(kernels_, segment.ring, args.kv, (first + k) % args.window,
                                     dim, scratch);
            }
        }
        const uint32_t last_head = std::min(args.n_heads, (head_block + 1) * kHeadsPerTask);
        for (uint32_t h = head_block * kHeadsPerTask; h < last_head; ++h) {
            const float* q = args.q + (uint64_t{row} * args.n_heads + h) * dim;
            float max = args.sinks[h];
            for (uint64_t k = 0; k < n_keys; ++k) {
                weights[k] = kernels_.dot(q, keys[k], dim) * args.scale;
                max = std::max(max, weights[k]);
            }
            float sum = 0;
            for (uint64_t k = 0; k < n_keys; ++k) sum += weights[k] = std::exp(weights[k] - max);
            const float factor = 1 / (sum + std::exp(args.sinks[h] - max));
            float* out = args.out + (uint64_t{row} * args.n_heads + h) * dim;
            std::fill_n(out, dim, 0.0f);
            for (uint64_t k = 0; k < n_keys; ++k) {
                kernels_.axpy(weights[k] * factor, keys[k], out, dim);
            }
            turn(out + dim - args.rope_dims, args.cos_sin + uint64_t{row} * args.rope_dims,
                 args.rope_dims, true);
        }
    };

    for_ranges(n_rows * head_blocks, row_cost, [&](uint64_t begin, uint64_t end) {
        for (uint64_t t = begin; t < end; ++t) {
            uint64_t r = t / head_blocks;
            size_t s = 0;
            while (r >= args.segments[s].n_rows) r -= args.segments[s++].n_rows;
            attend(args.segments[s], static_cast<uint32_t>(r),
                   static_cast<uint32_t>(t % head_blocks));
        }
    });

    const uint64_t bytes = args.dim * kv_bytes(args.kv);
    for (const AttentionSegment& segment : args.segments) {
        const uint32_t n = std::min(segment.n_rows, args.window);
        for (uint32_t i = segment.n_rows - n; i < segment.n_rows; ++i) {
            std::memcpy(segment.ring + (segment.position + i) % args.window * bytes,
                        args.rows + (segment.first_row + i) * bytes, bytes);
        }
    }
}

namespace {

// One channel of one segment: walks the tokens through the buffers, and at the end of each window
// pools the channel's slots into pooled[window][channel].
void pool_channel(const CompressorArgs& args, const CompressorSegment& segment, uint32_t d,
                  float* pooled) {
    const uint32_t ratio = args.ratio;
    const uint32_t width = args.factor * args.dim;
    const uint32_t n_slots = args.factor * ratio;
    const uint32_t current = n_slots - ratio;  // first slot of the current window
    uint64_t n_pooled = 0;
    for (uint32_t i = 0; i < segment.n_rows; ++i) {
        const uint64_t p = segment.position + i;
        const uint32_t m = static_cast<uint32_t>(p % ratio);
        const uint64_t from = uint64_t{segment.first_row + i} * width;
        for (uint32_t half = 0; half < args.factor; ++half) {
            const uint32_t channel = half * args.dim + d;
            const uint64_t to = uint64_t{current + m} * width + channel;
            segment.keys[to] = args.keys[from + channel];
            segment.gates[to] = args.gates[from + channel] + args.bias[m * width + channel];
        }
        if (m != ratio - 1) continue;
        // Slots of the window before count with their first half, current ones with the last.
        const auto at = [&](const float* buffer, uint32_t slot) {
            const uint32_t half = slot < current ? 0 : args.factor - 1;
            return buffer[uint64_t{slot} * width + half * args.dim + d];
        };
        float max = -INFINITY;
        for (uint32_t slot = 0; slot < n_slots; ++slot) {
            max = std::max(max, at(segment.gates, slot));
        }
        float sum = 0;
        float weighted = 0;
        for (uint32_t slot = 0; slot < n_slots; ++slot) {
            const float weight = std::exp(at(segment.gates, slot) - max);
            sum += weight;
            weighted += weight * at(segment.keys, slot);
        }
        pooled[n_pooled * args.dim + d] = weighted / sum;
        ++n_pooled;
        for (uint32_t slot = 0; slot < current; ++slot) {
            for (uint32_t half = 0; half < args.factor; ++half) {
                const uint64_t channel = half * args.dim + d;
                segment.keys[slot * width + channel] =
                    segment.keys[(slot + ratio) * width + channel];
                segment.gates[slot * width + channel] =
                    segment.gates[(slot + ratio) * width + channel];
            }
        }
    }
}

void rotate_tail(float* row, uint32_t dim, uint32_t rope_dims, uint64_t position,
                 std::span<const double> frequencies) {
    float* v = row + dim - rope_dims;
    for (uint32_t i = 0; i < rope_dims / 2; ++i) {
        const double angle = static_cast<double>(position) * frequencies[i];
        const float c = static_cast<float>(std::cos(angle));
        const float s = static_cast<float>(std::sin(angle));
        const float a = v[2 * i];
        const float b = v[2 * i + 1];
        v[2 * i] = a * c - b * s;
        v[2 * i + 1] = a * s + b * c;
    }
}

}  // namespace

void CpuOperators::compress(const CompressorArgs& args) {
    std::vector<float> pooled;
    for (const CompressorSegment& segment : args.segments) {
        const uint64_t first = segment.position / args.ratio;
        const uint64_t n = (segment.position + segment.n_rows) / args.ratio - first;
        pooled.resize(n * args.dim);
        for_ranges(args.dim, uint64_t{segment.n_rows} * 16, [&](uint64_t begin, uint64_t end) {
            for (uint64_t d = begin; d < end; ++d) {
                pool_channel(args, segment, static_cast<uint32_t>(d), pooled.data());
            }
        });
        rms_norm(pooled.data(), args.norm, args.epsilon, static_cast<uint32_t>(n), args.dim,
                 pooled.data());
        for (uint64_t w = 0; w < n; ++w) {
            float* row = pooled.data() + w * args.dim;
            rotate_tail(row, args.dim, args.rope_dims, (first + w) * args.ratio,
                        args.host_frequencies);
            write_stored_row(kernels_, row, args.kv, first + w, args.dim, segment.compressed);
        }
    }
}

void CpuOperators::index_rows(const IndexArgs& args) {
    for (const IndexSegment& segment : args.segments) {
        const uint64_t last_visible = (segment.position + segment.n_rows) / args.ratio;
        const uint64_t cost = last_visible * args.n_heads * args.dim;
        for_ranges(segment.n_rows, cost, [&](uint64_t begin, uint64_t end) {
            std::vector<float> scores(last_visible);
            std::vector<uint32_t> order;
            std::vector<float> scratch(args.dim);
            for (uint64_t i = begin; i < end; ++i) {
                const uint64_t visible = (segment.position + i + 1) / args.ratio;
                const uint64_t row = segment.first_row + i;
                uint32_t* picks = args.picks + row * args.max_picks;
                order.resize(visible);
                std::iota(order.begin(), order.end(), 0u);
                if (visible > args.max_picks) {
                    for (uint64_t w = 0; w < visible; ++w) {
                        const float* key = stored_row(kernels_, segment.keys, args.kv, w, args.dim,
                                                      scratch.data());
                        float score = 0;
                        for (uint32_t h = 0; h < args.n_heads; ++h) {
                            const uint64_t head = row * args.n_heads + h;
                            const float s = kernels_.dot(args.q + head * args.dim, key, args.dim);
                            score += args.weights[head] * args.scale * std::max(s, 0.0f);
                        }
                        scores[w] = std::isnan(score) ? -INFINITY : score;
                    }
                    std::nth_element(order.begin(), order.begin() + args.max_picks, order.end(),
                                     [&](uint32_t a, uint32_t b) {
                                         return scores[a] != scores[b] ? scores[a] > scores[b]
                                                                       : a < b;
                                     });
                    order.resize(args.max_picks);
                    std::sort(order.begin(), order.end());
                }
                std::fill(std::copy(order.begin(), order.end(), picks), picks + args.max_picks,
                          kNoPick);
            }
        });
    }
}

}  // namespace xp
