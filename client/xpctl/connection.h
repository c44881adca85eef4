// Connecting, and what the library's statuses mean to a person and to a script.
#pragma once

#include "client/expertpack.hpp"
#include "client/xpctl/options.h"

namespace xp::ctl {

// A daemon that systemd is just starting accepts connections before it answers; reading the
// resident weights of a large model from a drive takes it a while.
inline constexpr int kConnectTimeoutMs = 30'000;
// Questions are answered between two steps of the model, which are seconds apart at worst.
inline constexpr int kAnswerTimeoutMs = 30'000;

// Connects as the options say. On failure prints what was tried and what to do about it.
// Returns an exit status, kExitOk when connected.
int connect(expertpack::Client& client, const Options& options,
            int timeout_ms = kConnectTimeoutMs);

// Prints why `what` failed and returns the exit status for it.
int report_failure(const expertpack::Client& client, xp_status status, const char* what);

}  // namespace xp::ctl
