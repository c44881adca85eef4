// One forward pass of DeepSeek-V4, layer by layer. See pass.cc for the graph.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "daemon/engine/deepseek4/model.h"

namespace xp {

class DeepSeek4Pass final : public ForwardPass {
public:
    // Rows of one sequence within the batch.
    struct Span {
        DeepSeek4Sequence* sequence = nullptr;
        uint32_t first_row = 0;
        uint32_t n_rows = 0;
    };

    DeepSeek4Pass(DeepSeek4Model& model, std::span<const Row> rows, std::vector<Span> spans,
                  std::unique_ptr<DeepSeek4Workspace> workspace, const PassObserver* observer);
    ~DeepSeek4Pass() override;

    Result<bool> step() override;
    std::span<const float> logits(size_t row) const override;

private:
    // A batch row's use of an expert: where its output goes and with which weight.
    struct Choice {
        uint32_t expert, row;
        uint32_t slot;   // of the row's outputs
        uint32_t choice; // of the row's in the router's order
    };

    // A layer whose experts the tokens themselves say.
    struct Hashed {
        uint32_t layer = 0;
        std::vector<uint32_t> ids;       // [n_rows][top_k]
        std::vector<uint32_t> distinct;
    };

    void begin();
    void embed();
    void attention_part();
    void compress(const Compressor& compressor, bool index);
    bool picks_rows() const;
    void pick_rows();
    void route();
    void acquire_experts();
    void shared_expert();
    Result<void> compute_group(std::span<const ReadyExpert> group);
    void finish_layer();
    Result<void> head();
    void hyper_connection(const HyperConnection& hc, const float* norm, const HcUpdate* update);
    HcUpdate feed_forward_update() const;
    void fill_turns(std::span<const double> frequencies, float* turns);
    void find_hashed();
    void prefetch_hashed(uint32_t first_layer);
    // What observer_.choose says.
    std::vector<uint32_t> forced_experts(uint32_t layer) const;
    void observe_routing(std::span<const uint32_t> ids, std::span<const float> weights) const;
    void observe_picks() const;

    uint32_t n_rows() const { return static_cast<uint32_t>(rows_.size()); }
    const DeepSeek4Layer& layer() const { return model_.layers_[layer_]; }
    bool compressed_layer() const { return model_.config_.ratio[layer_] != 0; }

    DeepSeek4Model& model_;
    Operators& ops_;
    std::vector<Row> rows_;
    std::vector<Span> spans_;
    std::unique_ptr<DeepSeek4Workspace> work_;
    PassObserver observer_;

    uint32_t layer_ = 0;
    bool complete_ = false;
    bool failed_ = false;
    bool update_left_ = false;  // what the layer before gave is not in the state yet
    std::vector<Hashed> hashed_;                            // in order
    std::vector<uint32_t> fixed_ids_;                       // of the layer, if not chosen by scores
    std::vector<Choice> choices_;                           // of this layer, by expert, then row
    std::optional<ExpertCache::Acquisition> acquisition_;   // while the experts of a layer run
    uint32_t experts_left_ = 0;                             // not handed out yet

    std::vector<float> logits_;
    std::vector<uint32_t> logits_index_;                    // per row, or UINT32_MAX
};

}  // namespace xp
