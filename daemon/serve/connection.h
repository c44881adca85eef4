// One client as the ring server's thread sees it: socket, segments, requests in flight, and replies
// that wait for room.
//
// Nothing here blocks, and all that a client's writes can do is make a call say kViolation, upon
// which the server closes this connection. Replies go out in order: once one has to wait, all later
// ones wait behind it. While replies wait, no further requests are read, so what a client can make
// the daemon keep is bounded by the scheduler's backlog limit times its requests in flight.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>

#include "daemon/base/file.h"
#include "daemon/serve/accounts.h"
#include "daemon/serve/outbox.h"
#include "shm/enclosure.h"
#include "shm/handshake.h"
#include "shm/ring.h"

namespace xp {

class Connection {
public:
    using Time = std::chrono::steady_clock::time_point;

    Connection(uint64_t id, UniqueFd socket, shm::PeerCredentials peer, Time now)
        : id_(id), socket_(std::move(socket)), peer_(peer), accepted_(now) {}

    uint64_t id() const { return id_; }
    int socket() const { return socket_.get(); }
    int bell() const { return channel_.req_bell.get(); }
    const shm::PeerCredentials& peer() const { return peer_; }
    Time accepted() const { return accepted_; }
    bool open() const { return reader_.has_value(); }
    const std::string& name() const { return name_; }
    // "client 3 (xpctl, uid 1000, pid 4711)", for logs.
    std::string describe() const;

    // Answers a Hello; false and `error` when the channel could not be made. The charge is released
    // with the connection.
    bool welcome(const shm::Hello& hello, const shm::ServerOffer& offer, Charge charge,
                 std::string* error);

    // Takes what the client sent over the socket, or the beginning of a flood: kOk or kAgain,
    // kClosed, or kBad and `error`.
    shm::ReceiveStatus take_notices(std::string* error);
    // The next enclosure, which must be one of `bytes` bytes; false and `error` when there is none.
    bool take_enclosure(uint64_t bytes, shm::Fd* enclosed, std::string* error);

    // The next request; kEmpty also while replies wait.
    shm::RingStatus read(shm::Record* record);
    // Before sleeping: false when there is something to read after all.
    bool prepare_sleep();
    void end_sleep();
    // Whether the client has rung and nobody has looked since.
    bool bell_pending() const;
    // Makes the bell readable for the server itself, to go on with this client in another turn.
    void ring_self() const { shm::ring_bell(channel_.req_bell_ringer.get()); }

    // Bytes of the largest reply that its response ring can hold.
    uint64_t max_reply_bytes() const {
        return writer_->max_record_bytes() - sizeof(shm::RecordHeader);
    }
    // Takes over a reply: writes it, or keeps it until there is room. kOk, kTooLarge or kViolation.
    // What reached the ring is appended to `settled`.
    shm::RingStatus send(Outgoing reply, Time now, std::deque<Outgoing>* settled);
    // Writes what waits, as far as there is room. kOk (nothing is left), kFull or kViolation.
    shm::RingStatus flush(Time now, std::deque<Outgoing>* settled);
    // Since when the client has taken nothing although something waits.
    std::optional<Time> stalled_since() const { return stalled_since_; }

    // Generate requests without a terminal reply yet.
    std::set<uint64_t>& in_flight() { return in_flight_; }

    // Set by housekeeping when there was data without a bell, see RingServer.
    bool bell_suspected = false;
    // Its user has asked for so much that records stay in its ring until the next tick.
    bool held_back = false;

private:
    struct Enclosure {
        shm::Fd fd;
        uint64_t bytes = 0;
    };

    const uint64_t id_;
    UniqueFd socket_;
    const shm::PeerCredentials peer_;
    const Time accepted_;
    std::string name_;
    Charge charge_;
    size_t max_enclosures_ = 0;
    std::deque<Enclosure> enclosures_;  // whose records have not come yet

    shm::ServerChannel channel_;
    std::optional<shm::RingReader> reader_;
    std::optional<shm::RingWriter> writer_;
    std::set<uint64_t> in_flight_;
    std::deque<Outgoing> waiting_;
    std::optional<Time> stalled_since_;
};

}  // namespace xp
