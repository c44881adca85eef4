// The client's end of a connection, behind the C functions of expertpack.h.
//
// It keeps what is in flight, turns the daemon's records into events, and makes sure that every
// request submitted ends in exactly one terminal event, also when the daemon dies. All that comes
// from the daemon is treated like any peer's data: copied, verified, then used; a fault closes the
// connection. One thread at a time; no call waits but those with a deadline. Private to client/.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include "client/expertpack.h"
#include "shm/codec.h"
#include "shm/deadline.h"
#include "shm/handshake.h"
#include "shm/ring.h"

namespace xp::client {

struct Event {
    uint64_t request_id = 0;
    shm::Reply reply;
    size_t bytes = 0;  // of the record, for the bound on what is kept
};

class Connection {
public:
    explicit Connection(std::string_view name);
    ~Connection();
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

    xp_status connect(std::string_view path, int timeout_ms);
    void disconnect();

    xp_status submit(const shm::Generate& request, int timeout_ms, uint64_t* request_id);
    xp_status cancel(uint64_t request_id);
    xp_status next_event(int timeout_ms, Event* event);
    // Sends a request that is answered by one reply, and waits for that.
    xp_status ask(const shm::Request& request, int timeout_ms, shm::Reply* reply);

    int fd() const;
    const xp_connection_info* info() const;
    const std::string& error() const { return error_; }
    const std::string& error_code() const { return error_code_; }
    // Keeps the text for error() and the code for error_code(), and hands the status through.
    // Without a code of the daemon's it is the status's name.
    xp_status fail(xp_status status, std::string text, std::string_view code = {});

private:
    enum class State : uint8_t { kUnconnected, kOpen, kDead };
    enum class Kind : uint8_t {
        kGenerate,
        kAsk,    // its answer goes to answer_
        kMuted,  // its replies interest nobody: a cancel, or an ask that timed out
    };

    bool usable(xp_status* status);
    bool forked() const;
    void die(xp_status status, std::string text);
    xp_status send(uint64_t id, const shm::Request& request, const shm::Deadline& deadline);
    xp_status send_enclosure(const shm::Fd& message, size_t bytes);
    bool take_record();
    void dispatch(uint64_t id, shm::Reply reply, size_t bytes);
    void keep(Event event);
    bool pop(Event* event);
    bool keeps_too_much() const;
    bool wait(const shm::Deadline& deadline, std::optional<size_t> room_for);
    void look_at_socket();
    void disarm();

    std::string name_;
    pid_t owner_;  // the process that made the client: in a child of fork it is dead
    State state_ = State::kUnconnected;
    xp_status why_dead_ = XP_GONE;
    std::string why_dead_text_;
    std::string error_;
    std::string error_code_;

    shm::ClientChannel channel_;
    std::optional<shm::RingWriter> writer_;
    std::optional<shm::RingReader> reader_;
    shm::Fd poll_set_;      // epoll of socket and bell: what xp_client_fd() hands out
    bool armed_ = false;    // the daemon was told that this side sleeps
    bool hung_up_ = false;  // the daemon is gone; the ring may still hold what it said before
    xp_connection_info info_{};

    uint64_t next_id_ = 1;  // never reused, also not by the next connection
    std::map<uint64_t, Kind> in_flight_;
    size_t generates_ = 0;
    size_t ignored_ = 0;
    std::deque<Event> events_;
    size_t event_bytes_ = 0;
    std::optional<shm::Reply> answer_;
    shm::Record record_;  // reused, so that reading allocates only when a record is larger
};

}  // namespace xp::client
