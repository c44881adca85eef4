#include "daemon/io/uring_backend.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <system_error>

namespace xp {
namespace {

constexpr uint64_t kWakeTag = UINT64_MAX;

// In the order we like them: SINGLE_ISSUER and DEFER_TASKRUN came with Linux 6.0 and 6.1,
// COOP_TASKRUN with 5.19. An older kernel answers EINVAL.
constexpr std::array<unsigned, 3> kRingFlags = {
    IORING_SETUP_CLAMP | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
    IORING_SETUP_CLAMP | IORING_SETUP_COOP_TASKRUN,
    IORING_SETUP_CLAMP,
};

// How long to wait when the kernel has no memory for a submission and nothing is in flight whose
// completion could free some.
constexpr std::chrono::milliseconds kSubmitPause{1};

const char* setup_hint(int error) {
    switch (error) {
        case EPERM: return " (forbidden by sysctl kernel.io_uring_disabled or a seccomp filter)";
        case ENOSYS: return " (a kernel without io_uring, or a seccomp filter)";
        case ENOMEM: return " (RLIMIT_MEMLOCK too small?)";
        default: return "";
    }
}

}  // namespace

Result<std::unique_ptr<ReadBackend>> UringBackend::create(const IoOptions& options) {
    UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake) return errno_error(errno, "eventfd");
    std::unique_ptr<UringBackend> backend(new UringBackend(options, std::move(wake)));

    std::promise<Result<void>> opened;
    std::future<Result<void>> result = opened.get_future();
    try {
        backend->thread_ = std::thread(
            [self = backend.get(), promise = std::move(opened)]() mutable {
                self->run(std::move(promise));
            });
    } catch (const std::system_error& failure) {
        return make_error(ErrorCode::kIo, "cannot start the I/O thread: {}", failure.what());
    }
    XP_CHECK(result.get());
    return std::unique_ptr<ReadBackend>(std::move(backend));
}

UringBackend::UringBackend(const IoOptions& options, UniqueFd wake)
    : queue_(options, "io_uring", ""), wake_(std::move(wake)), slots_(*options.depth) {
    for (uint32_t slot = *options.depth; slot > 0; --slot) free_slots_.push_back(slot - 1);
}

UringBackend::~UringBackend() {
    queue_.shut_down();
    wake();
    if (thread_.joinable()) thread_.join();
}

void UringBackend::submit(std::span<const ReadRequest> requests) {
    if (requests.empty()) return;
    queue_.add(requests);
    wake();
}

void UringBackend::wake() {
    const uint64_t one = 1;
    // The only failure left is EAGAIN of a counter at its limit, which wakes just as well.
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

void UringBackend::run(std::promise<Result<void>> opened) {
    if (Result<void> result = open_ring(); !result) {
        opened.set_value(std::move(result));
        return;
    }
    opened.set_value({});
    for (;;) {
        prepare_reads();
        const bool idle = free_slots_.size() == slots_.size();
        if (idle && queue_.is_shut_down()) break;
        enter();
        reap();
    }
    io_uring_queue_exit(&ring_);
}

Result<void> UringBackend::open_ring() {
    // One entry per piece and one for the poll of the eventfd: neither queue can overflow.
    const auto entries = static_cast<unsigned>(slots_.size() + 1);
    int error = 0;
    for (const unsigned flags : kRingFlags) {
        io_uring_params params{};
        params.flags = flags;
        error = -io_uring_queue_init_params(entries, &ring_, &params);
        if (error != EINVAL) break;
    }
    if (error != 0) {
        Error refused = errno_error(error, "io_uring_setup");
        refused.message += setup_hint(error);
        return refused;
    }
    Result<void> usable = probe_ring();
    if (!usable) io_uring_queue_exit(&ring_);
    return usable;
}

// A sandbox may allow io_uring_setup and forbid the rest, and an old kernel may lack the opcode.
Result<void> UringBackend::probe_ring() {
    // A child process must not inherit the ring's memory.
    if (const int error = -io_uring_ring_dontfork(&ring_); error > 0) {
        return errno_error(error, "madvise of the io_uring");
    }
    io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
    const bool can_read = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ) != 0;
    if (probe != nullptr) io_uring_free_probe(probe);
    if (!can_read) {
        return make_error(ErrorCode::kUnsupported, "io_uring has no READ operation (Linux 5.6)");
    }
    io_uring_prep_nop(io_uring_get_sqe(&ring_));
    const int submitted = io_uring_submit_and_wait(&ring_, 1);
    if (submitted < 0) return errno_error(-submitted, "io_uring_enter");
    io_uring_cqe* cqe = nullptr;
    if (const int error = -io_uring_peek_cqe(&ring_, &cqe); error != 0) {
        return errno_error(error, "io_uring completion of a NOP");
    }
    io_uring_cqe_seen(&ring_, cqe);
    return {};
}

void UringBackend::prepare_reads() {
    if (!wake_armed_) {
        io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
        XP_ASSERT(sqe != nullptr);
        io_uring_prep_poll_add(sqe, wake_.get(), POLLIN);
        io_uring_sqe_set_data64(sqe, kWakeTag);
        wake_armed_ = true;
    }
    while (!free_slots_.empty()) {
        std::optional<PieceQueue::Piece> piece = queue_.take(false);
        if (!piece) break;
        const uint32_t slot = free_slots_.back();
        free_slots_.pop_back();
        slots_[slot] = std::move(*piece);
        prepare(slot);
    }
}

void UringBackend::prepare(uint32_t slot) {
    const PieceQueue::Piece& piece = slots_[slot];
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    XP_ASSERT(sqe != nullptr);
    io_uring_prep_read(sqe, piece.fd, piece.buffer, static_cast<unsigned>(piece.bytes),
                       piece.offset);
    io_uring_sqe_set_data64(sqe, slot);
}

void UringBackend::enter() {
    const int result = io_uring_submit_and_wait(&ring_, 1);
    if (result >= 0 || result == -EINTR) return;
    // The kernel is short of memory or wants completions reaped first. Everything else would be a
    // fault of ours: a bad ring, a bad argument or the wrong thread.
    XP_ASSERT(result == -EAGAIN || result == -EBUSY || result == -ENOMEM);
    queue_.count_retry();
    if (io_uring_cq_ready(&ring_) == 0) std::this_thread::sleep_for(kSubmitPause);
}

void UringBackend::reap() {
    io_uring_cqe* cqe = nullptr;
    while (io_uring_peek_cqe(&ring_, &cqe) == 0) {
        const uint64_t tag = io_uring_cqe_get_data64(cqe);
        const int result = cqe->res;
        io_uring_cqe_seen(&ring_, cqe);
        if (tag == kWakeTag) {
            uint64_t count = 0;
            [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof count);
            wake_armed_ = false;
            continue;
        }
        const auto slot = static_cast<uint32_t>(tag);
        XP_ASSERT(slot < slots_.size());
        if (queue_.advance(slots_[slot], result)) {
            prepare(slot);
        } else {
            free_slots_.push_back(slot);
        }
    }
}

}  // namespace xp
