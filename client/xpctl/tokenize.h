// Asks the daemon for the ids of a prompt.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/expertpack.hpp"
#include "client/xpctl/connection.h"

namespace xp::ctl {

struct TokenList {
    std::string model;
    std::vector<int32_t> ids;
};

// Makes `request` a tokenize one and runs it. Returns an exit status; anything but kExitOk has been
// reported.
int ask_for_tokens(expertpack::Client& client, expertpack::Generate& request, TokenList* tokens);

}  // namespace xp::ctl
