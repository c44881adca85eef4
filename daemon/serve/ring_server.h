// The clients' side of the daemon: one epoll thread that owns the listener, all connections and
// their rings. It accepts, decodes and checks requests, hands Generate and Cancel to the scheduler,
// answers Ping, ListModels and GetStats itself, and carries replies from the outbox to the rings.
//
// It never waits for a client. A client that breaks the protocol costs a log line and its own
// connection; one that hangs up has its requests cancelled; one that does not take its replies is
// dropped after a while. A look at everything once a second enforces the deadlines, and finds bells
// that got lost (which would be a bug, and is counted).
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

#include "daemon/serve/connection.h"
#include "daemon/serve/listener.h"
#include "daemon/serve/model_host.h"
#include "daemon/serve/outbox.h"
#include "daemon/serve/scheduler.h"

namespace xp {

struct RingServerOptions {
    using Clock = std::chrono::steady_clock;

    // Every client costs two segments (5 MiB at most in use) and five descriptors.
    size_t clients = 64;
    size_t clients_per_uid = 16;
    // Connections that have not said Hello; above it, further ones wait in the listen backlog.
    size_t half_open = 16;
    // Generate requests of a connection at a time.
    uint32_t in_flight = 16;
    std::chrono::milliseconds hello_deadline{5'000};
    // How long a client may leave its response ring full while replies wait.
    std::chrono::milliseconds stall_limit{30'000};
    std::chrono::milliseconds housekeeping{1'000};
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
    uint64_t waiting_replies = 0;  // connections with replies that wait for room
    uint64_t doorbell_missed = 0;
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
    void handle_control();
    void accept_clients();
    void update_listening();
    void handle_socket(Connection& connection, uint32_t events);
    void greet(Connection& connection);
    void refuse(Connection& connection, shm::WelcomeStatus status, const std::string& why);
    void serve(Connection& connection);
    // False when the connection is gone.
    bool handle_record(Connection& connection, const shm::Record& record);
    bool handle_request(Connection& connection, uint64_t id, shm::Request request);
    bool reply(Connection& connection, uint64_t request, const shm::Reply& reply);
    bool deliver(Connection& connection, Outgoing outgoing);
    void deliver_outbox();
    void settle(std::deque<Outgoing> delivered);
    void housekeeping();
    void violation(Connection& connection, const std::string& what);
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
    Connections connections_;
    uint64_t next_id_ = 1;
    bool listening_ = false;      // the listener is in epoll
    bool accept_failed_ = false;  // until the next look at everything
    bool draining_ = false;
    RingServerStats stats_;
    std::atomic<uint64_t> n_clients_{0};
    std::atomic<bool> drain_requested_{false};
    std::atomic<bool> stop_requested_{false};
    std::thread thread_;
};

}  // namespace xp
