// Attention over latent rows.
#include <algorithm>
#include <cmath>

#include "daemon/engine/cpu/operators.h"

namespace xp {

void CpuOperators::latent_attention(const LatentAttentionArgs& args) {
    const uint32_t width = args.latent + args.tail;
    std::vector<float> own(width);
    uint64_t n_rows = 0;
    uint64_t n_visible = 1;
    for (const LatentSegment& segment : args.segments) {
        for (uint32_t i = 0; i < segment.n_rows; ++i) {
            const float* kv = args.kv + uint64_t{segment.first_row + i} * width;
            norm_row(kernels_, kv, args.norm, args.epsilon, args.latent, own.data());
            std::copy(kv + args.latent, kv + width, own.begin() + args.latent);
            write_stored_row(kernels_, own.data(), args.kv_type, segment.position + i, width,
                             segment.rows);
        }
        n_rows += segment.n_rows;
        n_visible = std::max(n_visible, segment.position + segment.n_rows);
    }
    const uint32_t head_blocks = (args.n_heads + kHeadsPerTask - 1) / kHeadsPerTask;

    const auto attend = [&](const LatentSegment& segment, uint32_t i, uint32_t head_block) {
        const uint64_t row = segment.first_row + i;
        const uint64_t n_keys = segment.position + i + 1;
        const uint32_t first = head_block * kHeadsPerTask;
        const uint32_t n_heads = std::min(args.n_heads - first, kHeadsPerTask);
        thread_local std::vector<float> scratch, weights;
        scratch.resize(width);
        weights.resize(n_heads * n_keys);
        const float* const q_latent = args.q_latent + (row * args.n_heads + first) * args.latent;
        const float* const q_tail =
            args.q + (row * args.n_heads + first + 1) * args.q_dim - args.tail;
        float* const out = args.out + (row * args.n_heads + first) * args.latent;
        const auto key_of = [&](uint64_t s) {
            return stored_row(kernels_, segment.rows, args.kv_type, s, width, scratch.data());
        };
        for (uint64_t s = 0; s < n_keys; ++s) {
            const float* key = key_of(s);
            for (uint32_t h = 0; h < n_heads; ++h) {
                const float latent = kernels_.dot(q_latent + uint64_t{h} * args.latent, key,
                                                  args.latent);
                const float tail = kernels_.dot(q_tail + uint64_t{h} * args.q_dim,
                                                key + args.latent, args.tail);
                weights[h * n_keys + s] = (latent + tail) * args.scale;
            }
        }
        for (uint32_t h = 0; h < n_heads; ++h) {
            const std::span<float> w = std::span(weights).subspan(h * n_keys, n_keys);
            const float max = *std::max_element(w.begin(), w.end());
            float sum = 0;
            for (float& weight : w) sum += weight = std::exp(weight - max);
            for (float& weight : w) weight /= sum;
        }
        std::fill_n(out, uint64_t{n_heads} * args.latent, 0.0f);
        for (uint64_t s = 0; s < n_keys; ++s) {
            const float* key = key_of(s);
            for (uint32_t h = 0; h < n_heads; ++h) {
                kernels_.axpy(weights[h * n_keys + s], key, out + uint64_t{h} * args.latent,
                              args.latent);
            }
        }
    };

    const uint64_t cost = 2 * n_visible * kHeadsPerTask * width;
    for_ranges(n_rows * head_blocks, cost, [&](uint64_t begin, uint64_t end) {
        for (uint64_t t = begin; t < end; ++t) {
            uint64_t r = t / head_blocks;
            size_t s = 0;
            while (r >= args.segments[s].n_rows) r -= args.segments[s++].n_rows;
            attend(args.segments[s], static_cast<uint32_t>(r),
                   static_cast<uint32_t>(t % head_blocks));
        }
    });
}

}  // namespace xp
