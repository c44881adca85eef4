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
    void route() override;
    std::vector<uint32_t> known_experts() override;
    void beside_experts() override;
    ExpertArgs expert_args() override;
    void prefetch(uint32_t first_layer) override;
    void finish_layer() override;
    std::vector<float> state() override;
    Result<LogitsBuffers*> head(std::span<const uint32_t> rows) override;

    void attention_part();
    void compress(const Compressor& compressor, bool index);
    bool picks_rows() const;
    void pick_rows();
    void hyper_connection(const HyperConnection& hc, const float* norm, const HcUpdate* update);
    void append_turns(std::span<const double> frequencies, std::vector<float>& turns) const;
    void find_hashed();
    void observe_picks() const;

    const DeepSeek4Layer& layer() const { return model_.layers_[layer_]; }
    DeepSeek4Sequence::LayerState& state_of(const SequenceSpan& span) const {
        return static_cast<DeepSeek4Sequence*>(span.sequence)->layers_[layer_];
    }
    // Of the part's rows, [streams + streams²] each.
    float* post_comb() const {
        const uint64_t streams = model_.config_.streams;
        return of_part(work_->post_comb, streams * (1 + streams));
    }
    bool compressed_layer() const { return model_.config_.ratio[layer_] != 0; }

    DeepSeek4Model& model_;
    std::unique_ptr<DeepSeek4Workspace> work_;
    const float* turns_plain_ = nullptr;     // [n_rows][rope_dims] each
    const float* turns_compress_ = nullptr;
    bool update_left_ = false;     // what the layer before gave is not in the state yet
    std::vector<Hashed> hashed_;   // in order
};

}  // namespace xp
