// Tiny random Kimi-K3 models, made from a rule for weights, as the golden data of
// tests/data/kimi-k3-tiny was: 13 layers with both kinds of attention, a dense layer, 16 experts,
// blocks of three layers.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "daemon/gguf/writer.h"
#include "tests/engine/model_fixture.h"

namespace xp::test {

struct TinyKimiK3 {
    // Odd little sizes, float32 only; else native sizes of heads and rows that K types fit into.
    bool small = false;
    bool quantised = false;  // types as in files of about two bits per weight
    bool calm = false;       // gains lowered, so that rounding is not magnified
    uint32_t shards = 1;     // 3: cut inside of an expert's matrices on purpose
    // As older conversions: other keys and names, factors of score vectors, positive ssm_a.
    bool old_dialect = false;
    bool joined_kv_b = false;  // keys and values of latent attention in one matrix
    // Before it is written.
    std::function<void(GgufMetadata&)> metadata = {};
    std::string drop_tensor = {};
    std::function<void(const std::string& name, std::vector<float>& values)> values = {};
};

// Writes it into `directory` and returns the (first) file.
Path write_tiny_kimi_k3(const Path& directory, const TinyKimiK3& options);

// One of the golden data's models, "f32", "q2k" or "calm-q2k", or "small"; written once per
// process.
const Path& tiny_kimi_k3(const std::string& name);

}  // namespace xp::test
