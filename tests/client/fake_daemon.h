// A daemon for the client library's tests: the server half of shm/, driven by a script of the test.
//
// Every accepted connection is shaken hands with and handed to the script, one after the other, in
// the fake daemon's thread. When the script returns, the connection is closed, as if the daemon
// had died. Destroying the fake daemon ends waits inside of the script.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "shm/codec.h"
#include "shm/handshake.h"
#include "shm/ring.h"
#include "tests/shm/listener.h"

namespace xp::test {

class Session {
public:
    Session(shm::Fd socket, shm::ServerChannel channel, const shm::Hello& hello, int stop);

    // The next request, waited for asleep. Nothing when the client hung up or the test is over.
    std::optional<std::pair<uint64_t, shm::Request>> next();
    // False when the client hung up while there was no room.
    bool reply(uint64_t id, const shm::Reply& reply);
    bool raw(uint64_t id, const std::vector<std::byte>& body);
    // Waits until the client hangs up (true) or the test is over.
    bool wait_for_hang_up();

    const shm::Hello& hello() const { return hello_; }
    int socket() const { return socket_.get(); }
    shm::ServerChannel& channel() { return channel_; }

private:
    bool sleep();

    shm::Fd socket_;
    shm::ServerChannel channel_;
    shm::Hello hello_;
    int stop_;
    shm::RingReader reader_;
    shm::RingWriter writer_;
};

class FakeDaemon {
public:
    using Script = std::function<void(Session&)>;

    explicit FakeDaemon(Script script, const shm::ServerOffer& offer = {});
    ~FakeDaemon();

    const std::string& path() const { return listener_.path(); }

private:
    void run();

    Script script_;
    shm::ServerOffer offer_;
    shm::Listener listener_;
    shm::Fd stop_reads_;
    shm::Fd stop_writes_;
    std::thread thread_;
};

// Small rings, so that they run full soon.
shm::ServerOffer small_rings();

}  // namespace xp::test
