// What stderr shows while nothing comes yet: how long a request has waited, how far its prompt is,
// how fast, and how long it will take.
//
// Shown only where StatusLine can, and not before a second has passed: most prompts need no
// progress line. Used by one thread, from one request to the next.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "client/expertpack.h"
#include "client/xpctl/output.h"

namespace xp::ctl {

class PrefillProgress {
public:
    PrefillProgress() = default;  // never shows anything
    explicit PrefillProgress(const Terminal& terminal)
        : enabled_(terminal.is_terminal && terminal.cursor), line_(terminal) {}

    // A request was sent.
    void begin();
    // One of its events. The line goes away when text or the end comes.
    void add(const xp_event& event);
    // Shows what there is to show now.
    void tick();
    // How long to wait for events until the next tick(); -1: as long as it takes.
    int wait_ms() const;
    void clear();

private:
    using Clock = std::chrono::steady_clock;
    enum class State { kIdle, kQueued, kPrefill };

    bool enabled_ = false;
    StatusLine line_;
    State state_ = State::kIdle;
    Clock::time_point begin_;     // of waiting
    Clock::time_point accepted_;
    Clock::time_point updated_;   // when done_ was told
    uint64_t done_ = 0;
    uint64_t total_ = 0;
};

// "prompt: 700 of 1400 tokens (50 %), 350.0 tokens/s, 2 s left"; without rate and rest while there
// is nothing to tell them from.
std::string prefill_text(uint64_t done, uint64_t total, double seconds);

// A rest of time, in units a person waits in: "2 s", "3 min", "1 h 10 min".
std::string format_rest(double seconds);

}  // namespace xp::ctl
