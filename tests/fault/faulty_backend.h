// A read backend whose drive and kernel are played by the test: the piece queue of the real
// backends, with a seeded thread in the place of the kernel. It keeps several pieces in flight and
// ends them in any order; it can cut reads short, interrupt them, take its time, fail the requests
// it is told to fail, and damage their bytes. Completions are delivered in any order as well.
//
// A buffer is scribbled over as soon as its read is submitted, so whoever uses one in flight sees
// nonsense; two reads in flight into the same bytes fail the test.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "daemon/base/memory.h"
#include "daemon/io/piece_queue.h"

namespace xp {

class FaultyBackend final : public ReadBackend {
public:
    enum class Fault : uint8_t {
        kNone,
        kFail,     // one piece of the request, any, ends with EIO
        kEnd,      // one piece of the request, any, gets no bytes, as at the end of a file
        kBadByte,  // one bit of the request is wrong
    };
    // How often something harmless happens, out of 100 pieces.
    struct Weather {
        uint32_t short_reads = 0;
        uint32_t interruptions = 0;  // EINTR and EAGAIN
        uint32_t delays = 0;
    };
    static constexpr Weather kCalm = {0, 0, 10};
    static constexpr Weather kStorm = {25, 15, 4};

    explicit FaultyBackend(uint64_t seed, Weather weather = kCalm,
                           uint64_t piece_bytes = uint64_t{1} << 20)
        : weather_(weather),
          random_(seed),
          queue_({.direct = true, .piece_bytes = piece_bytes, .depth = kDepth}, "faulty", ""),
          thread_([this] { run(); }) {}

    ~FaultyBackend() override {
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
            check_overlap(request);
            std::memset(request.buffer, 0xEE, request.bytes);
            const uint64_t number = submitted_++;
            const Fault fault = fault_ ? fault_(request) : Fault::kNone;
            flights_[number] = {request, fault, random_() % std::max<uint64_t>(request.bytes, 1)};
            ReadRequest inner = request;
            inner.queue = &ended_;
            inner.tag = number;
            queue_.add({&inner, 1});
        }
        in_flight_max_ = std::max<uint64_t>(in_flight_max_, flights_.size());
        changed_.notify_all();
    }

    uint64_t alignment() const override { return queue_.alignment(); }
    IoStats stats() const override { return queue_.stats(); }

    // Called for each request when it is submitted.
    void set_fault(std::function<Fault(const ReadRequest&)> fault) {
        std::lock_guard lock(mutex_);
        fault_ = std::move(fault);
    }
    // Keeps everything in flight.
    void hold(bool held) {
        std::lock_guard lock(mutex_);
        held_ = held;
        changed_.notify_all();
    }
    // Waits until everything submitted was delivered.
    void settle() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return flights_.empty(); });
    }
    uint64_t in_flight() const { return locked([this] { return flights_.size(); }); }
    uint64_t in_flight_max() const { return locked([this] { return in_flight_max_; }); }
    uint64_t submitted() const { return locked([this] { return submitted_; }); }
    uint64_t delivered_whole() const { return locked([this] { return delivered_whole_; }); }
    uint64_t failed() const { return locked([this] { return failed_; }); }
    uint64_t damaged() const { return locked([this] { return damaged_; }); }

private:
    static constexpr uint32_t kDepth = 8;

    struct Flight {
        ReadRequest request;
        Fault fault = Fault::kNone;
        uint64_t at = 0;  // where in the request the fault strikes
    };

    template <class Read>
    uint64_t locked(Read read) const {
        std::lock_guard lock(mutex_);
        return read();
    }
    bool chance(uint32_t percent) { return random_() % 100 < percent; }

    void check_overlap(const ReadRequest& request) const {
        for (const auto& [number, flight] : flights_) {
            const ReadRequest& other = flight.request;
            EXPECT_TRUE(request.buffer + request.bytes <= other.buffer ||
                        other.buffer + other.bytes <= request.buffer)
                << "a buffer in flight is used for another read";
        }
    }

    void run() {
        std::unique_lock lock(mutex_);
        for (;;) {
            changed_.wait(lock, [this] { return stop_ || (!held_ && !flights_.empty()); });
            if (flights_.empty()) return;  // stopped, and nothing is left to be delivered
            while (pieces_.size() < kDepth) {
                std::optional<PieceQueue::Piece> piece = queue_.take(false);
                if (!piece) break;
                pieces_.push_back(std::move(*piece));
            }
            if (!pieces_.empty()) move_on(lock);
            for (auto& completion : ended_.take(false)) arrived_.push_back(std::move(completion));
            // Often later than it could be, and not in the order of arrival.
            if (!arrived_.empty() && (pieces_.empty() || chance(50))) deliver();
        }
    }

    // One kernel read of any of the pieces in flight.
    void move_on(std::unique_lock<std::mutex>& lock) {
        const size_t index = random_() % pieces_.size();
        PieceQueue::Piece& piece = pieces_[index];
        if (chance(weather_.delays)) {
            lock.unlock();
            std::this_thread::sleep_for(std::chrono::microseconds(20));
            lock.lock();
        }
        if (!queue_.advance(piece, read(piece))) {
            pieces_.erase(pieces_.begin() + static_cast<ptrdiff_t>(index));
        }
    }

    int64_t read(const PieceQueue::Piece& piece) {
        // Honest kernels do not interrupt the same read for ever.
        if (piece.retries < kMaxPieceRetries / 2 && chance(weather_.interruptions)) {
            return chance(50) ? -EINTR : -EAGAIN;
        }
        const Flight& flight = flight_of(piece);
        const auto strikes = [&] {
            const std::byte* at = flight.request.buffer + flight.at;
            return at >= piece.buffer && at < piece.buffer + piece.bytes;
        };
        if (flight.fault == Fault::kFail && strikes()) return -EIO;
        if (flight.fault == Fault::kEnd && strikes()) return 0;
        uint64_t bytes = piece.bytes;
        const uint64_t pages = bytes / kPageBytes;
        if (pages > 1 && chance(weather_.short_reads)) {
            bytes = (1 + random_() % (pages - 1)) * kPageBytes;
        }
        const ssize_t got =
            ::pread(piece.fd, piece.buffer, bytes, static_cast<off_t>(piece.offset));
        // Here, before the request's sink is told of the piece.
        std::byte* const damaged = flight.request.buffer + flight.at;
        if (flight.fault == Fault::kBadByte && got > 0 && damaged >= piece.buffer &&
            damaged < piece.buffer + got) {
            *damaged ^= std::byte{0x40};
        }
        return got < 0 ? -errno : got;
    }

    const Flight& flight_of(const PieceQueue::Piece& piece) const {
        for (const auto& [number, flight] : flights_) {
            if (piece.buffer >= flight.request.buffer &&
                piece.buffer < flight.request.buffer + flight.request.bytes) {
                return flight;
            }
        }
        ADD_FAILURE() << "a piece of no request";
        return flights_.begin()->second;
    }

    void deliver() {
        const size_t index = random_() % arrived_.size();
        CompletionQueue::Completion completion = std::move(arrived_[index]);
        arrived_.erase(arrived_.begin() + static_cast<ptrdiff_t>(index));
        const auto found = flights_.find(completion.tag);
        const Flight flight = found->second;
        flights_.erase(found);
        if (!completion.result) {
            ++failed_;
        } else {
            ++delivered_whole_;
            if (flight.fault == Fault::kBadByte) ++damaged_;
        }
        completion.tag = flight.request.tag;
        flight.request.queue->push(std::move(completion));
        changed_.notify_all();
    }

    const Weather weather_;
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::mt19937_64 random_;
    PieceQueue queue_;
    std::function<Fault(const ReadRequest&)> fault_;
    std::map<uint64_t, Flight> flights_;  // by number
    CompletionQueue ended_;
    std::vector<PieceQueue::Piece> pieces_;
    std::vector<CompletionQueue::Completion> arrived_;
    bool held_ = false;
    bool stop_ = false;
    uint64_t submitted_ = 0;
    uint64_t delivered_whole_ = 0;
    uint64_t failed_ = 0;
    uint64_t damaged_ = 0;
    uint64_t in_flight_max_ = 0;
    std::thread thread_;
};

}  // namespace xp
