// A model for tests of what lies around models: it answers with the tokens that a function names,
// runs its passes in a given number of steps, and fails or waits where a test wants it to. Its
// tokenizer and chat format are those of a demo model, DeepSeek-V4's unless another is named.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/serve/model_host.h"
#include "daemon/serve/task.h"

namespace xp::scripted {

struct Script {
    // The token that follows all tokens of a sequence so far. Default: the end.
    std::function<TokenId(std::span<const TokenId>)> next;
    // All logits, where `next` is not enough.
    std::function<std::vector<float>(std::span<const TokenId>)> logits;
    // Called at the beginning of every step.
    std::function<Result<void>()> on_step;
    // Called with the rows of every pass.
    std::function<void(std::span<const Row>)> on_pass;
    size_t steps_per_pass = 1;
    uint64_t context = 4096;
};

inline constexpr TokenId kEos = 1;

// What came of a task that was run to its end, or to its error.
struct Outcome {
    std::vector<shm::Reply> replies;
    std::optional<shm::FinishReason> reason;
    std::optional<Error> error;
    shm::Timings timings;
};
Outcome run_task(ServedModel& model, const shm::Generate& request, const TaskOptions& options);

const GgufMetadata& demo_metadata();
const GgufMetadata& kimi_metadata();  // of the demo model of Kimi-K3
std::unique_ptr<ServedModel> make_served(const std::string& name, Script script,
                                         const GgufMetadata& metadata = demo_metadata());
std::unique_ptr<ModelHost> make_host(Script script);

// A script that says `tokens` after a prompt of `n_prompt` tokens, then the end for ever.
Script say(std::vector<TokenId> tokens, size_t n_prompt);
// The tokens of a text, and the token that stands for exactly these bytes.
std::vector<TokenId> tokens_of(const std::string& text);
TokenId token_of_bytes(std::string_view bytes);
uint32_t n_vocab();

}  // namespace xp::scripted
