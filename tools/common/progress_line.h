// Progress on stderr: one line redrawn in place on a terminal, otherwise a line every few seconds.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace xp {

class ProgressLine {
public:
    ProgressLine(std::string verb, bool quiet);
    ~ProgressLine();

    // `skipped` of the `done` bytes took no time (a resumed build); rates leave them out.
    void update(uint64_t done, uint64_t total, uint64_t skipped);
    // Ends the redrawn line, so that what follows starts on its own.
    void end();
    double seconds() const;

private:
    using Clock = std::chrono::steady_clock;
    std::string text(uint64_t done, uint64_t total, uint64_t skipped) const;

    const std::string verb_;
    const bool quiet_;
    const bool terminal_;
    const Clock::time_point started_;
    Clock::time_point shown_;
    bool line_open_ = false;
};

}  // namespace xp
