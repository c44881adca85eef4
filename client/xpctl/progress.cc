#include "client/xpctl/progress.h"

#include <cmath>

#include <fmt/format.h>

namespace xp::ctl {
namespace {

// Prompts that are done sooner need no progress line.
constexpr std::chrono::milliseconds kShowAfter(1000);
constexpr int kTickMs = 1000;

}  // namespace

void PrefillProgress::begin() {
    state_ = State::kQueued;
    begin_ = Clock::now();
    done_ = total_ = 0;
}

void PrefillProgress::add(const xp_event& event) {
    switch (event.type) {
        case XP_EVENT_ACCEPTED:
            state_ = State::kPrefill;
            accepted_ = updated_ = Clock::now();
            total_ = event.prompt_token_count;
            break;
        case XP_EVENT_PROGRESS:
            state_ = State::kPrefill;
            updated_ = Clock::now();
            done_ = event.prefill_done;
            total_ = event.prefill_total;
            tick();
            break;
        case XP_EVENT_SCORES:
        case XP_EVENT_LOGITS:
            break;  // come while the prompt is computed
        default:
            clear();
            break;
    }
}

void PrefillProgress::tick() {
    if (state_ == State::kIdle || !enabled_) return;
    const Clock::time_point now = Clock::now();
    if (now - begin_ < kShowAfter) return;
    if (state_ == State::kQueued) {
        const auto waited = std::chrono::duration_cast<std::chrono::seconds>(now - begin_);
        line_.show(fmt::format("waiting: queued {} s", waited.count()));
    } else if (total_ > 0) {
        const std::chrono::duration<double> taken = updated_ - accepted_;
        line_.show(prefill_text(done_, total_, taken.count()));
    }
}

int PrefillProgress::wait_ms() const {
    return enabled_ && state_ != State::kIdle ? kTickMs : -1;
}

void PrefillProgress::clear() {
    line_.clear();
    state_ = State::kIdle;
}

std::string prefill_text(uint64_t done, uint64_t total, double seconds) {
    // Times below this are the clock's noise, not a rate.
    constexpr double kShortest = 0.05;
    std::string text =
        fmt::format("prompt: {} of {} tokens ({} %)", done, total, total ? 100 * done / total : 0);
    if (done == 0 || seconds < kShortest) return text;
    const double rate = static_cast<double>(done) / seconds;
    text += fmt::format(", {:.1f} tokens/s", rate);
    if (done >= total) return text;
    return text + ", " + format_rest(static_cast<double>(total - done) / rate) + " left";
}

std::string format_rest(double seconds) {
    const auto rest = static_cast<uint64_t>(std::ceil(std::min(std::max(seconds, 0.0), 1e9)));
    if (rest < 100) return fmt::format("{} s", rest);
    const uint64_t minutes = (rest + 30) / 60;
    if (minutes < 100) return fmt::format("{} min", minutes);
    return fmt::format("{} h {} min", minutes / 60, minutes % 60);
}

}  // namespace xp::ctl
