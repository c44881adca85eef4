#include "daemon/serve/ring_server.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>

#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include "shm/enclosure.h"

namespace xp {
namespace {

// What an epoll event belongs to: a connection's number and one of these.
enum Source : uint64_t { kSocket = 0, kBell = 1, kServer = 2 };
constexpr uint64_t tag_of(uint64_t id, Source source) { return id << 2 | source; }
constexpr uint64_t kListenerTag = tag_of(0, kServer);
constexpr uint64_t kOutboxTag = tag_of(1, kServer);
constexpr uint64_t kControlTag = tag_of(2, kServer);
constexpr uint64_t kTimerTag = tag_of(3, kServer);

// Requests of one client that are handled before others get their turn.
constexpr int kRecordsPerTurn = 16;
constexpr int kEventsPerWait = 64;

// Lines about clients in the log between two looks at everything: enough to understand what goes
// on, too few for a client to fill a disk by connecting again and again.
constexpr uint64_t kComplaintsPerLook = 100;

bool add_to(int epoll, int fd, uint32_t events, uint64_t tag) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = tag;
    return ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

shm::BootId random_boot_id() {
    shm::BootId id{};
    // 16 bytes come whole and without blocking once the kernel's pool is up, which is before any
    // service starts; a zero id would only make clients believe that caches are cold.
    (void)!::getrandom(id.data(), id.size(), 0);
    return id;
}

}  // namespace

RingServer::RingServer(Listener listener, const ModelHost& host, Scheduler& scheduler,
                       Outbox& outbox, RingServerOptions options)
    : listener_(std::move(listener)), host_(host), scheduler_(scheduler), outbox_(outbox),
      options_(std::move(options)), started_(options_.now()), accounts_(options_.user) {
    offer_.max_in_flight = options_.requests_per_client;
    offer_.max_enclosed_bytes = shm::kMaxEnclosedBytes;
    offer_.boot_id = random_boot_id();
    for (const auto& model : host_.models()) {
        offer_.max_context = std::max<uint32_t>(
            offer_.max_context,
            static_cast<uint32_t>(std::min<uint64_t>(model->model->info().context, UINT32_MAX)));
    }
}

RingServer::~RingServer() { stop(); }

Result<std::unique_ptr<RingServer>> RingServer::create(Listener listener, const ModelHost& host,
                                                       Scheduler& scheduler, Outbox& outbox,
                                                       RingServerOptions options) {
    std::unique_ptr<RingServer> server(
        new RingServer(std::move(listener), host, scheduler, outbox, std::move(options)));
    server->epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
    server->control_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    server->timer_.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    if (!server->epoll_ || !server->control_ || !server->timer_) {
        return errno_error(errno, "cannot create the descriptors of the ring server");
    }
    const auto nanoseconds =
        std::chrono::nanoseconds(server->options_.housekeeping).count();
    itimerspec period{};
    period.it_interval = {nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
    period.it_value = period.it_interval;
    if (::timerfd_settime(server->timer_.get(), 0, &period, nullptr) != 0) {
        return errno_error(errno, "cannot set the ring server's timer");
    }
    XP_CHECK(server->watch(server->outbox_.fd(), EPOLLIN, kOutboxTag));
    XP_CHECK(server->watch(server->control_.get(), EPOLLIN, kControlTag));
    XP_CHECK(server->watch(server->timer_.get(), EPOLLIN, kTimerTag));
    XP_CHECK(server->watch(server->listener_.fd(), EPOLLIN, kListenerTag));
    server->listening_ = true;
    return server;
}

void RingServer::start() {
    XP_ASSERT(!thread_.joinable());
    thread_ = std::thread([this] { run(); });
}

void RingServer::begin_drain() {
    drain_requested_.store(true);
    shm::ring_bell(control_.get());
}

void RingServer::stop() {
    if (!thread_.joinable()) {
        return;
    }
    stop_requested_.store(true);
    shm::ring_bell(control_.get());
    thread_.join();
}

Result<void> RingServer::watch(int fd, uint32_t events, uint64_t tag) {
    if (!add_to(epoll_.get(), fd, events, tag)) {
        return errno_error(errno, "epoll_ctl");
    }
    return {};
}

void RingServer::run() {
    std::array<epoll_event, kEventsPerWait> events;
    while (!stop_requested_.load()) {
        const int n = ::epoll_wait(epoll_.get(), events.data(), kEventsPerWait, -1);
        for (int i = 0; i < n; ++i) {
            handle(events[static_cast<size_t>(i)].data.u64, events[static_cast<size_t>(i)].events);
        }
    }
    deliver_outbox();
    while (!connections_.empty()) {
        close(connections_.begin()->second);
    }
    account_for_complaints();
    listener_.close();
}

void RingServer::handle(uint64_t tag, uint32_t events) {
    if ((tag & 3) == kServer) {
        return handle_own(tag);
    }
    // Gone, when an event before this one closed it.
    const auto found = connections_.find(tag >> 2);
    if (found == connections_.end()) {
        return;
    }
    guarded(tag >> 2, [&] {
        if ((tag & 3) == kBell) {
            serve(found->second);
        } else {
            handle_socket(found->second, events);
        }
    });
}

void RingServer::handle_own(uint64_t tag) {
    try {
        switch (tag) {
            case kListenerTag: return accept_clients();
            case kOutboxTag: return deliver_outbox();
            case kControlTag: return handle_control();
            default: return housekeeping();
        }
    } catch (const std::bad_alloc&) {
        // Of these only accepting does not end by itself: clients wait until the next look.
        accept_failed_ = true;
        update_listening();
    }
}

template <class Act>
void RingServer::guarded(uint64_t id, Act act) {
    try {
        act();
    } catch (const std::bad_alloc&) {
        // Others may still have what this client asked for too much of.
        close_for_memory(id);
    }
}

void RingServer::close_for_memory(uint64_t id) {
    const auto left = connections_.find(id);
    if (left == connections_.end()) {
        return;
    }
    try {
        complain(
            fmt::format("closing {}: no memory for what it asks", left->second.describe()));
    } catch (const std::bad_alloc&) {
        ++complaints_;
    }
    close(left->second);
}

void RingServer::handle_control() {
    shm::drain_bell(control_.get());
    if (!drain_requested_.load() || draining_) {
        return;
    }
    draining_ = true;
    listening_ = false;
    listener_.close();
    for (auto& [id, connection] : connections_) {
        if (connection.open()) {
            shm::send_notice(connection.socket(), shm::NoticeKind::kDrain);
        }
    }
}

void RingServer::accept_clients() {
    while (listening_) {
        UniqueFd socket(
            ::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!socket) {
            if (errno == EINTR || errno == ECONNABORTED) {
                continue;
            }
            if (errno != EAGAIN) {
                // No descriptors or memory: clients wait in the backlog until the next look.
                spdlog::warn("cannot accept a client: {}", errno_error(errno, "accept4").message);
                accept_failed_ = true;
                update_listening();
            }
            return;
        }
        const auto peer = shm::peer_credentials(socket.get());
        if (!peer) {
            continue;
        }
        const uint64_t id = next_id_++;
        const int fd = socket.get();
        ++stats_.accepted;
        connections_.try_emplace(id, id, std::move(socket), *peer, options_.now());
        if (const auto watched = watch(fd, EPOLLIN | EPOLLRDHUP, tag_of(id, kSocket)); !watched) {
            spdlog::warn("cannot serve a client: {}", watched.error().message);
            close(connections_.at(id));
        }
        update_listening();
    }
}

void RingServer::update_listening() {
    const auto half_open = std::count_if(connections_.begin(), connections_.end(),
                                         [](const auto& c) { return !c.second.open(); });
    const bool on = !accept_failed_ && static_cast<size_t>(half_open) < options_.half_open;
    if (on == listening_ || draining_) {
        return;
    }
    if (on) {
        listening_ = add_to(epoll_.get(), listener_.fd(), EPOLLIN, kListenerTag);
    } else {
        ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.fd(), nullptr);
        listening_ = false;
    }
}

void RingServer::handle_socket(Connection& connection, uint32_t events) {
    if (!connection.open() && (events & EPOLLIN) != 0) {
        return greet(connection);
    }
    if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
        return close(connection);
    }
    std::string error;
    switch (connection.take_notices(&error)) {
        case shm::ReceiveStatus::kOk:
        case shm::ReceiveStatus::kAgain: return;
        case shm::ReceiveStatus::kClosed: return close(connection);
        case shm::ReceiveStatus::kBad: return violation(connection, error);
    }
}

void RingServer::greet(Connection& connection) {
    shm::Hello hello;
    shm::WelcomeStatus refusal = shm::WelcomeStatus::kBadHello;
    std::string error;
    switch (shm::receive_hello(connection.socket(), &hello, &refusal, &error)) {
        case shm::ReceiveStatus::kOk: break;
        case shm::ReceiveStatus::kAgain: return;
        case shm::ReceiveStatus::kClosed: return close(connection);
        case shm::ReceiveStatus::kBad: return refuse(connection, refusal, error);
    }
    if (draining_) {
        return refuse(connection, shm::WelcomeStatus::kShuttingDown, "shutting down");
    }
    const auto clients = n_clients_.load(std::memory_order_relaxed);
    if (clients >= options_.clients) {
        return refuse(connection, shm::WelcomeStatus::kTooManyClients,
                      fmt::format("{} clients are connected, which is the limit ([limits] "
                                  "clients): try again when one has gone", clients));
    }
    auto charge = accounts_.charge_client(connection.peer().uid);
    if (!charge) {
        return refuse(connection, shm::WelcomeStatus::kTooManyClients, charge.error().message);
    }
    if (!connection.welcome(hello, offer_, *std::move(charge), &error)) {
        return refuse(connection, shm::WelcomeStatus::kInternal, error);
    }
    n_clients_.fetch_add(1, std::memory_order_relaxed);
    if (const auto watched = watch(connection.bell(), EPOLLIN, tag_of(connection.id(), kBell));
        !watched) {
        complain(
            fmt::format("cannot serve {}: {}", connection.describe(), watched.error().message));
        return close(connection);
    }
    spdlog::debug("{} connected", connection.describe());
    update_listening();
    // The client may have written before we looked.
    serve(connection);
}

void RingServer::refuse(Connection& connection, shm::WelcomeStatus status,
                        const std::string& why) {
    ++stats_.refused;
    complain(fmt::format("refused {}: {}", connection.describe(), why));
    shm::send_refusal(connection.socket(), status, why);
    close(connection);
}

void RingServer::serve(Connection& connection) {
    connection.end_sleep();
    connection.bell_suspected = false;
    std::deque<Outgoing> delivered;
    const shm::RingStatus flushed = connection.flush(options_.now(), &delivered);
    settle(std::move(delivered));
    if (flushed == shm::RingStatus::kViolation) {
        return violation(connection, "broken indices in its request segment");
    }
    for (int n = 0;; ++n) {
        if (!accounts_.may_spend(connection.peer().uid)) {
            // No flag for the client's bell either: the next tick looks again.
            stats_.held_back += !std::exchange(connection.held_back, true);
            return;
        }
        shm::Record record;
        switch (connection.read(&record)) {
            case shm::RingStatus::kOk: break;
            case shm::RingStatus::kEmpty:
                if (connection.prepare_sleep()) {
                    return;
                }
                continue;
            default: return violation(connection, "a broken record or index in its request ring");
        }
        if (!handle_record(connection, record)) {
            return;
        }
        if (n >= kRecordsPerTurn) {
            return connection.ring_self();
        }
    }
}

bool RingServer::deliver(Connection& connection, Outgoing outgoing) {
    if (outgoing.terminal) {
        connection.in_flight().erase(outgoing.key.request);
    }
    std::deque<Outgoing> delivered;
    const size_t bytes = outgoing.bytes.size();
    const shm::RingStatus status =
        connection.send(std::move(outgoing), options_.now(), &delivered);
    settle(std::move(delivered));
    if (status == shm::RingStatus::kOk) {
        return true;
    }
    violation(connection, status == shm::RingStatus::kTooLarge
                              ? fmt::format("its response ring cannot hold a reply of {} bytes",
                                            bytes)
                              : "broken indices in its request segment");
    return false;
}

void RingServer::deliver_outbox() {
    for (Outgoing& outgoing : outbox_.take()) {
        const auto found = connections_.find(outgoing.key.client);
        if (found != connections_.end()) {
            guarded(outgoing.key.client, [&] { deliver(found->second, std::move(outgoing)); });
        }
    }
}

// Replies that reached a ring no longer count against their requests.
void RingServer::settle(std::deque<Outgoing> delivered) {
    const uint64_t level = scheduler_.resume_level();
    bool wake = false;
    for (const Outgoing& outgoing : delivered) {
        if (outgoing.backlog) {
            const uint64_t bytes = outgoing.bytes.size();
            const uint64_t before =
                outgoing.backlog->bytes.fetch_sub(bytes, std::memory_order_relaxed);
            wake |= before > level && before - bytes <= level;
        }
    }
    if (wake) {
        scheduler_.wake();
    }
}

void RingServer::housekeeping() {
    shm::drain_bell(timer_.get());
    accounts_.tick();
    for (auto next = connections_.begin(); next != connections_.end();) {
        Connection& connection = next->second;
        ++next;  // what follows may close this one
        guarded(connection.id(), [&] { look_at(connection); });
    }
    accept_failed_ = false;
    update_listening();
    account_for_complaints();
    warn_if_unreachable();
}

void RingServer::look_at(Connection& connection) {
    const auto now = options_.now();
    if (!connection.open()) {
        if (now - connection.accepted() >= options_.hello_deadline) {
            refuse(connection, shm::WelcomeStatus::kBadHello, "no Hello in time");
        }
        return;
    }
    if (const auto since = connection.stalled_since();
        since && now - *since >= options_.stall_limit) {
        ++stats_.stalled;
        complain(fmt::format("closing {}: it has not taken its replies for {} ms",
                             connection.describe(), options_.stall_limit.count()));
        scheduler_.cancel_client(connection.id(), "client_stalled");
        return close(connection);
    }
    if (std::exchange(connection.held_back, false)) {
        return serve(connection);
    }
    // Between a client's write and its bell there is a moment, but not from one look to the next:
    // data without a bell at two looks means that a bell was lost.
    if (connection.bell_pending() || connection.prepare_sleep()) {
        connection.bell_suspected = false;
    } else if (std::exchange(connection.bell_suspected, true)) {
        ++stats_.doorbell_missed;
        serve(connection);
    }
}

void RingServer::warn_if_unreachable() {
    if (draining_ || warned_unreachable_ || listener_.reachable()) {
        return;
    }
    const std::string path = listener_.bound_path().string();
    warned_unreachable_ = true;
    spdlog::warn("the socket {} was removed or replaced by someone else: new clients cannot reach "
                 "this daemon any more; restart it (those connected are served until then)",
                 path);
}

void RingServer::complain(const std::string& line) {
    if (complaints_ < kComplaintsPerLook) {
        spdlog::warn("{}", line);
    }
    ++complaints_;
}

void RingServer::account_for_complaints() {
    if (complaints_ > kComplaintsPerLook) {
        spdlog::warn("{} more complaints about clients in one second were not logged",
                     complaints_ - kComplaintsPerLook);
    }
    complaints_ = 0;
}

void RingServer::violation(Connection& connection, const std::string& what) {
    ++stats_.violations;
    complain(fmt::format("closing {}: {}", connection.describe(), what));
    close(connection);
}

void RingServer::close(Connection& connection) {
    const uint64_t id = connection.id();
    if (connection.open()) {
        n_clients_.fetch_sub(1, std::memory_order_relaxed);
        spdlog::debug("client {} is gone", id);
        scheduler_.cancel_client(id, "client");
        ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.bell(), nullptr);
    }
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.socket(), nullptr);
    connections_.erase(id);
    update_listening();
}

RingServerStats RingServer::stats() const {
    RingServerStats stats = stats_;
    stats.accounts = accounts_.totals();
    for (const auto& [id, connection] : connections_) {
        ++(connection.open() ? stats.clients : stats.half_open);
        stats.waiting_replies += connection.stalled_since().has_value();
    }
    return stats;
}

}  // namespace xp
