// The clients' side of the daemon: one epoll thread that owns the listener, all connections and
// their rings. It accepts, decodes and checks requests, hands Generate and Cancel to the scheduler,
// answers Ping, ListModels and GetStats itself, and carries replies from the outbox to the rings.
//
// It never waits for a client. A client that breaks the protocol costs a log line and its own
// connection; one that hangs up has its requests cancelled; one that does not take its replies is
// dropped after a while. A look at everything once a second enforces the deadlines, and finds bells
// that got lost (which would be a bug, and is counted). It also warns, once, when the socket's file
// was removed by someone else. When there is no memory for what a client asks, that client is
// closed and the others are served on.
//
// What users may have of all this is in their accounts (accounts.h). Beyond a limit a request is
// answered with Failed "busy"; beyond the rate, a user's records stay in their rings until the next
// look at everything. Requests larger than a record come in memfds over the socket, and wait for
// their records' turn (shm/enclosure.h).
//
// start() makes the thread. begin_drain() and stop() are for any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <thread>

#include <unistd.h>

#include "daemon/serve/accounts.h"
#include "daemon/serve/connection.h"
#include "daemon/serve/listener.h"
#include "daemon/serve/model_host.h"
#include "daemon/serve/outbox.h"
#include "daemon/serve/scheduler.h"

namespace xp {

struct RingServerOptions {
    using Clock = std::chrono::steady_clock;

    size_t clients = 64;
    UserLimits user;
    // Connections that have not said Hello; above it, further ones wait in the listen backlog.
    size_t half_open = 16;
    // Generate requests of a connection at a time.
    uint32_t requests_per_client = 16;
    std::chrono::milliseconds hello_deadline{5'000};
    // How long a client may leave its response ring full while replies wait.
    std::chrono::milliseconds stall_limit{30'000};
    // The tick of the accounts, too.
    std::chrono::milliseconds housekeeping{1'000};
    // May manage all clients, as root may.
    uid_t daemon_user = ::geteuid();
    std::function<Clock::time_point()> now = [] { return Clock::now(); };
};

struct RingServerStats {
    uint64_t clients = 0;
    uint64_t half_open = 0;
    uint64_t accepted = 0;         // connections
    uint64_t refused = 0;          // by Welcome, or for want of a Hello
    uint64_t violations = 0;       // connections closed for breaking the protocol
    uint64_t stalled = 0;          // connections closed for not reading
    uint64_t requests = 0;         // of every kind
    uint64_t enclosures = 0;       // of those, in memfds
    uint64_t busy = 0;             // refused by a limit of the connection or user
    uint64_t held_back = 0;        // times that a connection's records had to wait for a tick
    uint64_t waiting_replies = 0;  // connections with replies that wait for room
    uint64_t doorbell_missed = 0;
    AccountTotals accounts;
};

class RingServer {
public:
    // All references outlive the server.
    static Result<std::unique_ptr<RingServer>> create(Listener listener, const ModelHost& host,
                                                      Scheduler& scheduler, Outbox& outbox,
                                                      RingServerOptions options);
    ~RingServer();

    void start();
    // Stops listening and tells clients; what runs goes on.
    void begin_drain();
    // Delivers what is in the outbox as far as rings have room, closes all, joins.
    void stop();

    uint64_t n_clients() const { return n_clients_.load(std::memory_order_relaxed); }

private:
    RingServer(Listener listener, const ModelHost& host, Scheduler& scheduler, Outbox& outbox,
               RingServerOptions options);
    using Connections = std::map<uint64_t, Connection>;

    Result<void> watch(int fd, uint32_t events, uint64_t tag);
    void run();
    void handle(uint64_t tag, uint32_t events);
    void handle_own(uint64_t tag);
    void handle_control();
    void accept_clients();
    void update_listening();
    void handle_socket(Connection& connection, uint32_t events);
    void greet(Connection& connection);
    void refuse(Connection& connection, shm::WelcomeStatus status, const std::string& why);
    void serve(Connection& connection);
    // False when the connection is gone.
    bool handle_record(Connection& connection, const shm::Record& record);
    bool handle_enclosed(Connection& connection, uint64_t id, uint64_t bytes);
    bool handle_request(Connection& connection, uint64_t id, shm::Request request, Charge charge);
    bool handle_cancel(Connection& connection, uint64_t id, const shm::Cancel& cancel);
    Result<Charge> admit(Connection& connection, uint64_t bytes);
    shm::ClientsReply list_clients(uid_t asking) const;
    shm::ModelsReply list_models() const;
    bool malformed(Connection& connection, uint64_t id, const std::string& why);
    bool reply(Connection& connection, uint64_t request, const shm::Reply& reply);
    bool deliver(Connection& connection, Outgoing outgoing);
    void deliver_outbox();
    void settle(std::deque<Outgoing> delivered);
    void housekeeping();
    void look_at(Connection& connection);
    void warn_if_unreachable();
    // Runs what serves the client `id`, and closes it when there is no memory for that.
    template <class Act>
    void guarded(uint64_t id, Act act);
    void close_for_memory(uint64_t id);
    // A line about a client, unless there have been too many of them lately.
    void complain(const std::string& line);
    // A line about those that were too many.
    void account_for_complaints();
    void violation(Connection& connection, const std::string& what);
    // Needs no memory.
    void close(Connection& connection);
    RingServerStats stats() const;

    Listener listener_;
    const ModelHost& host_;
    Scheduler& scheduler_;
    Outbox& outbox_;
    const RingServerOptions options_;
    shm::ServerOffer offer_;
    const RingServerOptions::Clock::time_point started_;

    UniqueFd epoll_;
    UniqueFd control_;
    UniqueFd timer_;
    UserAccounts accounts_;
    Connections connections_;
    uint64_t next_id_ = 1;
    bool listening_ = false;      // the listener is in epoll
    bool accept_failed_ = false;  // until the next look at everything
    bool draining_ = false;
    bool warned_unreachable_ = false;
    uint64_t complaints_ = 0;     // since the last look at everything
    RingServerStats stats_;
    std::atomic<uint64_t> n_clients_{0};
    std::atomic<bool> drain_requested_{false};
    std::atomic<bool> stop_requested_{false};
    std::thread thread_;
};

}  // namespace xp
