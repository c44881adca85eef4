// What each user (uid) has of the daemon: connections, requests that wait or run, the bytes of
// those requests, and how much it may still ask for before the next tick.
//
// A Charge is the proof of what was counted, and gives it back when it is released or destroyed;
// so no way out of the daemon can forget to. Beyond a limit there is no charge but a kBusy error
// whose text names the limit and its key, for the client. Limits are per user and not per
// connection: who opens more connections gets nothing more by it.
//
// The accounts are for any thread. Charges may outlive them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include <sys/types.h>

#include "daemon/base/result.h"

namespace xp {

// The largest request there can be.
inline constexpr uint64_t kMaxRequestBytes = uint64_t{16} << 20;

struct UserLimits {
    // Every client costs two segments (5 MiB at most in use) and five descriptors.
    uint64_t clients = 16;
    // Half of the queue: one user cannot fill it.
    uint64_t requests = 32;
    // As they were sent.
    uint64_t request_bytes = 4 * kMaxRequestBytes;
    // Units that a user's clients may ask for between two ticks, see UserAccounts::spend(). More
    // than clients need that wait for their replies, and a small part of what the rings' thread can
    // do in a second.
    int64_t units_per_tick = 10'000;
};

// A record is a unit, and so is every further piece of this size of a request, which has to be read
// and checked.
inline constexpr uint64_t kBytesPerUnit = 4096;

struct AccountTotals {
    uint64_t users = 0;
    uint64_t requests = 0;
    uint64_t request_bytes = 0;
};

class Charge;

class UserAccounts {
public:
    explicit UserAccounts(const UserLimits& limits);

    // One connection; one request of so many bytes.
    Result<Charge> charge_client(uid_t user);
    Result<Charge> charge_request(uid_t user, uint64_t bytes);

    // Whether the user may ask for anything before the next tick; spend() may overdraw, at the cost
    // of the ticks after it.
    bool may_spend(uid_t user) const;
    void spend(uid_t user, uint64_t request_bytes);
    // To be called at regular times.
    void tick();

    AccountTotals totals() const;
    const UserLimits& limits() const;

private:
    friend class Charge;
    struct Books;
    std::shared_ptr<Books> books_;
};

class Charge {
public:
    Charge() = default;  // of nothing
    Charge(Charge&& other) noexcept = default;
    Charge& operator=(Charge&& other) noexcept;
    ~Charge() { release(); }

    void release();

private:
    friend class UserAccounts;
    std::shared_ptr<UserAccounts::Books> books_;
    uid_t user_ = 0;
    uint64_t clients_ = 0;
    uint64_t requests_ = 0;
    uint64_t request_bytes_ = 0;
};

// Whether clients of `asking` may see and cancel requests of `other`: their own, and those of all
// users for root and the user that the daemon runs as.
bool may_manage(uid_t asking, uid_t other, uid_t daemon);

}  // namespace xp
