// From the command line to a request: where the prompt comes from, and which option sets what.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "client/expertpack.hpp"
#include "client/xpctl/connection.h"
#include "client/xpctl/options.h"

namespace xp::ctl {

// No daemon takes a request of this size, so that what is piped in by mistake does not fill the
// memory. The limit that counts is the daemon's, and lower.
inline constexpr size_t kMaxInputBytes = size_t{64} << 20;

// All of `fd`. `name` is for the error's message.
std::optional<std::string> read_input(int fd, const std::string& name, Failure* error);

// The prompt as text: the words, or standard input (see RequestOptions::words). Nothing to read
// when there are ids: "" then.
std::optional<std::string> read_prompt(const RequestOptions& options, Failure* error);

// The seed to use: the one given, else a random one where sampling draws at all (temperature is not
// 0). Small enough (32 bits) to survive JSON readers that keep numbers as doubles.
std::optional<uint64_t> choose_seed(const RequestOptions& options);

// Describes the request; an error names the option that the library refused.
std::optional<expertpack::Generate> make_request(const RequestOptions& options,
                                                 const std::string& prompt,
                                                 std::optional<uint64_t> seed, Failure* error);

// Why the library does not take the request.
Failure failure_of(const expertpack::Generate& request);

// Everything but the prompt, for requests whose prompt is no single text.
bool apply_settings(const RequestOptions& options, std::optional<uint64_t> seed,
                    expertpack::Generate* request, Failure* error);

}  // namespace xp::ctl
