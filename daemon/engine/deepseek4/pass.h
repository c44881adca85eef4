// One forward pass of DeepSeek-V4, layer by layer. See pass.cc for the graph.
#pragma once

#include <memory>
#include <vector>

#include "daemon/engine/deepseek4/model.h"
#include "daemon/engine/layered_pass.h"

namespace xp {

class DeepSeek4Pass final : public LayeredPass {
public:
    DeepSeek4Pass(DeepSeek4Model& model, std::span<const Row> rows,
                  std::vector<SequenceSpan> spans, std::unique_ptr<DeepSeek4Workspace> workspace,
                  const PassObserver* observer);
    ~DeepSeek4Pass() override;

private:
    // A layer whose experts the tokens themselves say.
    struct Hashed {
        uint32_t layer = 0;
        std::vector<uint32_t> ids;       // [n_rows][top_k]
        std::vector<uint32_t> distinct;
    };

    void begin() override;
    const PackLayer* begin_layer() override;
    void beside_experts() override;
    ExpertArgs expert_args() override;
    void prefetch(uint32_t first_layer) override;
    void finish_layer() override;
    std::vector<float> state() override;
    Result<const float*> head(std::span<const uint32_t> rows) override;

    void attention_part();
    void compress(const Compressor& compressor, bool index);
    bool picks_rows() const;
    void pick_rows();
    void route();
    void hyper_connection(const HyperConnection& hc, const float* norm, const HcUpdate* update);
    HcUpdate feed_forward_update() const;
    void fill_turns(std::span<const double> frequencies, float* turns);
    void find_hashed();
    void observe_picks() const;

    const DeepSeek4Layer& layer() const { return model_.layers_[layer_]; }
    DeepSeek4Sequence::LayerState& state_of(const SequenceSpan& span) const {
        return static_cast<DeepSeek4Sequence*>(span.sequence)->layers_[layer_];
    }
    bool compressed_layer() const { return model_.config_.ratio[layer_] != 0; }

    DeepSeek4Model& model_;
    std::unique_ptr<DeepSeek4Workspace> work_;
    bool update_left_ = false;     // what the layer before gave is not in the state yet
    std::vector<Hashed> hashed_;   // in order
};

}  // namespace xp
