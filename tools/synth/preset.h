// The models that xp-synth makes: DeepSeek-V4 in the shapes of a preset, whatever its weights.
//
//   flash:L[:E]  DeepSeek-V4-Flash with L layers and E experts per layer (256 without E). Every
//                layer has the published model's shapes and types. Kinds of layers keep their share
//                of the 43 published ones, rounded, but none that a bench needs gets lost:
//                  hash-routed    3 of 43, the first ones: 1 up to L = 21, 2 up to 35, then 3
//                  window only    2 of 43, the first ones: 1 up to L = 32, then 2
//                  compressed     all others, ratio 4 and 128 in turn, beginning with 4
//                so all kinds are there from L = 3 on, and flash:43 is the published model.
//   demo         models/xp-demo.gguf.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/result.h"

namespace xp {

struct Shape {
    uint32_t dim = 0;            // hidden size
    uint32_t n_vocab = 0;
    uint64_t context = 0;
    uint32_t n_heads = 0;
    uint32_t head_dim = 0;
    uint32_t rope_dims = 0;
    uint64_t rope_original = 0;  // context that YaRN extends
    uint32_t q_rank = 0;
    uint32_t out_groups = 0;
    uint32_t out_rank = 0;       // per group
    uint32_t window = 0;
    uint32_t index_heads = 0;
    uint32_t index_dim = 0;
    uint32_t index_top_k = 0;
    uint32_t n_experts = 0;
    uint32_t top_k = 0;
    uint32_t ffn_dim = 0;
    uint32_t streams = 4;        // of the hyper-connections
    uint32_t n_hash = 0;         // hash-routed layers, the first ones
    std::vector<uint32_t> ratios;  // per layer: 0 window only, 4 indexed, 128
};

struct PresetOptions {
    uint32_t vocab = 0;  // 0: the preset's
    // Divides hidden sizes, ranks and counts of heads, for tests: a power of two up to 32. The
    // sizes of one head, the window and the indexer's selection stay.
    uint32_t scale = 1;
};

// The least that holds special tokens, the 256 bytes and a few words.
inline constexpr uint32_t kMinVocab = 512;
// Four times the largest vocabulary known.
inline constexpr uint32_t kMaxVocab = 1u << 20;

struct Preset {
    // The preset with all options and defaults, which with the seed names the model:
    // "flash:8:256 vocab 129280 scale 1".
    std::string name;
    Shape shape;
};

Result<Preset> parse_preset(std::string_view text, const PresetOptions& options);

}  // namespace xp
