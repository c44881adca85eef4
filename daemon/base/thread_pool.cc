#include "daemon/base/thread_pool.h"

#include <utility>

#include "daemon/base/assert.h"

namespace xp {
namespace {

// A worker looks this often for the next loop before it sleeps. Operators follow one another
// at once, and waking a sleeping thread takes longer than many of them, above all on virtual
// machines.
constexpr int kSpins = 2000;

inline void pause_cpu() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(unsigned n_threads) {
    XP_ASSERT(n_threads >= 1);
    try {
        for (unsigned i = 1; i < n_threads; ++i) workers_.emplace_back([this] { work(); });
    } catch (...) {
        end();  // those that did start
        throw;
    }
}

ThreadPool::~ThreadPool() { end(); }

void ThreadPool::end() {
    {
        std::lock_guard lock(mutex_);
        stop_ = true;
        generation_.fetch_add(1, std::memory_order_release);
    }
    start_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(uint64_t n_tasks, const std::function<void(uint64_t)>& task) {
    if (n_tasks <= 1 || workers_.empty()) {
        for (uint64_t i = 0; i < n_tasks; ++i) task(i);
        return;
    }
    {
        std::lock_guard lock(mutex_);
        task_ = &task;
        n_tasks_ = n_tasks;
        next_.store(0, std::memory_order_relaxed);
        n_busy_.store(static_cast<unsigned>(workers_.size()), std::memory_order_relaxed);
        generation_.fetch_add(1, std::memory_order_release);
    }
    start_.notify_all();
    drain(task);
    for (int i = 0; i < kSpins && n_busy_.load(std::memory_order_acquire) != 0; ++i) pause_cpu();
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return n_busy_.load(std::memory_order_acquire) == 0; });
    if (std::exception_ptr failure = std::exchange(failure_, nullptr)) {
        std::rethrow_exception(std::move(failure));
    }
}

void ThreadPool::drain(const std::function<void(uint64_t)>& task) {
    try {
        for (;;) {
            const uint64_t i = next_.fetch_add(1, std::memory_order_relaxed);
            if (i >= n_tasks_) return;
            task(i);
        }
    } catch (...) {
        next_.store(n_tasks_, std::memory_order_relaxed);  // the others end early
        std::lock_guard lock(mutex_);
        if (!failure_) failure_ = std::current_exception();
    }
}

void ThreadPool::work() {
    uint64_t seen = 0;
    for (;;) {
        for (int i = 0; i < kSpins && generation_.load(std::memory_order_acquire) == seen; ++i) {
            pause_cpu();
        }
        const std::function<void(uint64_t)>* task;
        {
            std::unique_lock lock(mutex_);
            start_.wait(lock, [&] { return generation_.load(std::memory_order_relaxed) != seen; });
            seen = generation_.load(std::memory_order_relaxed);
            if (stop_) return;
            task = task_;
        }
        drain(*task);
        // The last one out wakes the caller; the lock orders this with its wait.
        if (n_busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
            std::lock_guard lock(mutex_);
            done_.notify_one();
        }
    }
}

}  // namespace xp
