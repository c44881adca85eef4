// Reading expert objects from drives: the one interface in front of io_uring and the pread pool.
//
// A ReadRequest is a whole object. The backend splits it into pieces, keeps several in flight,
// repeats what the kernel cut short or interrupted, and delivers exactly one completion per
// request, in any order. A buffer belongs to the backend from submit() until its completion was
// taken out by wait(): it must not be read, reused or freed before.
//
// Every request is checked: with direct I/O, offset, length and address must be multiples of
// alignment(). (tmpfs and page-cache reads would let a misalignment pass unnoticed.)
//
// Thread-safe: any thread may submit and wait. Each caller waits on a queue of its own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "daemon/base/result.h"

namespace xp {

// Where the completions of one user (one expert cache) arrive.
class CompletionQueue {
public:
    struct Completion {
        uint64_t tag = 0;
        Result<void> result;
    };

    void push(Completion completion);
    // Wakes who waits, though nothing is complete.
    void poke();
    // Takes all completions that are there. With `block` it waits, at first awake, for at least one
    // or for a poke().
    std::vector<Completion> take(bool block);

private:
    void look_awhile() const;

    std::mutex mutex_;
    std::condition_variable arrived_;
    std::vector<Completion> completions_;
    std::atomic<bool> any_ = false;  // completions or pokes; for looks without the lock
};

// Is told of the bytes of a request as they arrive, before its completion: what only moves bytes on
// need not wait for all of them. Then the request's queue is poked.
class PieceSink {
public:
    virtual ~PieceSink() = default;
    // `bytes` of a request's buffer from `data` on have been read, and the backend does not touch
    // them again. Each byte of a request that succeeds is told of once, before the completion is
    // there; of one that fails, any part may have been. Called from threads of the backend, from
    // several at a time, in any order; whoever is told must be quick and not call the backend.
    virtual void on_piece(const std::byte* data, uint64_t bytes) = 0;
};

struct ReadRequest {
    int fd = -1;
    uint64_t offset = 0;
    std::byte* buffer = nullptr;
    uint64_t bytes = 0;
    CompletionQueue* queue = nullptr;
    uint64_t tag = 0;           // given back with the completion
    PieceSink* sink = nullptr;  // outlives the request; may be none
};

struct IoStats {
    std::string backend;         // "io_uring" or "pread"
    std::string fallback_reason; // why auto did not take io_uring; empty otherwise
    bool direct = true;
    uint64_t read_bytes = 0;
    uint64_t reads = 0;          // completed requests
    uint64_t pieces = 0;
    uint64_t errors = 0;         // requests that failed
    uint64_t short_reads = 0;
    uint64_t retries = 0;        // EINTR and EAGAIN
    uint64_t in_flight = 0;
};

class ReadBackend {
public:
    virtual ~ReadBackend() = default;
    // Starts all of them; never blocks on the drive. Refusals (misaligned ...) arrive as
    // completions with an error as well.
    virtual void submit(std::span<const ReadRequest> requests) = 0;
    virtual uint64_t alignment() const = 0;
    virtual IoStats stats() const = 0;
};

enum class IoBackendKind : uint8_t { kAuto, kUring, kPread };

struct IoOptions {
    IoBackendKind backend = IoBackendKind::kAuto;
    bool direct = true;                       // files were opened with O_DIRECT: check alignment
    // One kernel read; none: what suits the backend.
    std::optional<uint64_t> piece_bytes = std::nullopt;
    // The same while few requests wait to be read, if not 0: then all threads share one.
    uint64_t few_piece_bytes = 0;
    // Pieces in flight (threads of the pread pool); none: what suits the backend.
    std::optional<uint32_t> depth = std::nullopt;
};

// kAuto takes io_uring and falls back to the pread pool where the kernel or a sandbox refuses it;
// kUring fails instead.
Result<std::unique_ptr<ReadBackend>> make_read_backend(const IoOptions& options);

}  // namespace xp
