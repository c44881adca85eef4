// A model that can be run: weights in the backend's memory, a graph over the operator set, experts
// through the expert cache.
//
// A forward pass takes rows (tokens) of any number of sequences and runs them together; rows of one
// sequence are consecutive and in position order. Every reduction has one order, whatever the
// number of rows: prefill, decode, any chunking and any batch give the same bytes.
//
// Threads: a Model, its sequences and passes belong to one engine thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/engine/operators.h"
#include "daemon/pack/pack.h"
#include "daemon/text/tokenizer.h"
#include "daemon/tiers/expert_cache.h"

namespace xp {

struct ModelOptions {
    uint64_t context = 4096;        // tokens a sequence may hold
    KvType kv = KvType::kF32;
};

struct ModelInfo {
    std::string architecture;
    std::string name;
    uint32_t n_layers = 0;
    uint32_t n_vocab = 0;
    uint32_t n_experts = 0;
    uint32_t top_k = 0;
    uint64_t context = 0;           // as configured
    uint64_t context_max = 0;       // what the model was made for
    uint64_t weight_bytes = 0;      // resident weights, those in host memory included
    uint64_t sequence_bytes = 0;    // state of one sequence at full context
};

// What the model remembers of one sequence of tokens. It only grows: it cannot be cut, so going
// back means restoring a snapshot.
class Sequence {
public:
    virtual ~Sequence() = default;
    // Tokens taken in so far; the next row's position.
    virtual uint64_t position() const = 0;
    // Everything, exactly: restore() into a sequence of the same model and options and what follows
    // is byte-identical to never having stopped. The format belongs to this build.
    virtual std::vector<std::byte> snapshot() const = 0;
    virtual Result<void> restore(std::span<const std::byte> snapshot) = 0;
};

struct Row {
    Sequence* sequence = nullptr;
    TokenId token = 0;
    bool logits = false;  // whether this row's logits are wanted
};

// What a test or a tool may look at while a pass runs. Null members are not called.
struct PassObserver {
    // Chosen experts of a row, in the router's order, with their weights.
    std::function<void(uint32_t layer, uint32_t row, std::span<const uint32_t> experts,
                       std::span<const float> weights)> routed;
    // Compressed rows a row attends to in an indexed layer, ascending.
    std::function<void(uint32_t layer, uint32_t row, std::span<const uint32_t> picks)> indexed;
    // The residual state of all rows after a layer.
    std::function<void(uint32_t layer, std::span<const float> state)> layer_done;
    // For benchmarks: puts the experts of a row, distinct and in range, in place of those that the
    // router or the token would choose; weights stay the router's. May be asked again for a row.
    std::function<void(uint32_t layer, uint32_t row, std::span<uint32_t> experts)> choose;
};

// One forward pass, run in steps that end at wave boundaries of MoE layers, where nothing is pinned
// in the expert cache: between two steps other passes of the same model may run (on other
// sequences). Dropping an unfinished pass, or an error, leaves its sequences unusable except for
// restore() and destruction.
class ForwardPass {
public:
    virtual ~ForwardPass() = default;
    // Runs to the next wave boundary. True when the pass is complete: its sequences have advanced
    // and logits() are valid.
    virtual Result<bool> step() = 0;
    // Logits of the i-th row of the batch, which must have asked for them: n_vocab floats in host
    // memory, valid while the pass lives.
    virtual std::span<const float> logits(size_t row) const = 0;
};

class Model {
public:
    virtual ~Model() = default;
    virtual const ModelInfo& info() const = 0;
    // Where its experts come from; outlives all passes. Needed before the first one, and not
    // changed while there are any.
    virtual void set_cache(ExpertCache& cache) = 0;
    // Allocates what a pass of `n_rows` rows, of which `n_logits` want logits, needs of its own.
    virtual Result<void> reserve(uint32_t n_rows, uint32_t n_logits) = 0;
    // A sequence as if `position` tokens had been taken in, all of them forgotten: for measuring
    // what passes at the end of a context take.
    virtual Result<std::unique_ptr<Sequence>> create_hollow_sequence(uint64_t position) = 0;
    // kNoMemory when the state does not fit.
    virtual Result<std::unique_ptr<Sequence>> create_sequence() = 0;
    // Checks rows: token ids in range, room in the context, consecutive rows per sequence.
    virtual Result<std::unique_ptr<ForwardPass>> forward(
        std::span<const Row> rows, const PassObserver* observer = nullptr) = 0;
};

// Loads the resident weights of a pack for its architecture. kUnsupported names what is missing.
// All arguments must outlive the model.
Result<std::unique_ptr<Model>> load_model(const Pack& pack, Operators& operators,
                                          const ModelOptions& options);
// The same with its cache set.
Result<std::unique_ptr<Model>> load_model(const Pack& pack, Operators& operators,
                                          ExpertCache& cache, const ModelOptions& options);

// Experts per token and layer, read from the metadata before a cache exists.
Result<uint32_t> experts_per_token(const GgufMetadata& metadata);

// Runs a pass to its end.
Result<void> run_to_end(ForwardPass& pass);

}  // namespace xp
