// xpctl perplexity: how well a model predicts a text, scored in sliding windows.
#include <cerrno>
#include <chrono>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "client/expertpack.hpp"
#include "client/xpctl/commands.h"
#include "client/xpctl/connection.h"
#include "client/xpctl/exit_codes.h"
#include "client/xpctl/interrupt.h"
#include "client/xpctl/json.h"
#include "client/xpctl/likelihood.h"
#include "client/xpctl/output.h"
#include "client/xpctl/request.h"
#include "client/xpctl/request_loop.h"
#include "client/xpctl/score_sheet.h"
#include "client/xpctl/slow_note.h"
#include "client/xpctl/tokenize.h"
#include "shm/codec.h"
#include "shm/fd.h"

namespace xp::ctl {
namespace {

// Longer contexts are known to change the figure little and cost much.
constexpr uint32_t kLargestDefaultWindow = 2048;

// Where the text stops being UTF-8.
size_t first_fault(std::string_view text) {
    size_t good = 0, bad = text.size();
    while (bad - good > 1) {
        const size_t middle = good + (bad - good) / 2;
        size_t end = middle;
        // Not in the middle of a character.
        while (end > good && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
        if (end == good) break;
        (shm::is_valid_utf8(text.substr(0, end)) ? good : bad) = end;
    }
    return good;
}

std::optional<std::string> read_text(const std::string& path, Failure* error) {
    const bool standard = path == "-";
    const std::string name = standard ? "standard input" : echoed(path);
    shm::Fd file(standard ? -1 : ::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!standard && !file) {
        *error = {"io", fmt::format("cannot open {}: {}", name, errno_text(errno)), kExitFailed};
        return std::nullopt;
    }
    std::optional<std::string> text =
        read_input(standard ? STDIN_FILENO : file.get(), name, error);
    if (text && !shm::is_valid_utf8(*text)) {
        *error = {"invalid", fmt::format("{} is no UTF-8 text: see byte {}", name,
                                         first_fault(*text)), kExitFailed};
        return std::nullopt;
    }
    if (text && text->empty()) {
        *error = {"invalid", name + " is empty", kExitFailed};
        return std::nullopt;
    }
    return text;
}

class Measurement {
public:
    Measurement(const Options& options, expertpack::Client& client)
        : options_(options), client_(client), status_(terminal_of(STDERR_FILENO)) {}

    int run(const std::string& text);

private:
    int choose_windows();
    int score_all();
    int score(const Window& window);
    void show_progress(size_t scored_windows, size_t windows);
    std::string result(bool complete) const;
    int finish(int code);

    const Options& options_;
    expertpack::Client& client_;
    StatusLine status_;
    TokenList tokens_;
    size_t window_ = 0;
    size_t stride_ = 0;
    size_t windows_done_ = 0;
    Likelihood likelihood_;
    std::chrono::steady_clock::time_point begin_;
};

int Measurement::run(const std::string& text) {
    expertpack::Generate request;
    request.text(text);
    if (!options_.request.model.empty()) request.model(options_.request.model.c_str());
    if (request.status() != XP_OK) {
        return report(failure_of(request));
    }
    status_.show("counting tokens");
    const int tokenized = ask_for_tokens(client_, request, &tokens_);
    status_.clear();
    if (tokenized != kExitOk) return tokenized;
    if (tokens_.ids.size() < 2) {
        return report({"invalid", fmt::format("the text has {} token{}, and nothing predicts the "
                                              "first one: it takes two", tokens_.ids.size(),
                                              tokens_.ids.size() == 1 ? "" : "s"), kExitFailed});
    }
    const int chosen = choose_windows();
    return chosen == kExitOk ? finish(score_all()) : chosen;
}

// The context bounds the window.
int Measurement::choose_windows() {
    const xp_model_list* list = nullptr;
    const SlowNote note(kAnswerTimeoutMs);
    const xp_status status = client_.models(&list, kAnswerTimeoutMs);
    if (status != XP_OK) return report_failure(client_, status, "cannot list the models");
    uint64_t context = 0;
    for (size_t i = 0; i < list->count; ++i) {
        if (list->models[i]->name == tokens_.model) context = list->models[i]->context;
    }
    const PerplexityOptions& wanted = options_.perplexity;
    if (context > 0 && wanted.window && *wanted.window > context) {
        return report({"usage", fmt::format("--window {}: the context of model {} is {} tokens",
                                            *wanted.window, tokens_.model, context), kExitUsage});
    }
    window_ = wanted.window ? *wanted.window
                            : context ? std::min<uint64_t>(context, kLargestDefaultWindow)
                                      : kLargestDefaultWindow;
    stride_ = wanted.stride ? *wanted.stride : window_ / 2;
    if (window_ >= 2 && stride_ >= 1 && stride_ < window_) return kExitOk;
    return report({"usage", fmt::format("--stride {} is not smaller than the window of {} tokens",
                                        stride_, window_), kExitUsage});
}

int Measurement::score_all() {
    const Windows windows(tokens_.ids.size(), window_, stride_);
    begin_ = std::chrono::steady_clock::now();
    for (size_t i = 0; i < windows.count(); ++i) {
        show_progress(i, windows.count());
        const int scored = score(windows.at(i));
        if (scored != kExitOk) return scored;
        ++windows_done_;
    }
    return kExitOk;
}

int Measurement::score(const Window& window) {
    expertpack::Generate request;
    request.model(tokens_.model.c_str()).task(XP_TASK_SCORE)
        .tokens(std::span(tokens_.ids).subspan(window.begin, window.end - window.begin));
    ScoreSheet sheet;
    RequestLoop loop(client_);
    const RequestEnd end = loop.run(request, [&](const xp_event& event) { sheet.add(event); });
    status_.clear();
    if (interrupted()) return kExitInterrupted;
    if (loop.reader_gone()) return kExitFailed;
    if (end.kind != RequestEnd::Kind::kDone) return report(end.failure);
    if (sheet.scores().size() != window.end - window.begin) {
        return report({"protocol", "the daemon's scores are incomplete", kExitFailed});
    }
    for (size_t at = window.first; at < window.end; ++at) {
        likelihood_.add(sheet.scores()[at - window.begin].logprob);
    }
    return kExitOk;
}

void Measurement::show_progress(size_t scored_windows, size_t windows) {
    std::string line = fmt::format("window {} of {}", scored_windows + 1, windows);
    if (likelihood_.perplexity()) {
        const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin_;
        const double rest = taken.count() / static_cast<double>(scored_windows) *
                            static_cast<double>(windows - scored_windows);
        line += fmt::format(": perplexity {:.4f} so far, {} left", *likelihood_.perplexity(),
                            format_rest(rest));
    }
    status_.show(line);
}

std::string Measurement::result(bool complete) const {
    const std::optional<double> error = likelihood_.standard_error();
    if (options_.json) {
        return json_line({{"model", tokens_.model},
                          {"perplexity", json_figure(likelihood_.perplexity())},
                          {"standard_error", json_figure(error)},
                          {"nll", json_figure(likelihood_.nll())},
                          {"tokens", likelihood_.count()},
                          {"text_tokens", tokens_.ids.size()},
                          {"window", window_},
                          {"stride", stride_},
                          {"windows", windows_done_},
                          {"complete", complete}});
    }
    if (likelihood_.unknown() > 0) return "no perplexity: " + unknown_text(likelihood_);
    return fmt::format("perplexity {:.4f}{} ({}{} token{}, window {}, stride {})\n",
                       *likelihood_.perplexity(),
                       error ? fmt::format(" ± {:.4f}", *error) : std::string(),
                       complete ? "" : "interrupted after ", likelihood_.count(),
                       likelihood_.count() == 1 ? "" : "s", window_, stride_);
}

int Measurement::finish(int code) {
    if (code != kExitOk && code != kExitInterrupted) return code;
    if (likelihood_.count() > 0) {
        const int printed = print_result(result(code == kExitOk));
        if (printed != kExitOk && !interrupted()) return printed;
    }
    if (code == kExitInterrupted) report_error("interrupted", "cancelled");
    return code;
}

}  // namespace

int run_perplexity(const Options& options) {
    Failure error;
    const std::optional<std::string> text = read_text(options.perplexity.file, &error);
    if (!text) return report(error);
    expertpack::Client client;
    const int connected = connect_for_requests(client, options);
    if (connected != kExitOk) return connected;
    return Measurement(options, client).run(*text);
}

}  // namespace xp::ctl
