#include "daemon/base/thread_pool.h"

#include <new>

#include <gtest/gtest.h>

namespace xp {
namespace {

TEST(ThreadPool, RunsEveryTaskExactlyOnce) {
    for (const unsigned n_threads : {1u, 2u, 5u}) {
        ThreadPool pool(n_threads);
        EXPECT_EQ(pool.n_threads(), n_threads);
        for (const uint64_t n_tasks : {0u, 1u, 2u, 7u, 1000u}) {
            std::vector<std::atomic<int>> counts(n_tasks);
            pool.run(n_tasks, [&](uint64_t i) { counts[i].fetch_add(1); });
            for (const auto& count : counts) EXPECT_EQ(count.load(), 1);
        }
    }
}

// Loops in quick succession are where a worker could miss a start or join the wrong loop.
TEST(ThreadPool, SurvivesManyShortLoops) {
    ThreadPool pool(3);
    std::atomic<uint64_t> sum{0};
    for (int loop = 0; loop < 3000; ++loop) {
        pool.run(4, [&](uint64_t i) { sum.fetch_add(i); });
    }
    EXPECT_EQ(sum.load(), 3000u * 6);
}

TEST(ThreadPool, WhatATaskThrowsIsThrownToTheCallerWhenAllThreadsAreDone) {
    for (const unsigned n_threads : {1u, 3u}) {
        ThreadPool pool(n_threads);
        for (uint64_t bad = 0; bad < 20; ++bad) {
            EXPECT_THROW(pool.run(20, [&](uint64_t i) {
                if (i == bad) throw std::bad_alloc();
            }), std::bad_alloc);
            std::atomic<uint64_t> n{0};
            pool.run(20, [&](uint64_t) { n.fetch_add(1); });
            EXPECT_EQ(n.load(), 20u);
        }
    }
}

}  // namespace
}  // namespace xp
