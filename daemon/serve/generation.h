// The task that generates text after a prompt: at the end of a pass it takes a chunk of the prompt
// or a sampled token.
//
// What it decides: prefill goes in chunks of rows. A token that ends generation finishes with kStop
// unless ignored; so does a stop string, which is looked for in the content channel only, across
// tokens, and never given out. max_tokens or a full context finish with kLength. The id of an
// ending token is among the ids, its text is empty. The answer to a chat is read in the model's
// format (daemon/text/answer.h): that splits it into channels, takes structure away, and may find
// its end without an ending token (kStop as well, unless ignored); to a raw prompt all is content.
// After tool calls kStop is kToolCalls. Same request, same bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/engine/sampler.h"
#include "daemon/serve/model_host.h"
#include "daemon/serve/prompt.h"
#include "daemon/serve/stop_scanner.h"
#include "daemon/serve/task.h"
#include "shm/codec.h"

namespace xp {

// Without streaming, text is given out in pieces, since a reply has to fit into half of the
// smallest response ring: so many tokens and log-probabilities together, and so much text.
inline constexpr size_t kBatchNumbers = 2048;
inline constexpr size_t kBatchTextBytes = 8192;

class Generation final : public Task {
public:
    // As make_task.
    static Result<std::unique_ptr<Generation>> create(ServedModel& model,
                                                      const shm::Generate& request,
                                                      const TaskOptions& options);

private:
    Generation(ServedModel& model, const shm::Generate& request, RenderedPrompt prompt,
               const TaskOptions& options);
    Result<std::optional<shm::FinishReason>> advance(std::vector<shm::Reply>* replies) override;
    Result<std::unique_ptr<ForwardPass>> next_pass();
    Result<std::optional<shm::FinishReason>> finish_pass(std::vector<shm::Reply>* replies);
    std::optional<shm::FinishReason> take_token(TokenId id, std::vector<shm::Reply>* replies);
    // True when a stop string became complete.
    bool add_text(std::string text);
    // Gives out what is held back: at the end, and at the end of a channel.
    void end_text();
    void end_channel();
    void flush(std::vector<shm::Reply>* replies);
    bool batch_is_full() const;

    const bool ignore_eos_;
    const bool stream_;
    const uint32_t top_logprobs_;
    uint64_t max_generated_ = 0;  // by max_tokens and the context

    TokenId last_token_ = 0;
    std::unique_ptr<Sequence> sequence_;
    std::unique_ptr<ForwardPass> pass_;
    size_t pass_rows_ = 0;

    Sampler sampler_;
    std::unique_ptr<AnswerReader> answer_;
    StopScanner stops_;
    shm::Channel channel_;
    shm::Tokens pending_;
};

}  // namespace xp
