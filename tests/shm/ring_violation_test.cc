// A peer that breaks the rules: every one of these must be kViolation, stay so, and touch nothing
// outside the ring (which the address sanitizer's run watches).
#include <array>
#include <bit>
#include <functional>
#include <string>

#include "tests/shm/segments.h"

namespace xp::shm {
namespace {

constexpr uint64_t kSmallRing = 1024;
constexpr auto kMessage = static_cast<uint16_t>(RecordKind::kMessage);
constexpr auto kPad = static_cast<uint16_t>(RecordKind::kPad);

struct Case {
    std::string name;
    std::function<void(const Segments&)> misbehave;
};
void PrintTo(const Case& one, std::ostream* out) {
    *out << one.name;
}

void set_tail(const Segments& s, uint64_t tail) {
    s.poke<uint64_t>(kTailOffset, tail);
}

// Before each of these, two records of 32 bytes were written and read: head is 64.
const Case kReaderCases[] = {
    {"TailJumpsBackward", [](const Segments& s) { set_tail(s, 32); }},
    {"TailJumpsToZero", [](const Segments& s) { set_tail(s, 0); }},
    {"TailJumpsBeyondTheRing", [](const Segments& s) { set_tail(s, 64 + kSmallRing + 8); }},
    {"TailIsTheLargestNumber", [](const Segments& s) { set_tail(s, ~uint64_t{7}); }},
    {"TailIsMisaligned", [](const Segments& s) { set_tail(s, 64 + 33); }},
    {"LengthIsZero",
     [](const Segments& s) {
         s.poke_record(64, {0, kMessage, 0, 1});
         set_tail(s, 96);
     }},
    {"AllZeros",
     [](const Segments& s) {
         s.poke_record(64, {});
         set_tail(s, 64 + 512);
     }},
    {"LengthIsHeaderOnly",
     [](const Segments& s) {
         s.poke_record(64, {16, kMessage, 0, 1});
         set_tail(s, 96);
     }},
    {"LengthIsMisaligned",
     [](const Segments& s) {
         s.poke_record(64, {33, kMessage, 0, 1});
         set_tail(s, 64 + 64);
     }},
    {"LengthIsBeyondTheTail",
     [](const Segments& s) {
         s.poke_record(64, {64, kMessage, 0, 1});
         set_tail(s, 64 + 32);
     }},
    {"LengthIsMoreThanHalfTheRing",
     [](const Segments& s) {
         s.poke_record(64, {kSmallRing / 2 + 8, kMessage, 0, 1});
         set_tail(s, 64 + kSmallRing / 2 + 8);
     }},
    {"LengthIsTheLargestNumber",
     [](const Segments& s) {
         s.poke_record(64, {0xfffffff8u, kMessage, 0, 1});
         set_tail(s, 64 + kSmallRing);
     }},
    {"OnlyHalfAHeaderBeforeTheTail",
     [](const Segments& s) {
         s.poke_record(64, {24, kMessage, 0, 1});
         set_tail(s, 64 + 8);
     }},
    {"KindIsUnknown",
     [](const Segments& s) {
         s.poke_record(64, {32, 3, 0, 1});
         set_tail(s, 96);
     }},
    {"FlagsAreSet",
     [](const Segments& s) {
         s.poke_record(64, {32, kMessage, 1, 1});
         set_tail(s, 96);
     }},
    {"RequestIdIsZero",
     [](const Segments& s) {
         s.poke_record(64, {32, kMessage, 0, 0});
         set_tail(s, 96);
     }},
    {"PadIsShorterThanTheRestOfTheRing",
     [](const Segments& s) {
         s.poke_record(64, {32, kPad, 0, 0});
         set_tail(s, 64 + 512);
     }},
    {"PadIsLongerThanTheRestOfTheRing",
     [](const Segments& s) {
         s.poke_record(64, {kSmallRing, kPad, 0, 0});
         set_tail(s, 64 + kSmallRing);
     }},
    {"PadIsBeyondTheTail",
     [](const Segments& s) {
         s.poke_record(64, {kSmallRing - 64, kPad, 0, 0});
         set_tail(s, 64 + 512);
     }},
    {"PadHasFlags",
     [](const Segments& s) {
         s.poke_record(64, {kSmallRing - 64, kPad, 1, 0});
         set_tail(s, kSmallRing);
     }},
    {"PadHasARequestId",
     [](const Segments& s) {
         s.poke_record(64, {kSmallRing - 64, kPad, 0, 1});
         set_tail(s, kSmallRing);
     }},
    {"PadFollowsPad",
     [](const Segments& s) {
         s.poke_record(64, {kSmallRing - 64, kPad, 0, 0});
         s.poke_record(0, {kSmallRing, kPad, 0, 0});
         set_tail(s, kSmallRing + 64);
     }},
};

class ReaderViolation : public ::testing::TestWithParam<Case> {};

TEST_P(ReaderViolation, IsDetectedAndStays) {
    const Segments segments(kSmallRing);
    RingWriter writer = segments.client_writer();
    RingReader reader = segments.daemon_reader();
    Record record;
    const std::vector<std::byte> body(16, std::byte{0x5a});
    for (int i = 0; i < 2; ++i) {
        ASSERT_EQ(writer.write(1, body), RingStatus::kOk);
        ASSERT_EQ(reader.read(&record), RingStatus::kOk);
    }
    GetParam().misbehave(segments);
    EXPECT_FALSE(reader.prepare_wait_for_data());
    EXPECT_EQ(reader.read(&record), RingStatus::kViolation);

    // Also when the peer mends its ways.
    segments.poke_record(64, {32, kMessage, 0, 1});
    set_tail(segments, 96);
    EXPECT_EQ(reader.read(&record), RingStatus::kViolation);
    EXPECT_FALSE(reader.prepare_wait_for_data());
}

INSTANTIATE_TEST_SUITE_P(Ring, ReaderViolation, ::testing::ValuesIn(kReaderCases),
                         [](const auto& info) { return info.param.name; });

// Eight bytes before the end of the ring there is room for only half a header.
TEST(RingViolation, HalfAHeaderAtTheEndIsAPadOfEightOrAViolation) {
    struct {
        RecordHeader header;
        RingStatus expected;
    } const cases[] = {
        {{8, kPad, 0, 0}, RingStatus::kEmpty},
        {{16, kPad, 0, 0}, RingStatus::kViolation},
        {{0, kPad, 0, 0}, RingStatus::kViolation},
        {{24, kMessage, 0, 0}, RingStatus::kViolation},
        {{8, kMessage, 0, 0}, RingStatus::kViolation},
    };
    for (const auto& one : cases) {
        const Segments segments(kSmallRing);
        RingReader reader = segments.daemon_reader();
        Record record;
        uint64_t at = 0;
        while (at < kSmallRing - 8) {
            const uint32_t length = at == 984 ? 32 : 24;  // 41 * 24 + 32 = 1016
            segments.poke_record(at, {length, kMessage, 0, 1});
            at += length;
            set_tail(segments, at);
            ASSERT_EQ(reader.read(&record), RingStatus::kOk);
        }
        segments.poke<uint64_t>(kDataOffset + at, std::bit_cast<std::array<uint64_t, 2>>(
                                                      one.header)[0]);
        set_tail(segments, kSmallRing);
        EXPECT_EQ(reader.read(&record), one.expected);
    }
}

struct HeadCase {
    std::string name;
    uint64_t head;
};
void PrintTo(const HeadCase& one, std::ostream* out) {
    *out << one.name;
}

class WriterViolation : public ::testing::TestWithParam<HeadCase> {};

// Before: the writer has written 512 bytes and seen that the reader consumed 256 of them.
TEST_P(WriterViolation, IsDetectedAndStays) {
    const Segments segments(kSmallRing);
    RingWriter writer = segments.daemon_writer();
    const std::vector<std::byte> body(240, std::byte{1});
    ASSERT_EQ(writer.write(1, body), RingStatus::kOk);
    ASSERT_EQ(writer.write(1, body), RingStatus::kOk);
    segments.poke<uint64_t>(kHeadOffset, 256);
    ASSERT_EQ(writer.free_bytes(), kSmallRing - 256);

    segments.poke<uint64_t>(kHeadOffset, GetParam().head);
    EXPECT_EQ(writer.free_bytes(), 0u);
    EXPECT_EQ(writer.write(1, body), RingStatus::kViolation);
    EXPECT_FALSE(writer.prepare_wait_for_space(8));
    segments.poke<uint64_t>(kHeadOffset, 512);
    EXPECT_EQ(writer.write(1, body), RingStatus::kViolation);
}

INSTANTIATE_TEST_SUITE_P(Ring, WriterViolation,
                         ::testing::Values(HeadCase{"HeadJumpsBackward", 128},
                                           HeadCase{"HeadIsBeyondTheTail", 520},
                                           HeadCase{"HeadIsTheLargestNumber", ~uint64_t{7}},
                                           HeadCase{"HeadIsMisaligned", 260}),
                         [](const auto& info) { return info.param.name; });

// A full ring, where the writer must look at the head before it can know that there is no room.
TEST(RingViolation, AWriterInNeedOfRoomSeesABadHead) {
    const Segments segments(kSmallRing);
    RingWriter writer = segments.daemon_writer();
    const std::vector<std::byte> body(240, std::byte{1});
    for (int i = 0; i < 4; ++i) ASSERT_EQ(writer.write(1, body), RingStatus::kOk);
    ASSERT_EQ(writer.write(1, body), RingStatus::kFull);
    segments.poke<uint64_t>(kHeadOffset, 4 * 256 + 8);
    EXPECT_EQ(writer.write(1, body), RingStatus::kViolation);
}

// Arbitrary bytes as a whole segment, read until the ring says that it is empty or broken.
TEST(RingViolation, RandomSegmentsNeverCrashAndEndSoon) {
    const uint64_t seed = std::random_device{}();
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const Segments segments(kSmallRing);
    int violations = 0;
    for (int round = 0; round < 20'000; ++round) {
        for (uint64_t at = 0; at < kSmallRing; at += 8) {
            // Half of the words are plausible headers, or else nothing gets past the first check.
            uint64_t word = random();
            if (word % 2) word = (word >> 8 & 0xf8) | (1 + (word >> 2 & 1)) << 32;
            segments.poke<uint64_t>(kDataOffset + at, word);
        }
        segments.poke<uint64_t>(kTailOffset, random() % (kSmallRing + 64));
        RingReader reader = segments.daemon_reader();
        Record record;
        uint64_t records = 0;
        RingStatus status;
        while ((status = reader.read(&record)) == RingStatus::kOk) {
            ASSERT_LE(record.body.size(), kSmallRing / 2);
            ASSERT_LE(++records, kSmallRing / 24);
        }
        violations += status == RingStatus::kViolation;
    }
    EXPECT_GT(violations, 0);
}

}  // namespace
}  // namespace xp::shm
