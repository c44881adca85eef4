// A listening socket in a directory of its own, as the daemon has one, for the tests of both ends.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "shm/fd.h"

namespace xp::shm {

class Listener {
public:
    explicit Listener(int backlog = 16) {
        char name[] = "/tmp/xp-listener-XXXXXX";
        directory_ = ::mkdtemp(name);
        path_ = directory_ + "/sock";
        socket_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        path_.copy(address.sun_path, sizeof address.sun_path - 1);
        EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
        EXPECT_EQ(::listen(socket_.get(), backlog), 0);
    }
    ~Listener() { std::filesystem::remove_all(directory_); }

    const std::string& path() const { return path_; }
    int fd() const { return socket_.get(); }
    void close() { socket_.reset(); }

    // Waits for a client; an empty Fd when none came.
    Fd accept(int timeout_ms = 30'000) const {
        pollfd wait{socket_.get(), POLLIN, 0};
        if (::poll(&wait, 1, timeout_ms) != 1) return {};
        return Fd(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    }

private:
    std::string directory_;
    std::string path_;
    Fd socket_;
};

// Waits until the descriptor is readable or hung up.
inline bool wait_readable(int fd, int timeout_ms = 30'000) {
    pollfd wait{fd, POLLIN, 0};
    return ::poll(&wait, 1, timeout_ms) == 1;
}

}  // namespace xp::shm
