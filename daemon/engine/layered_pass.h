// What the passes of all architectures share: layer by layer over a batch of rows, the routed
// experts of each through the expert cache in waves, the logits of the rows that asked. A model
// adds what its layers compute.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "daemon/engine/state_sequence.h"
#include "daemon/engine/workspace_pool.h"

namespace xp {

class LayeredPass : public ForwardPass {
public:
    Result<bool> step() final;
    std::span<const float> logits(size_t row) const final;

protected:
    struct Shape {
        uint32_t n_layers = 0;
        uint32_t n_vocab = 0;
        uint32_t top_k = 0;
        // Whether a layer can begin with some of the rows and go on with the next ones.
        bool in_parts = false;
    };
    // Rows that begin a layer and are routed together: all, or of many a part, so that the experts
    // of the first ones are on their way while a device works on the next ones.
    struct Part {
        uint32_t first_row = 0;
        uint32_t n_rows = 0;
        std::vector<SequenceSpan> spans;  // rows count from the part's first
    };
    // Marks the sequences; they are the pass's until it completes.
    LayeredPass(const Shape& shape, Operators& operators, ExpertCache& cache,
                std::span<const Row> rows, std::vector<SequenceSpan> spans,
                const PassObserver* observer);

    // ---- what a model says
    // Before the first layer.
    virtual void begin() = 0;
    // All of the layer up to the choice of its experts, of the rows of part_. Null: a layer without
    // routed experts, of which only finish_layer() is left.
    virtual const PackLayer* begin_layer() = 0;
    // The choice, with ops_.route() last. Fixed ids of the layer are there.
    virtual void route() = 0;
    // The experts of all rows that the tokens themselves say, if the layer has such.
    virtual std::vector<uint32_t> known_experts() { return {}; }
    // What needs no routed expert, while they are read.
    virtual void beside_experts() = 0;
    // Where x, weights and out are, and what is made of them; the rest is filled in.
    virtual ExpertArgs expert_args() = 0;
    // When new experts may be prefetched: the layer's own have been asked for, or some are done.
    virtual void prefetch(uint32_t /*first_layer*/) {}
    virtual void finish_layer() = 0;
    // The residual state of all rows after layer_, for observers.
    virtual std::vector<float> state() = 0;
    // Logits of the given rows (ascending) into what it returns, which stays as long as the pass
    // does.
    virtual Result<LogitsBuffers*> head(std::span<const uint32_t> rows) = 0;

    // ---- for them
    uint32_t n_rows() const { return static_cast<uint32_t>(rows_.size()); }
    // Where part_'s rows are in `values`, which has `n` of each row.
    template <class T>
    T* of_part(T* values, uint64_t n) const {
        return values == nullptr ? nullptr : values + part_->first_row * n;
    }
    // Of part_'s rows; null where the router chooses.
    const uint32_t* fixed_ids() const {
        return fixed_ids_.empty() ? nullptr : of_part(fixed_ids_.data(), shape_.top_k);
    }
    void embed(const Weight& host_table, uint32_t streams, float* state);
    // What observer_.choose says, [n_rows][top_k].
    std::vector<uint32_t> forced_experts(uint32_t layer) const;
    // output · x for n rows, into logits.device, which grows when needed.
    Result<LogitsBuffers*> logits_of(const Weight& output, const float* x, uint32_t n,
                                     LogitsBuffers& logits);
    // Of float rows in the backend's memory.
    std::vector<float> downloaded(const float* data, uint64_t n) const;

    Operators& ops_;
    ExpertCache& cache_;
    const Shape shape_;
    const std::vector<Row> rows_;
    const std::vector<SequenceSpan> spans_;
    PassObserver observer_;
    uint32_t layer_ = 0;
    const Part* part_ = nullptr;

private:
    // A batch row's use of an expert: where its output goes and with which weight.
    struct Choice {
        uint32_t expert, row;
        uint32_t slot;    // of the row's outputs
        uint32_t choice;  // of the row's in the router's order
    };

    void cut_into_parts();
    // Runs layers without experts, and the next one that has some up to their choice.
    Result<void> begin_layers();
    void begin_parts();
    // The choices of the part, whose experts may be read from now on.
    void take_choices(const Part& part);
    void acquire_experts();
    Result<void> compute_group(std::span<const ReadyExpert> group);
    Result<void> end_layer();
    Result<void> finish();
    void observe_routing(const Part& part, std::span<const uint32_t> ids,
                         std::span<const float> weights) const;

    bool complete_ = false;
    bool failed_ = false;
    std::vector<Part> parts_;
    const PackLayer* experts_ = nullptr;                    // of the layer
    std::vector<uint32_t> fixed_ids_;                       // of the layer, where no router chooses
    bool ids_known_ = false;                                // they need not be waited for
    std::vector<uint32_t> ids_;                             // of the parts that were asked so far
    std::vector<Choice> choices_;                           // of this layer, by expert, then row
    std::optional<ExpertCache::Acquisition> acquisition_;   // while the experts of a layer run
    uint32_t experts_left_ = 0;                             // not handed out yet
    std::vector<float> many_logits_;                        // if there are too many to be kept
    std::span<const float> logits_;
    std::vector<uint32_t> logits_index_;                    // per row, or UINT32_MAX
};

std::vector<uint32_t> sorted_distinct(std::vector<uint32_t> ids);

// The pack's experts of a layer, whose matrices must have these sizes. kCorrupt or kUnsupported.
Result<const PackLayer*> find_experts(const Pack& pack, uint32_t layer, uint64_t dim, uint64_t ffn,
                                      uint32_t top_k);

}  // namespace xp
