#include <deque>

#include "tests/shm/segments.h"

namespace xp::shm {
namespace {

constexpr uint64_t kRing = 4096;

std::vector<std::byte> bytes(size_t size, int value = 1) {
    return std::vector<std::byte>(size, static_cast<std::byte>(value));
}

TEST(Ring, IsEmptyAtFirst) {
    const Segments segments(kRing);
    RingReader reader = segments.daemon_reader();
    Record record;
    EXPECT_EQ(reader.read(&record), RingStatus::kEmpty);
    EXPECT_EQ(segments.client_writer().free_bytes(), kRing);
}

TEST(Ring, DeliversRecordsInOrderWithTheirIds) {
    const Segments segments(kRing);
    RingWriter writer = segments.client_writer();
    RingReader reader = segments.daemon_reader();
    for (uint64_t id = 1; id <= 5; ++id) {
        ASSERT_EQ(writer.write(id, bytes(id * 3, static_cast<int>(id))), RingStatus::kOk);
    }
    Record record;
    for (uint64_t id = 1; id <= 5; ++id) {
        ASSERT_EQ(reader.read(&record), RingStatus::kOk);
        EXPECT_EQ(record.request_id, id);
        EXPECT_TRUE(is_body(record.body, bytes(id * 3, static_cast<int>(id))));
    }
    EXPECT_EQ(reader.read(&record), RingStatus::kEmpty);
    EXPECT_EQ(writer.free_bytes(), kRing);
}

TEST(Ring, TheTwoDirectionsAreIndependent) {
    const Segments segments(kRing);
    RingWriter up = segments.client_writer();
    RingWriter down = segments.daemon_writer();
    ASSERT_EQ(up.write(1, bytes(10, 1)), RingStatus::kOk);
    ASSERT_EQ(down.write(2, bytes(20, 2)), RingStatus::kOk);
    Record record;
    RingReader daemon = segments.daemon_reader();
    RingReader client = segments.client_reader();
    ASSERT_EQ(daemon.read(&record), RingStatus::kOk);
    EXPECT_EQ(record.request_id, 1u);
    ASSERT_EQ(client.read(&record), RingStatus::kOk);
    EXPECT_EQ(record.request_id, 2u);
}

TEST(Ring, ARecordIsAtMostHalfTheRing) {
    const Segments segments(kRing);
    RingWriter writer = segments.client_writer();
    const size_t most = writer.max_record_bytes() - sizeof(RecordHeader);
    EXPECT_EQ(writer.write(1, bytes(most + 1)), RingStatus::kTooLarge);
    EXPECT_EQ(writer.write(1, {}), RingStatus::kTooLarge);
    EXPECT_EQ(writer.free_bytes(), kRing);
    EXPECT_EQ(writer.write(1, bytes(most)), RingStatus::kOk);
    Record record;
    RingReader reader = segments.daemon_reader();
    ASSERT_EQ(reader.read(&record), RingStatus::kOk);
    EXPECT_TRUE(is_body(record.body, bytes(most)));
}

TEST(Ring, IsFullUntilTheReaderConsumes) {
    const Segments segments(kRing);
    RingWriter writer = segments.client_writer();
    RingReader reader = segments.daemon_reader();
    for (uint64_t i = 0; i < kRing / 64; ++i) {
        ASSERT_EQ(writer.write(1, bytes(48)), RingStatus::kOk);
    }
    EXPECT_EQ(writer.free_bytes(), 0u);
    EXPECT_EQ(writer.write(1, bytes(1)), RingStatus::kFull);
    Record record;
    ASSERT_EQ(reader.read(&record), RingStatus::kOk);
    EXPECT_EQ(writer.free_bytes(), 64u);
    EXPECT_EQ(writer.write(1, bytes(48)), RingStatus::kOk);
}

// From every offset that an eight-byte step can reach, so that pads of every length occur, also
// the one of eight bytes that has no room for a whole header.
TEST(Ring, ARecordOfHalfTheRingFitsAtEveryOffsetOnceTheRingIsEmpty) {
    for (uint64_t offset = 0; offset < kRing; offset += 8) {
        const Segments segments(kRing);
        RingWriter writer = segments.client_writer();
        RingReader reader = segments.daemon_reader();
        Record record;
        for (uint64_t left = offset; left > 0;) {
            // Never leaves a rest of less than the smallest record.
            const uint64_t length = left <= 48 ? left : 24;
            if (length < 24) break;
            ASSERT_EQ(writer.write(7, bytes(length - 16)), RingStatus::kOk);
            ASSERT_EQ(reader.read(&record), RingStatus::kOk);
            left -= length;
        }
        const size_t most = writer.max_record_bytes() - sizeof(RecordHeader);
        ASSERT_EQ(writer.write(8, bytes(most, 8)), RingStatus::kOk) << "offset " << offset;
        ASSERT_EQ(reader.read(&record), RingStatus::kOk) << "offset " << offset;
        ASSERT_TRUE(is_body(record.body, bytes(most, 8))) << "offset " << offset;
        ASSERT_EQ(reader.read(&record), RingStatus::kEmpty);
        ASSERT_EQ(writer.free_bytes(), kRing);
    }
}

TEST(Ring, RandomWritesAndReadsAgreeWithAQueue) {
    const uint64_t seed = std::random_device{}();
    RecordProperty("seed", std::to_string(seed));
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    for (const uint64_t ring : {uint64_t{512}, kRing, uint64_t{65536}}) {
        const Segments segments(ring);
        RingWriter writer = segments.client_writer();
        RingReader reader = segments.daemon_reader();
        std::deque<std::pair<uint64_t, std::vector<std::byte>>> expected;
        uint64_t n = 0;
        uint64_t full = 0;
        Record record;
        for (int step = 0; step < 20'000; ++step) {
            // Phases in which one side is faster, so that the ring runs full and empty.
            const bool write = random() % 8 < (step / 500 % 2 ? 5u : 3u);
            if (write) {
                auto body = make_body(seed, n, ring / 2 - sizeof(RecordHeader));
                const RingStatus status = writer.write(n + 1, body);
                if (status == RingStatus::kFull) {
                    ++full;
                    ASSERT_FALSE(expected.empty());
                    continue;
                }
                ASSERT_EQ(status, RingStatus::kOk);
                expected.emplace_back(n + 1, std::move(body));
                ++n;
            } else if (expected.empty()) {
                ASSERT_EQ(reader.read(&record), RingStatus::kEmpty);
            } else {
                ASSERT_EQ(reader.read(&record), RingStatus::kOk);
                ASSERT_EQ(record.request_id, expected.front().first);
                ASSERT_TRUE(is_body(record.body, expected.front().second));
                expected.pop_front();
            }
        }
        EXPECT_GT(full, 0u);
        EXPECT_GT(n, 1000u);
    }
}

TEST(Ring, WaitFlagsShowOnlyWhileTheSideSleeps) {
    const Segments segments(kRing);
    RingWriter writer = segments.client_writer();
    RingReader reader = segments.daemon_reader();
    EXPECT_FALSE(writer.peer_waits_for_data());
    EXPECT_TRUE(reader.prepare_wait_for_data());
    EXPECT_TRUE(writer.peer_waits_for_data());
    reader.cancel_wait_for_data();
    EXPECT_FALSE(writer.peer_waits_for_data());

    ASSERT_EQ(writer.write(1, bytes(8)), RingStatus::kOk);
    EXPECT_FALSE(reader.prepare_wait_for_data());
    EXPECT_FALSE(writer.peer_waits_for_data());
}

TEST(Ring, WaitingForRoomCountsThePadThatTheRecordNeeds) {
    const Segments segments(kRing);
    RingWriter writer = segments.client_writer();
    RingReader reader = segments.daemon_reader();
    Record record;
    EXPECT_FALSE(writer.prepare_wait_for_space(100));
    // 3072 bytes used, then the first 1024 freed: 2048 are free, but 1024 before the end of the
    // ring and 1024 behind it. A record of 1040 needs them all and 16 more.
    for (int i = 0; i < 3; ++i) ASSERT_EQ(writer.write(1, bytes(1008)), RingStatus::kOk);
    ASSERT_EQ(reader.read(&record), RingStatus::kOk);
    EXPECT_EQ(writer.free_bytes(), 2048u);
    EXPECT_EQ(writer.write(2, bytes(1024)), RingStatus::kFull);
    EXPECT_TRUE(writer.prepare_wait_for_space(1024));
    EXPECT_TRUE(reader.peer_waits_for_space());
    ASSERT_EQ(reader.read(&record), RingStatus::kOk);
    EXPECT_FALSE(writer.prepare_wait_for_space(1024));
    EXPECT_FALSE(reader.peer_waits_for_space());
    EXPECT_EQ(writer.write(2, bytes(1024)), RingStatus::kOk);
}

// Reader and writer of one side share the wait word.
TEST(Ring, WaitFlagsOfOneSideDoNotDisturbEachOther) {
    const Segments segments(kRing);
    RingWriter daemon_writer = segments.daemon_writer();
    RingReader daemon_reader = segments.daemon_reader();
    RingWriter client_writer = segments.client_writer();
    RingReader client_reader = segments.client_reader();
    while (daemon_writer.write(1, bytes(1000)) == RingStatus::kOk) {}
    EXPECT_TRUE(daemon_writer.prepare_wait_for_space(1000));
    EXPECT_TRUE(daemon_reader.prepare_wait_for_data());
    daemon_reader.cancel_wait_for_data();
    EXPECT_TRUE(client_reader.peer_waits_for_space());
    EXPECT_FALSE(client_writer.peer_waits_for_data());
    daemon_writer.cancel_wait_for_space();
    EXPECT_FALSE(client_reader.peer_waits_for_space());
}

}  // namespace
}  // namespace xp::shm
