#include "client/xpctl/request.h"

#include <cerrno>
#include <cstring>
#include <random>

#include <unistd.h>

#include <fmt/format.h>

#include "client/xpctl/exit_codes.h"

namespace xp::ctl {
namespace {

// No daemon takes a request of this size (rings end at 64 MiB), so that what is piped in by mistake
// does not fill the memory. The limit that counts is the daemon's and much lower.
constexpr size_t kMaxPromptBytes = size_t{64} << 20;

std::optional<std::string> read_standard_input(RequestError* error) {
    std::string text;
    char buffer[64 << 10];
    for (;;) {
        const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer);
        if (n == 0) return text;
        if (n < 0) {
            if (errno == EINTR) continue;
            *error = {fmt::format("cannot read the prompt from standard input: {}",
                                  std::strerror(errno)), kExitFailed};
            return std::nullopt;
        }
        text.append(buffer, static_cast<size_t>(n));
        if (text.size() > kMaxPromptBytes) {
            *error = {fmt::format("the prompt on standard input is longer than {} MiB, more than "
                                  "any daemon takes", kMaxPromptBytes >> 20), kExitFailed};
            return std::nullopt;
        }
    }
}

xp_effort effort_of(EffortOption effort) {
    switch (effort) {
        case EffortOption::kLow: return XP_EFFORT_LOW;
        case EffortOption::kHigh: return XP_EFFORT_HIGH;
        case EffortOption::kMax: return XP_EFFORT_MAX;
    }
    return XP_EFFORT_LOW;
}

void set_prompt(const GenerateOptions& options, const std::string& prompt,
                expertpack::Generate* request) {
    if (options.ids) {
        request->tokens(*options.ids);
    } else if (options.raw) {
        request->text(prompt);
    } else {
        request->message(XP_ROLE_USER, prompt);
    }
}

}  // namespace

std::optional<std::string> read_prompt(const GenerateOptions& options, RequestError* error) {
    if (options.ids) return std::string();
    std::string text;
    if (options.words.empty() && ::isatty(STDIN_FILENO) == 1) {
        *error = {"no prompt: give it in words, or - to type it (see 'xpctl generate --help')",
                  kExitUsage};
        return std::nullopt;
    }
    if (options.words.empty() || (options.words.size() == 1 && options.words[0] == "-")) {
        std::optional<std::string> input = read_standard_input(error);
        if (!input) return std::nullopt;
        text = std::move(*input);
        // What echo and editors put behind a text is not meant for the model.
        if (!options.raw && text.ends_with('\n')) text.pop_back();
    } else {
        text = fmt::format("{}", fmt::join(options.words, " "));
    }
    if (text.empty()) {
        *error = {"the prompt is empty", kExitUsage};
        return std::nullopt;
    }
    return text;
}

std::optional<uint64_t> choose_seed(const GenerateOptions& options) {
    if (options.seed) return options.seed;
    if (options.temperature && *options.temperature == 0) return std::nullopt;
    return std::random_device()();
}

std::optional<expertpack::Generate> make_request(const GenerateOptions& options,
                                                 const std::string& prompt,
                                                 std::optional<uint64_t> seed,
                                                 RequestError* error) {
    expertpack::Generate request;
    const char* refused = nullptr;
    // The wrapper keeps the first failure; this adds which option it came from.
    const auto note = [&](const char* option) {
        if (!refused && request.status() != XP_OK) refused = option;
    };
    if (options.system) {
        request.message(XP_ROLE_SYSTEM, *options.system);
        note("--system");
    }
    set_prompt(options, prompt, &request);
    note(options.ids ? "--ids" : "the prompt");
    if (options.think) request.thinking(true, effort_of(options.effort));
    note("--think");
    if (!options.model.empty()) request.model(options.model.c_str());
    note("--model");
    if (options.temperature) request.temperature(*options.temperature);
    note("--temperature");
    if (options.top_k) request.top_k(*options.top_k);
    note("--top-k");
    if (options.top_p) request.top_p(*options.top_p);
    note("--top-p");
    if (options.min_p) request.min_p(*options.min_p);
    note("--min-p");
    if (seed) request.seed(*seed);
    note("--seed");
    if (options.max_tokens) request.max_tokens(*options.max_tokens);
    note("--max-tokens");
    for (const std::string& stop : options.stop) request.stop(stop);
    note("--stop");
    request.ignore_eos(options.ignore_eos);
    note("--ignore-eos");
    request.top_logprobs(options.logprobs);
    note("--logprobs");
    if (!refused) return request;
    *error = {fmt::format("{}: {}", refused, request.error()),
              request.status() == XP_INVALID ? kExitUsage : kExitFailed};
    return std::nullopt;
}

}  // namespace xp::ctl
