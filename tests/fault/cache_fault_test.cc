// The expert cache on bad drives, a few hundred seeded runs: whatever order, size and pace reads
// have, the bytes are right; a failed or damaged read is told once, with its name, and leaves
// nothing behind.
#include "tests/tiers/cache_fixture.h"

namespace xp {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Fault = FaultyBackend::Fault;

constexpr uint64_t kSeeds = 150;
constexpr uint32_t kBlocks[] = {0, 1, 3};

class CacheFaultTest : public CacheFixture {
protected:
    // Slots that are read into, or those of a device.
    static std::unique_ptr<SlotMemory> memory(uint64_t seed) {
        if (seed % 3 != 0) return make_host_slot_memory();
        return std::make_unique<FakeDeviceMemory>(seed, FakeDeviceOptions{.busy_buffers = 3});
    }
    std::vector<uint32_t> some_experts(std::mt19937_64& random) {
        std::vector<uint32_t> experts = all_experts(kExperts);
        std::shuffle(experts.begin(), experts.end(), random);
        experts.resize(1 + random() % kExperts);
        return experts;
    }
    // The error of asking for `experts`, or nothing when all of them came, each checked.
    std::optional<Error> ask(ExpertCache& cache, uint32_t block,
                             const std::vector<uint32_t>& experts) {
        ExpertCache::Acquisition acquisition = cache.acquire(block, experts);
        size_t seen = 0;
        for (;;) {
            const Result<Group> group = acquisition.next();
            if (!group) {
                EXPECT_FALSE(acquisition.next()) << "it is over";
                return group.error();
            }
            for (const ReadyExpert& ready : *group) {
                EXPECT_TRUE(right(pack_, block, ready)) << block << " " << ready.expert;
            }
            seen += group->size();
            if (group->empty()) break;
        }
        EXPECT_EQ(seen, experts.size());
        return std::nullopt;
    }
};

TEST_F(CacheFaultTest, DelaysReorderingInterruptionsAndShortReadsChangeNoByte) {
    uint64_t short_reads = 0, retries = 0;
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
        SCOPED_TRACE(fmt::format("seed {}", seed));
        std::mt19937_64 random(seed);
        FaultyBackend backend(seed, FaultyBackend::kStorm, (1 + seed % 2) * kPageBytes);
        const auto cache = make(pack_, backend, kFloor + random() % 12,
                                {.policy = seed % 2 == 0 ? "lfu" : "lru",
                                 .verify = VerifyMode::kRead}, memory(seed));
        for (int i = 0; i < 6; ++i) {
            const uint32_t block = kBlocks[random() % 3];
            if (random() % 3 == 0) cache->prefetch(kBlocks[random() % 3], some_experts(random));
            const std::optional<Error> error = ask(*cache, block, some_experts(random));
            EXPECT_FALSE(error) << error->message;
        }
        EXPECT_EQ(cache->stats().io_errors + cache->stats().verify_failures, 0u);
        short_reads += backend.stats().short_reads;
        retries += backend.stats().retries;
    }
    EXPECT_GT(short_reads, kSeeds);
    EXPECT_GT(retries, kSeeds);
}

TEST_F(CacheFaultTest, AFailedReadIsToldOnceWithItsNameAndIsReadAfreshLater) {
    uint64_t told = 0;
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
        SCOPED_TRACE(fmt::format("seed {}", seed));
        std::mt19937_64 random(seed);
        FaultyBackend backend(seed, FaultyBackend::kStorm, (1 + seed % 2) * kPageBytes);
        const auto cache = make(pack_, backend, kFloor + random() % 12, {}, memory(seed));
        const uint32_t block = kBlocks[random() % 3];
        const std::vector<uint32_t> experts = some_experts(random);
        const uint32_t bad = experts[random() % experts.size()];
        const uint64_t offset = pack_.pack().place(*pack_.pack().find_layer(block), bad).offset;
        backend.set_fault([&](const ReadRequest& request) {
            return request.offset == offset ? Fault::kFail : Fault::kNone;
        });
        const std::optional<Error> error = ask(*cache, block, experts);
        ASSERT_TRUE(error);
        EXPECT_EQ(error->code, ErrorCode::kIo);
        EXPECT_THAT(error->message,
                    AllOf(HasSubstr(fmt::format("expert {} of layer {}", bad, block)),
                          HasSubstr("experts.000.xpk"), HasSubstr("Input/output error")));
        backend.set_fault(nullptr);
        const std::optional<Error> again = ask(*cache, block, experts);
        EXPECT_FALSE(again) << again->message;
        told += cache->stats().io_errors;
        EXPECT_EQ(cache->stats().io_errors, backend.failed());
    }
    EXPECT_EQ(told, kSeeds);
}

TEST_F(CacheFaultTest, DamagedBytesAreNeverHandedOutWhenReadsAreVerified) {
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
        SCOPED_TRACE(fmt::format("seed {}", seed));
        std::mt19937_64 random(seed);
        FaultyBackend backend(seed, FaultyBackend::kStorm, (1 + seed % 2) * kPageBytes);
        const auto cache = make(pack_, backend, kFloor + random() % 12,
                                {.verify = VerifyMode::kRead}, memory(seed));
        const uint32_t block = kBlocks[random() % 3];
        const std::vector<uint32_t> experts = some_experts(random);
        const uint32_t bad = experts[random() % experts.size()];
        const uint64_t offset = pack_.pack().place(*pack_.pack().find_layer(block), bad).offset;
        backend.set_fault([&](const ReadRequest& request) {
            return request.offset == offset ? Fault::kBadByte : Fault::kNone;
        });
        const std::optional<Error> error = ask(*cache, block, experts);
        ASSERT_TRUE(error);
        EXPECT_EQ(error->code, ErrorCode::kCorrupt);
        EXPECT_THAT(error->message,
                    AllOf(HasSubstr(fmt::format("expert {} of layer {}", bad, block)),
                          HasSubstr("experts.000.xpk"), HasSubstr("checksum")));
        backend.set_fault(nullptr);
        const std::optional<Error> again = ask(*cache, block, experts);
        EXPECT_FALSE(again) << again->message;
        EXPECT_EQ(cache->stats().verify_failures, 1u);
    }
}

// What `[io] verify = "off"` means: nobody looks.
TEST_F(CacheFaultTest, DamagedBytesPassWhenVerifyingIsOff) {
    FaultyBackend backend(5);
    const auto cache = make(pack_, backend, kFloor, {.verify = VerifyMode::kOff});
    backend.set_fault([](const ReadRequest&) { return Fault::kBadByte; });
    ExpertCache::Acquisition acquisition = cache->acquire(1, std::vector<uint32_t>{4});
    const Result<Group> group = acquisition.next();
    ASSERT_TRUE(group) << group.error().message;
    ASSERT_EQ(group->size(), 1u);
    EXPECT_FALSE(right(pack_, 1, group->front()));
    EXPECT_EQ(cache->stats().verified, 0u);
    EXPECT_EQ(cache->stats().verify_failures, 0u);
}

}  // namespace
}  // namespace xp
