#include "client/xpctl/request_loop.h"

#include <algorithm>
#include <cstring>

#include <poll.h>
#include <unistd.h>

#include <fmt/format.h>

#include "client/xpctl/exit_codes.h"
#include "client/xpctl/interrupt.h"

namespace xp::ctl {
namespace {

// When the ring has no room for the cancel, it is tried again this often.
constexpr int kCancelRetryMs = 50;
constexpr int kSubmitTimeoutMs = 5'000;

int shorter(int a, int b) { return a < 0 ? b : b < 0 ? a : std::min(a, b); }

}  // namespace

RequestEnd RequestLoop::run(const expertpack::Generate& request, const Handler& handler) {
    if (!progress_) progress_ = &no_progress_;
    cancel_sent_ = false;
    xp_status status = client_.submit(request, &id_, kSubmitTimeoutMs);
    if (status != XP_OK) return no_answer(status, "cannot send the request");
    progress_->begin();
    for (;;) {
        // Between events too: a daemon that sends without a pause must not put Ctrl-C off. And
        // never between next_event() and wait(): any other call makes the library forget that it
        // is to be woken.
        const int timeout_ms = shorter(cancel_if_needed(), progress_->wait_ms());
        const xp_event* event = nullptr;
        status = client_.next_event(&event, 0);
        if (status == XP_OK) {
            if (event->request_id != id_) continue;
            progress_->add(*event);
            handler(*event);
            if (event->terminal) return end_of(*event);
        } else if (status == XP_TIMEOUT) {
            progress_->tick();
            wait(timeout_ms);
        } else {
            progress_->clear();
            return no_answer(status, "the request ended without a result");
        }
    }
}

// Sends the cancel once there is a reason; returns how long to wait for events at most.
int RequestLoop::cancel_if_needed() {
    if (cancel_sent_ || (!interrupted() && !reader_gone_ && !unwanted_)) return -1;
    if (client_.cancel(id_) == XP_BUSY) return kCancelRetryMs;
    // Should the connection be dead, then its events say so.
    cancel_sent_ = true;
    return -1;
}

void RequestLoop::wait(int timeout_ms) {
    // poll() ignores negative descriptors. Without asking for anything, a pipe whose reader has
    // gone reports POLLERR.
    pollfd fds[] = {{client_.fd(), POLLIN, 0},
                    {cancel_sent_ ? -1 : interrupt_fd(), POLLIN, 0},
                    {reader_gone_ ? -1 : STDOUT_FILENO, 0, 0}};
    if (::poll(fds, std::size(fds), timeout_ms) <= 0) return;
    if (fds[2].revents & POLLERR) reader_gone_ = true;
}

RequestEnd RequestLoop::no_answer(xp_status status, const char* what) const {
    RequestEnd end;
    end.gone = status == XP_GONE || status == XP_PROTOCOL;
    end.failure = failure_of(client_, status, what);
    return end;
}

RequestEnd RequestLoop::end_of(const xp_event& event) const {
    RequestEnd end;
    end.finish_reason = event.finish_reason;
    end.timings = event.timings;
    const std::string code = event.code ? event.code : "";
    if (event.type == XP_EVENT_DONE) {
        end.kind = RequestEnd::Kind::kDone;
    } else if (event.type == XP_EVENT_CANCELLED) {
        end.kind = RequestEnd::Kind::kCancelled;
        const std::string why = code == "shutdown"         ? "the daemon is shutting down"
                                : code == "deadline"       ? "its deadline has passed"
                                : code == "client_stalled" ? "its output was not taken in time"
                                : code == "client"         ? "another program asked for it"
                                                           : code;
        end.failure = {"cancelled", "the daemon cancelled the request: " + why, kExitFailed};
    } else {
        end.kind = RequestEnd::Kind::kFailed;
        end.gone = code == "daemon_gone";
        end.failure = {code, fmt::format("{} ({})", event.message, code),
                       code == "busy" ? kExitTryAgain : kExitFailed};
    }
    return end;
}

}  // namespace xp::ctl
