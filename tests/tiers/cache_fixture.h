// What the tests of the expert cache share.
#pragma once

#include <gmock/gmock.h>

#include <numeric>
#include <set>

#include "daemon/tiers/expert_cache.h"
#include "tests/fault/faulty_backend.h"
#include "tests/tiers/fake_device_memory.h"
#include "tests/tiers/test_pack.h"

namespace xp {

inline std::vector<uint32_t> all_experts(uint32_t n) {
    std::vector<uint32_t> experts(n);
    std::iota(experts.begin(), experts.end(), 0u);
    return experts;
}

class CacheFixture : public testing::Test {
protected:
    static constexpr uint32_t kTopK = 2;
    static constexpr uint32_t kFloor = kTopK + ExpertCache::kInFlightSlots;
    static constexpr uint32_t kExperts = 8;  // per layer
    using Group = std::span<const ReadyExpert>;

    static std::unique_ptr<ExpertCache> make(const TestPack& pack, ReadBackend& backend,
                                             uint64_t slots, CacheOptions options = {},
                                             std::unique_ptr<SlotMemory> memory =
                                                 make_host_slot_memory()) {
        options.bytes = slots * pack.stride();
        options.top_k = kTopK;
        Result<std::unique_ptr<ExpertCache>> cache =
            ExpertCache::create(pack.pack(), backend, std::move(memory), options);
        if (!cache) {
            ADD_FAILURE() << cache.error().message;
            return nullptr;
        }
        return std::move(*cache);
    }
    std::unique_ptr<ExpertCache> make(uint64_t slots, CacheOptions options = {}) {
        return make(pack_, backend_, slots, options);
    }

    static bool right(const TestPack& pack, uint32_t block, const ReadyExpert& ready) {
        const std::span<const std::byte> want = pack.object(block, ready.expert);
        return std::equal(want.begin(), want.end(), ready.data);
    }
    static std::vector<uint32_t> experts_of(Group group) {
        std::vector<uint32_t> experts;
        for (const ReadyExpert& ready : group) experts.push_back(ready.expert);
        return experts;
    }

    // Hands out everything and checks that each expert came exactly once, with its bytes.
    static void drain(const TestPack& pack, ExpertCache::Acquisition& acquisition, uint32_t block,
                      std::vector<uint32_t> want) {
        std::vector<uint32_t> seen;
        for (;;) {
            const Result<Group> group = acquisition.next();
            ASSERT_TRUE(group) << group.error().message;
            if (group->empty()) break;
            for (const ReadyExpert& ready : *group) {
                EXPECT_TRUE(right(pack, block, ready)) << block << " " << ready.expert;
                seen.push_back(ready.expert);
            }
        }
        std::sort(want.begin(), want.end());
        std::sort(seen.begin(), seen.end());
        EXPECT_EQ(seen, want);
    }
    void use(ExpertCache& cache, uint32_t block, const std::vector<uint32_t>& experts) {
        ExpertCache::Acquisition acquisition = cache.acquire(block, experts);
        drain(pack_, acquisition, block, experts);
    }

    TestPack pack_{{{0}, {1}, {3}}};
    FaultyBackend backend_{7};
};

}  // namespace xp
