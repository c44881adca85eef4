// One forward pass of Kimi-K3, layer by layer. See pass.cc for the graph.
#pragma once

#include <memory>
#include <vector>

#include "daemon/engine/kimi_k3/model.h"
#include "daemon/engine/layered_pass.h"

namespace xp {

class KimiK3Pass final : public LayeredPass {
public:
    KimiK3Pass(KimiK3Model& model, std::span<const Row> rows, std::vector<SequenceSpan> spans,
               std::unique_ptr<KimiK3Workspace> workspace, const PassObserver* observer);
    ~KimiK3Pass() override;

private:
    void begin() override;
    const PackLayer* begin_layer() override;
    void route() override;
    void beside_experts() override;
    ExpertArgs expert_args() override;
    void finish_layer() override;
    std::vector<float> state() override;
    Result<LogitsBuffers*> head(std::span<const uint32_t> rows) override;

    void delta_attention();
    void latent_attention();
    // Of the streams and banks as they are now; the caller fills in what is given and made.
    ResidualMixArgs residual() const;

    const KimiK3Layer& layer() const { return model_.layers_[layer_]; }
    KimiK3Sequence::LayerState& state_of(const SequenceSpan& span) const {
        return static_cast<KimiK3Sequence*>(span.sequence)->layers_[layer_];
    }

    KimiK3Model& model_;
    std::unique_ptr<KimiK3Workspace> work_;
    uint32_t n_banked_ = 0;
    bool update_left_ = false;   // what the layer before gave is not in the stream yet
};

}  // namespace xp
