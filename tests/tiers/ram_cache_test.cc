// An expert cache with a RAM tier behind the slots of a device.
#include "tests/tiers/cache_fixture.h"

namespace xp {
namespace {

using Fault = FaultyBackend::Fault;
using testing::AllOf;
using testing::HasSubstr;

class RamCacheTest : public CacheFixture {
protected:
    std::unique_ptr<ExpertCache> make_tiered(uint64_t slots, uint64_t ram_slots,
                                             FakeDeviceOptions device = {},
                                             const char* policy = "lfu") {
        return make(pack_, backend_, slots,
                    {.ram_bytes = ram_slots * pack_.stride(), .policy = policy,
                     .verify = VerifyMode::kRead},
                    std::make_unique<FakeDeviceMemory>(5, device));
    }
    Result<std::unique_ptr<ExpertCache>> create(uint64_t bytes, uint64_t ram_bytes,
                                                std::unique_ptr<SlotMemory> memory) {
        return ExpertCache::create(pack_.pack(), backend_, std::move(memory),
                                   {.bytes = bytes, .ram_bytes = ram_bytes, .top_k = kTopK});
    }
    // Twice, so that a first tier of the floor no longer has them all; of an LRU cache, those of
    // layer 0 are out.
    void use_pairs(ExpertCache& cache) {
        for (const uint32_t block : {0u, 1u, 3u}) {
            for (int i = 0; i < 2; ++i) use(cache, block, {0, 1});
        }
    }
};

TEST_F(RamCacheTest, WhatLeftItsSlotComesBackWithoutARead) {
    const auto cache = make_tiered(kFloor, 8, {}, "lru");
    use_pairs(*cache);
    const CacheStats before = cache->stats();
    EXPECT_EQ(before.evictions, 2u);
    EXPECT_EQ(before.ram_slots_used, 2u);
    EXPECT_EQ(before.saved_bytes, 2 * pack_.stride());
    use(*cache, 0, {0, 1});
    const CacheStats after = cache->stats();
    EXPECT_EQ(after.read_bytes, before.read_bytes);
    EXPECT_EQ(after.misses - before.misses, 2u);
    EXPECT_EQ(after.ram_hits, 2u);
    EXPECT_EQ(after.copied_bytes - before.copied_bytes, 2 * pack_.stride());
    EXPECT_EQ(after.verified, 6u) << "verified when read, not when copied back";
    EXPECT_EQ(after.ram_slots_used, 2u) << "two went back, two others left their slots";
}

TEST_F(RamCacheTest, AHintBringsBackWhatIsInRam) {
    const auto cache = make_tiered(kFloor + 1, 8, {}, "lru");
    use_pairs(*cache);
    const uint64_t submitted = backend_.submitted();
    const uint32_t hinted[] = {0};
    cache->prefetch(0, hinted);
    EXPECT_EQ(backend_.submitted(), submitted);
    EXPECT_EQ(cache->stats().ram_hits, 1u);
    const uint64_t hits = cache->stats().hits;
    use(*cache, 0, {0});
    EXPECT_EQ(cache->stats().hits, hits + 1);
}

TEST_F(RamCacheTest, AVictimIsGivenUpWhenCopiesAreBehind) {
    const auto cache = make_tiered(kFloor, 8, {.refused_saves = 1}, "lru");
    use_pairs(*cache);
    use(*cache, 0, {0, 1});
    EXPECT_EQ(cache->stats().saved_bytes, 0u);
    EXPECT_EQ(cache->stats().ram_hits, 0u);
    EXPECT_EQ(cache->stats().read_bytes, 8 * pack_.stride());
}

TEST_F(RamCacheTest, AFailedReadLeavesNothingInEitherTier) {
    for (const Fault fault : {Fault::kFail, Fault::kBadByte}) {
        const auto cache = make_tiered(kFloor, 8);
        for (int i = 0; i < 2; ++i) use(*cache, 0, {0, 1, 2, 3});
        backend_.set_fault([&](const ReadRequest&) { return fault; });
        {
            const uint32_t experts[] = {5};
            ExpertCache::Acquisition acquisition = cache->acquire(1, experts);
            const Result<Group> group = acquisition.next();
            ASSERT_FALSE(group);
            EXPECT_THAT(group.error().message, HasSubstr("expert 5 of layer 1"));
        }
        backend_.set_fault(nullptr);
        EXPECT_EQ(cache->stats().ram_slots_used, 1u) << "the one that made room, unharmed";
        const uint64_t read = cache->stats().read_bytes;
        use(*cache, 1, {5});
        EXPECT_EQ(cache->stats().read_bytes, read + pack_.stride());
        EXPECT_EQ(cache->stats().ram_hits, 0u);
        use(*cache, 0, {0, 1, 2, 3});
        EXPECT_EQ(cache->stats().ram_hits, 1u);
    }
}

TEST_F(RamCacheTest, PassesOverWholeLayersDoNotFlushWhatDecodingUses) {
    const auto cache = make_tiered(kFloor, 6);
    // Nine experts for nine places: one RAM slot of six stays free.
    const auto decode = [&] {
        for (const uint32_t block : {0u, 1u, 3u}) use(*cache, block, {0, 1, 2});
    };
    for (int i = 0; i < 6; ++i) decode();
    const uint64_t before = cache->stats().read_bytes;
    decode();
    ASSERT_EQ(cache->stats().read_bytes, before);
    for (int i = 0; i < 4; ++i) {
        for (const uint32_t block : {0u, 1u, 3u}) use(*cache, block, all_experts(kExperts));
    }
    const uint64_t scanned = cache->stats().read_bytes;
    decode();
    // Only what the waves of the scan were read into is lost: the first tier's few slots.
    EXPECT_LE(cache->stats().read_bytes - scanned, kFloor * pack_.stride());
    const uint64_t again = cache->stats().read_bytes;
    decode();
    EXPECT_EQ(cache->stats().read_bytes, again);
}

TEST_F(RamCacheTest, BelowItsHardFloorItIsRefusedWithTheNumbers) {
    const auto cache = create(6 * pack_.stride(), (kFloor - 1) * pack_.stride(),
                              std::make_unique<FakeDeviceMemory>(1));
    ASSERT_FALSE(cache);
    EXPECT_EQ(cache.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(cache.error().message,
                AllOf(HasSubstr("below the hard floor"), HasSubstr("[cache] ram_tier"),
                      HasSubstr(std::to_string((kFloor - 1) * pack_.stride()))));
}

TEST_F(RamCacheTest, MemoryThatIsNotThereCutsItOrRefuses) {
    const uint64_t stride = pack_.stride();
    // Three of the ten that are there are for read buffers.
    const auto cut = create(6 * stride, 10 * stride, std::make_unique<FakeDeviceMemory>(
        1, FakeDeviceOptions{.usable_ram = 10 * stride + 5, .warning = "about slots"}));
    ASSERT_TRUE(cut) << cut.error().message;
    EXPECT_EQ((*cut)->stats().ram_slots, 7u);
    EXPECT_EQ((*cut)->stats().ram_slot_bytes, 7 * stride);
    EXPECT_THAT((*cut)->warning(),
                AllOf(HasSubstr("the RAM tier was cut from"), HasSubstr("about slots")));

    const auto refused = create(6 * stride, 10 * stride, std::make_unique<FakeDeviceMemory>(
        1, FakeDeviceOptions{.usable_ram = stride}));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kNoMemory);
    EXPECT_THAT(refused.error().message,
                AllOf(HasSubstr("of host memory are usable"), HasSubstr("[cache] ram_tier")));
}

TEST_F(RamCacheTest, ItHasNoMoreSlotsThanThereAreExpertsForThem) {
    const uint64_t all = pack_.n_objects();
    const uint64_t stride = pack_.stride();
    const auto most = create((all - 6) * stride, 100 * stride,
                             std::make_unique<FakeDeviceMemory>(1));
    ASSERT_TRUE(most);
    EXPECT_EQ((*most)->stats().ram_slots, 6 + ExpertCache::kInFlightSlots);
    const auto none = create(0, 100 * stride, std::make_unique<FakeDeviceMemory>(1));
    ASSERT_TRUE(none);
    EXPECT_EQ((*none)->stats().ram_slots, 0u);
}

TEST_F(RamCacheTest, SlotsThatAreInMemoryHaveNoTierBehindThem) {
    const auto cache = create(6 * pack_.stride(), 8 * pack_.stride(), make_host_slot_memory());
    ASSERT_TRUE(cache) << cache.error().message;
    EXPECT_EQ((*cache)->stats().ram_slots, 0u);
    EXPECT_THAT((*cache)->warning(), AllOf(HasSubstr("a RAM tier of"), HasSubstr("is not used")));
}

}  // namespace
}  // namespace xp
