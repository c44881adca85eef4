#include "daemon/engine/state_sequence.h"

#include <cstring>
#include <limits>

namespace xp {
namespace {

struct SnapshotHeader {
    uint64_t magic;
    Sha256Digest identity;
    uint64_t position;
    uint64_t context;
    uint32_t kv;
    uint32_t reserved;
};

}  // namespace

void StateSequence::end_pass(uint32_t n_rows) {
    position_ += n_rows;
    in_pass_ = false;
}

std::vector<std::byte> StateSequence::snapshot() const {
    XP_ASSERT(!in_pass_);
    const SnapshotHeader header = {magic_, identity_, position_, options_.context,
                                   static_cast<uint32_t>(options_.kv), 0};
    const std::vector<Part> parts = parts_at(position_);
    uint64_t bytes = sizeof header;
    for (const Part& part : parts) bytes += part.bytes;
    std::vector<std::byte> snapshot(bytes);
    std::memcpy(snapshot.data(), &header, sizeof header);
    uint64_t at = sizeof header;
    for (const Part& part : parts) {
        operators_.download(std::span(snapshot).subspan(at, part.bytes), part.buffer->data());
        at += part.bytes;
    }
    return snapshot;
}

Result<void> StateSequence::restore(std::span<const std::byte> snapshot) {
    const auto corrupt = [](const char* text) {
        return Error{ErrorCode::kCorrupt, fmt::format("sequence snapshot: {}", text)};
    };
    SnapshotHeader header;
    if (snapshot.size() < sizeof header) return corrupt("cut short");
    std::memcpy(&header, snapshot.data(), sizeof header);
    if (header.magic != magic_) return corrupt("not a snapshot of this kind");
    if (header.identity != identity_) return corrupt("belongs to another model");
    if (header.context != options_.context || header.kv != static_cast<uint32_t>(options_.kv)) {
        return corrupt("was made with another context or kv setting");
    }
    if (header.position > options_.context) return corrupt("position beyond the context");
    const std::vector<Part> parts = parts_at(header.position);
    uint64_t bytes = sizeof header;
    for (const Part& part : parts) bytes += part.bytes;
    if (bytes != snapshot.size()) return corrupt("wrong size");
    uint64_t at = sizeof header;
    for (const Part& part : parts) {
        operators_.upload(part.buffer->data(), snapshot.subspan(at, part.bytes));
        at += part.bytes;
    }
    position_ = header.position;
    in_pass_ = false;
    return {};
}

Result<std::vector<SequenceSpan>> spans_of(std::span<const Row> rows, const Model& model) {
    const auto invalid = [](std::string text) {
        return Error{ErrorCode::kInvalidArgument, std::move(text)};
    };
    const ModelInfo& info = model.info();
    if (rows.empty() || rows.size() > std::numeric_limits<uint16_t>::max()) {
        return invalid(fmt::format("a batch has 1 to {} rows, not {}",
                                   std::numeric_limits<uint16_t>::max(), rows.size()));
    }
    std::vector<SequenceSpan> spans;
    for (uint32_t i = 0; i < rows.size(); ++i) {
        const Row& row = rows[i];
        if (row.token < 0 || static_cast<uint32_t>(row.token) >= info.n_vocab) {
            return invalid(fmt::format("token id {} is not in the vocabulary of {}", row.token,
                                       info.n_vocab));
        }
        auto* sequence = dynamic_cast<StateSequence*>(row.sequence);
        if (sequence == nullptr || !sequence->belongs_to(model)) {
            return invalid("a row belongs to no sequence of this model");
        }
        if (spans.empty() || spans.back().sequence != sequence) {
            for (const SequenceSpan& span : spans) {
                if (span.sequence == sequence) {
                    return invalid("rows of one sequence are not consecutive");
                }
            }
            if (sequence->in_pass()) {
                return invalid("a sequence is in a pass that did not complete; restore a snapshot");
            }
            spans.push_back({sequence, i, 0, sequence->position()});
        }
        SequenceSpan& span = spans.back();
        ++span.n_rows;
        if (sequence->position() + span.n_rows > info.context) {
            return make_error(ErrorCode::kLimit, "the context of {} tokens is full", info.context);
        }
    }
    return spans;
}

}  // namespace xp
