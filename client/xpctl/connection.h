// Connecting, and what the library's statuses mean to a person and to a script.
#pragma once

#include <string>

#include "client/expertpack.hpp"
#include "client/xpctl/options.h"

namespace xp::ctl {

// A daemon that systemd is just starting accepts connections before it answers; reading the
// resident weights of a large model from a drive takes it a while.
inline constexpr int kConnectTimeoutMs = 30'000;
// Questions are answered between two steps of the model, which are seconds apart at worst.
inline constexpr int kAnswerTimeoutMs = 30'000;

// What went wrong, for report_error() and the exit status.
struct Failure {
    std::string code;
    std::string message;
    int exit_code = 0;
};
// Prints it and returns the exit status.
int report(const Failure& failure);

// The path that the library uses.
std::string socket_path(const Options& options);

// Why the library did not connect, with the path.
std::string connect_error(const expertpack::Client& client, const Options& options);

// Connects as the options say. On failure `failure` tells what was tried and what to do about it.
bool try_connect(expertpack::Client& client, const Options& options, Failure* failure,
                 int timeout_ms = kConnectTimeoutMs);
// The same, reported. Returns an exit status, kExitOk when connected.
int connect(expertpack::Client& client, const Options& options);
// The same for commands that send requests, and watches for Ctrl-C from then on: until here it
// simply ends the program, as there is nothing to cancel.
int connect_for_requests(expertpack::Client& client, const Options& options);

// Why `what` failed.
Failure failure_of(const expertpack::Client& client, xp_status status, const char* what);
int report_failure(const expertpack::Client& client, xp_status status, const char* what);

}  // namespace xp::ctl
