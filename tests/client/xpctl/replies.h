// Short forms for scripts: the replies of a daemon that generates, and a gate for tests that must
// see something before the daemon goes on.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "tests/client/fake_daemon.h"

namespace xp::test {

inline shm::Timings sample_timings() {
    shm::Timings timings;
    timings.queued_us = 1'500;
    timings.prefill_us = 500'000;
    timings.decode_us = 2'000'000;
    timings.prompt_tokens = 10;
    timings.generated_tokens = 5;
    timings.expert_hits = 30;
    timings.expert_misses = 10;
    timings.read_bytes = 4096;
    return timings;
}

inline shm::Tokens tokens(std::vector<int32_t> ids, std::string text,
                          shm::Channel channel = shm::Channel::kContent) {
    return {std::move(ids), channel, std::move(text), {}};
}

inline shm::Done done(shm::FinishReason reason = shm::FinishReason::kStop) {
    return {reason, sample_timings()};
}

// A script that answers every request with these replies after Accepted.
inline FakeDaemon::Script answering(std::vector<shm::Reply> replies) {
    return [replies](Session& connection) {
        while (const auto incoming = connection.next()) {
            if (!std::holds_alternative<shm::Generate>(incoming->second)) continue;
            connection.reply(incoming->first, shm::Accepted{"demo", {1, 2, 3}});
            for (const shm::Reply& reply : replies) connection.reply(incoming->first, reply);
        }
    };
}

// The same, and keeps the last request.
inline FakeDaemon::Script recording(shm::Generate* last, std::vector<shm::Reply> replies) {
    return [last, replies](Session& connection) {
        while (const auto incoming = connection.next()) {
            const auto* generate = std::get_if<shm::Generate>(&incoming->second);
            if (!generate) continue;
            *last = *generate;
            connection.reply(incoming->first, shm::Accepted{"demo", {1, 2, 3}});
            for (const shm::Reply& reply : replies) connection.reply(incoming->first, reply);
        }
    };
}

// Opened once by one thread, awaited by another. The limit only ends tests that failed already.
class Gate {
public:
    void open() {
        const std::lock_guard lock(mutex_);
        open_ = true;
        opened_.notify_all();
    }
    bool wait() {
        std::unique_lock lock(mutex_);
        return opened_.wait_for(lock, std::chrono::seconds(30), [this] { return open_; });
    }

private:
    std::mutex mutex_;
    std::condition_variable opened_;
    bool open_ = false;
};

}  // namespace xp::test
