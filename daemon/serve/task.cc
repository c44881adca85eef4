#include "daemon/serve/task.h"

#include "daemon/serve/generation.h"
#include "daemon/serve/scoring.h"
#include "daemon/serve/tokenizing.h"

namespace xp {
namespace {

uint64_t microseconds(std::chrono::steady_clock::duration duration) {
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(duration).count());
}

template <class T>
Result<std::unique_ptr<Task>> as_task(Result<std::unique_ptr<T>> task) {
    if (!task) {
        return std::move(task).error();
    }
    return std::unique_ptr<Task>(*std::move(task));
}

}  // namespace

Task::Task(ServedModel& model, std::vector<TokenId> prompt, const TaskOptions& options)
    : model_(model), options_(options), prompt_(std::move(prompt)), last_progress_(Clock::now()) {
    XP_ASSERT(options.chunk_rows > 0);
}

Result<std::optional<shm::FinishReason>> Task::step(std::vector<shm::Reply>* replies) {
    const bool prefill = prefilling();
    const Clock::time_point begin = Clock::now();
    const CacheStats before = model_.cache ? model_.cache->stats() : CacheStats{};
    XP_TRY(const auto reason, advance(replies));
    (prefill ? prefill_time_ : decode_time_) += Clock::now() - begin;
    if (model_.cache) {
        const CacheStats after = model_.cache->stats();
        counted_.expert_hits += after.hits - before.hits;
        counted_.expert_misses += after.misses - before.misses;
        counted_.read_bytes += after.read_bytes - before.read_bytes;
    }
    return reason;
}

shm::Timings Task::timings() const {
    shm::Timings timings = counted_;
    timings.prefill_us = microseconds(prefill_time_);
    timings.decode_us = microseconds(decode_time_);
    timings.prompt_tokens = static_cast<uint32_t>(prompt_.size());
    return timings;
}

void Task::prompt_computed(size_t n, std::vector<shm::Reply>* replies) {
    prompt_done_ += n;
    const Clock::time_point now = Clock::now();
    if (now - last_progress_ >= options_.progress_interval) {
        last_progress_ = now;
        replies->push_back(shm::Progress{static_cast<uint32_t>(prompt_done_),
                                         static_cast<uint32_t>(prompt_.size())});
    }
}

Result<std::unique_ptr<Task>> make_task(ServedModel& model, const shm::Generate& request,
                                        const TaskOptions& options) {
    switch (request.task) {
        case shm::Task::kGenerate: return as_task(Generation::create(model, request, options));
        case shm::Task::kScore: return as_task(Scoring::create(model, request, options));
        case shm::Task::kTokenize: return as_task(Tokenizing::create(model, request, options));
    }
    return make_error(ErrorCode::kUnsupported, "task {} is not known here",
                      static_cast<int>(request.task));
}

}  // namespace xp
