// The command line of xpctl as plain values.
//
// parse_options() reads the arguments and checks everything that can be said without the daemon:
// which options go together, numbers, token ids. It prints nothing and does not exit: help and
// errors come back as text, so that main() decides where they go (help to stdout; errors to stderr,
// without a help dump). What numbers may be is in numbers.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace xp::ctl {

enum class Command {
    kGenerate, kChat, kScore, kPerplexity, kTokenize,
    kStats, kModels, kClients, kCancel, kPing, kVersion
};

enum class EffortOption { kLow, kHigh, kMax };

// What describes a request. Each command sets what it has options for.
struct RequestOptions {
    std::vector<std::string> words;             // empty, or a lone "-": standard input
    std::optional<std::vector<int32_t>> ids;    // instead of a text
    bool raw = false;                           // the text as it stands, no chat
    std::optional<std::string> system;
    bool think = false;
    EffortOption effort = EffortOption::kLow;   // only with think

    std::string model;
    std::optional<uint32_t> max_tokens;
    std::optional<float> temperature;
    std::optional<uint32_t> top_k;
    std::optional<float> top_p;
    std::optional<float> min_p;
    std::optional<uint64_t> seed;
    std::vector<std::string> stop;
    bool ignore_eos = false;

    uint32_t logprobs = 0;                      // only with json
    bool quiet = false;
};

struct PerplexityOptions {
    std::string file;                           // "-": standard input
    std::optional<uint32_t> window;             // tokens
    std::optional<uint32_t> stride;
};

struct CancelTarget {
    uint64_t client = 0;
    uint64_t request = 0;                       // 0: all of the client's
};

struct Options {
    Command command = Command::kVersion;
    std::optional<std::string> socket;          // none: the library's default
    bool json = false;
    RequestOptions request;
    bool logits = true;                         // score: the last logits in JSON
    bool count = false;                         // tokenize: print how many
    PerplexityOptions perplexity;
    std::vector<CancelTarget> targets;          // cancel
    std::optional<double> watch;                // stats: seconds between two looks
};

struct HelpText { std::string text; };          // asked for: print it and exit 0
struct UsageError { std::string message; };     // one line, and where to find help

std::variant<Options, HelpText, UsageError> parse_options(int argc, const char* const* argv);

// "1,2,3" as ids. Nothing, and `error` naming the item, when one is no whole number from 0 to
// 2147483647. Blanks around items are fine, empty items are not.
std::optional<std::vector<int32_t>> parse_ids(std::string_view text, std::string* error);

// "3" or "3.17", as `xpctl clients` shows them.
std::optional<CancelTarget> parse_target(std::string_view text, std::string* error);

}  // namespace xp::ctl
