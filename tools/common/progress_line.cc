#include "tools/common/progress_line.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

#include "daemon/base/size.h"

namespace xp {

namespace {

constexpr auto kTerminalInterval = std::chrono::milliseconds(100);
constexpr auto kLogInterval = std::chrono::seconds(5);
constexpr size_t kBarCells = 24;

std::string format_duration(double seconds) {
    const uint64_t s = static_cast<uint64_t>(seconds + 0.5);
    if (s >= 3600) return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
    if (s >= 60) return fmt::format("{}m{:02}s", s / 60, s % 60);
    return fmt::format("{}s", s);
}

}  // namespace

ProgressLine::ProgressLine(std::string verb, bool quiet)
    : verb_(std::move(verb)), quiet_(quiet), terminal_(::isatty(STDERR_FILENO) == 1),
      started_(Clock::now()), shown_(started_) {}

ProgressLine::~ProgressLine() { end(); }

void ProgressLine::update(uint64_t done, uint64_t total, uint64_t skipped) {
    if (quiet_) return;
    const auto now = Clock::now();
    const bool last = done == total && terminal_;
    if (!last && now - shown_ < (terminal_ ? Clock::duration(kTerminalInterval)
                                           : Clock::duration(kLogInterval))) {
        return;
    }
    shown_ = now;
    const std::string line = text(done, total, skipped);
    if (terminal_) {
        std::fprintf(stderr, "\r%s\033[K", line.c_str());
        line_open_ = true;
    } else {
        std::fprintf(stderr, "%s\n", line.c_str());
    }
    std::fflush(stderr);
}

void ProgressLine::end() {
    if (line_open_) std::fputc('\n', stderr);
    line_open_ = false;
}

double ProgressLine::seconds() const {
    return std::chrono::duration<double>(Clock::now() - started_).count();
}

std::string ProgressLine::text(uint64_t done, uint64_t total, uint64_t skipped) const {
    const double share = total == 0 ? 1.0 : static_cast<double>(done) / static_cast<double>(total);
    const double rate = static_cast<double>(done - std::min(skipped, done)) /
                        std::max(seconds(), 1e-3);
    const size_t full = static_cast<size_t>(share * kBarCells);
    const std::string left = rate > 0.0
        ? format_duration(static_cast<double>(total - done) / rate) + " left"
        : std::string("starting");
    return fmt::format("{} [{}{}] {:5.1f}%  {} of {}  {}/s  {}", verb_, std::string(full, '#'),
                       std::string(kBarCells - full, '.'), 100.0 * share, format_size(done),
                       format_size(total), format_size(static_cast<uint64_t>(rate)), left);
}

}  // namespace xp
