// xpctl generate: sends one request and shows its events until the terminal one.
//
// Everything that can end it early comes together in one poll(): the daemon's events, Ctrl-C, and
// the reader of standard output going away. The latter two cancel the request and still wait for
// its terminal event, so that the daemon is known to have let go of it.
#include <cerrno>
#include <chrono>
#include <cstring>

#include <poll.h>
#include <unistd.h>

#include <fmt/format.h>

#include "client/expertpack.hpp"
#include "client/xpctl/answer.h"
#include "client/xpctl/commands.h"
#include "client/xpctl/connection.h"
#include "client/xpctl/exit_codes.h"
#include "client/xpctl/interrupt.h"
#include "client/xpctl/output.h"
#include "client/xpctl/request.h"

namespace xp::ctl {
namespace {

using Clock = std::chrono::steady_clock;

// Prompts that are done sooner need no progress line.
constexpr std::chrono::seconds kProgressAfter(1);
// When the ring has no room for the cancel, it is tried again this often.
constexpr int kCancelRetryMs = 50;
constexpr int kSubmitTimeoutMs = 5'000;

class Session {
public:
    Session(const Options& options, expertpack::Client& client, std::optional<uint64_t> seed)
        : options_(options), client_(client), seed_(seed), stdout_(terminal_of(STDOUT_FILENO)),
          stderr_(terminal_of(STDERR_FILENO)) {
        chatty_ = stderr_.is_terminal && !options.json && !options.generate.quiet;
        if (chatty_) status_ = StatusLine(stderr_);
    }

    int run(const expertpack::Generate& request);

private:
    int wait_for_terminal();
    int cancel_if_needed();
    void wait(int timeout_ms);
    void handle(const xp_event& event);

    void show_progress(const xp_event& event);
    void show_tokens(const xp_event& event);
    void show_reasoning(std::string_view text);
    void write_text(std::string_view text);
    void end_lines();

    int finish();
    int report_failed(const xp_event& event);
    int finish_cancelled();

    const Options& options_;
    expertpack::Client& client_;
    std::optional<uint64_t> seed_;
    Terminal stdout_;
    Terminal stderr_;
    bool chatty_ = false;           // reasoning, progress and timings are shown on stderr
    StatusLine status_;

    Answer answer_;
    uint64_t id_ = 0;
    Clock::time_point submitted_;
    bool cancel_sent_ = false;
    bool reader_gone_ = false;      // standard output is a pipe that nobody reads any more
    int write_errno_ = 0;           // standard output failed otherwise
    bool text_line_open_ = false;   // what was written to stdout does not end in a newline
    bool reasoning_line_open_ = false;
    std::string cancel_reason_;
    int failed_code_ = kExitFailed; // when there is no answer
};

int Session::run(const expertpack::Generate& request) {
    const xp_status status = client_.submit(request, &id_, kSubmitTimeoutMs);
    if (status != XP_OK) return report_failure(client_, status, "cannot send the request");
    submitted_ = Clock::now();
    return wait_for_terminal();
}

int Session::wait_for_terminal() {
    for (;;) {
        // Between events too: a daemon that sends without a pause must not put Ctrl-C off. And never
        // between next_event() and wait(): any other call makes the library forget that it is to be
        // woken.
        const int timeout_ms = cancel_if_needed();
        const xp_event* event = nullptr;
        const xp_status status = client_.next_event(&event, 0);
        if (status == XP_OK) {
            if (event->request_id != id_) continue;
            const bool terminal = event->terminal != 0;
            handle(*event);
            if (terminal) return finish();
        } else if (status == XP_TIMEOUT) {
            wait(timeout_ms);
        } else {
            status_.clear();
            end_lines();
            return report_failure(client_, status, "the request ended without a result");
        }
    }
}

// Sends the cancel once there is a reason; returns how long to wait for events at most.
int Session::cancel_if_needed() {
    if (cancel_sent_ || (!interrupted() && !reader_gone_ && write_errno_ == 0)) return -1;
    if (client_.cancel(id_) == XP_BUSY) return kCancelRetryMs;
    // Should the connection be dead, then its events say so.
    cancel_sent_ = true;
    return -1;
}

void Session::wait(int timeout_ms) {
    // poll() ignores negative descriptors. Without asking for anything, a pipe whose reader has
    // gone reports POLLERR.
    pollfd fds[] = {{client_.fd(), POLLIN, 0},
                    {cancel_sent_ ? -1 : interrupt_fd(), POLLIN, 0},
                    {reader_gone_ ? -1 : STDOUT_FILENO, 0, 0}};
    if (::poll(fds, std::size(fds), timeout_ms) <= 0) return;
    if (fds[2].revents & POLLERR) reader_gone_ = true;
}

void Session::handle(const xp_event& event) {
    answer_.add(event);
    switch (event.type) {
        case XP_EVENT_PROGRESS:
            show_progress(event);
            break;
        case XP_EVENT_TOKENS:
            show_tokens(event);
            break;
        case XP_EVENT_CANCELLED:
            cancel_reason_ = event.code;
            break;
        case XP_EVENT_FAILED:
            failed_code_ = report_failed(event);
            break;
        default:
            break;
    }
}

void Session::show_progress(const xp_event& event) {
    if (Clock::now() - submitted_ < kProgressAfter || event.prefill_total == 0) return;
    status_.show(fmt::format("prompt: {} of {} tokens ({} %)", event.prefill_done,
                             event.prefill_total,
                             uint64_t{100} * event.prefill_done / event.prefill_total));
}

void Session::show_tokens(const xp_event& event) {
    status_.clear();
    const std::string_view text(event.text, event.text_length);
    if (text.empty() || options_.json) return;
    if (event.channel == XP_CHANNEL_REASONING) {
        show_reasoning(text);
    } else {
        write_text(text);
    }
}

void Session::show_reasoning(std::string_view text) {
    if (!chatty_) return;
    // Dimmed piece by piece, so that the terminal is left in order whenever the program ends.
    const std::string shown = terminal_text(text);
    (void)write_all(STDERR_FILENO, stderr_.colour ? "\033[2m" + shown + "\033[0m" : shown);
    if (!shown.empty()) reasoning_line_open_ = shown.back() != '\n';
}

void Session::write_text(std::string_view text) {
    if (reasoning_line_open_) {
        (void)write_all(STDERR_FILENO, "\n");
        reasoning_line_open_ = false;
    }
    // After Ctrl-C the user has seen enough.
    if (reader_gone_ || write_errno_ != 0 || interrupted()) return;
    const std::string safe = stdout_.is_terminal ? terminal_text(text) : std::string(text);
    if (safe.empty()) return;
    const WriteStatus status = write_all(STDOUT_FILENO, safe);
    if (status == WriteStatus::kBroken) reader_gone_ = true;
    if (status == WriteStatus::kFailed) write_errno_ = errno;
    if (status == WriteStatus::kOk) text_line_open_ = safe.back() != '\n';
}

void Session::end_lines() {
    if (text_line_open_ && !reader_gone_ && write_errno_ == 0) {
        // Should this fail, then so does the flush of every other program at its end.
        (void)write_all(STDOUT_FILENO, "\n");
    }
    if (reasoning_line_open_) (void)write_all(STDERR_FILENO, "\n");
    text_line_open_ = reasoning_line_open_ = false;
}

int Session::finish() {
    status_.clear();
    end_lines();
    if (write_errno_ != 0) {
        message(fmt::format("cannot write to standard output: {}", std::strerror(write_errno_)));
    }
    if (!answer_.finished()) return interrupted() ? kExitInterrupted : failed_code_;
    if (options_.json && !reader_gone_) {
        const int printed = print_result(answer_.json(seed_, options_.generate.logprobs > 0));
        if (printed != kExitOk) return printed;
    }
    if (interrupted()) {
        message("cancelled");
        return kExitInterrupted;
    }
    if (reader_gone_ || write_errno_ != 0) return kExitFailed;
    if (!cancel_reason_.empty()) return finish_cancelled();
    if (chatty_) message(answer_.summary());
    return kExitOk;
}

int Session::report_failed(const xp_event& event) {
    status_.clear();
    end_lines();
    message(fmt::format("{} ({})", event.message, event.code));
    return std::strcmp(event.code, "busy") == 0 ? kExitTryAgain : kExitFailed;
}

int Session::finish_cancelled() {
    const char* why = cancel_reason_ == "shutdown"         ? "the daemon is shutting down"
                      : cancel_reason_ == "deadline"       ? "its deadline has passed"
                      : cancel_reason_ == "client_stalled" ? "its output was not taken in time"
                                                           : cancel_reason_.c_str();
    message(fmt::format("the daemon cancelled the request: {}", why));
    return kExitFailed;
}

}  // namespace

int run_generate(const Options& options) {
    RequestError error;
    const std::optional<std::string> prompt = read_prompt(options.generate, &error);
    const std::optional<uint64_t> seed = choose_seed(options.generate);
    std::optional<expertpack::Generate> request;
    if (prompt) request = make_request(options.generate, *prompt, seed, &error);
    if (!request) {
        message(error.message);
        return error.exit_code;
    }
    expertpack::Client client;
    const int connected = connect(client, options);
    if (connected != kExitOk) return connected;
    // Until here Ctrl-C simply ends the program: there is nothing to cancel.
    if (!install_interrupt()) {
        message(fmt::format("cannot watch for Ctrl-C: {}", std::strerror(errno)));
        return kExitFailed;
    }
    return Session(options, client, seed).run(*request);
}

}  // namespace xp::ctl
