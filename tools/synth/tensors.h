// A model to be made: metadata and tensors in file order, each with the distribution its values are
// drawn from.
//
// The distributions keep every activation of order one, so that nothing overflows, saturates or
// dies out at any depth: a matrix of K inputs has standard deviation 1/sqrt(K), embeddings 1, norms
// are close to 1. What a layer adds to the residual is of order one too, which then grows with the
// root of the depth, as in trained models. The router's biases are small beside the spread of its
// scores, which lets all experts have their turn.
#pragma once

#include <string>
#include <vector>

#include "daemon/gguf/gguf.h"
#include "tools/synth/preset.h"

namespace xp {

struct SynthTensor {
    std::string name;
    GgmlType type = GgmlType::kF32;
    std::vector<uint64_t> ne;
    // Of float-like types: evenly distributed, or nearly so.
    double mean = 0;
    double deviation = 0;
    // Of I32, the table of hash-routed layers: each row holds different ids below this.
    uint32_t n_ids = 0;

    uint64_t bytes() const;
};

struct SynthModel {
    std::string architecture;
    std::string name;
    GgufMetadata metadata;
    std::vector<SynthTensor> tensors;
};

// `name` becomes general.name.
SynthModel describe_model(const Shape& shape, const std::string& name);

}  // namespace xp
