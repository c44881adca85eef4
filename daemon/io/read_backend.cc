#include "daemon/io/read_backend.h"

#include <algorithm>
#include <chrono>
#include <thread>
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

// What a drive reads at its full rate, in pieces of a megabyte.
constexpr uint32_t kDepth = 16;
constexpr uint64_t kPieceBytes = uint64_t{1} << 20;

// From memory, as the page cache, threads copy: as many as there are processors but for two, for
// those who use the bytes. A decoding step that waits for a few experts gets all threads to work on
// one, in pieces that are there in some tens of microseconds.
constexpr uint32_t kOtherProcessors = 2;
constexpr uint64_t kFewPieceBytes = uint64_t{128} << 10;

// How long a thread looks for completions before it sleeps: about what going to sleep and being
// woken costs. An expert comes from memory in a few hundred microseconds.
constexpr std::chrono::microseconds kAwake{50};
constexpr int kLooksBetweenClocks = 32;

Result<void> check_options(const IoOptions& options) {
    if (*options.depth < 1 || *options.depth > kMaxDepth) {
        return make_error(ErrorCode::kInvalidArgument,
                          "{} pieces in flight are not possible: 1 to {} are", *options.depth,
                          kMaxDepth);
    }
    const uint64_t piece_bytes = *options.piece_bytes;
    if (piece_bytes < kPageBytes || piece_bytes > kMaxPieceBytes || piece_bytes % kPageBytes != 0) {
        return make_error(ErrorCode::kInvalidArgument,
                          "pieces of {} bytes are not possible: multiples of {} up to {} are",
                          piece_bytes, kPageBytes, kMaxPieceBytes);
    }
    return {};
}

}  // namespace

// Notifies under the lock: the waiting thread may destroy the queue as soon as it has taken the
// last completion, and must not be able to take it before this thread is done with the condition.
void CompletionQueue::push(Completion completion) {
    std::lock_guard lock(mutex_);
    completions_.push_back(std::move(completion));
    any_.store(true, std::memory_order_relaxed);
    arrived_.notify_one();
}

void CompletionQueue::poke() {
    std::lock_guard lock(mutex_);
    any_.store(true, std::memory_order_relaxed);
    arrived_.notify_one();
}

std::vector<CompletionQueue::Completion> CompletionQueue::take(bool block) {
    if (!any_.load(std::memory_order_relaxed)) {
        if (!block) return {};
        look_awhile();
    }
    std::unique_lock lock(mutex_);
    if (block) arrived_.wait(lock, [this] { return any_.load(std::memory_order_relaxed); });
    any_.store(false, std::memory_order_relaxed);
    return std::exchange(completions_, {});
}

// Lets others run on the processor meanwhile: they may be the ones who read.
void CompletionQueue::look_awhile() const {
    const auto end = std::chrono::steady_clock::now() + kAwake;
    do {
        for (int look = 0; look < kLooksBetweenClocks; ++look) {
            if (any_.load(std::memory_order_relaxed)) return;
        }
        std::this_thread::yield();
    } while (std::chrono::steady_clock::now() < end);
}

Result<std::unique_ptr<ReadBackend>> make_read_backend(const IoOptions& options) {
    IoOptions uring_options = options, pread_options = options;
    if (!options.depth) {
        uring_options.depth = pread_options.depth = kDepth;
        const uint32_t processors = std::thread::hardware_concurrency();
        if (!options.direct && processors > kOtherProcessors) {
            pread_options.depth = std::min(kDepth, processors - kOtherProcessors);
        }
    }
    if (!options.piece_bytes) {
        uring_options.piece_bytes = pread_options.piece_bytes = kPieceBytes;
        if (!options.direct) pread_options.few_piece_bytes = kFewPieceBytes;
    }
    XP_CHECK(check_options(uring_options));
    if (options.backend == IoBackendKind::kPread) return PreadPool::create(pread_options, "");
    Result<std::unique_ptr<ReadBackend>> uring = UringBackend::create(uring_options);
    if (uring || options.backend == IoBackendKind::kUring) return uring;
    return PreadPool::create(pread_options, std::move(uring).error().message);
}

}  // namespace xp
