// The task that gives a prompt's token ids: one Tokens reply without text in a step, then the end.
// It makes no sequence, so that the context is no limit, and an empty text has no ids.
//
// The prompt is encoded as a whole when the task is made, which holds the engine up as long as it
// takes: time and memory are linear in the text, which kMaxRequestBytes bounds.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "daemon/serve/task.h"

namespace xp {

class Tokenizing final : public Task {
public:
    // As make_task.
    static Result<std::unique_ptr<Tokenizing>> create(ServedModel& model,
                                                      const shm::Generate& request,
                                                      const TaskOptions& options);

private:
    Tokenizing(ServedModel& model, std::vector<TokenId> ids, const TaskOptions& options)
        : Task(model, {}, options), ids_(std::move(ids)) {}
    Result<std::optional<shm::FinishReason>> advance(std::vector<shm::Reply>* replies) override;

    const std::vector<TokenId> ids_;
    size_t given_ = 0;
};

}  // namespace xp
