#include "daemon/io/pread_pool.h"

#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace xp {

Result<std::unique_ptr<ReadBackend>> PreadPool::create(const IoOptions& options,
                                                       std::string fallback_reason) {
    std::unique_ptr<PreadPool> pool(new PreadPool(options, std::move(fallback_reason)));
    try {
        for (uint32_t i = 0; i < *options.depth; ++i) {
            pool->threads_.emplace_back([queue = pool.get()] { queue->work(); });
        }
    } catch (const std::system_error& failure) {
        return make_error(ErrorCode::kIo,
                          "cannot start reader thread {} of {}: {} (a limit on threads or tasks?)",
                          pool->threads_.size() + 1, *options.depth, failure.what());
    }
    return std::unique_ptr<ReadBackend>(std::move(pool));
}

PreadPool::~PreadPool() {
    queue_.shut_down();
    for (std::thread& thread : threads_) thread.join();
}

void PreadPool::work() {
    while (std::optional<PieceQueue::Piece> piece = queue_.take(true)) {
        ssize_t result = 0;
        do {
            result = ::pread(piece->fd, piece->buffer, piece->bytes,
                             static_cast<off_t>(piece->offset));
            if (result < 0) result = -errno;
        } while (queue_.advance(*piece, result));
    }
}

}  // namespace xp
