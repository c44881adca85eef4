#include "daemon/io/read_backend.h"

#include <utility>

#include "daemon/base/memory.h"
#include "daemon/io/pread_pool.h"
#include "daemon/io/uring_backend.h"

namespace xp {
namespace {

// Drives reach their full rate with 8 to 16 MiB in flight; 256 pieces are far beyond that, and as
// many threads of the pread pool are still harmless.
constexpr uint32_t kMaxDepth = 256;
// The kernel splits larger reads anyway, and one piece must fit the 32-bit length of a ring entry.
constexpr uint64_t kMaxPieceBytes = uint64_t{64} << 20;

Result<void> check_options(const IoOptions& options) {
    if (options.depth < 1 || options.depth > kMaxDepth) {
        return make_error(ErrorCode::kInvalidArgument,
                          "{} pieces in flight are not possible: 1 to {} are", options.depth,
                          kMaxDepth);
    }
    if (options.piece_bytes < kPageBytes || options.piece_bytes > kMaxPieceBytes ||
        options.piece_bytes % kPageBytes != 0) {
        return make_error(ErrorCode::kInvalidArgument,
                          "pieces of {} bytes are not possible: multiples of {} up to {} are",
                          options.piece_bytes, kPageBytes, kMaxPieceBytes);
    }
    return {};
}

}  // namespace

// Notifies under the lock: the waiting thread may destroy the queue as soon as it has taken the
// last completion, and must not be able to take it before this thread is done with the condition.
void CompletionQueue::push(Completion completion) {
    std::lock_guard lock(mutex_);
    completions_.push_back(std::move(completion));
    arrived_.notify_one();
}

std::vector<CompletionQueue::Completion> CompletionQueue::take(bool block) {
    std::unique_lock lock(mutex_);
    if (block) arrived_.wait(lock, [this] { return !completions_.empty(); });
    return std::exchange(completions_, {});
}

Result<std::unique_ptr<ReadBackend>> make_read_backend(const IoOptions& options) {
    XP_CHECK(check_options(options));
    if (options.backend == IoBackendKind::kPread) return PreadPool::create(options, "");
    Result<std::unique_ptr<ReadBackend>> uring = UringBackend::create(options);
    if (uring || options.backend == IoBackendKind::kUring) return uring;
    return PreadPool::create(options, std::move(uring).error().message);
}

}  // namespace xp
