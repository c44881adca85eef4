#include "daemon/serve/connection.h"

#include <algorithm>
#include <poll.h>

#include <fmt/format.h>

namespace xp {

std::string Connection::describe() const {
    return fmt::format("client {} ({}, uid {}, pid {})", id_, name_.empty() ? "no name" : name_,
                       peer_.uid, peer_.pid);
}

bool Connection::welcome(const shm::Hello& hello, const shm::ServerOffer& offer,
                         std::string* error) {
    auto channel = shm::open_channel(socket_.get(), hello, offer, error);
    if (!channel) {
        return false;
    }
    const auto* end = std::find(hello.client_name, hello.client_name + sizeof hello.client_name,
                                '\0');
    name_.assign(hello.client_name, end);
    channel_ = *std::move(channel);
    reader_.emplace(channel_.own(), channel_.peer());
    writer_.emplace(channel_.own(), channel_.peer());
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
