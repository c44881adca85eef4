// DeepSeek-V4: weights, sequence state and workspace. The graph itself is in pass.cc.
#pragma once

#include <memory>
#include <vector>

#include "daemon/engine/deepseek4/config.h"
#include "daemon/engine/state_sequence.h"
#include "daemon/engine/weights.h"
#include "daemon/engine/workspace_pool.h"

namespace xp {

// The parameters of one hyper-connection, ahead of attention or of the feed-forward part.
struct HyperConnection {
    Weight fn;                    // [(2 + streams)·streams] × [streams·dim]
    const float* base = nullptr;  // [(2 + streams)·streams]
    const float* scale = nullptr; // [3]
};

struct Compressor {
    Weight keys, gates;           // [factor·dim] × [hidden]
    const float* bias = nullptr;  // [ratio][factor·dim]
    const float* norm = nullptr;  // [dim]
};

struct DeepSeek4Layer {
    HyperConnection hc_attention, hc_ffn;
    const float* attention_norm = nullptr;
    const float* ffn_norm = nullptr;

    Weight q_a, q_b, kv, out_a, out_b;
    const float* q_a_norm = nullptr;
    const float* kv_norm = nullptr;
    const float* sinks = nullptr;
    Compressor compressor;        // ratio ≠ 0
    Weight index_q, index_weights;
    Compressor index_compressor;  // ratio 4

    Weight router;
    const float* router_bias = nullptr;   // null in hash layers
    std::vector<uint32_t> hash_experts;   // [vocabulary][top_k], hash layers only; host memory
    Weight shared_gate, shared_up, shared_down;
    const PackLayer* experts = nullptr;
};

class DeepSeek4Sequence final : public StateSequence {
public:
    // Attention rows are kept as `kv`; compressor buffers always as float32. Sizes follow
    // DeepSeek4Config; rows for the whole context are reserved, and committed as they are used.
    struct LayerState {
        DeviceBuffer ring;                          // [window][head_dim]
        DeviceBuffer compressed;                    // [context / ratio][head_dim]
        DeviceBuffer keys, gates;                   // [factor·ratio][factor·head_dim]
        DeviceBuffer index_rows;                    // [context / 4][index_dim]
        DeviceBuffer index_keys, index_gates;
    };

    static Result<std::unique_ptr<DeepSeek4Sequence>> create(const Model& model,
                                                             const DeepSeek4Config& config,
                                                             const Sha256Digest& identity,
                                                             Operators& operators,
                                                             const ModelOptions& options);
    static uint64_t state_bytes(const DeepSeek4Config& config, const ModelOptions& options);

private:
    friend class DeepSeek4Pass;

    DeepSeek4Sequence(const Model& model, const DeepSeek4Config& config,
                      const Sha256Digest& identity, Operators& operators,
                      const ModelOptions& options);
    std::vector<Part> parts_at(uint64_t position) const override;

    const DeepSeek4Config& config_;
    std::vector<LayerState> layers_;
};

// Intermediate results of one pass, for up to `capacity` rows; all float32 unless named otherwise.
struct DeepSeek4Workspace {
    uint32_t capacity = 0;
    std::vector<DeviceBuffer> buffers;
    float *state, *post_comb;              // [streams][dim], [streams + streams²]
    float *x, *out, *shared;               // [dim]
    float *q_low, *q, *kv, *attended, *out_low;
    std::byte* kv_rows;                    // [head_dim] as stored
    float *compressor_keys, *compressor_gates;
    float *index_compressor_keys, *index_compressor_gates;
    float *index_q, *index_weights;
    uint32_t* picks;                       // [index_top_k]
    float *router, *shared_mid;
    float* expert_weights;                 // [top_k]
    float* expert_out;                     // [top_k][dim]
    float* turns;                          // cos and sin, [2][rope_dims]: see DeepSeek4Pass
    LogitsBuffers logits;
};

class DeepSeek4Model final : public Model {
public:
    DeepSeek4Model(Operators& operators, const ModelOptions& options)
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
    friend class DeepSeek4Pass;

    Result<HyperConnection> load_hyper_connection(WeightLoader& loader, const std::string& prefix,
                                                  const char* part);
    Result<void> load_attention(WeightLoader& loader, uint32_t index, DeepSeek4Layer& layer);
    Result<Compressor> load_compressor(WeightLoader& loader, const std::string& prefix,
                                       const std::string& alias, uint32_t ratio, uint32_t factor,
                                       uint32_t dim);
    Result<void> load_experts(WeightLoader& loader, const Pack& pack, uint32_t index,
                              DeepSeek4Layer& layer);

    Result<std::unique_ptr<DeepSeek4Workspace>> make_workspace(uint32_t n_rows);
    Result<std::unique_ptr<DeepSeek4Workspace>> take_workspace(uint32_t n_rows) {
        return workspaces_.take(n_rows, [this](uint32_t n) { return make_workspace(n); });
    }

    Operators& operators_;
    ExpertCache* cache_ = nullptr;
    ModelOptions options_;
    ModelInfo info_;
    DeepSeek4Config config_;
    Sha256Digest identity_{};
    std::vector<DeviceBuffer> buffers_;
    Weight embedding_, output_, head_fn_;
    const float* output_norm_ = nullptr;
    const float* head_base_ = nullptr;
    const float* head_scale_ = nullptr;
    std::vector<DeepSeek4Layer> layers_;
    WorkspacePool<DeepSeek4Workspace> workspaces_;
};

Result<std::unique_ptr<Model>> load_deepseek4(const Pack& pack, Operators& operators,
                                              const ModelOptions& options);

}  // namespace xp
