// A fixed set of threads for data-parallel loops inside one operator. One loop runs at a time; the
// calling thread takes part in it. Which thread computes which task is not fixed, so a task must
// not depend on it: results are the same for every number of threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace xp {

class ThreadPool {
public:
    // `n_threads` includes the caller's: 1 starts no thread.
    explicit ThreadPool(unsigned n_threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    unsigned n_threads() const { return static_cast<unsigned>(workers_.size()) + 1; }

    // Calls task(i) for every i in [0, n_tasks) and returns when all are done. Not reentrant, and
    // for one calling thread at a time. What a task throws (no memory) is thrown here when all
    // threads are done; which tasks were run is not said then.
    void run(uint64_t n_tasks, const std::function<void(uint64_t)>& task);

private:
    void end();
    void work();
    void drain(const std::function<void(uint64_t)>& task);

    std::vector<std::thread> workers_;
    std::mutex mutex_;
    std::condition_variable start_;
    std::condition_variable done_;
    const std::function<void(uint64_t)>* task_ = nullptr;
    uint64_t n_tasks_ = 0;
    std::atomic<uint64_t> next_{0};
    std::atomic<uint64_t> generation_{0};
    std::atomic<unsigned> n_busy_{0};
    std::exception_ptr failure_;  // the first of this loop, under mutex_
    bool stop_ = false;
};

}  // namespace xp
