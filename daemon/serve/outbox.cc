#include "daemon/serve/outbox.h"

#include <cerrno>
#include <sys/eventfd.h>

#include "shm/handshake.h"

namespace xp {

std::string reply_text(std::string text) {
    if (!shm::is_valid_utf8(text)) {
        for (char& c : text) {
            c = static_cast<unsigned char>(c) < 0x80 ? c : '?';
        }
    }
    return text;
}

shm::Failed failed(const Error& error) {
    return {error_code_name(error.code), reply_text(error.message)};
}

Result<std::unique_ptr<Outbox>> Outbox::create() {
    UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!event) {
        return errno_error(errno, "eventfd for replies");
    }
    return std::unique_ptr<Outbox>(new Outbox(std::move(event)));
}

void Outbox::post(JobKey key, const shm::Reply& reply, std::shared_ptr<Backlog> backlog) {
    Outgoing outgoing{key, shm::is_terminal(reply), shm::encode_reply(reply), std::move(backlog)};
    const uint64_t bytes = outgoing.bytes.size();
    Backlog* const counted = outgoing.backlog.get();
    bool was_empty = false;
    {
        const std::lock_guard lock(mutex_);
        was_empty = posted_.empty();
        posted_.push_back(std::move(outgoing));
        // Last, as the line before may find no memory; before anybody takes it.
        if (counted) {
            counted->bytes.fetch_add(bytes, std::memory_order_relaxed);
        }
    }
    if (was_empty) {
        shm::ring_bell(event_.get());
    }
}

std::vector<Outgoing> Outbox::take() {
    shm::drain_bell(event_.get());
    const std::lock_guard lock(mutex_);
    return std::exchange(posted_, {});
}

}  // namespace xp
