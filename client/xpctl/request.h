// From the command line to a request: where the prompt comes from, and which option sets what.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "client/expertpack.hpp"
#include "client/xpctl/options.h"

namespace xp::ctl {

// What could not be made into a request, and the exit status for it.
struct RequestError {
    std::string message;
    int exit_code = 0;
};

// The prompt as text: the words, or standard input (see GenerateOptions::words). Nothing to read
// when there are ids: "" then.
std::optional<std::string> read_prompt(const GenerateOptions& options, RequestError* error);

// The seed to use: the one given, else a random one where sampling draws at all (temperature is not
// 0). Small enough (32 bits) to survive JSON readers that keep numbers as doubles.
std::optional<uint64_t> choose_seed(const GenerateOptions& options);

// Describes the request; an error names the option that the library refused.
std::optional<expertpack::Generate> make_request(const GenerateOptions& options,
                                                 const std::string& prompt,
                                                 std::optional<uint64_t> seed,
                                                 RequestError* error);

}  // namespace xp::ctl
