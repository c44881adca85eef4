#include "daemon/serve/connection.h"

#include <algorithm>
#include <poll.h>

#include <fmt/format.h>

namespace xp {
namespace {

// Notices taken in one look: others want their turn, too.
constexpr int kNoticesPerLook = 64;

}  // namespace

std::string Connection::describe() const {
    return fmt::format("client {} ({}, uid {}, pid {})", id_, name_.empty() ? "no name" : name_,
                       peer_.uid, peer_.pid);
}

bool Connection::welcome(const shm::Hello& hello, const shm::ServerOffer& offer, Charge charge,
                         std::string* error) {
    auto channel = shm::open_channel(socket_.get(), hello, offer, error);
    if (!channel) {
        return false;
    }
    const auto* end = std::find(hello.client_name, hello.client_name + sizeof hello.client_name,
                                '\0');
    name_.assign(hello.client_name, end);
    channel_ = *std::move(channel);
    charge_ = std::move(charge);
    max_enclosures_ = offer.max_in_flight;
    reader_.emplace(channel_.own(), channel_.peer());
    writer_.emplace(channel_.own(), channel_.peer());
    return true;
}

shm::ReceiveStatus Connection::take_notices(std::string* error) {
    for (int n = 0; n < kNoticesPerLook; ++n) {
        shm::Notice notice;
        Enclosure enclosure;
        const shm::ReceiveStatus status =
            shm::receive_notice(socket_.get(), &notice, &enclosure.fd, error);
        if (status != shm::ReceiveStatus::kOk) {
            return status;
        }
        if (notice.kind != static_cast<uint32_t>(shm::NoticeKind::kEnclosed)) {
            continue;  // from a newer minor version, to be ignored
        }
        if ((channel_.features & shm::kFeatureEnclosures) == 0) {
            *error = "an enclosed request, which was not agreed upon in the handshake";
            return shm::ReceiveStatus::kBad;
        }
        if (enclosures_.size() >= max_enclosures_) {
            *error = fmt::format("more than {} enclosed requests without their records",
                                 max_enclosures_);
            return shm::ReceiveStatus::kBad;
        }
        enclosure.bytes = notice.value;
        enclosures_.push_back(std::move(enclosure));
    }
    return shm::ReceiveStatus::kOk;
}

bool Connection::take_enclosure(uint64_t bytes, shm::Fd* enclosed, std::string* error) {
    if (enclosures_.empty() && take_notices(error) == shm::ReceiveStatus::kBad) {
        return false;
    }
    if (enclosures_.empty()) {
        *error = "a record says that a request is enclosed, but none came over the socket";
        return false;
    }
    Enclosure next = std::move(enclosures_.front());
    enclosures_.pop_front();
    if (bytes != next.bytes || bytes > shm::kMaxEnclosedBytes) {
        *error = fmt::format("an enclosed request has {} bytes by its record and {} by its notice; "
                             "at most {} are allowed", bytes, next.bytes, shm::kMaxEnclosedBytes);
        return false;
    }
    *enclosed = std::move(next.fd);
    return true;
}

shm::RingStatus Connection::read(shm::Record* record) {
    if (!waiting_.empty()) {
        return shm::RingStatus::kEmpty;
    }
    const shm::RingStatus status = reader_->read(record);
    if (status == shm::RingStatus::kOk && reader_->peer_waits_for_space()) {
        shm::ring_bell(channel_.resp_bell.get());
    }
    return status;
}

bool Connection::prepare_sleep() {
    // While replies wait, the wish for room is what wakes us.
    return !waiting_.empty() || reader_->prepare_wait_for_data();
}

void Connection::end_sleep() {
    reader_->cancel_wait_for_data();
    shm::drain_bell(bell());
}

bool Connection::bell_pending() const {
    pollfd poll{bell(), POLLIN, 0};
    return ::poll(&poll, 1, 0) > 0;
}

shm::RingStatus Connection::send(Outgoing reply, Time now, std::deque<Outgoing>* settled) {
    if (reply.bytes.size() + sizeof(shm::RecordHeader) > writer_->max_record_bytes()) {
        return shm::RingStatus::kTooLarge;
    }
    waiting_.push_back(std::move(reply));
    if (waiting_.size() > 1) {
        return shm::RingStatus::kOk;  // room for it comes with room for those before it
    }
    const shm::RingStatus status = flush(now, settled);
    return status == shm::RingStatus::kFull ? shm::RingStatus::kOk : status;
}

shm::RingStatus Connection::flush(Time now, std::deque<Outgoing>* settled) {
    bool wrote = false;
    shm::RingStatus status = shm::RingStatus::kOk;
    while (!waiting_.empty()) {
        Outgoing& reply = waiting_.front();
        status = writer_->write(reply.key.request, reply.bytes);
        if (status == shm::RingStatus::kFull) {
            if (writer_->prepare_wait_for_space(reply.bytes.size())) {
                break;
            }
            continue;  // room appeared meanwhile
        }
        if (status != shm::RingStatus::kOk) {
            return status;
        }
        wrote = true;
        settled->push_back(std::move(reply));
        waiting_.pop_front();
    }
    if (waiting_.empty()) {
        writer_->cancel_wait_for_space();
        stalled_since_.reset();
    } else if (wrote || !stalled_since_) {
        stalled_since_ = now;
    }
    if (wrote && writer_->peer_waits_for_data()) {
        shm::ring_bell(channel_.resp_bell.get());
    }
    return status;
}

}  // namespace xp
