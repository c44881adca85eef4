// Reading with io_uring. One I/O thread owns the ring (the kernel then needs no locks and runs
// completions only when that thread asks for them); submit() hands it requests through the piece
// queue and an eventfd the ring polls, so any thread may submit.
//
// Neither registered buffers nor registered files: at pieces of 1 MiB they made no measurable
// difference, and registered buffers count against RLIMIT_MEMLOCK.
#pragma once

#include <liburing.h>

#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "daemon/base/file.h"
#include "daemon/io/piece_queue.h"

namespace xp {

class UringBackend final : public ReadBackend {
public:
    // An error says which step the kernel or a sandbox refused.
    static Result<std::unique_ptr<ReadBackend>> create(const IoOptions& options);
    // Waits for the reads in flight; what was not given to the kernel completes with kShutdown.
    ~UringBackend() override;

    void submit(std::span<const ReadRequest> requests) override;
    uint64_t alignment() const override { return queue_.alignment(); }
    IoStats stats() const override { return queue_.stats(); }

private:
    UringBackend(const IoOptions& options, UniqueFd wake);
    void wake();

    // The rest runs on the I/O thread only.
    void run(std::promise<Result<void>> opened);
    Result<void> open_ring();
    Result<void> probe_ring();
    void prepare_reads();
    void prepare(uint32_t slot);
    // Gives the kernel what is prepared and waits for at least one completion.
    void enter();
    void reap();

    PieceQueue queue_;
    UniqueFd wake_;                          // eventfd
    io_uring ring_{};
    std::vector<PieceQueue::Piece> slots_;   // a read's user_data is its slot
    std::vector<uint32_t> free_slots_;
    bool wake_armed_ = false;
    std::thread thread_;
};

}  // namespace xp
