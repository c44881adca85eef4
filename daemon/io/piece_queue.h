// What both read backends share: requests waiting to be read, cut into pieces, and what a kernel
// result means for a piece. A backend only moves pieces: take() one, have the kernel read it, hand
// the result to advance(), and go on with the piece as long as that says so.
//
// A request is complete when all its pieces have ended. After its first error no further pieces of
// it are handed out, and the error is its result. advance() tells the request's sink of what was
// read; advance() and shut_down() deliver completions, exactly one per request.
//
// Thread-safe. Errors name the file (through /proc/self/fd), the offset and the sizes.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "daemon/io/read_backend.h"

namespace xp {

// How often the kernel may say EINTR or EAGAIN to one piece. XFS answers EAGAIN now and then to
// reads that would block; a drive that still refuses after this many tries is not going to read.
inline constexpr uint32_t kMaxPieceRetries = 8;

class PieceQueue {
public:
    struct Transfer;
    // One kernel read. advance() moves the three fields on when the kernel read only a part.
    struct Piece {
        std::shared_ptr<Transfer> transfer;
        int fd = -1;
        uint64_t offset = 0;
        std::byte* buffer = nullptr;
        uint64_t bytes = 0;
        uint32_t retries = 0;
    };

    // `options` say how large pieces are.
    PieceQueue(const IoOptions& options, std::string backend, std::string fallback_reason);

    // Queues the requests that can be read; the others are completed with an error at once.
    void add(std::span<const ReadRequest> requests);

    // The next piece, in the order of requests. Nothing when none waits; with `block` it waits, and
    // nothing means that the queue was shut down.
    std::optional<Piece> take(bool block);

    // `result` is what read(2) would return: bytes, or -errno. True: read `piece`, as it now is,
    // again. False: the piece has ended.
    bool advance(Piece& piece, int64_t result);

    // What was not handed out yet ends with kShutdown; take() gives nothing any more.
    void shut_down();
    bool is_shut_down() const;

    // One more time the kernel asked to try again later, outside of any piece.
    void count_retry();

    uint64_t alignment() const { return alignment_; }
    IoStats stats() const;

private:
    std::optional<Error> check(const ReadRequest& request) const;
    // The piece has ended, with an error or not. Delivers the completion if it was the last one.
    void end_piece(Piece& piece, std::optional<Error> error);
    void complete(std::unique_lock<std::mutex> lock, std::shared_ptr<Transfer> transfer);

    const uint64_t piece_bytes_, few_piece_bytes_;
    const uint64_t alignment_;

    mutable std::mutex mutex_;
    std::condition_variable added_;
    std::deque<std::shared_ptr<Transfer>> waiting_;  // with pieces left to hand out
    bool shut_down_ = false;
    IoStats stats_;
};

}  // namespace xp
