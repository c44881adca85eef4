// The prompt of a request as tokens: text is encoded, a chat is rendered in the model's own format,
// ids are checked against the vocabulary. Free of state; for the engine thread, as encoding a text
// of megabytes takes a while (tokenizing.h has the measure).
#pragma once

#include <cstdint>

#include "daemon/base/result.h"
#include "daemon/serve/model_host.h"
#include "daemon/text/chat.h"
#include "shm/codec.h"

namespace xp {

// Any length, and may be empty. kInvalidArgument for ids outside the vocabulary, kUnsupported for a
// chat that cannot be rendered.
Result<RenderedPrompt> prompt_of(const ServedModel& model, const shm::Generate& request);

// A prompt that the model can run: not empty, and with room in the context for it and `more`
// tokens (0 or 1); kLimit otherwise.
Result<void> check_prompt(const ServedModel& model, const RenderedPrompt& prompt, uint32_t more);

}  // namespace xp
