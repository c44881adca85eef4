// An expert cache over the slots of a device, where reads are copied on piece by piece.
#include "tests/tiers/cache_fixture.h"

namespace xp {
namespace {

using testing::HasSubstr;

// Reads that the test brings by hand, piece by piece.
class HandReads final : public ReadBackend {
public:
    void submit(std::span<const ReadRequest> requests) override {
        open.insert(open.end(), requests.begin(), requests.end());
    }
    uint64_t alignment() const override { return 1; }
    IoStats stats() const override { return {}; }

    // Page number `page` of the first request, perhaps damaged.
    void bring(uint64_t page, bool damaged = false) {
        const ReadRequest& request = open.front();
        const uint64_t at = page * kPageBytes;
        ASSERT_TRUE(read_exact(request.fd, request.offset + at, {request.buffer + at, kPageBytes},
                               "the pack"));
        if (damaged) request.buffer[at + 7] ^= std::byte{1};
        request.sink->on_piece(request.buffer + at, kPageBytes);
    }
    void end(Result<void> result) {
        const ReadRequest request = open.front();
        open.erase(open.begin());
        request.queue->push({request.tag, std::move(result)});
    }
    // All that is open, from the last page to the first.
    void bring_all() {
        while (!open.empty()) {
            for (uint64_t page = open.front().bytes / kPageBytes; page > 0; --page) bring(page - 1);
            end({});
        }
    }
    std::vector<ReadRequest> open;
};

class DeviceCacheTest : public CacheFixture {
protected:
    std::unique_ptr<ExpertCache> make_device(uint32_t n_buffers = 3) {
        return make(pack_, reads_, kFloor, {.verify = VerifyMode::kRead},
                    std::make_unique<FakeDeviceMemory>(
                        3, FakeDeviceOptions{.n_buffers = n_buffers}));
    }
    // Asks for experts one after the other; each comes at once.
    void use_each(ExpertCache& cache, uint32_t block, const std::vector<uint32_t>& experts) {
        for (const uint32_t expert : experts) {
            ExpertCache::Acquisition acquisition = cache.acquire(block, {{expert}});
            reads_.bring_all();
            drain(pack_, acquisition, block, {expert});
        }
    }
    const uint64_t n_pages_ = pack_.stride() / kPageBytes;
    HandReads reads_;
};

TEST_F(DeviceCacheTest, PiecesAreCopiedAsTheyArriveAndPublishedWithTheLastOfThem) {
    ASSERT_GE(n_pages_, 3u);
    const auto cache = make_device();
    ExpertCache::Acquisition acquisition = cache->acquire(1, {{4}});
    for (uint64_t page = n_pages_; page > 0; --page) {
        reads_.bring(page - 1);
        cache->prefetch(1, {});  // leaves statistics
        EXPECT_EQ(cache->stats().copied_bytes, (n_pages_ - page + 1) * kPageBytes);
    }
    EXPECT_EQ(cache->stats().slots_used, 0u) << "it has not been checked";
    EXPECT_EQ(cache->stats().verified, 0u);
    { ExpertCache::Acquisition other = cache->acquire(1, {{4}}); }
    EXPECT_EQ(cache->stats().hits, 0u);
    reads_.end({});
    drain(pack_, acquisition, 1, {4});
    EXPECT_EQ(cache->stats().slots_used, 1u);
    EXPECT_EQ(cache->stats().copied_bytes, pack_.stride());
}

TEST_F(DeviceCacheTest, WhatFailsInTheMiddleIsNotPublishedAndItsBufferAndSlotServeOthers) {
    const auto cache = make_device(1);
    for (uint64_t brought = 0; brought <= n_pages_; ++brought) {
        SCOPED_TRACE(brought);
        const uint64_t before = cache->stats().copied_bytes;
        ExpertCache::Acquisition acquisition = cache->acquire(0, {{7}});
        for (uint64_t page = 0; page < brought; ++page) reads_.bring(page);
        reads_.end(make_error(ErrorCode::kIo, "the drive is gone"));
        const Result<Group> group = acquisition.next();
        ASSERT_FALSE(group);
        EXPECT_THAT(group.error().message, HasSubstr("expert 7 of layer 0"));
        EXPECT_EQ(cache->stats().copied_bytes - before, brought * kPageBytes)
            << "copied all the same";
        use_each(*cache, 1, {static_cast<uint32_t>(brought), 6});
    }
    EXPECT_EQ(cache->stats().io_errors, n_pages_ + 1);
}

TEST_F(DeviceCacheTest, DamagedBytesThatWereCopiedAreNeverHandedOut) {
    const auto cache = make_device();
    ExpertCache::Acquisition acquisition = cache->acquire(3, {{2}});
    for (uint64_t page = 0; page < n_pages_; ++page) reads_.bring(page, page == 1);
    reads_.end({});
    const Result<Group> group = acquisition.next();
    ASSERT_FALSE(group);
    EXPECT_EQ(group.error().code, ErrorCode::kCorrupt);
    EXPECT_EQ(cache->stats().slots_used, 0u);
    use_each(*cache, 3, {2, 1});
    EXPECT_EQ(cache->stats().verify_failures, 1u);
}

// Not an error that says all slots are in use.
TEST_F(CacheFixture, OneBufferThatIsStillCopiedOutOfIsWaitedFor) {
    const auto cache = make(pack_, backend_, kFloor, {.verify = VerifyMode::kRead},
                            std::make_unique<FakeDeviceMemory>(
                                4, FakeDeviceOptions{.n_buffers = 1, .busy_buffers = 2}));
    for (int i = 0; i < 10; ++i) {
        for (const uint32_t block : {0u, 1u, 3u}) use(*cache, block, all_experts(kExperts));
    }
    EXPECT_EQ(backend_.in_flight_max(), 1u);
}

}  // namespace
}  // namespace xp
