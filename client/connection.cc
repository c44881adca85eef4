#include "client/connection.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm/enclosure.h"

namespace xp::client {
namespace {

// What is kept of events while a synchronous call waits for its answer. A stream is a few hundred
// events a second at most, so this is many seconds; the bytes bound what a faulty daemon can cost.
constexpr size_t kMaxKeptEvents = 4096;
constexpr size_t kMaxKeptBytes = size_t{64} << 20;

// Requests of all kinds in flight, for the case that the daemon names no limit.
constexpr size_t kMaxInFlight = 65536;

// Replies to requests that are over already, or that no such request has. An honest daemon sends
// none; a few are forgiven.
constexpr size_t kMaxIgnored = 4096;

// Room in the request ring for the record of an enclosed request, wherever in the ring it begins: a
// message of fewer than 128 bytes and a pad no longer than it. An enclosure is sent only when its
// record is sure to follow.
constexpr uint64_t kEnclosedRoom = 512;

// Notices taken at a time: the daemon sends one in its life.
constexpr int kMaxNotices = 16;

xp_status status_of(shm::ConnectStatus status) {
    switch (status) {
    case shm::ConnectStatus::kOk: return XP_OK;
    case shm::ConnectStatus::kUnavailable: return XP_UNAVAILABLE;
    case shm::ConnectStatus::kTimeout: return XP_TIMEOUT;
    case shm::ConnectStatus::kRefused: return XP_REFUSED;
    case shm::ConnectStatus::kBadVersion: return XP_BAD_VERSION;
    case shm::ConnectStatus::kProtocol: return XP_PROTOCOL;
    case shm::ConnectStatus::kSystem: return XP_SYSTEM;
    case shm::ConnectStatus::kBadPath: return XP_INVALID;
    case shm::ConnectStatus::kNoMemory: return XP_NO_MEMORY;
    }
    return XP_SYSTEM;
}

xp_status status_of_errno(int why) { return why == ENOMEM ? XP_NO_MEMORY : XP_SYSTEM; }

shm::Fd make_poll_set(int socket, int bell) {
    shm::Fd set(::epoll_create1(EPOLL_CLOEXEC));
    if (!set) return {};
    for (const int fd : {socket, bell}) {
        epoll_event event{};
        event.events = EPOLLIN | EPOLLRDHUP;
        event.data.fd = fd;
        if (::epoll_ctl(set.get(), EPOLL_CTL_ADD, fd, &event) != 0) return {};
    }
    return set;
}

}  // namespace

Connection::Connection(std::string_view name)
    : name_(name.substr(0, shm::kClientNameBytes - 1)), owner_(::getpid()) {}

Connection::~Connection() {
    if (!forked()) return;
    // The child has no mappings (MADV_DONTFORK), and something else may live at their addresses.
    channel_.req.abandon();
    channel_.resp.abandon();
}

// ---- connecting -------------------------------------------------------------------------------

xp_status Connection::connect(std::string_view path, int timeout_ms) {
    if (forked()) return fail(XP_GONE, "the client was made before fork(): make a new one");
    if (state_ == State::kOpen) return fail(XP_INVALID, "the client is connected already");
    disconnect();

    shm::Hello hello;
    name_.copy(hello.client_name, shm::kClientNameBytes - 1);
    std::string error;
    const shm::ConnectStatus status =
        shm::connect_channel(path, hello, timeout_ms, &channel_, &error);
    if (status == shm::ConnectStatus::kRefused) {
        const auto refusal = static_cast<shm::WelcomeStatus>(channel_.welcome.status);
        channel_ = {};
        return fail(XP_REFUSED, std::move(error), shm::welcome_status_name(refusal));
    }
    if (status != shm::ConnectStatus::kOk) {
        channel_ = {};
        return fail(status_of(status), std::move(error));
    }
    poll_set_ = make_poll_set(channel_.socket.get(), channel_.resp_bell.get());
    if (!poll_set_) {
        const int why = errno;
        channel_ = {};
        return fail(status_of_errno(why), std::string("cannot watch the connection: ") +
                                              std::strerror(why) +
                                              (why == EMFILE ? " (ulimit -n)" : ""));
    }

    writer_.emplace(channel_.own(), channel_.peer());
    reader_.emplace(channel_.own(), channel_.peer());
    const shm::Welcome& welcome = channel_.welcome;
    info_ = {};
    std::copy(std::begin(welcome.boot_id), std::end(welcome.boot_id), info_.boot_id);
    info_.protocol_major = welcome.abi_major;
    info_.protocol_minor = welcome.abi_minor;
    info_.max_request_bytes = writer_->max_record_bytes() - sizeof(shm::RecordHeader);
    if ((welcome.features & shm::kFeatureEnclosures) != 0) {
        info_.max_request_bytes =
            std::max<uint64_t>(info_.max_request_bytes, welcome.max_enclosed_bytes);
    }
    info_.max_in_flight = welcome.max_in_flight != 0
                              ? welcome.max_in_flight
                              : static_cast<uint32_t>(kMaxInFlight);
    state_ = State::kOpen;
    return XP_OK;
}

void Connection::disconnect() {
    if (forked()) return;
    writer_.reset();
    reader_.reset();
    poll_set_.reset();
    channel_ = {};
    state_ = State::kUnconnected;
    why_dead_ = XP_GONE;
    armed_ = false;
    hung_up_ = false;
    in_flight_.clear();
    generates_ = 0;
    ignored_ = 0;
    events_.clear();
    event_bytes_ = 0;
    answer_.reset();
}

int Connection::fd() const {
    return forked() || !poll_set_ ? -1 : poll_set_.get();
}

const xp_connection_info* Connection::info() const {
    return state_ == State::kOpen && !forked() ? &info_ : nullptr;
}

xp_status Connection::fail(xp_status status, std::string text, std::string_view code) {
    // Names of statuses are short: no memory is needed to say that there is none.
    error_code_ = code.empty() ? xp_status_name(status) : code;
    error_ = std::move(text);
    return status;
}

bool Connection::forked() const {
    return ::getpid() != owner_;
}

// Whether requests can be sent; *status says why not.
bool Connection::usable(xp_status* status) {
    if (forked()) {
        *status = fail(XP_GONE, "the client was made before fork(): make a new one");
        return false;
    }
    if (state_ == State::kOpen) return true;
    *status = state_ == State::kUnconnected ? fail(XP_GONE, "the client is not connected")
                                            : fail(why_dead_, why_dead_text_);
    return false;
}

// Ends the connection, and every request in flight with one Failed. The socket stays open, shut
// down: the daemon sees the end, and the descriptor of xp_client_fd() stays readable.
void Connection::die(xp_status status, std::string text) {
    if (state_ != State::kOpen) return;
    state_ = State::kDead;
    why_dead_ = fail(status, std::move(text));
    why_dead_text_ = error_;
    ::shutdown(channel_.socket.get(), SHUT_RDWR);
    writer_.reset();
    reader_.reset();
    channel_.req.reset();
    channel_.resp.reset();
    for (const auto& [id, kind] : in_flight_) {
        if (kind == Kind::kGenerate) {
            events_.push_back({id, shm::Failed{"daemon_gone", error_}, 0});
        }
    }
    in_flight_.clear();
    generates_ = 0;
}

// ---- requests ---------------------------------------------------------------------------------

xp_status Connection::submit(const shm::Generate& request, int timeout_ms, uint64_t* request_id) {
    xp_status status;
    if (!usable(&status)) return status;
    if (generates_ >= info_.max_in_flight) {
        return fail(XP_BUSY, std::to_string(generates_) +
                                 " requests are in flight, the daemon allows no more for one "
                                 "connection: wait for one to end");
    }
    disarm();
    const uint64_t id = next_id_;
    status = send(id, request, shm::Deadline(timeout_ms));
    if (status != XP_OK) return status;
    ++next_id_;
    in_flight_.emplace(id, Kind::kGenerate);
    ++generates_;
    *request_id = id;
    return XP_OK;
}

xp_status Connection::cancel(uint64_t request_id) {
    xp_status status;
    if (!usable(&status)) return status;
    const auto found = in_flight_.find(request_id);
    if (found == in_flight_.end() || found->second != Kind::kGenerate) return XP_OK;
    disarm();
    const uint64_t id = next_id_;
    status = send(id, shm::Cancel{request_id}, shm::Deadline(0));
    if (status != XP_OK) return status;
    ++next_id_;
    in_flight_.emplace(id, Kind::kMuted);
    return XP_OK;
}

xp_status Connection::ask(const shm::Request& request, int timeout_ms, shm::Reply* reply) {
    xp_status status;
    if (!usable(&status)) return status;
    disarm();
    const shm::Deadline deadline(timeout_ms);
    const uint64_t id = next_id_;
    status = send(id, request, deadline);
    if (status != XP_OK) return status;
    ++next_id_;
    in_flight_.emplace(id, Kind::kAsk);
    answer_.reset();
    for (;;) {
        if (answer_) {
            *reply = std::move(*answer_);
            answer_.reset();
            return XP_OK;
        }
        if (state_ != State::kOpen) return why_dead_;
        if (keeps_too_much()) {
            in_flight_[id] = Kind::kMuted;
            return fail(XP_BUSY, "too many events were not collected: call xp_next_event first");
        }
        if (take_record()) continue;
        if (hung_up_) {
            die(XP_GONE, "the daemon closed the connection");
            continue;
        }
        if (!wait(deadline, std::nullopt)) {
            in_flight_[id] = Kind::kMuted;
            return fail(XP_TIMEOUT, "the daemon did not answer in time");
        }
    }
}

// Writes one request record, waiting for room until the deadline. Replies are taken meanwhile: a
// daemon that has no room for them might not take requests either. What is larger than a record
// goes in a sealed memfd, with a record in its place.
xp_status Connection::send(uint64_t id, const shm::Request& request,
                           const shm::Deadline& deadline) {
    if (in_flight_.size() >= kMaxInFlight) {
        return fail(XP_BUSY, "too many requests are in flight: collect their events first");
    }
    std::vector<std::byte> body = shm::encode_request(request);
    if (body.size() > info_.max_request_bytes) {
        return fail(XP_TOO_LARGE, "the request has " + std::to_string(body.size()) +
                                      " bytes, the daemon takes at most " +
                                      std::to_string(info_.max_request_bytes) +
                                      ": shorten the prompt");
    }
    shm::Fd enclosure;
    const size_t bytes = body.size();
    if (bytes > writer_->max_record_bytes() - sizeof(shm::RecordHeader)) {
        std::string error;
        enclosure = shm::enclose(body, &error);
        if (!enclosure) return fail(status_of_errno(errno), std::move(error));
        body = shm::encode_request(shm::Enclosed{bytes});
    }
    for (;;) {
        shm::RingStatus written = shm::RingStatus::kFull;
        if (!enclosure || writer_->free_bytes() >= kEnclosedRoom) {
            if (enclosure) {
                const xp_status sent = send_enclosure(enclosure, bytes);
                if (sent != XP_OK) return sent;
            }
            written = writer_->write(id, body);
        }
        if (written == shm::RingStatus::kOk) {
            if (writer_->peer_waits_for_data()) shm::ring_bell(channel_.req_bell.get());
            return XP_OK;
        }
        if (written != shm::RingStatus::kFull) {
            die(XP_PROTOCOL, "the daemon broke the rules of the request ring");
            return why_dead_;
        }
        if (keeps_too_much()) {
            return fail(XP_BUSY, "too many events were not collected: call xp_next_event first");
        }
        if (!take_record()) {
            if (hung_up_) die(XP_GONE, "the daemon closed the connection");
            const size_t room = enclosure ? kEnclosedRoom : body.size();
            if (state_ == State::kOpen && !wait(deadline, room)) {
                writer_->cancel_wait_for_space();
                return fail(XP_BUSY, "the request ring is full: try again later");
            }
        }
        if (state_ != State::kOpen) return why_dead_;
    }
}

xp_status Connection::send_enclosure(const shm::Fd& message, size_t bytes) {
    if (shm::send_notice(channel_.socket.get(), shm::NoticeKind::kEnclosed, bytes,
                         message.get())) {
        return XP_OK;
    }
    if (errno == EAGAIN) return fail(XP_BUSY, "the daemon is slow to take requests: try again");
    // What the daemon said before it went is still to be read.
    return fail(XP_GONE, "the daemon closed the connection");
}

// ---- events -----------------------------------------------------------------------------------

xp_status Connection::next_event(int timeout_ms, Event* event) {
    if (forked()) return fail(XP_GONE, "the client was made before fork(): make a new one");
    disarm();
    const shm::Deadline deadline(timeout_ms);
    for (;;) {
        if (pop(event)) return XP_OK;
        xp_status status;
        if (!usable(&status)) return status;
        if (take_record()) continue;
        if (hung_up_) {
            die(XP_GONE, "the daemon closed the connection");
            continue;
        }
        if (generates_ == 0) {
            // So that a stray ring does not keep xp_client_fd() readable.
            shm::drain_bell(channel_.resp_bell.get());
            look_at_socket();
            if (hung_up_ || state_ != State::kOpen) continue;
            return XP_IDLE;
        }
        if (!wait(deadline, std::nullopt)) return XP_TIMEOUT;
    }
}

// Takes one record from the ring, if there is one. True also when that ended the connection.
bool Connection::take_record() {
    switch (reader_->read(&record_)) {
    case shm::RingStatus::kOk: break;
    case shm::RingStatus::kEmpty: return false;
    default: die(XP_PROTOCOL, "the daemon broke the rules of the response ring"); return true;
    }
    if (reader_->peer_waits_for_space()) shm::ring_bell(channel_.req_bell.get());
    std::string why;
    std::optional<shm::Reply> reply = shm::decode_reply(record_.body, &why);
    if (!reply) {
        die(XP_PROTOCOL, "the daemon sent an invalid message: " + why);
        return true;
    }
    dispatch(record_.request_id, std::move(*reply), record_.body.size());
    return true;
}

void Connection::dispatch(uint64_t id, shm::Reply reply, size_t bytes) {
    const auto found = in_flight_.find(id);
    const bool terminal = shm::is_terminal(reply);
    if (found == in_flight_.end() || (found->second == Kind::kMuted && !terminal)) {
        if (++ignored_ > kMaxIgnored) {
            die(XP_PROTOCOL, "the daemon keeps answering what was not asked");
        }
        return;
    }
    const Kind kind = found->second;
    const bool of_generate =
        !terminal || std::holds_alternative<shm::Done>(reply) ||
        std::holds_alternative<shm::Cancelled>(reply) || std::holds_alternative<shm::Failed>(reply);
    if ((kind == Kind::kGenerate && !of_generate) || (kind == Kind::kAsk && !terminal)) {
        die(XP_PROTOCOL, "the daemon answered request " + std::to_string(id) +
                             " with a message of the wrong kind");
        return;
    }
    if (terminal) in_flight_.erase(found);
    if (kind == Kind::kAsk) answer_ = std::move(reply);
    if (kind == Kind::kGenerate) {
        if (terminal) --generates_;
        keep({id, std::move(reply), bytes});
    }
}

void Connection::keep(Event event) {
    event_bytes_ += event.bytes;
    events_.push_back(std::move(event));
}

bool Connection::pop(Event* event) {
    if (events_.empty()) return false;
    *event = std::move(events_.front());
    events_.pop_front();
    event_bytes_ -= event->bytes;
    return true;
}

bool Connection::keeps_too_much() const {
    return events_.size() >= kMaxKeptEvents || event_bytes_ >= kMaxKeptBytes;
}

// ---- waiting ----------------------------------------------------------------------------------

// Sleeps until the daemon may have done something: wrote a record, freed `room_for` bytes, sent a
// notice, hung up. False when the deadline came first; then the daemon stays told that this side
// sleeps, so that it rings while the program polls xp_client_fd().
bool Connection::wait(const shm::Deadline& deadline, std::optional<size_t> room_for) {
    if (!reader_->prepare_wait_for_data()) return true;
    armed_ = true;
    if (room_for && !writer_->prepare_wait_for_space(*room_for)) {
        disarm();
        return true;
    }
    look_at_socket();
    if (hung_up_ || state_ != State::kOpen) return true;
    const int left_ms = deadline.left_ms();
    if (left_ms == 0) return false;

    pollfd fds[] = {{channel_.socket.get(), POLLIN | POLLRDHUP, 0},
                    {channel_.resp_bell.get(), POLLIN, 0}};
    // Whatever ended it, EINTR included, the caller looks at everything again.
    (void)::poll(fds, std::size(fds), left_ms);
    disarm();
    return true;
}

// Reads the notices. A hang-up only sets hung_up_: what the daemon wrote before comes first.
void Connection::look_at_socket() {
    for (int i = 0; i < kMaxNotices; ++i) {
        shm::Notice notice;
        std::string error;
        switch (shm::receive_notice(channel_.socket.get(), &notice, nullptr, &error)) {
        case shm::ReceiveStatus::kOk:
            // Kinds that are not known are from a newer minor version, and may be ignored.
            if (notice.kind == static_cast<uint32_t>(shm::NoticeKind::kDrain)) info_.draining = 1;
            break;
        case shm::ReceiveStatus::kAgain: return;
        case shm::ReceiveStatus::kClosed: hung_up_ = true; return;
        case shm::ReceiveStatus::kBad:
            die(XP_PROTOCOL, "the daemon broke the protocol: " + error);
            return;
        }
    }
}

// Takes back that this side sleeps. The bell is drained before the rings are looked at.
void Connection::disarm() {
    if (!armed_ || state_ != State::kOpen) return;
    armed_ = false;
    reader_->cancel_wait_for_data();
    writer_->cancel_wait_for_space();
    shm::drain_bell(channel_.resp_bell.get());
}

}  // namespace xp::client
