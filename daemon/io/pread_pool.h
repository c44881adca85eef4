// Reading with pread(2) from a pool of threads, one piece each: the twin of io_uring for kernels
// and sandboxes that refuse it. As many threads as pieces are to be in flight.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "daemon/io/piece_queue.h"

namespace xp {

class PreadPool final : public ReadBackend {
public:
    // `fallback_reason` is for stats(): why it is not io_uring.
    static Result<std::unique_ptr<ReadBackend>> create(const IoOptions& options,
                                                       std::string fallback_reason);
    // Waits for the reads in flight; what no thread took yet completes with kShutdown.
    ~PreadPool() override;

    void submit(std::span<const ReadRequest> requests) override { queue_.add(requests); }
    uint64_t alignment() const override { return queue_.alignment(); }
    IoStats stats() const override { return queue_.stats(); }

private:
    PreadPool(const IoOptions& options, std::string fallback_reason)
        : queue_(options, "pread", std::move(fallback_reason)) {}
    void work();

    PieceQueue queue_;
    std::vector<std::thread> threads_;
};

}  // namespace xp
