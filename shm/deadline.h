// A point in time by which a wait must be over, made from the timeout_ms of an interface: negative
// waits without limit, 0 does not wait.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace xp::shm {

class Deadline {
public:
    explicit Deadline(int timeout_ms)
        : unlimited_(timeout_ms < 0),
          at_(Clock::now() + std::chrono::milliseconds(std::max(timeout_ms, 0))) {}

    // For poll(): -1 without limit, 0 when it is over. Rounded up, so that no wait ends too early.
    int left_ms() const {
        if (unlimited_) return -1;
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(at_ - Clock::now()).count();
        return static_cast<int>(std::max<int64_t>(left, 0));
    }

private:
    using Clock = std::chrono::steady_clock;

    bool unlimited_;
    Clock::time_point at_;
};

}  // namespace xp::shm
