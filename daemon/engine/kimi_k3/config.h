// The hyper-parameters of a Kimi-K3 model, read from GGUF metadata and checked.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/engine/operators.h"
#include "daemon/pack/pack.h"

namespace xp {

struct KimiK3Config {
    uint32_t n_layers = 0;
    uint32_t dim = 0;             // hidden size
    uint32_t n_vocab = 0;
    uint64_t context_max = 0;
    float epsilon = 0;            // of every norm
    uint32_t block_size = 0;      // layers whose stream is banked: multiples of it

    std::vector<bool> latent;     // per layer: latent attention, else delta attention
    uint32_t n_heads = 0;
    // Delta attention
    uint32_t delta_dim = 0;       // of keys and values of a head
    uint32_t conv_taps = 0;
    float lower_bound = 0;        // of the decay's logarithm; 0: the softplus form
    // Latent attention
    uint32_t q_rank = 0;
    uint32_t kv_rank = 0;         // the latent part of a row
    uint32_t tail = 0;            // the rest of it, seen by all heads as it is
    uint32_t key_dim = 0;         // of a query's head: its part for the latent, then `tail`
    uint32_t value_dim = 0;

    uint32_t n_dense = 0;         // leading layers without experts
    uint32_t dense_dim = 0;
    uint32_t n_experts = 0;
    uint32_t top_k = 0;
    uint32_t ffn_dim = 0;         // of one routed expert
    uint32_t shared_dim = 0;      // of all shared experts together
    uint32_t latent_dim = 0;      // what routed experts take in and give
    float expert_scale = 1;
    bool expert_normalise = false;
    Activation activation;

    bool banks(uint32_t layer) const { return layer % block_size == 0; }
    uint32_t bank_rows() const { return (n_layers + block_size - 1) / block_size; }
    uint32_t delta_width() const { return n_heads * delta_dim; }
    uint32_t value_width() const { return n_heads * value_dim; }
    uint32_t row_width() const { return kv_rank + tail; }
};

// Keys under the names of llama.cpp, or those of conversions from before it knew the architecture.
Result<KimiK3Config> read_kimi_k3_config(const GgufFile& file);

}  // namespace xp
