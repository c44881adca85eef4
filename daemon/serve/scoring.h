// The task that says how likely each token of a prompt is, given those before it: the prompt goes
// through the model in chunks whose rows all give logits, and nothing is generated.
//
// Per position: the log-probability of its token (0 at position 0, which nothing predicts), and the
// likeliest token after it, ties to the lowest id. They go out in Scores replies after every chunk;
// where they are asked for, the logits after the last token follow, one Logits reply in a step. The
// result does not depend on how the prompt is cut into chunks. Settings of sampling mean nothing.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "daemon/engine/sampler.h"
#include "daemon/serve/task.h"

namespace xp {

// Logits of one chunk, at most: 129 rows of a vocabulary of 130,000. They are memory on top of the
// model's, and a step lasts until all of them are read.
inline constexpr uint64_t kMaxChunkLogitBytes = uint64_t{64} << 20;

// Rows of a pass that all want logits.
constexpr uint32_t scored_rows(uint32_t n_vocab, uint32_t chunk_rows) {
    const uint64_t rows = kMaxChunkLogitBytes / (sizeof(float) * uint64_t{n_vocab});
    return static_cast<uint32_t>(std::clamp<uint64_t>(rows, 1, chunk_rows));
}

class Scoring final : public Task {
public:
    // As make_task.
    static Result<std::unique_ptr<Scoring>> create(ServedModel& model,
                                                   const shm::Generate& request,
                                                   const TaskOptions& options);

private:
    Scoring(ServedModel& model, const shm::Generate& request, std::vector<TokenId> prompt,
            const TaskOptions& options);
    Result<std::optional<shm::FinishReason>> advance(std::vector<shm::Reply>* replies) override;
    Result<std::unique_ptr<ForwardPass>> next_pass();
    Result<void> score_pass(const ForwardPass& pass, std::vector<shm::Reply>* replies);
    void give_out_logits(std::vector<shm::Reply>* replies);

    const bool wants_logits_;
    std::unique_ptr<Sequence> sequence_;
    std::unique_ptr<ForwardPass> pass_;
    size_t pass_rows_ = 0;
    Sampler greedy_{SamplingOptions{.temperature = 0}};
    float next_logprob_ = 0;            // of the token at the next chunk's first position
    std::vector<float> last_logits_;    // after the last token
    size_t logits_given_ = 0;
};

}  // namespace xp
