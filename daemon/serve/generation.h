// One Generate request's life, from prompt to finish reason, as a state machine without threads,
// clocks of its own or connections: create() turns the prompt into tokens, step() runs the model to
// the next wave boundary and, at the end of a pass, takes a chunk of the prompt or a sampled token.
//
// What it decides: prefill goes in chunks of rows. A token that ends generation finishes with kStop
// unless ignored; so does a stop string, which is looked for in the content channel only, across
// tokens, and never given out. max_tokens or a full context finish with kLength. The id of an
// ending token is among the ids, its text is empty. The end-of-reasoning token switches from the
// reasoning to the content channel and has no text either. Same request, same bytes.
//
// Belongs to the engine thread. The replies it makes are never terminal: Done, Failed and Cancelled
// are the scheduler's. After an error of step() only destruction is left.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/engine/sampler.h"
#include "daemon/serve/model_host.h"
#include "daemon/serve/stop_scanner.h"
#include "shm/codec.h"

namespace xp {

struct GenerationOptions {
    // Prompt rows of one forward pass: an expert that was read serves several rows, while the kept
    // expert outputs of 512 rows of DeepSeek-V4-Flash take no more than 50 MB.
    uint32_t chunk_rows = 512;
    // At least this long between two Progress replies.
    std::chrono::milliseconds progress_interval{250};
};

// Without streaming, text is given out in pieces of at most so many tokens, since a reply has to
// fit into half a response ring: 20 log-probabilities of 1024 tokens are 170 KB.
inline constexpr size_t kBatchTokens = 1024;

class Generation {
public:
    // kInvalidArgument, kUnsupported, kLimit (prompt longer than the context) or what the model
    // says when it makes a sequence.
    static Result<std::unique_ptr<Generation>> create(ServedModel& model,
                                                      const shm::Generate& request,
                                                      const GenerationOptions& options);

    const std::vector<TokenId>& prompt() const { return prompt_; }

    // One step; replies to send are appended. A value when the generation has finished: step() must
    // not be called again.
    Result<std::optional<shm::FinishReason>> step(std::vector<shm::Reply>* replies);

    // What was counted so far; queued_us is left to the caller.
    shm::Timings timings() const;

private:
    using Clock = std::chrono::steady_clock;

    Generation(ServedModel& model, const shm::Generate& request, const GenerationOptions& options);
    Result<std::unique_ptr<ForwardPass>> next_pass();
    Result<std::optional<shm::FinishReason>> finish_pass(std::vector<shm::Reply>* replies);
    std::optional<shm::FinishReason> take_token(TokenId id, std::vector<shm::Reply>* replies);
    // True when a stop string became complete.
    bool add_text(std::string text);
    void end_text();
    void flush(std::vector<shm::Reply>* replies);
    bool prefilling() const { return generated_.empty(); }

    ServedModel& model_;
    const GenerationOptions options_;
    const bool ignore_eos_;
    const bool stream_;
    const uint32_t top_logprobs_;
    uint64_t max_generated_ = 0;  // by max_tokens and the context

    std::vector<TokenId> prompt_;
    uint64_t prompt_done_ = 0;
    std::vector<TokenId> generated_;
    std::unique_ptr<Sequence> sequence_;
    std::unique_ptr<ForwardPass> pass_;
    size_t pass_rows_ = 0;

    Sampler sampler_;
    Detokenizer detokenizer_;
    StopScanner stops_;
    shm::Channel channel_ = shm::Channel::kContent;
    shm::Tokens pending_;
    Clock::time_point last_progress_;

    Clock::duration prefill_time_{};
    Clock::duration decode_time_{};
    shm::Timings counted_;
};

}  // namespace xp
