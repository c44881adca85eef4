// The rules of the expert cache one by one, against a backend the test controls.
#include "tests/tiers/cache_fixture.h"

namespace xp {
namespace {

using testing::HasSubstr;
using testing::UnorderedElementsAre;
using Fault = FaultyBackend::Fault;

using ExpertCacheTest = CacheFixture;

TEST_F(ExpertCacheTest, EveryExpertComesOnceWithItsBytesAtEveryCacheSize) {
    for (uint64_t slots = kFloor; slots <= pack_.n_objects(); ++slots) {
        SCOPED_TRACE(slots);
        const auto cache = make(slots);
        for (int round = 0; round < 2; ++round) {
            for (const uint32_t block : {0u, 1u, 3u}) use(*cache, block, all_experts(kExperts));
        }
        const CacheStats stats = cache->stats();
        EXPECT_EQ(stats.slots, slots);
        EXPECT_EQ(stats.hits + stats.misses, 2 * pack_.n_objects());
        EXPECT_LE(stats.slots_used, slots);
        if (slots == pack_.n_objects()) {
            EXPECT_EQ(stats.hits, pack_.n_objects());
            EXPECT_EQ(stats.evictions, 0u);
            EXPECT_EQ(stats.read_bytes, pack_.n_objects() * pack_.stride());
        } else {
            EXPECT_GT(stats.evictions, 0u);
        }
    }
}

TEST_F(ExpertCacheTest, BelowTheHardFloorIsRefusedWithTheNumbers) {
    CacheOptions options;
    options.bytes = kFloor * pack_.stride() - 1;
    options.top_k = kTopK;
    const auto cache =
        ExpertCache::create(pack_.pack(), backend_, make_host_slot_memory(), options);
    ASSERT_FALSE(cache);
    EXPECT_EQ(cache.error().code, ErrorCode::kNoMemory);
    EXPECT_THAT(cache.error().message, HasSubstr(fmt::format("{} bytes", options.bytes)));
    EXPECT_THAT(cache.error().message, HasSubstr(fmt::format("{} slots", kFloor)));
}

TEST_F(ExpertCacheTest, AnUnknownPolicyIsRefused) {
    CacheOptions options;
    options.top_k = kTopK;
    options.policy = "belady";
    const auto cache =
        ExpertCache::create(pack_.pack(), backend_, make_host_slot_memory(), options);
    EXPECT_THAT(cache.error().message, HasSubstr("belady"));
}

TEST_F(ExpertCacheTest, FewerSlotsThanATokenUsesIsAWarning) {
    EXPECT_THAT(make(kTopK * 3 - 1)->warning(), HasSubstr("5 slots"));
    EXPECT_EQ(make(kTopK * 3)->warning(), "");
    EXPECT_EQ(make(kTopK * 3)->stats().working_set_slots, kTopK * 3);
}

TEST_F(ExpertCacheTest, ReadsStartWithAcquireAndHitsComeFirst) {
    const auto cache = make(8);
    use(*cache, 0, {1, 4, 6});
    backend_.hold(true);
    const uint64_t stalls = cache->stats().stalls;
    const std::vector<uint32_t> experts = {0, 1, 2, 4, 5, 6};
    ExpertCache::Acquisition acquisition = cache->acquire(0, experts);
    EXPECT_EQ(backend_.in_flight(), 3u) << "all misses, before anybody waits";
    EXPECT_EQ(cache->stats().hits, 3u);
    EXPECT_EQ(cache->stats().misses, 3u + 3u);
    EXPECT_EQ(experts_of(*acquisition.next()), (std::vector<uint32_t>{1, 4, 6}));
    EXPECT_EQ(cache->stats().stalls, stalls) << "hits do not wait for the drive";
    backend_.hold(false);
    std::vector<uint32_t> rest;
    for (Group group = *acquisition.next(); !group.empty(); group = *acquisition.next()) {
        for (const ReadyExpert& ready : group) {
            EXPECT_TRUE(right(pack_, 0, ready));
            rest.push_back(ready.expert);
        }
    }
    EXPECT_THAT(rest, UnorderedElementsAre(0, 2, 5));
}

TEST_F(ExpertCacheTest, WhatHasArrivedIsHandedOutTogether) {
    const auto cache = make(10);
    ExpertCache::Acquisition acquisition = cache->acquire(1, std::vector<uint32_t>{5, 2, 7, 0});
    backend_.settle();
    EXPECT_EQ(experts_of(*acquisition.next()), (std::vector<uint32_t>{5, 2, 7, 0}));
    EXPECT_TRUE(acquisition.next()->empty());
    EXPECT_TRUE(acquisition.next()->empty()) << "and stays empty";
    EXPECT_EQ(cache->stats().waves, 1u);
    EXPECT_EQ(cache->stats().stalls, 0u);
}

TEST_F(ExpertCacheTest, WhoAsksForMostOfALayerIsHandedExpertsInGroups) {
    const auto cache = make(3 * kExperts);
    use(*cache, 0, all_experts(kExperts));
    EXPECT_LE(cache->stats().waves, 2u) << "a quarter of the slots, then the rest";
    const auto floor = make(kFloor);
    use(*floor, 0, all_experts(kExperts));
    EXPECT_GE(floor->stats().waves, kExperts / 2);
}

TEST_F(ExpertCacheTest, AskingForNothingGivesNothing) {
    const auto cache = make(kFloor);
    ExpertCache::Acquisition acquisition = cache->acquire(0, {});
    EXPECT_TRUE(acquisition.next()->empty());
    EXPECT_EQ(cache->stats().waves, 0u);
}

TEST_F(ExpertCacheTest, WaitingForTheDriveIsCountedAsAStall) {
    const auto cache = make(kFloor);
    backend_.hold(true);
    ExpertCache::Acquisition acquisition = cache->acquire(0, std::vector<uint32_t>{3});
    std::thread later([this] {
        // Long enough for the other thread to have begun waiting on a machine with other work.
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        backend_.hold(false);
    });
    EXPECT_EQ(experts_of(*acquisition.next()), (std::vector<uint32_t>{3}));
    later.join();
    EXPECT_EQ(cache->stats().stalls, 1u);
    EXPECT_GT(cache->stats().stall_us, 0u);
}

TEST_F(ExpertCacheTest, AGroupLeavesSlotsForTheNextWaveToBeReadInto) {
    const auto cache = make(kFloor);
    ExpertCache::Acquisition acquisition = cache->acquire(0, all_experts(kExperts));
    EXPECT_EQ(backend_.submitted(), kFloor);
    backend_.settle();
    EXPECT_EQ(acquisition.next()->size(), kTopK);
    backend_.hold(true);
    // Two that were read before are handed out, the two released ones are being read into.
    EXPECT_EQ(acquisition.next()->size(), kTopK);
    EXPECT_EQ(backend_.in_flight(), kTopK);
    backend_.hold(false);
    drain(pack_, acquisition, 0, {4, 5, 6, 7});
}

TEST_F(ExpertCacheTest, AFailedReadNamesTheObjectPublishesNothingAndIsReadAfresh) {
    const auto cache = make(8);
    const Pack::ObjectPlace place = pack_.pack().place(*pack_.pack().find_layer(1), 5);
    backend_.set_fault([&](const ReadRequest& request) {
        return request.offset == place.offset ? Fault::kFail : Fault::kNone;
    });
    ExpertCache::Acquisition acquisition = cache->acquire(1, std::vector<uint32_t>{4, 5});
    backend_.settle();
    const Result<Group> group = acquisition.next();
    ASSERT_FALSE(group);
    EXPECT_EQ(group.error().code, ErrorCode::kIo);
    EXPECT_THAT(group.error().message, HasSubstr("expert 5 of layer 1"));
    EXPECT_THAT(group.error().message, HasSubstr("Input/output error"));
    EXPECT_FALSE(acquisition.next()) << "it is over";
    EXPECT_EQ(cache->stats().io_errors, 1u);
    EXPECT_EQ(cache->stats().slots_used, 1u) << "only expert 4";

    backend_.set_fault(nullptr);
    const uint64_t before = backend_.submitted();
    use(*cache, 1, {4, 5});
    EXPECT_EQ(backend_.submitted(), before + 1);
}

TEST_F(ExpertCacheTest, BadBytesAreRefusedWhenEveryReadIsVerified) {
    const auto cache = make(8, {.verify = VerifyMode::kRead});
    backend_.set_fault([](const ReadRequest&) { return Fault::kBadByte; });
    ExpertCache::Acquisition acquisition = cache->acquire(3, std::vector<uint32_t>{6});
    const Result<Group> group = acquisition.next();
    ASSERT_FALSE(group);
    EXPECT_EQ(group.error().code, ErrorCode::kCorrupt);
    EXPECT_THAT(group.error().message, HasSubstr("expert 6 of layer 3"));
    EXPECT_THAT(group.error().message, HasSubstr("checksum"));
    EXPECT_EQ(cache->stats().verify_failures, 1u);
    EXPECT_EQ(cache->stats().io_errors, 0u);
    EXPECT_EQ(cache->stats().slots_used, 0u);
    backend_.set_fault(nullptr);
    use(*cache, 3, {6});
    EXPECT_EQ(cache->stats().verified, 2u);
    EXPECT_EQ(cache->stats().verify_failures, 1u);
}

TEST_F(ExpertCacheTest, SamplingVerifiesOneReadIn64StartingWithTheFirst) {
    const auto cache = make(kFloor, {.verify = VerifyMode::kSample});
    uint64_t reads = 0;
    while (reads < 200) {
        use(*cache, 0, all_experts(kExperts));
        use(*cache, 1, all_experts(kExperts));
        reads = cache->stats().read_bytes / pack_.stride();
        EXPECT_EQ(cache->stats().verified, (reads + 63) / 64);
    }
    const auto fresh = make(kFloor, {.verify = VerifyMode::kSample});
    backend_.set_fault([](const ReadRequest&) { return Fault::kBadByte; });
    EXPECT_FALSE(fresh->acquire(0, std::vector<uint32_t>{1}).next());
}

TEST_F(ExpertCacheTest, NothingIsVerifiedWhenVerifyIsOff) {
    const auto cache = make(kFloor, {.verify = VerifyMode::kOff});
    use(*cache, 0, all_experts(kExperts));
    EXPECT_EQ(cache->stats().verified, 0u);
}

TEST_F(ExpertCacheTest, AReadUnderWayIsJoinedAndItsFailureReachesAllWhoWait) {
    const auto cache = make(8);
    backend_.hold(true);
    backend_.set_fault([](const ReadRequest&) { return Fault::kFail; });
    ExpertCache::Acquisition first = cache->acquire(0, std::vector<uint32_t>{1, 2});
    ExpertCache::Acquisition second = cache->acquire(0, std::vector<uint32_t>{2});
    ExpertCache::Acquisition third = cache->acquire(1, std::vector<uint32_t>{2});
    EXPECT_EQ(backend_.submitted(), 3u) << "expert 2 of layer 0 once";
    EXPECT_EQ(cache->stats().misses, 4u);
    backend_.hold(false);
    backend_.settle();
    backend_.set_fault(nullptr);
    EXPECT_FALSE(first.next());
    const Result<Group> group = second.next();
    ASSERT_FALSE(group);
    EXPECT_THAT(group.error().message, HasSubstr("expert 2 of layer 0"));
    EXPECT_FALSE(third.next());
    use(*cache, 0, {1, 2});
}

TEST_F(ExpertCacheTest, ADroppedAcquisitionsReadsFinishAndTheirSlotsAreNotReusedBefore) {
    const auto cache = make(kFloor);
    backend_.hold(true);
    {
        ExpertCache::Acquisition dropped = cache->acquire(0, {{0, 1, 2, 3}});
    }
    ExpertCache::Acquisition acquisition = cache->acquire(1, {{5, 6}});
    EXPECT_EQ(backend_.submitted(), kFloor) << "no slot is free before a read is complete";
    backend_.hold(false);
    drain(pack_, acquisition, 1, {5, 6});
    backend_.settle();
    use(*cache, 3, {});
    EXPECT_EQ(cache->stats().hits + cache->stats().misses, 6u);
    // What was read for nobody is there all the same (two of it made room).
    const uint64_t before = backend_.submitted();
    use(*cache, 0, {0, 1, 2, 3});
    EXPECT_LE(backend_.submitted(), before + 4);
}

TEST_F(ExpertCacheTest, DestructionWaitsForReadsInFlight) {
    auto cache = make(kFloor);
    backend_.hold(true);
    { ExpertCache::Acquisition dropped = cache->acquire(0, {{0, 1, 2}}); }
    std::thread later([this] {
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
        backend_.hold(false);
    });
    cache.reset();  // the fake would write into freed memory otherwise
    EXPECT_EQ(backend_.in_flight(), 0u);
    later.join();
}

TEST_F(ExpertCacheTest, WhatALiveAcquisitionWaitsForIsEvictedLast) {
    const auto cache = make(8);
    use(*cache, 0, {0, 1, 2, 3});
    for (int i = 0; i < 5; ++i) use(*cache, 1, {0, 1, 2, 3});  // far more popular
    ExpertCache::Acquisition waits = cache->acquire(0, {{0, 1, 2, 3}});
    use(*cache, 3, {0, 1, 2, 3});
    backend_.hold(true);
    EXPECT_EQ(experts_of(*waits.next()), (std::vector<uint32_t>{0, 1, 2, 3}));
    backend_.hold(false);
}

TEST_F(ExpertCacheTest, WhereAllSlotsAreWaitedForOthersTakeOneTokensWorth) {
    const auto cache = make(8);
    use(*cache, 0, all_experts(kExperts));
    ExpertCache::Acquisition waits = cache->acquire(0, all_experts(kExperts));
    use(*cache, 1, all_experts(kExperts));
    const uint64_t before = backend_.submitted();
    drain(pack_, waits, 0, all_experts(kExperts));
    EXPECT_EQ(backend_.submitted() - before, kTopK) << "only those had to be read again";
}

TEST_F(ExpertCacheTest, PinnedBytesStayWhileOthersNeedRoom) {
    const auto cache = make(kFloor);
    ExpertCache::Acquisition holds = cache->acquire(0, {{2, 3}});
    backend_.settle();
    const Group group = *holds.next();
    ASSERT_EQ(group.size(), 2u);
    for (int i = 0; i < 3; ++i) use(*cache, 1, all_experts(kExperts));
    for (const ReadyExpert& ready : group) EXPECT_TRUE(right(pack_, 0, ready));
    holds.release();
    EXPECT_TRUE(holds.next()->empty());
}

TEST_F(ExpertCacheTest, WhenOthersHoldEverySlotTheAnswerIsBusyAndNotAHang) {
    const auto cache = make(kFloor);
    std::vector<ExpertCache::Acquisition> holders;
    // At the floor the first holds top_k slots and later ones one each.
    for (const auto& [block, size] : {std::pair{0u, 2u}, {1u, 1u}, {3u, 1u}}) {
        holders.push_back(cache->acquire(block, all_experts(kExperts)));
        backend_.settle();
        EXPECT_EQ(holders.back().next()->size(), size);
    }
    ExpertCache::Acquisition late = cache->acquire(1, {{7}});
    const Result<Group> group = late.next();
    ASSERT_FALSE(group);
    EXPECT_EQ(group.error().code, ErrorCode::kBusy);
    EXPECT_THAT(group.error().message, HasSubstr("layer 1"));
    EXPECT_THAT(group.error().message, HasSubstr("all 4 are in use by 3 other acquisitions"));
    // Each holder still gets on, since it lets go of its group first.
    drain(pack_, holders[2], 3, {1, 2, 3, 4, 5, 6, 7});
    use(*cache, 1, {7});
}

TEST_F(ExpertCacheTest, MovedAcquisitionsGoOn) {
    const auto cache = make(8);
    ExpertCache::Acquisition a = cache->acquire(0, {{0, 1, 2}});
    ExpertCache::Acquisition b = std::move(a);
    a = cache->acquire(1, {{4}});
    std::swap(a, b);
    drain(pack_, a, 0, {0, 1, 2});
    drain(pack_, b, 1, {4});
}

TEST_F(ExpertCacheTest, LayersOfDifferentSizesHaveSlotsOfTheirOwn) {
    const TestPack pack({{0, 8, 32}, {1, 8, 96}, {2, 8, 32}});
    ASSERT_NE(pack.stride(0), pack.stride(1));
    const uint64_t floor_bytes = kFloor * (pack.stride(0) + pack.stride(1));
    const uint64_t all_bytes = 16 * pack.stride(0) + 8 * pack.stride(1);
    for (uint64_t bytes = floor_bytes; bytes <= all_bytes; bytes += 3 * pack.stride(0)) {
        CacheOptions options{.bytes = bytes, .verify = VerifyMode::kRead, .top_k = kTopK};
        const auto cache =
            ExpertCache::create(pack.pack(), backend_, make_host_slot_memory(), options);
        ASSERT_TRUE(cache) << cache.error().message;
        for (int round = 0; round < 2; ++round) {
            for (const uint32_t block : {0u, 1u, 2u}) {
                ExpertCache::Acquisition a = (*cache)->acquire(block, all_experts(8));
                drain(pack, a, block, all_experts(8));
            }
        }
        EXPECT_LE((*cache)->stats().slot_bytes, bytes);
    }
}

// ---- hints

TEST_F(ExpertCacheTest, APrefetchedExpertIsAHitOnceItHasArrived) {
    const auto cache = make(8);
    cache->prefetch(1, {{2, 5}});
    EXPECT_EQ(cache->stats().prefetches, 2u);
    backend_.settle();
    ExpertCache::Acquisition acquisition = cache->acquire(1, {{2, 5}});
    EXPECT_EQ(cache->stats().hits, 2u);
    EXPECT_EQ(backend_.submitted(), 2u);
    drain(pack_, acquisition, 1, {2, 5});
}

TEST_F(ExpertCacheTest, APrefetchUnderWayIsJoined) {
    const auto cache = make(8);
    backend_.hold(true);
    cache->prefetch(1, {{2}});
    ExpertCache::Acquisition acquisition = cache->acquire(1, {{2}});
    EXPECT_EQ(backend_.submitted(), 1u);
    EXPECT_EQ(cache->stats().misses, 1u);
    backend_.hold(false);
    drain(pack_, acquisition, 1, {2});
}

TEST_F(ExpertCacheTest, HintsNeverTieUpTheSlotsOfTheFloor) {
    const auto cache = make(kFloor + 2);
    backend_.hold(true);
    cache->prefetch(1, all_experts(kExperts));
    EXPECT_EQ(backend_.in_flight(), 2u);
    ExpertCache::Acquisition acquisition = cache->acquire(0, {{0, 1, 2, 3}});
    EXPECT_EQ(backend_.in_flight(), 2u + 4u);
    backend_.hold(false);
    drain(pack_, acquisition, 0, {0, 1, 2, 3});

    const auto floor = make(kFloor);
    floor->prefetch(1, all_experts(kExperts));
    EXPECT_EQ(floor->stats().prefetches, 0u);
}

TEST_F(ExpertCacheTest, HintsEvictNothingThatIsWaitedForOrExpected) {
    const auto cache = make(8);
    use(*cache, 0, {0, 1, 2, 3});
    use(*cache, 1, {0, 1, 2, 3});
    ExpertCache::Acquisition waits = cache->acquire(0, {{0, 1, 2, 3}});
    for (int i = 0; i < 3; ++i) {
        cache->prefetch(1, {{0, 1, 2, 3}});  // there already
        cache->prefetch(3, all_experts(kExperts));
        backend_.settle();
    }
    EXPECT_EQ(cache->stats().prefetches, 0u);
    EXPECT_EQ(cache->stats().evictions, 0u);
    drain(pack_, waits, 0, {0, 1, 2, 3});
}

TEST_F(ExpertCacheTest, HintsEvictNothingOfTheirOwnLayer) {
    const auto cache = make(8);
    use(*cache, 1, all_experts(kExperts));
    cache->prefetch(3, {{0, 1}});
    backend_.settle();
    EXPECT_EQ(cache->stats().evictions, 2u) << "the other layer's";
    cache->prefetch(3, all_experts(kExperts));
    backend_.settle();
    const uint64_t before = backend_.submitted();
    ExpertCache::Acquisition acquisition = cache->acquire(3, {{0, 1}});
    EXPECT_EQ(backend_.submitted(), before);
    drain(pack_, acquisition, 3, {0, 1});
}

// By frequency alone the next miss would throw out what was just read ahead.
TEST_F(ExpertCacheTest, WhatWasReadAheadOutlivesTheMissesBeforeItsTurn) {
    const auto cache = make(8);
    for (int i = 0; i < 3; ++i) use(*cache, 0, all_experts(kExperts));
    cache->prefetch(3, {{1, 2}});
    backend_.settle();
    use(*cache, 1, {0, 1, 2, 3});
    const uint64_t before = backend_.submitted();
    ExpertCache::Acquisition acquisition = cache->acquire(3, {{1, 2}});
    EXPECT_EQ(backend_.submitted(), before);
    drain(pack_, acquisition, 3, {1, 2});
}

TEST_F(ExpertCacheTest, AForgottenHintStopsProtectingItsExpert) {
    const auto cache = make(kFloor + 2);
    cache->prefetch(3, {{1, 2}});
    backend_.settle();
    const auto use_six = [&] {
        const uint64_t before = backend_.submitted();
        use(*cache, 0, {0, 1, 2});
        use(*cache, 0, {3, 4, 5});
        return backend_.submitted() - before;
    };
    for (int i = 0; i < 10; ++i) EXPECT_GT(use_six(), 0u) << "two of six slots are kept";
    for (int i = 0; i < 150; ++i) use_six();
    EXPECT_EQ(use_six(), 0u) << "all six slots serve what is really used";
}

}  // namespace
}  // namespace xp
