// Random sequences of everything a cache can be asked for, with several acquisitions alive at once,
// checked against what must hold at all times.
#include <atomic>

#include "tests/tiers/cache_fixture.h"

namespace xp {
namespace {

using Fault = FaultyBackend::Fault;

// One acquisition and what its user knows.
struct Live {
    ExpertCache::Acquisition acquisition;
    uint32_t block = 0;
    std::set<uint32_t> expected;        // not handed out yet
    std::vector<ReadyExpert> held;      // must not change before release() or next()
};

class RandomCacheTest : public CacheFixture, public testing::WithParamInterface<uint64_t> {
protected:
    uint64_t random(uint64_t n) { return random_() % n; }

    std::vector<uint32_t> some_experts() {
        std::vector<uint32_t> experts = all_experts(kExperts);
        std::shuffle(experts.begin(), experts.end(), random_);
        experts.resize(random(4) == 0 ? kExperts : random(5));
        return experts;
    }
    uint32_t some_block() { return std::array{0u, 1u, 3u}[random(3)]; }

    void begin(ExpertCache& cache) {
        const uint32_t block = some_block();
        const std::vector<uint32_t> experts = some_experts();
        requested_ += experts.size();
        live_.push_back({cache.acquire(block, experts), block,
                         std::set(experts.begin(), experts.end()), {}});
    }
    void check_held(const Live& live) {
        for (const ReadyExpert& ready : live.held) {
            ASSERT_TRUE(right(pack_, live.block, ready))
                << "expert " << ready.expert << " of layer " << live.block << " changed";
        }
    }
    // True when the acquisition is over.
    bool advance(Live& live, bool faults) {
        check_held(live);
        const Result<Group> group = live.acquisition.next();
        live.held.clear();
        if (!group) {
            EXPECT_TRUE(faults) << group.error().message;
            EXPECT_TRUE(group.error().code == ErrorCode::kIo ||
                        group.error().code == ErrorCode::kCorrupt)
                << group.error().message;
            EXPECT_THAT(group.error().message,
                        testing::HasSubstr(fmt::format("of layer {}", live.block)));
            return true;
        }
        if (group->empty()) {
            EXPECT_THAT(live.expected, testing::IsEmpty());
            return true;
        }
        for (const ReadyExpert& ready : *group) {
            EXPECT_EQ(live.expected.erase(ready.expert), 1u) << "twice, or not asked for";
            live.held.push_back(ready);
        }
        check_held(live);
        return false;
    }
    void step(ExpertCache& cache, bool faults) {
        const uint64_t action = random(20);
        if (live_.empty() || (action < 4 && live_.size() < 3)) return begin(cache);
        if (action == 4) {
            cache.prefetch(some_block(), some_experts());
            return;
        }
        const size_t index = random(live_.size());
        Live& live = live_[index];
        bool over = false;
        if (action == 5) {
            check_held(live);
            over = true;  // dropped, perhaps with reads in flight and a group in hand
        } else if (action == 6) {
            check_held(live);
            live.acquisition.release();
            live.held.clear();
        } else {
            over = advance(live, faults);
        }
        if (over) live_.erase(live_.begin() + static_cast<ptrdiff_t>(index));
    }

    // With `ram_slots`, on a device.
    void run(uint64_t slots, const std::string& policy, bool faults, uint64_t ram_slots = 0) {
        SCOPED_TRACE(fmt::format("seed {}, {} slots, {} in RAM, {}", GetParam(), slots, ram_slots,
                                 policy));
        FaultyBackend backend(GetParam() + 1);
        std::unique_ptr<SlotMemory> memory = make_host_slot_memory();
        if (ram_slots > 0) {
            memory = std::make_unique<FakeDeviceMemory>(GetParam() + 2,
                                                        FakeDeviceOptions{.busy_buffers = 3,
                                                                          .refused_saves = 8});
        }
        const auto cache = make(pack_, backend, slots,
                                {.ram_bytes = ram_slots * pack_.stride(), .policy = policy,
                                 .verify = VerifyMode::kRead},
                                std::move(memory));
        if (faults) {
            // One read in 20 goes wrong, either way; which, the seed and the count of reads say.
            backend.set_fault([n = GetParam()](const ReadRequest&) mutable {
                n = n * 6364136223846793005u + 1442695040888963407u;
                const uint64_t dice = (n >> 33) % 40;
                return dice == 0 ? Fault::kFail : dice == 1 ? Fault::kBadByte : Fault::kNone;
            });
        }
        requested_ = 0;
        for (int i = 0; i < 600 && !HasFatalFailure(); ++i) step(*cache, faults);
        for (Live& live : live_) check_held(live);
        live_.clear();
        backend.settle();
        { ExpertCache::Acquisition nothing = cache->acquire(0, {}); }  // takes in what arrived

        const CacheStats stats = cache->stats();
        EXPECT_EQ(stats.hits + stats.misses, requested_);
        EXPECT_LE(backend.in_flight_max(), slots);
        EXPECT_LE(stats.slots_used, slots);
        EXPECT_EQ(stats.read_bytes, backend.delivered_whole() * pack_.stride());
        EXPECT_EQ(stats.verified, backend.delivered_whole());
        EXPECT_EQ(stats.io_errors + backend.delivered_whole(), backend.submitted());
        EXPECT_EQ(stats.evictions + stats.slots_used + stats.verify_failures,
                  backend.delivered_whole() + stats.ram_hits);
        // What was saved went back, made room, or is still there.
        EXPECT_EQ(stats.saved_bytes, (stats.ram_hits + stats.ram_evictions + stats.ram_slots_used) *
                                         pack_.stride());
        EXPECT_LE(stats.ram_slots_used, stats.ram_slots);
        EXPECT_EQ(stats.ram_hits > 0, ram_slots > 0);
        EXPECT_EQ(faults, stats.io_errors > 0);
        EXPECT_EQ(faults, stats.verify_failures > 0);
        // After whatever happened, everything can still be had.
        backend.set_fault(nullptr);
        for (const uint32_t block : {0u, 1u, 3u}) use(*cache, block, all_experts(kExperts));
    }

    std::mt19937_64 random_{GetParam()};
    std::vector<Live> live_;
    uint64_t requested_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Seeds, RandomCacheTest, testing::Values(11, 12, 13, 14));

TEST_P(RandomCacheTest, InvariantsHoldAtEverySize) {
    for (const uint64_t slots : {kFloor, kFloor + 1, kFloor + 4, 16u, 23u, 24u}) {
        run(slots, slots % 2 == 0 ? "lfu" : "lru", false);
    }
}

TEST_P(RandomCacheTest, InvariantsHoldWhenReadsFail) {
    for (const uint64_t slots : {kFloor, kFloor + 3, 14u}) run(slots, "lfu", true);
}

TEST_P(RandomCacheTest, InvariantsHoldWithARamTierOfEverySize) {
    for (const uint64_t ram_slots : {kFloor, kFloor + 1, 13u, 20u}) {
        run(kFloor, "lfu", false, ram_slots);
        run(kFloor + 3, ram_slots % 2 == 0 ? "lfu" : "lru", false, ram_slots);
        run(16, "lfu", false, ram_slots);
    }
}

TEST_P(RandomCacheTest, InvariantsHoldWithARamTierWhenReadsFail) {
    for (const uint64_t slots : {kFloor, kFloor + 5}) run(slots, "lfu", true, kFloor + 2);
}

TEST_F(CacheFixture, TwoInterleavedAcquisitionsOfWholeLayersBothFinishAtTheFloor) {
    for (const uint64_t seed : {31, 32, 33}) {
        SCOPED_TRACE(seed);
        std::mt19937_64 random(seed);
        const auto cache = make(kFloor);
        std::vector<Live> live;
        for (const uint32_t block : {0u, 1u}) {
            live.push_back({cache->acquire(block, all_experts(kExperts)), block, {}, {}});
        }
        while (!live.empty()) {
            const size_t index = random() % live.size();
            const Result<Group> group = live[index].acquisition.next();
            ASSERT_TRUE(group) << group.error().message;
            for (const ReadyExpert& ready : *group) {
                EXPECT_TRUE(right(pack_, live[index].block, ready));
                EXPECT_TRUE(live[index].expected.insert(ready.expert).second);
            }
            if (!group->empty()) continue;
            EXPECT_EQ(live[index].expected.size(), kExperts);
            live.erase(live.begin() + static_cast<ptrdiff_t>(index));
        }
    }
}

TEST_F(CacheFixture, StatsMayBeReadFromAnyThread) {
    const auto cache = make(kFloor);
    std::atomic<bool> stop = false;
    std::thread reader([&] {
        uint64_t last = 0;
        while (!stop) {
            const CacheStats stats = cache->stats();
            EXPECT_GE(stats.hits + stats.misses, last);
            EXPECT_LE(stats.slots_used, stats.slots);
            last = stats.hits + stats.misses;
            std::this_thread::yield();
        }
    });
    for (int i = 0; i < 30; ++i) use(*cache, i % 2, all_experts(kExperts));
    stop = true;
    reader.join();
    EXPECT_EQ(cache->stats().hits + cache->stats().misses, 30u * kExperts);
}

}  // namespace
}  // namespace xp
