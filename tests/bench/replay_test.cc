// What a replay predicts is what a model's cache reads, pass by pass.
#include "tools/bench/replay.h"

#include "tests/bench/bench_fixture.h"
#include "tests/tiers/fake_device_memory.h"
#include "tools/bench/course.h"

namespace xp::test {
namespace {

constexpr uint64_t kTokens = 160;
constexpr uint32_t kBuffers = 5;

// Reads that have arrived, in order, when submit() returns.
class ReadsAtOnce final : public ReadBackend {
public:
    void submit(std::span<const ReadRequest> requests) override {
        for (const ReadRequest& r : requests) {
            Result<void> read = read_exact(r.fd, r.offset, {r.buffer, r.bytes}, "the pack");
            if (read && r.sink != nullptr) r.sink->on_piece(r.buffer, r.bytes);
            r.queue->push({r.tag, std::move(read)});
        }
    }
    uint64_t alignment() const override { return 1; }
    IoStats stats() const override { return {}; }
};

class ReplayedCourse : public testing::Test {
protected:
    Rig rig(const char* policy, double share, ExpertShare ram = {}) {
        auto rig = Rig::open({.pack = small_pack(), .backend = "cpu", .direct = false,
                              .io = IoBackendKind::kPread, .cache = {.share = share}, .ram = ram,
                              .policy = policy, .context = 512, .threads = 1});
        EXPECT_TRUE(rig) << rig.error().message;
        return *std::move(rig);
    }
    // On the CPU, with the memory of a device that is none, and reads that keep their order.
    Rig device_rig(const char* policy, ExpertShare ram) {
        Rig opened = rig(policy, 0.15, ram);
        opened.model.reset();
        opened.reads = std::make_unique<CountedReads>(std::make_unique<ReadsAtOnce>());
        opened.cache_options.verify = VerifyMode::kRead;
        auto cache = ExpertCache::create(
            *opened.pack, *opened.reads,
            std::make_unique<FakeDeviceMemory>(
                7, FakeDeviceOptions{.n_buffers = kBuffers, .busy_buffers = 0}),
            opened.cache_options);
        EXPECT_TRUE(cache) << cache.error().message;
        opened.cache = *std::move(cache);
        auto model = load_model(*opened.pack, *opened.backend.operators, *opened.cache,
                                {.context = 512, .kv = KvType::kF32});
        EXPECT_TRUE(model) << model.error().message;
        opened.model = *std::move(model);
        return opened;
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

// Where reads keep their order and copies to RAM slots are never refused, as in a replay.
TEST_F(ReplayedCourse, CountsEveryByteOfBothTiersAsAModelsCacheDoes) {
    const std::tuple<const char*, Course, const char*, double> cases[] = {
        {"decode", Course::decode(16, 24, 12, 10), "lfu", 0.1},
        {"decode", Course::decode(16, 24, 12, 10), "lru", 0.5},
        {"prefill", Course::prefill(60, 20, 3), "lfu", 0.5},
        {"prefill", Course::prefill(60, 20, 3), "lru", 0.1},
        {"decode", Course::decode(16, 24, 12, 10), "lfu", 0}};
    for (const auto& [name, course, policy, ram] : cases) {
        SCOPED_TRACE(fmt::format("{}, {}, RAM for {}", name, policy, ram));
        Rig model = device_rig(policy, {.share = ram});
        const Routing ids = routing(model);
        const auto measured = run_course(model, course, &ids, nullptr);
        ASSERT_TRUE(measured) << measured.error().message;
        auto replay = Replay::create(*model.pack, model.cache_options, kBuffers);
        ASSERT_TRUE(replay) << replay.error().message;
        const auto predicted = replay_course(*replay, course, ids);
        ASSERT_TRUE(predicted) << predicted.error().message;
        EXPECT_EQ(model.cache->stats().ram_slots, replay->stats().ram_slots);
        const uint64_t stride = model.pack->manifest().layers[0].stride;
        uint64_t ram_hits = 0, saved = 0;
        for (size_t i = 0; i < course.n_samples; ++i) {
            SCOPED_TRACE(i);
            const Sample& ours = (*measured)[i];
            const Sample& theirs = (*predicted)[i];
            EXPECT_EQ(ours.read_bytes, theirs.read_bytes);
            EXPECT_EQ(ours.uploaded_bytes, theirs.uploaded_bytes);
            EXPECT_EQ(ours.saved_bytes, theirs.saved_bytes);
            EXPECT_EQ(ours.hits, theirs.hits);
            EXPECT_EQ(ours.misses, theirs.misses);
            EXPECT_EQ(ours.ram_hits, theirs.ram_hits);
            // What is brought back is uploaded and not read.
            EXPECT_EQ(ours.uploaded_bytes, ours.read_bytes + stride * ours.ram_hits);
            ram_hits += ours.ram_hits;
            saved += ours.saved_bytes;
        }
        EXPECT_EQ(ram_hits > 0, ram > 0);
        EXPECT_EQ(saved > 0, ram > 0);
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
