// What a replay predicts is what a model's cache reads, pass by pass.
#include "tools/bench/replay.h"

#include "tests/bench/bench_fixture.h"
#include "tools/bench/course.h"

namespace xp::test {
namespace {

constexpr uint64_t kTokens = 160;


class ReplayedCourse : public testing::Test {
protected:
    Rig rig(const char* policy, double share) {
        auto rig = Rig::open({.pack = small_pack(), .backend = "cpu", .direct = false,
                              .io = IoBackendKind::kPread, .cache_share = share,
                              .policy = policy, .context = 512, .threads = 1});
        EXPECT_TRUE(rig) << rig.error().message;
        return *std::move(rig);
    }
    Routing routing(const Rig& rig) {
        const auto trace = read_trace(kTrace);
        EXPECT_TRUE(trace) << trace.error().message;
        auto routing = map_trace(*trace, rig.routing_shape(), kTokens);
        EXPECT_TRUE(routing) << routing.error().message;
        return *std::move(routing);
    }
    // Bytes of all samples.
    static double bytes(const std::vector<Sample>& samples) {
        double sum = 0;
        for (const Sample& sample : samples) sum += static_cast<double>(sample.read_bytes);
        return sum;
    }
};

// Reads that arrive in another order than they were asked for may make a cache choose another
// victim now and then.
TEST_F(ReplayedCourse, ReadsWithinTwoPercentOfWhatAModelsCacheReads) {
    const std::pair<const char*, Course> courses[] = {
        {"decode", Course::decode(16, 24, 12, 10)}, {"prefill", Course::prefill(60, 20, 3)}};
    for (const auto& [name, course] : courses) {
        ASSERT_LE(course.longest(), kTokens);
        for (const char* policy : {"lfu", "lru"}) {
            for (const double share : {0.15, 0.5, 1.0}) {
                SCOPED_TRACE(fmt::format("{}, {}, {}", name, policy, share));
                Rig model = rig(policy, share);
                const Routing ids = routing(model);
                const auto measured = run_course(model, course, &ids, nullptr);
                ASSERT_TRUE(measured) << measured.error().message;
                auto replay = Replay::create(*model.pack, model.cache_options, UINT32_MAX);
                ASSERT_TRUE(replay) << replay.error().message;
                const auto predicted = replay_course(*replay, course, ids);
                ASSERT_TRUE(predicted) << predicted.error().message;
                ASSERT_EQ(predicted->size(), course.n_samples);
                EXPECT_NEAR(bytes(*measured), bytes(*predicted), 0.02 * bytes(*predicted));
                EXPECT_TRUE(share == 1 || bytes(*predicted) > 0);
                EXPECT_EQ(model.cache->stats().slots, replay->stats().slots);
            }
        }
    }
}

TEST_F(ReplayedCourse, TheModelRunsTheExpertsOfTheRoutingAndRecordsItsOwn) {
    Rig model = rig("lru", 1);
    const Routing ids = routing(model);
    const Course course = Course::prefill(24, 10, 1);
    Routing recorded{ids.n_layers, ids.n_experts, ids.top_k, {}};
    ASSERT_TRUE(run_course(model, course, &ids, &recorded));
    ASSERT_EQ(recorded.n_tokens(), 24u);
    EXPECT_TRUE(std::equal(recorded.ids.begin(), recorded.ids.end(), ids.ids.begin()));
    ASSERT_TRUE(run_course(model, course, nullptr, &recorded));
    EXPECT_FALSE(std::equal(recorded.ids.begin(), recorded.ids.end(), ids.ids.begin()));
}

TEST(Course, AreMadeOfTheirParts) {
    const Course decode = Course::decode(7, 3, 2, 4);
    EXPECT_EQ(decode.passes.size(), 1 + 3 + 2 * 4u);
    EXPECT_EQ(decode.longest(), 7 + 3 + 2 * 4u);
    EXPECT_EQ(decode.passes[0].n_rows, 7u);
    EXPECT_EQ(decode.passes[3].sample, Pass::kNoSample);
    EXPECT_EQ(decode.passes[4].sample, 0u);
    EXPECT_EQ(decode.passes.back().sample, 3u);
    const Course prefill = Course::prefill(10, 4, 2);
    ASSERT_EQ(prefill.passes.size(), 9u);
    EXPECT_EQ(prefill.longest(), 10u);
    EXPECT_EQ(prefill.passes[2].n_rows, 2u);
    EXPECT_TRUE(prefill.passes[3].fresh);
    EXPECT_FALSE(prefill.passes[4].fresh);
}

TEST(CountedReads, CountsWhatIsReadTwiceBetweenTwoBeginnings) {
    auto inner = make_read_backend({.backend = IoBackendKind::kPread, .direct = false});
    ASSERT_TRUE(inner);
    CountedReads reads(*std::move(inner));
    CompletionQueue queue;
    std::byte buffer[8];
    const auto read = [&](uint64_t offset) {
        const ReadRequest request{-1, offset, buffer, sizeof buffer, &queue, 0};
        reads.submit({&request, 1});
        queue.take(true);
    };
    read(0);
    read(8);
    EXPECT_EQ(reads.repeated(), 0u);
    read(0);
    EXPECT_EQ(reads.repeated(), 1u);
    reads.begin_count();
    read(0);
    EXPECT_EQ(reads.repeated(), 1u);
    EXPECT_EQ(reads.stats().errors, 4u);
}

}  // namespace
}  // namespace xp::test
