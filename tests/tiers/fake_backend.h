// A read backend under the test's control: completes requests in a seeded random order on a thread
// of its own, fails or damages those it is told to, and can hold everything back. A buffer is
// scribbled over as soon as its read is submitted, and gets its bytes just before its completion,
// so whoever uses one in flight sees nonsense.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "daemon/io/read_backend.h"

namespace xp {

class FakeBackend final : public ReadBackend {
public:
    enum class Fault : uint8_t { kNone, kFail, kBadByte };

    explicit FakeBackend(uint64_t seed) : random_(seed), thread_([this] { deliver_all(); }) {}

    ~FakeBackend() override {
        {
            std::lock_guard lock(mutex_);
            stop_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }

    void submit(std::span<const ReadRequest> requests) override {
        std::lock_guard lock(mutex_);
        for (const ReadRequest& request : requests) {
            for (const Waiting& other : waiting_) {
                const ReadRequest& o = other.request;
                EXPECT_TRUE(request.buffer + request.bytes <= o.buffer ||
                            o.buffer + o.bytes <= request.buffer)
                    << "a buffer in flight is used for another read";
            }
            std::memset(request.buffer, 0xEE, request.bytes);
            waiting_.push_back({request, fault_ ? fault_(request) : Fault::kNone});
            ++submitted_;
        }
        in_flight_max_ = std::max<uint64_t>(in_flight_max_, waiting_.size());
        changed_.notify_all();
    }

    uint64_t alignment() const override { return 4096; }
    IoStats stats() const override { return {}; }

    // Called for each request when it is submitted.
    void set_fault(std::function<Fault(const ReadRequest&)> fault) {
        std::lock_guard lock(mutex_);
        fault_ = std::move(fault);
    }
    void hold(bool held) {
        std::lock_guard lock(mutex_);
        held_ = held;
        changed_.notify_all();
    }
    // Waits until everything submitted was delivered.
    void settle() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return waiting_.empty(); });
    }
    uint64_t in_flight() const { return locked([this] { return waiting_.size(); }); }
    uint64_t in_flight_max() const { return locked([this] { return in_flight_max_; }); }
    uint64_t submitted() const { return locked([this] { return submitted_; }); }
    uint64_t delivered_whole() const { return locked([this] { return delivered_whole_; }); }

private:
    struct Waiting {
        ReadRequest request;
        Fault fault = Fault::kNone;
    };

    template <class Read>
    uint64_t locked(Read read) const {
        std::lock_guard lock(mutex_);
        return read();
    }

    void deliver_all() {
        std::unique_lock lock(mutex_);
        for (;;) {
            changed_.wait(lock, [this] { return stop_ || (!held_ && !waiting_.empty()); });
            if (waiting_.empty()) {
                if (stop_) return;
                continue;
            }
            const size_t index = random_() % waiting_.size();
            // Now and then give the other side time to run ahead.
            if (random_() % 4 == 0) {
                lock.unlock();
                std::this_thread::sleep_for(std::chrono::microseconds(20));
                lock.lock();
            }
            const Waiting waiting = waiting_[index];
            Result<void> result = read(waiting);
            if (result) ++delivered_whole_;
            waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(index));
            waiting.request.queue->push({waiting.request.tag, std::move(result)});
            changed_.notify_all();
        }
    }

    static Result<void> read(const Waiting& waiting) {
        const ReadRequest& r = waiting.request;
        if (waiting.fault == Fault::kFail) {
            return make_error(ErrorCode::kIo, "the drive at offset {} has failed", r.offset);
        }
        const ssize_t got = ::pread(r.fd, r.buffer, r.bytes, static_cast<off_t>(r.offset));
        EXPECT_EQ(got, static_cast<ssize_t>(r.bytes));
        if (waiting.fault == Fault::kBadByte) r.buffer[r.bytes / 3] ^= std::byte{0x40};
        return {};
    }

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::mt19937_64 random_;
    std::function<Fault(const ReadRequest&)> fault_;
    std::vector<Waiting> waiting_;
    bool held_ = false;
    bool stop_ = false;
    uint64_t submitted_ = 0;
    uint64_t delivered_whole_ = 0;
    uint64_t in_flight_max_ = 0;
    std::thread thread_;
};

}  // namespace xp
