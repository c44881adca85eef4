// What the engine thread does for one request, from its prompt to its end, as a state machine
// without threads or connections. There are three: Generation, Scoring and Tokenizing.
//
// A task is made with its prompt turned into tokens; step() then runs to the next wave boundary of
// its model (or does another piece of about a chunk's size) and hands out what came of it. Between
// two steps other tasks may run, and a task may be dropped at any time. Time and cache counters of
// its steps are kept here for all of them.
//
// Belongs to the engine thread. The replies it makes are never terminal: Done, Failed and Cancelled
// are the scheduler's. After an error of step() only destruction is left. Same request, same bytes,
// whatever chunk size and cache.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/serve/model_host.h"
#include "shm/codec.h"

namespace xp {

struct TaskOptions {
    // Prompt rows of one forward pass: an expert that was read serves several rows, while the kept
    // expert outputs of 512 rows of DeepSeek-V4-Flash take no more than 50 MB.
    uint32_t chunk_rows = 512;
    // At least this long between two Progress replies.
    std::chrono::milliseconds progress_interval{250};
};

// Numbers of 4 bytes that one reply carries at most: with them it fits into half of the smallest
// response ring, and a client that lags is noticed before much of its answer has piled up.
inline constexpr size_t kReplyNumbers = 4096;

class Task {
public:
    virtual ~Task() = default;
    Task(const Task&) = delete;
    Task& operator=(const Task&) = delete;

    // The prompt as its client is told when the task is accepted; empty for Tokenizing, whose
    // answer it is.
    std::span<const TokenId> prompt() const { return prompt_; }
    // How many of its tokens the model has taken in.
    uint64_t prompt_done() const { return prompt_done_; }

    // One step; replies to send are appended. A value when the task is done: step() must not be
    // called again.
    Result<std::optional<shm::FinishReason>> step(std::vector<shm::Reply>* replies);

    // What was counted so far; queued_us is left to the caller.
    shm::Timings timings() const;

protected:
    Task(ServedModel& model, std::vector<TokenId> prompt, const TaskOptions& options);

    virtual Result<std::optional<shm::FinishReason>> advance(std::vector<shm::Reply>* replies) = 0;

    ServedModel& model() const { return model_; }
    const TaskOptions& options() const { return options_; }
    bool prefilling() const { return prompt_done_ < prompt_.size(); }
    // The next `n` tokens of the prompt have been computed.
    void prompt_computed(size_t n, std::vector<shm::Reply>* replies);
    uint64_t n_generated() const { return counted_.generated_tokens; }
    void count_generated() { ++counted_.generated_tokens; }

private:
    using Clock = std::chrono::steady_clock;

    ServedModel& model_;
    const TaskOptions options_;
    const std::vector<TokenId> prompt_;
    uint64_t prompt_done_ = 0;
    Clock::time_point last_progress_;
    Clock::duration prefill_time_{};
    Clock::duration decode_time_{};
    shm::Timings counted_;
};

// kInvalidArgument, kUnsupported, kLimit (the prompt does not fit into the context) or what the
// model says when it makes a sequence.
Result<std::unique_ptr<Task>> make_task(ServedModel& model, const shm::Generate& request,
                                        const TaskOptions& options);

}  // namespace xp
