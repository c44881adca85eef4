// Counts the bytes that somebody holds, and the most that were held at a time. Any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>

namespace xp {

class MemoryMeter {
public:
    void add(uint64_t bytes) {
        const std::lock_guard lock(mutex_);
        now_ += bytes;
        most_ = std::max(most_, now_);
    }
    void remove(uint64_t bytes) {
        const std::lock_guard lock(mutex_);
        now_ -= bytes;
    }
    uint64_t now() const {
        const std::lock_guard lock(mutex_);
        return now_;
    }
    // Since the last forget_most(), or ever.
    uint64_t most() const {
        const std::lock_guard lock(mutex_);
        return most_;
    }
    void forget_most() {
        const std::lock_guard lock(mutex_);
        most_ = now_;
    }

private:
    mutable std::mutex mutex_;
    uint64_t now_ = 0;
    uint64_t most_ = 0;
};

}  // namespace xp
