#include <algorithm>
#include <cmath>

#include "daemon/engine/deepseek4/model.h"

namespace xp {
namespace {

constexpr uint64_t kSnapshotMagic = 0x3153514553345344;  // "DS4SEQS1"

uint64_t buffer_floats(const DeepSeek4Config& config, uint32_t layer, uint32_t dim) {
    const uint64_t factor = config.compressor_factor(layer);
    return factor * config.ratio[layer] * factor * dim;
}

}  // namespace

uint64_t DeepSeek4Sequence::state_bytes(const DeepSeek4Config& config,
                                        const ModelOptions& options) {
    const uint64_t kv = kv_bytes(options.kv);
    uint64_t bytes = 0;
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
        bytes += uint64_t{config.window} * config.head_dim * kv;
        const uint32_t ratio = config.ratio[layer];
        if (ratio == 0) continue;
        bytes += options.context / ratio * config.head_dim * kv;
        bytes += 2 * sizeof(float) * buffer_floats(config, layer, config.head_dim);
        if (!config.indexed(layer)) continue;
        bytes += options.context / ratio * config.index_dim * kv;
        bytes += 2 * sizeof(float) * buffer_floats(config, layer, config.index_dim);
    }
    return bytes;
}

DeepSeek4Sequence::DeepSeek4Sequence(const Model& model, const DeepSeek4Config& config,
                                     const Sha256Digest& identity, Operators& operators,
                                     const ModelOptions& options)
    : StateSequence(kSnapshotMagic, model, identity, operators, options), config_(config) {}

Result<std::unique_ptr<DeepSeek4Sequence>> DeepSeek4Sequence::create(
    const Model& model, const DeepSeek4Config& config, const Sha256Digest& identity,
    Operators& operators, const ModelOptions& options) {
    std::unique_ptr<DeepSeek4Sequence> sequence(
        new DeepSeek4Sequence(model, config, identity, operators, options));
    const uint64_t kv = kv_bytes(options.kv);
    const auto reserve = [&](uint64_t bytes) { return operators.allocate(bytes, "a sequence"); };
    const auto reserve_gates = [&](uint64_t floats) -> Result<DeviceBuffer> {
        XP_TRY(DeviceBuffer buffer, reserve(floats * sizeof(float)));
        const std::vector<float> empty(floats, -INFINITY);
        operators.upload(buffer.data(), std::as_bytes(std::span(empty)));
        return buffer;
    };
    sequence->layers_.resize(config.n_layers);
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
        LayerState& state = sequence->layers_[layer];
        XP_TRY(state.ring, reserve(uint64_t{config.window} * config.head_dim * kv));
        const uint32_t ratio = config.ratio[layer];
        if (ratio == 0) continue;
        const uint64_t floats = buffer_floats(config, layer, config.head_dim);
        XP_TRY(state.compressed, reserve(options.context / ratio * config.head_dim * kv));
        XP_TRY(state.keys, reserve(floats * sizeof(float)));
        XP_TRY(state.gates, reserve_gates(floats));
        if (!config.indexed(layer)) continue;
        const uint64_t index_floats = buffer_floats(config, layer, config.index_dim);
        XP_TRY(state.index_rows, reserve(options.context / ratio * config.index_dim * kv));
        XP_TRY(state.index_keys, reserve(index_floats * sizeof(float)));
        XP_TRY(state.index_gates, reserve_gates(index_floats));
    }
    return sequence;
}

std::vector<StateSequence::Part> DeepSeek4Sequence::parts_at(uint64_t position) const {
    const uint64_t kv = kv_bytes(options_.kv);
    std::vector<Part> parts;
    for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
        const LayerState& state = layers_[layer];
        const uint64_t ring_rows = std::min<uint64_t>(position, config_.window);
        parts.push_back({&state.ring, ring_rows * config_.head_dim * kv});
        const uint32_t ratio = config_.ratio[layer];
        if (ratio == 0) continue;
        parts.push_back({&state.compressed, position / ratio * config_.head_dim * kv});
        parts.push_back({&state.keys, state.keys.bytes()});
        parts.push_back({&state.gates, state.gates.bytes()});
        if (!config_.indexed(layer)) continue;
        parts.push_back({&state.index_rows, position / ratio * config_.index_dim * kv});
        parts.push_back({&state.index_keys, state.index_keys.bytes()});
        parts.push_back({&state.index_gates, state.index_gates.bytes()});
    }
    return parts;
}

}  // namespace xp
