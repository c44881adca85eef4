#include "daemon/io/piece_queue.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <utility>

#include "daemon/base/memory.h"

namespace xp {

struct PieceQueue::Transfer {
    ReadRequest request;
    uint64_t handed_out = 0;  // bytes
    uint32_t pieces_out = 0;
    std::optional<Error> error;
};

namespace {

// Requests beyond which there is work enough for all threads in large pieces.
constexpr size_t kFewWaiting = 6;

// A backend knows descriptors only; people know paths.
std::string name_of(int fd) {
    std::array<char, 4096> path;
    const std::string link = fmt::format("/proc/self/fd/{}", fd);
    const ssize_t length = ::readlink(link.c_str(), path.data(), path.size());
    if (length <= 0) return fmt::format("descriptor {}", fd);
    return std::string(path.data(), static_cast<size_t>(length));
}

// The read got `got` bytes (0, or no multiple of the alignment) of the `wanted` ones at `offset`
// and cannot go on. Normally the file ends there; pieces are read in any order, so where it ends is
// asked of the file and not inferred from the piece.
Error cut_short(const ReadRequest& request, uint64_t offset, uint64_t got, uint64_t wanted) {
    const uint64_t end = request.offset + request.bytes;
    struct stat info{};
    if (::fstat(request.fd, &info) == 0 && static_cast<uint64_t>(info.st_size) < end) {
        const auto size = static_cast<uint64_t>(info.st_size);
        return make_error(ErrorCode::kCorrupt,
                          "{} is truncated: it ends at offset {}, {} of the {} bytes wanted at "
                          "offset {} are missing",
                          name_of(request.fd), size, end - std::max(size, request.offset),
                          request.bytes, request.offset);
    }
    return make_error(ErrorCode::kIo,
                      "reading {}: only {} of {} bytes at offset {} came, and the rest cannot be "
                      "asked for",
                      name_of(request.fd), got, wanted, offset);
}

void tell(const ReadRequest& request, const std::byte* data, uint64_t bytes) {
    if (request.sink == nullptr) return;
    request.sink->on_piece(data, bytes);
    request.queue->poke();
}

Error shutdown_error() {
    return make_error(ErrorCode::kShutdown, "the read backend is shutting down");
}

}  // namespace

PieceQueue::PieceQueue(const IoOptions& options, std::string backend, std::string fallback_reason)
    : piece_bytes_(options.piece_bytes.value()),
      few_piece_bytes_(options.few_piece_bytes != 0 ? options.few_piece_bytes : piece_bytes_),
      alignment_(options.direct ? kPageBytes : 1) {
    stats_.backend = std::move(backend);
    stats_.fallback_reason = std::move(fallback_reason);
    stats_.direct = options.direct;
}

std::optional<Error> PieceQueue::check(const ReadRequest& request) const {
    const auto address = reinterpret_cast<uintptr_t>(request.buffer);
    if (request.offset % alignment_ != 0 || request.bytes % alignment_ != 0 ||
        address % alignment_ != 0) {
        return make_error(ErrorCode::kInvalidArgument,
                          "misaligned direct read of {}: offset {}, length {} and address {:#x} "
                          "must be multiples of {}",
                          name_of(request.fd), request.offset, request.bytes, address, alignment_);
    }
    constexpr auto kEnd = static_cast<uint64_t>(std::numeric_limits<off_t>::max());
    if (request.offset > kEnd || request.bytes > kEnd - request.offset) {
        return make_error(ErrorCode::kInvalidArgument,
                          "read of {} bytes at offset {} of {} is beyond what a file can hold",
                          request.bytes, request.offset, name_of(request.fd));
    }
    return std::nullopt;
}

void PieceQueue::add(std::span<const ReadRequest> requests) {
    for (const ReadRequest& request : requests) {
        XP_ASSERT(request.queue != nullptr && (request.buffer != nullptr || request.bytes == 0));
        auto transfer = std::make_shared<Transfer>();
        transfer->request = request;
        transfer->error = check(request);
        std::unique_lock lock(mutex_);
        if (shut_down_ && !transfer->error) transfer->error = shutdown_error();
        ++stats_.in_flight;
        if (transfer->error || request.bytes == 0) {
            complete(std::move(lock), std::move(transfer));
        } else {
            waiting_.push_back(std::move(transfer));
        }
    }
    added_.notify_all();
}

std::optional<PieceQueue::Piece> PieceQueue::take(bool block) {
    std::unique_lock lock(mutex_);
    if (block) added_.wait(lock, [this] { return shut_down_ || !waiting_.empty(); });
    if (waiting_.empty()) return std::nullopt;

    Transfer& transfer = *waiting_.front();
    const uint64_t piece_bytes = waiting_.size() <= kFewWaiting ? few_piece_bytes_ : piece_bytes_;
    const uint64_t bytes = std::min(piece_bytes, transfer.request.bytes - transfer.handed_out);
    Piece piece{waiting_.front(),
                transfer.request.fd,
                transfer.request.offset + transfer.handed_out,
                transfer.request.buffer + transfer.handed_out,
                bytes,
                0};
    transfer.handed_out += bytes;
    ++transfer.pieces_out;
    ++stats_.pieces;
    if (transfer.handed_out == transfer.request.bytes) waiting_.pop_front();
    return piece;
}

bool PieceQueue::advance(Piece& piece, int64_t result) {
    const ReadRequest& request = piece.transfer->request;
    if (result == -EINTR || result == -EAGAIN) {
        if (piece.retries < kMaxPieceRetries) {
            ++piece.retries;
            count_retry();
            return true;
        }
    }
    if (result < 0) {
        end_piece(piece, errno_error(static_cast<int>(-result),
                                     fmt::format("reading {} bytes at offset {} of {}", piece.bytes,
                                                 piece.offset, name_of(request.fd))));
        return false;
    }
    const auto got = static_cast<uint64_t>(result);
    XP_ASSERT(got <= piece.bytes);
    if (got == piece.bytes) {
        tell(request, piece.buffer, got);
        end_piece(piece, std::nullopt);
        return false;
    }
    {
        std::lock_guard lock(mutex_);
        ++stats_.short_reads;
    }
    if (got == 0 || got % alignment_ != 0) {
        end_piece(piece, cut_short(request, piece.offset, got, piece.bytes));
        return false;
    }
    tell(request, piece.buffer, got);
    piece.offset += got;
    piece.buffer += got;
    piece.bytes -= got;
    return true;
}

void PieceQueue::shut_down() {
    std::unique_lock lock(mutex_);
    shut_down_ = true;
    std::deque<std::shared_ptr<Transfer>> waiting = std::exchange(waiting_, {});
    added_.notify_all();
    for (std::shared_ptr<Transfer>& transfer : waiting) {
        if (!transfer->error) transfer->error = shutdown_error();
        if (transfer->pieces_out != 0) continue;
        complete(std::move(lock), std::move(transfer));
        lock = std::unique_lock(mutex_);
    }
}

bool PieceQueue::is_shut_down() const {
    std::lock_guard lock(mutex_);
    return shut_down_;
}

void PieceQueue::count_retry() {
    std::lock_guard lock(mutex_);
    ++stats_.retries;
}

IoStats PieceQueue::stats() const {
    std::lock_guard lock(mutex_);
    return stats_;
}

void PieceQueue::end_piece(Piece& piece, std::optional<Error> error) {
    std::unique_lock lock(mutex_);
    Transfer& transfer = *piece.transfer;
    if (error) {
        if (!transfer.error) transfer.error = std::move(error);
        // Only the front is handed out in part, so only there can pieces be left to withhold.
        if (!waiting_.empty() && waiting_.front() == piece.transfer) waiting_.pop_front();
    }
    XP_ASSERT(transfer.pieces_out > 0);
    --transfer.pieces_out;
    const bool ended = transfer.error || transfer.handed_out == transfer.request.bytes;
    if (transfer.pieces_out != 0 || !ended) {
        piece.transfer.reset();
        return;
    }
    complete(std::move(lock), std::move(piece.transfer));
}

// Counts first and delivers afterwards, so that whoever saw a completion sees it in stats(); and
// delivers without the lock, since delivering wakes a thread that may want it.
void PieceQueue::complete(std::unique_lock<std::mutex> lock, std::shared_ptr<Transfer> transfer) {
    const ReadRequest& request = transfer->request;
    --stats_.in_flight;
    ++stats_.reads;
    if (transfer->error) {
        ++stats_.errors;
    } else {
        stats_.read_bytes += request.bytes;
    }
    Result<void> result;
    if (transfer->error) result = std::move(*transfer->error);
    lock.unlock();
    request.queue->push({request.tag, std::move(result)});
}

}  // namespace xp
