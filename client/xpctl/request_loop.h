// One request from its submission to its terminal event: what all commands that send one share.
//
// Everything that can end a request early comes together in one poll(): the daemon's events,
// Ctrl-C, the reader of standard output going away, and the command itself. All but the first
// cancel the request and still wait for its terminal event, so that the daemon is known to have let
// go of it. Needs install_interrupt(). Prints nothing but the progress line.
#pragma once

#include <functional>
#include <string>

#include "client/expertpack.hpp"
#include "client/xpctl/connection.h"
#include "client/xpctl/progress.h"

namespace xp::ctl {

struct RequestEnd {
    enum class Kind {
        kDone,
        kCancelled,  // by whom is in `failure.code`: "client" for this side
        kFailed,     // the daemon says why
        kNoAnswer    // not sent, or the connection ended
    };
    Kind kind = Kind::kNoAnswer;
    Failure failure;              // of all but kDone
    bool gone = false;            // the connection is dead
    xp_finish_reason finish_reason = XP_FINISH_STOP;
    xp_timings timings = {};
};

class RequestLoop {
public:
    using Handler = std::function<void(const xp_event&)>;

    explicit RequestLoop(expertpack::Client& client, PrefillProgress* progress = nullptr)
        : client_(client), progress_(progress) {}

    // `handler` gets every event of the request, the terminal one too.
    RequestEnd run(const expertpack::Generate& request, const Handler& handler);

    // For handlers: nobody wants the rest.
    void cancel() { unwanted_ = true; }
    // Standard output was a pipe, and its reader has gone.
    bool reader_gone() const { return reader_gone_; }

private:
    int cancel_if_needed();
    void wait(int timeout_ms);
    RequestEnd no_answer(xp_status status, const char* what) const;
    RequestEnd end_of(const xp_event& event) const;

    expertpack::Client& client_;
    PrefillProgress* progress_;
    PrefillProgress no_progress_;
    uint64_t id_ = 0;
    bool cancel_sent_ = false;
    bool unwanted_ = false;
    bool reader_gone_ = false;
};

}  // namespace xp::ctl
