#include "client/xpctl/request.h"

#include <cerrno>
#include <random>

#include <unistd.h>

#include <fmt/format.h>

#include "client/xpctl/exit_codes.h"
#include "client/xpctl/output.h"

namespace xp::ctl {
namespace {

xp_effort effort_of(EffortOption effort) {
    switch (effort) {
        case EffortOption::kLow: return XP_EFFORT_LOW;
        case EffortOption::kHigh: return XP_EFFORT_HIGH;
        case EffortOption::kMax: return XP_EFFORT_MAX;
    }
    return XP_EFFORT_LOW;
}

void set_prompt(const RequestOptions& options, const std::string& prompt,
                expertpack::Generate* request) {
    if (options.ids) {
        request->tokens(*options.ids);
    } else if (options.raw) {
        request->text(prompt);
    } else {
        request->message(XP_ROLE_USER, prompt);
    }
}

// Keeps which option the library refused first.
class Refusal {
public:
    explicit Refusal(const expertpack::Generate& request) : request_(request) {}
    void note(const char* option) {
        if (!option_ && request_.status() != XP_OK) option_ = option;
    }
    bool any(Failure* error) const {
        if (!option_) return false;
        *error = failure_of(request_);
        if (request_.status() == XP_INVALID) {
            error->message = fmt::format("{}: {}", option_, error->message);
        }
        return true;
    }

private:
    const expertpack::Generate& request_;
    const char* option_ = nullptr;
};

}  // namespace

std::optional<std::string> read_input(int fd, const std::string& name, Failure* error) {
    std::string text;
    char buffer[64 << 10];
    for (;;) {
        const ssize_t n = ::read(fd, buffer, sizeof buffer);
        if (n == 0) return text;
        if (n < 0) {
            if (errno == EINTR) continue;
            *error = {"io", fmt::format("cannot read {}: {}", name, errno_text(errno)),
                      kExitFailed};
            return std::nullopt;
        }
        text.append(buffer, static_cast<size_t>(n));
        if (text.size() > kMaxInputBytes) {
            *error = {"too_large", fmt::format("{} is longer than {} MiB, more than any daemon "
                                               "takes", name, kMaxInputBytes >> 20), kExitFailed};
            return std::nullopt;
        }
    }
}

std::optional<std::string> read_prompt(const RequestOptions& options, Failure* error) {
    if (options.ids) return std::string();
    std::string text;
    if (options.words.empty() && ::isatty(STDIN_FILENO) == 1) {
        *error = {"usage", "no prompt: give it in words, or - to type it (see --help)",
                  kExitUsage};
        return std::nullopt;
    }
    if (options.words.empty() || (options.words.size() == 1 && options.words[0] == "-")) {
        std::optional<std::string> input =
            read_input(STDIN_FILENO, "the prompt on standard input", error);
        if (!input) return std::nullopt;
        text = std::move(*input);
        // What echo and editors put behind a text is not meant for the model.
        if (!options.raw && text.ends_with('\n')) text.pop_back();
    } else {
        text = fmt::format("{}", fmt::join(options.words, " "));
    }
    if (text.empty()) {
        *error = {"usage", "the prompt is empty", kExitUsage};
        return std::nullopt;
    }
    return text;
}

std::optional<uint64_t> choose_seed(const RequestOptions& options) {
    if (options.seed) return options.seed;
    if (options.temperature && *options.temperature == 0) return std::nullopt;
    return std::random_device()();
}

std::optional<expertpack::Generate> make_request(const RequestOptions& options,
                                                 const std::string& prompt,
                                                 std::optional<uint64_t> seed, Failure* error) {
    expertpack::Generate request;
    Refusal refusal(request);
    if (options.system) {
        request.message(XP_ROLE_SYSTEM, *options.system);
        refusal.note("--system");
    }
    set_prompt(options, prompt, &request);
    refusal.note(options.ids ? "--ids" : "the prompt");
    if (refusal.any(error) || !apply_settings(options, seed, &request, error)) return std::nullopt;
    return request;
}

Failure failure_of(const expertpack::Generate& request) {
    return {xp_status_name(request.status()), request.error(),
            request.status() == XP_INVALID ? kExitUsage : kExitFailed};
}

bool apply_settings(const RequestOptions& options, std::optional<uint64_t> seed,
                    expertpack::Generate* request, Failure* error) {
    Refusal refusal(*request);
    if (options.think) request->thinking(true, effort_of(options.effort));
    refusal.note("--think");
    if (!options.model.empty()) request->model(options.model.c_str());
    refusal.note("--model");
    if (options.temperature) request->temperature(*options.temperature);
    refusal.note("--temperature");
    if (options.top_k) request->top_k(*options.top_k);
    refusal.note("--top-k");
    if (options.top_p) request->top_p(*options.top_p);
    refusal.note("--top-p");
    if (options.min_p) request->min_p(*options.min_p);
    refusal.note("--min-p");
    if (seed) request->seed(*seed);
    refusal.note("--seed");
    if (options.max_tokens) request->max_tokens(*options.max_tokens);
    refusal.note("--max-tokens");
    for (const std::string& stop : options.stop) request->stop(stop);
    refusal.note("--stop");
    request->ignore_eos(options.ignore_eos);
    refusal.note("--ignore-eos");
    request->top_logprobs(options.logprobs);
    refusal.note("--logprobs");
    return !refusal.any(error);
}

}  // namespace xp::ctl
