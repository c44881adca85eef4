// Kimi-K3: weights, sequence state and workspace. The graph itself is in pass.cc.
#pragma once

#include <memory>
#include <vector>

#include "daemon/engine/kimi_k3/config.h"
#include "daemon/engine/state_sequence.h"
#include "daemon/engine/weights.h"
#include "daemon/engine/workspace_pool.h"

namespace xp {

struct KimiK3Layer {
    const float* attention_score = nullptr;  // [dim], of the attention residuals
    const float* attention_norm = nullptr;
    const float* ffn_score = nullptr;
    const float* ffn_norm = nullptr;

    Weight out_gate, out;                    // of both kinds of attention
    // Delta attention
    Weight q, k, v, f_a, f_b, beta;
    const float *conv_q = nullptr, *conv_k = nullptr, *conv_v = nullptr;
    const float* gate_bias = nullptr;
    const float* decay = nullptr;            // [heads]
    const float* head_norm = nullptr;        // [delta_dim]
    // Latent attention
    Weight q_a, q_b, kv_a, k_b, v_b;         // k_b, v_b: of all heads, one below the other
    const float* q_a_norm = nullptr;
    const float* kv_norm = nullptr;

    Weight gate, up, down;                   // dense, or the shared experts
    Weight router, routed_down, routed_up;
    const float* router_bias = nullptr;
    const float* routed_norm = nullptr;
    const PackLayer* experts = nullptr;      // null in dense layers
};

class KimiK3Sequence final : public StateSequence {
public:
    // Rows for the whole context are reserved, and committed as they are used.
    struct LayerState {
        DeviceBuffer delta;      // [heads][delta_dim][delta_dim], float32
        DeviceBuffer history;    // [q, k, v][taps − 1][delta_width], float32
        DeviceBuffer rows;       // [context][row_width] as `kv`
    };

    static Result<std::unique_ptr<KimiK3Sequence>> create(const Model& model,
                                                          const KimiK3Config& config,
                                                          const Sha256Digest& identity,
                                                          Operators& operators,
                                                          const ModelOptions& options);
    static uint64_t state_bytes(const KimiK3Config& config, const ModelOptions& options);

private:
    friend class KimiK3Pass;

    KimiK3Sequence(const Model& model, const KimiK3Config& config, const Sha256Digest& identity,
                   Operators& operators, const ModelOptions& options);
    std::vector<Part> parts_at(uint64_t position) const override;

    const KimiK3Config& config_;
    std::vector<LayerState> layers_;
};

// Intermediate results of one pass, for up to `capacity` rows; all float32.
struct KimiK3Workspace {
    uint32_t capacity = 0;
    std::vector<DeviceBuffer> buffers;
    float *stream, *bank;                    // [dim], [bank_rows][dim]
    float *x, *out, *shared;                 // [dim]
    float *q, *k, *v, *gate, *beta;          // heads
    float *out_gate, *attended;
    float *low;                              // of f_a, or of q_a
    float *q_latent, *context, *kv;          // latent attention
    float *mid, *router, *latent, *expert_weights;
    float *expert_out, *routed;              // [top_k][latent_dim], [latent_dim]
    LogitsBuffers logits;
};

class KimiK3Model final : public Model {
public:
    KimiK3Model(Operators& operators, const ModelOptions& options)
        : operators_(operators), options_(options) {}

    Result<void> load(const Pack& pack);

    const ModelInfo& info() const override { return info_; }
    void set_cache(ExpertCache& cache) override { cache_ = &cache; }
    Result<void> reserve(uint32_t n_rows, uint32_t n_logits) override;
    Result<std::unique_ptr<Sequence>> create_hollow_sequence(uint64_t position) override;
    Result<std::unique_ptr<Sequence>> create_sequence() override;
    Result<std::unique_ptr<ForwardPass>> forward(std::span<const Row> rows,
                                                 const PassObserver* observer) override;

private:
    friend class KimiK3Pass;

    Result<void> load_delta_attention(WeightLoader& loader, const std::string& prefix,
                                      KimiK3Layer& layer);
    Result<void> load_latent_attention(WeightLoader& loader, const std::string& prefix,
                                       KimiK3Layer& layer);
    Result<void> load_feed_forward(WeightLoader& loader, const Pack& pack, uint32_t index,
                                   KimiK3Layer& layer);
    Result<std::unique_ptr<KimiK3Workspace>> make_workspace(uint32_t n_rows);
    Result<std::unique_ptr<KimiK3Workspace>> take_workspace(uint32_t n_rows) {
        return workspaces_.take(n_rows, [this](uint32_t n) { return make_workspace(n); });
    }

    Operators& operators_;
    ExpertCache* cache_ = nullptr;
    ModelOptions options_;
    ModelInfo info_;
    KimiK3Config config_;
    Sha256Digest identity_{};
    std::vector<DeviceBuffer> buffers_;
    Weight embedding_, output_;
    const float* output_norm_ = nullptr;
    const float* output_score_ = nullptr;
    std::vector<KimiK3Layer> layers_;
    WorkspacePool<KimiK3Workspace> workspaces_;
};

Result<std::unique_ptr<Model>> load_kimi_k3(const Pack& pack, Operators& operators,
                                            const ModelOptions& options);

}  // namespace xp
