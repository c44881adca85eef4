// Replies on their way from the engine thread to the thread that owns the rings, and the measure of
// how far a client lags behind.
//
// post() is for any thread and never blocks; the owner of the rings waits for fd() and takes what
// is there. A Backlog counts the bytes of one request's replies that have been posted but have not
// reached its client's ring yet. It is what bounds this queue: the scheduler stops working on a
// request whose backlog is above its limit.
#pragma once

#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "daemon/base/file.h"
#include "daemon/base/result.h"
#include "shm/codec.h"

namespace xp {

// A request, for the whole daemon: the connection's number (never reused) and the client's id.
struct JobKey {
    uint64_t client = 0;
    uint64_t request = 0;
    auto operator<=>(const JobKey&) const = default;
};

struct Backlog {
    std::atomic<uint64_t> bytes{0};
};

struct Outgoing {
    JobKey key;
    bool terminal = false;
    std::vector<std::byte> bytes;      // the encoded reply
    std::shared_ptr<Backlog> backlog;  // null for replies that belong to no Generate
};

// `text` as it is when it is UTF-8, else with every byte outside ASCII as '?': names in model files
// and paths may be anything, replies may not.
std::string reply_text(std::string text);
// The reply that ends a request with an error.
shm::Failed failed(const Error& error);

class Outbox {
public:
    static Result<std::unique_ptr<Outbox>> create();

    // Encodes, and adds to `backlog` where there is one. When it throws (no memory), nothing
    // was posted.
    void post(JobKey key, const shm::Reply& reply, std::shared_ptr<Backlog> backlog);
    // Readable while something is posted and not taken.
    int fd() const { return event_.get(); }
    // All there is, in order. Resets fd().
    std::vector<Outgoing> take();

private:
    explicit Outbox(UniqueFd event) : event_(std::move(event)) {}

    UniqueFd event_;
    std::mutex mutex_;
    std::vector<Outgoing> posted_;
};

}  // namespace xp
