// The hyper-parameters of a DeepSeek-V4 model, read from GGUF metadata and checked.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/pack/pack.h"

namespace xp {

struct DeepSeek4Config {
    uint32_t n_layers = 0;       // main layers, without a multi-token-prediction block
    uint32_t dim = 0;            // hidden size
    uint32_t n_vocab = 0;
    uint64_t context_max = 0;
    float norm_epsilon = 0;

    uint32_t n_heads = 0;
    uint32_t head_dim = 0;       // of the shared key-value row too
    uint32_t rope_dims = 0;      // the trailing ones of head_dim and of index_dim
    uint32_t q_rank = 0;
    uint32_t out_groups = 0;
    uint32_t out_rank = 0;       // per group
    uint32_t window = 0;         // rows, the current token's included
    std::vector<uint32_t> ratio; // per layer: 0 window only, 4 indexed (CSA), 128 all (HCA)
    uint32_t index_heads = 0;
    uint32_t index_dim = 0;
    uint32_t index_top_k = 0;
    // Radians per position of each rotated pair; `compress` (with YaRN) in layers of ratio ≠ 0.
    std::vector<double> frequencies_plain;
    std::vector<double> frequencies_compress;

    uint32_t n_experts = 0;   // of every layer; 0: not stated
    uint32_t top_k = 0;
    uint32_t ffn_dim = 0;
    uint32_t n_hash_layers = 0;  // leading layers whose experts follow from the token id
    float expert_scale = 1;
    bool expert_normalise = true;
    std::vector<float> clamp_experts;  // per layer
    std::vector<float> clamp_shared;

    uint32_t streams = 0;        // hyper-connections
    uint32_t sinkhorn_iterations = 0;
    float hc_epsilon = 0;

    bool indexed(uint32_t layer) const { return ratio[layer] == kIndexedRatio; }
    // Compressor windows of ratio 4 overlap: a row pools two of them.
    uint32_t compressor_factor(uint32_t layer) const { return indexed(layer) ? 2 : 1; }

    static constexpr uint32_t kIndexedRatio = 4;
};

Result<DeepSeek4Config> read_deepseek4_config(const GgufFile& file);

}  // namespace xp
