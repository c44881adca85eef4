// The request that xp_generate_... functions describe. Private to client/.
#pragma once

#include <string>

#include "client/expertpack.h"
#include "shm/codec.h"

struct xp_generate {
    // Valid at all times by the rules of the codec, except that the prompt may be missing.
    xp::shm::Generate value;
    bool has_prompt = false;
    std::string error;

    // Settings of chats, kept here because they may be set before the first message.
    std::string tools_json;
    bool thinking = false;
    xp::shm::Effort effort = xp::shm::Effort::kLow;
    size_t tool_calls = 0;
};
