// A client without any of libexpertpack's care: a socket, two mappings and two bells, to be written
// to in any way. What it knows of the protocol are the layout's constants and the messages' form.
//
// Functions that look at the daemon wait long enough for a loaded machine and then say no; they
// never fail for being early. Whatever cannot be set up at all ends the program with status 3, as
// it tells nothing about the daemon.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <sys/socket.h>

#include "shm/codec.h"
#include "shm/fd.h"
#include "shm/handshake.h"
#include "shm/layout.h"

namespace xp::hostile {

using Bytes = std::vector<std::byte>;

// Ends the program: "this machine does not let me misbehave".
[[noreturn]] void give_up(const std::string& what);
int checked(int result, const char* what);

shm::Hello hello();
// One datagram with descriptors; the number of bytes sent, or -errno.
ssize_t send_datagram(int socket, const void* data, size_t bytes, std::span<const int> fds = {});

struct Answer {
    uint64_t id = 0;
    shm::Reply reply;
};

class RawClient {
public:
    // Connected, and nothing said yet.
    explicit RawClient(const std::string& socket_path);

    // Sends a Hello and takes the Welcome; true when the daemon opened a channel.
    bool greet(const shm::Hello& greeting = hello());
    // Takes a Welcome that was asked for by other means.
    bool take_welcome();
    bool refused_with(shm::WelcomeStatus status);

    int socket() const { return socket_.get(); }
    shm::Fd& socket_fd() { return socket_; }
    const shm::Welcome& welcome() const { return welcome_; }
    uint64_t ring_bytes() const { return welcome_.req_ring_bytes; }
    uint64_t reply_ring_bytes() const { return welcome_.resp_ring_bytes; }
    shm::Fd& req() { return fds_[0]; }
    shm::Fd& resp() { return fds_[1]; }
    shm::Fd& req_bell() { return fds_[2]; }
    shm::Fd& resp_bell() { return fds_[3]; }

    // Words and bytes of the own segment, just stored.
    void store(uint64_t offset, uint64_t value);
    void store_wait(uint32_t value);
    void put(uint64_t ring_offset, std::span<const std::byte> bytes);
    void put_header(uint64_t ring_offset, shm::RecordHeader header);
    // Publishes a tail and rings.
    void publish(uint64_t tail);
    void ring();

    // Writes one record as it should be, with a pad where it is due, and rings. False when the ring
    // stays full.
    bool write(uint64_t id, std::span<const std::byte> body);
    bool write(uint64_t id, const shm::Request& request);
    uint64_t tail() const { return tail_; }
    std::byte* ring_base() const { return req_map_.base() + shm::kDataOffset; }

    // The next reply, as soon as there is one; nothing when the daemon hung up, or after a while.
    std::optional<Answer> next(int timeout_ms = kPatienceMs);
    // Whether `id` ends in a Failed with this code, other replies being skipped.
    bool fails(uint64_t id, const std::string& code);
    // Whether a ping is answered: the daemon serves this connection.
    bool served();
    // Whether the daemon hung up.
    bool closed(int timeout_ms = kPatienceMs);
    // Still connected after a while in which the daemon would have closed.
    bool still_open();
    void hang_up() { socket_.reset(); }

    static constexpr int kPatienceMs = 20'000;

private:
    bool room_for(uint64_t bytes);

    shm::Fd socket_;
    shm::Welcome welcome_;
    shm::Fd fds_[shm::kWelcomeFds];
    shm::Mapping req_map_;
    shm::Mapping resp_map_;
    uint64_t tail_ = 0;
    uint64_t head_ = 0;
    uint64_t next_ping_ = uint64_t{1} << 40;
};

// Stands still, whatever is in flight, until the others have got their answers.
void stand_still();

// A client that greeted the daemon and was let in.
RawClient connected(const std::string& socket_path);

// A request that is answered within milliseconds, and one that goes on until it is cancelled.
shm::Generate short_request();
shm::Generate endless_request();

}  // namespace xp::hostile
