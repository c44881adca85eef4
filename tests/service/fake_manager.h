// A socket that stands in for the service manager's $NOTIFY_SOCKET.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <vector>

#include "daemon/base/file.h"
#include "tests/serve/temp_dir.h"

namespace xp::service_test {

class FakeManager {
public:
    FakeManager() : socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        path().copy(address.sun_path, sizeof address.sun_path - 1);
        ok_ = ::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
        // Read at once, as a manager does: the kernel queues few datagrams, then senders block.
        reader_ = std::thread([this] { read(); });
    }
    ~FakeManager() {
        ::shutdown(socket_.get(), SHUT_RDWR);
        reader_.join();
    }
    bool ok() const { return ok_; }
    std::string path() const { return (dir_ / "notify").string(); }

    std::optional<std::string> next(int timeout_ms) {
        std::unique_lock lock(mutex_);
        if (!arrived_.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                               [&] { return !messages_.empty(); })) {
            return std::nullopt;
        }
        std::string message = std::move(messages_.front());
        messages_.pop_front();
        return message;
    }
    // At least `count` messages, in order; fewer when they do not come.
    std::vector<std::string> messages(size_t count) {
        std::vector<std::string> all;
        while (all.size() < count) {
            auto message = next(20'000);
            if (!message) {
                break;
            }
            all.push_back(*std::move(message));
        }
        while (auto message = next(0)) {
            all.push_back(*std::move(message));
        }
        return all;
    }

private:
    void read() {
        char buffer[4096];
        for (;;) {
            const ssize_t n = ::recv(socket_.get(), buffer, sizeof buffer, 0);
            if (n <= 0) {
                return;
            }
            const std::lock_guard lock(mutex_);
            messages_.emplace_back(buffer, static_cast<size_t>(n));
            arrived_.notify_one();
        }
    }

    scripted::TempDir dir_;
    UniqueFd socket_;
    bool ok_ = false;
    std::mutex mutex_;
    std::condition_variable arrived_;
    std::deque<std::string> messages_;
    std::thread reader_;
};

}  // namespace xp::service_test
