#include "daemon/serve/tokenizing.h"

#include <algorithm>

#include "daemon/serve/prompt.h"

namespace xp {

Result<std::unique_ptr<Tokenizing>> Tokenizing::create(ServedModel& model,
                                                       const shm::Generate& request,
                                                       const TaskOptions& options) {
    XP_TRY(RenderedPrompt prompt, prompt_of(model, request));
    return std::unique_ptr<Tokenizing>(
        new Tokenizing(model, std::move(prompt.tokens), options));
}

Result<std::optional<shm::FinishReason>> Tokenizing::advance(std::vector<shm::Reply>* replies) {
    const auto rest = std::span(ids_).subspan(given_);
    const auto piece = rest.first(std::min(rest.size(), kReplyNumbers));
    if (!piece.empty()) {
        shm::Tokens tokens;
        tokens.ids.assign(piece.begin(), piece.end());
        replies->push_back(std::move(tokens));
    }
    given_ += piece.size();
    return given_ == ids_.size() ? std::optional(shm::FinishReason::kStop) : std::nullopt;
}

}  // namespace xp
