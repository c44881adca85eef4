#include "daemon/engine/kimi_k3/model.h"

namespace xp {
namespace {

constexpr uint64_t kKimiK3Snapshot = 0x315351533353334b;  // "K3S3SQS1"

uint64_t delta_bytes(const KimiK3Config& c) {
    return uint64_t{c.delta_width()} * c.delta_dim * sizeof(float);
}
uint64_t history_bytes(const KimiK3Config& c) {
    return uint64_t{3} * (c.conv_taps - 1) * c.delta_width() * sizeof(float);
}
uint64_t rows_bytes(const KimiK3Config& c, KvType kv, uint64_t n_rows) {
    return n_rows * c.row_width() * kv_bytes(kv);
}

}  // namespace

uint64_t KimiK3Sequence::state_bytes(const KimiK3Config& config, const ModelOptions& options) {
    uint64_t bytes = 0;
    for (const bool latent : config.latent) {
        bytes += latent ? rows_bytes(config, options.kv, options.context)
                        : delta_bytes(config) + history_bytes(config);
    }
    return bytes;
}

KimiK3Sequence::KimiK3Sequence(const Model& model, const KimiK3Config& config,
                               const Sha256Digest& identity, Operators& operators,
                               const ModelOptions& options)
    : StateSequence(kKimiK3Snapshot, model, identity, operators, options), config_(config) {}

Result<std::unique_ptr<KimiK3Sequence>> KimiK3Sequence::create(const Model& model,
                                                               const KimiK3Config& config,
                                                               const Sha256Digest& identity,
                                                               Operators& operators,
                                                               const ModelOptions& options) {
    std::unique_ptr<KimiK3Sequence> sequence(
        new KimiK3Sequence(model, config, identity, operators, options));
    const auto reserve = [&](uint64_t bytes) { return operators.allocate(bytes, "a sequence"); };
    for (const bool latent : config.latent) {
        LayerState& state = sequence->layers_.emplace_back();
        if (latent) {
            XP_TRY(state.rows, reserve(rows_bytes(config, options.kv, options.context)));
        } else {
            XP_TRY(state.delta, reserve(delta_bytes(config)));
            XP_TRY(state.history, reserve(history_bytes(config)));
        }
    }
    return sequence;
}

std::vector<StateSequence::Part> KimiK3Sequence::parts_at(uint64_t position) const {
    std::vector<Part> parts;
    for (const LayerState& state : layers_) {
        if (state.rows.bytes() > 0) {
            parts.push_back({&state.rows, rows_bytes(config_, options_.kv, position)});
        } else {
            parts.push_back({&state.delta, delta_bytes(config_)});
            parts.push_back({&state.history, history_bytes(config_)});
        }
    }
    return parts;
}

}  // namespace xp
