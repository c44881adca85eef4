// While the daemon is waited for and nothing else tells so: one line on standard error, once in the
// program's life, when it has not answered for two seconds. Only where that is a terminal: scripts
// get an answer or an error.
#pragma once

namespace xp::ctl {

// The wait lasts as long as the object; one at a time. Uses SIGALRM, which ends no wait of the
// library early.
class SlowNote {
public:
    explicit SlowNote(int timeout_ms);  // of the wait; short ones need no note
    ~SlowNote();
    SlowNote(const SlowNote&) = delete;
    SlowNote& operator=(const SlowNote&) = delete;
};

}  // namespace xp::ctl
