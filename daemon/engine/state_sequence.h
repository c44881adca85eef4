// A sequence whose state is buffers in a backend's memory: where it stands, exact snapshots, and
// how the rows of a batch fall into sequences. Models say which buffers.
#pragma once

#include <span>
#include <vector>

#include "daemon/base/hash.h"
#include "daemon/engine/model.h"

namespace xp {

class StateSequence : public Sequence {
public:
    uint64_t position() const override { return position_; }
    std::vector<std::byte> snapshot() const override;
    Result<void> restore(std::span<const std::byte> snapshot) override;

    // A pass has begun, and has taken in `n_rows` rows.
    void begin_pass() { in_pass_ = true; }
    void end_pass(uint32_t n_rows);
    bool in_pass() const { return in_pass_; }
    bool belongs_to(const Model& model) const { return &model == &model_; }
    // As if so many rows had been taken in, see Model::create_hollow_sequence().
    void set_position(uint64_t position) { position_ = position; }

protected:
    // A buffer and how many of its bytes hold state at a position.
    struct Part {
        const DeviceBuffer* buffer;
        uint64_t bytes;
    };

    // `magic` is that of the architecture's snapshots; everything outlives the sequence.
    StateSequence(uint64_t magic, const Model& model, const Sha256Digest& identity,
                  Operators& operators, const ModelOptions& options)
        : operators_(operators), options_(options), magic_(magic), model_(model),
          identity_(identity) {}

    // In a fixed order.
    virtual std::vector<Part> parts_at(uint64_t position) const = 0;

    Operators& operators_;
    const ModelOptions options_;

private:
    const uint64_t magic_;
    const Model& model_;
    const Sha256Digest& identity_;
    uint64_t position_ = 0;
    bool in_pass_ = false;  // a pass over it was begun and did not complete
};

// Rows of one sequence within a batch, or a part of it.
struct SequenceSpan {
    StateSequence* sequence = nullptr;
    uint32_t first_row = 0;
    uint32_t n_rows = 0;
    uint64_t position = 0;  // of first_row; the following rows count up
};

// What Model::forward() checks.
Result<std::vector<SequenceSpan>> spans_of(std::span<const Row> rows, const Model& model);

}  // namespace xp
