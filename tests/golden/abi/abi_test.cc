// What clients and daemons of protocol 1.1 have sent, recorded once: it must mean the same for ever
// within major version 1. And the other way round: what later minor versions may append to messages
// of today is ignored.
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "messages_generated.h"
#include "tests/golden/abi/samples.h"
#include "tests/shm/messages.h"

namespace xp::shm {
namespace {

// The places that docs/protocol.md gives.
static_assert(offsetof(Hello, features) == 8 && offsetof(Hello, req_ring_bytes) == 16 &&
              offsetof(Hello, resp_ring_bytes) == 20 && offsetof(Hello, client_name) == 32 &&
              sizeof(Hello) == 64);
static_assert(offsetof(Welcome, status) == 8 && offsetof(Welcome, fds) == 12 &&
              offsetof(Welcome, features) == 16 && offsetof(Welcome, req_ring_bytes) == 24 &&
              offsetof(Welcome, resp_ring_bytes) == 28 &&
              offsetof(Welcome, max_record_bytes) == 32 && offsetof(Welcome, max_in_flight) == 36 &&
              offsetof(Welcome, max_context) == 40 && offsetof(Welcome, max_enclosed_bytes) == 44 &&
              offsetof(Welcome, boot_id) == 48 && offsetof(Welcome, text) == 104 &&
              sizeof(Welcome) == 256);
static_assert(offsetof(Notice, kind) == 4 && offsetof(Notice, value) == 8 && sizeof(Notice) == 16);
static_assert(offsetof(SegmentHeader, abi_major) == 4 && offsetof(SegmentHeader, abi_minor) == 6 &&
              offsetof(SegmentHeader, total_bytes) == 8 &&
              offsetof(SegmentHeader, data_offset) == 16 &&
              offsetof(SegmentHeader, data_bytes) == 24 && sizeof(SegmentHeader) == 64);
static_assert(offsetof(RecordHeader, kind) == 4 && offsetof(RecordHeader, flags) == 6 &&
              offsetof(RecordHeader, request_id) == 8 && sizeof(RecordHeader) == 16);
static_assert(kTailOffset == 64 && kHeadOffset == 128 && kWaitOffset == 192 && kDataOffset == 256);
static_assert(kWaitData == 1 && kWaitSpace == 2);

std::vector<std::byte> recorded(const std::string& name) {
    const std::filesystem::path file = std::filesystem::path(XP_ABI_GOLDEN) / (name + ".bin");
    std::ifstream stream(file, std::ios::binary);
    EXPECT_TRUE(stream.good()) << file;
    const std::vector<char> bytes{std::istreambuf_iterator<char>(stream), {}};
    const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
    return {data, data + bytes.size()};
}

template <class T>
void expect_bytes(const std::string& name, const T& value) {
    const auto bytes = recorded(name);
    ASSERT_EQ(bytes.size(), sizeof value) << name;
    EXPECT_EQ(std::memcmp(bytes.data(), &value, sizeof value), 0) << name;
}

TEST(Abi11, StructsOfTheHandshakeAndTheSegmentsHaveTheSameBytes) {
    expect_bytes("hello", abi::hello());
    expect_bytes("welcome", abi::welcome());
    expect_bytes("refusal", abi::refusal());
    expect_bytes("notice_drain", abi::drain());
    expect_bytes("notice_enclosed", abi::enclosed());
    expect_bytes("segment_req", abi::segment(kRequestMagic));
    expect_bytes("segment_resp", abi::segment(kResponseMagic));
}

TEST(Abi11, ARecordedHelloIsUnderstood) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    const Fd client(ends[0]);
    const Fd daemon(ends[1]);
    const auto bytes = recorded("hello");
    ASSERT_EQ(::send(client.get(), bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
    Hello hello;
    WelcomeStatus refusal;
    std::string error;
    ASSERT_EQ(receive_hello(daemon.get(), &hello, &refusal, &error), ReceiveStatus::kOk) << error;
    EXPECT_EQ(std::string(hello.client_name), "recorded");
    EXPECT_EQ(hello.abi_minor, 1);
    EXPECT_EQ(hello.features, 1u);
    EXPECT_EQ(hello.req_ring_bytes, 2u << 20);
    EXPECT_EQ(hello.resp_ring_bytes, 512u << 10);
}

TEST(Abi11, ARecordedRingIsReadAndWrittenTheSame) {
    const auto bytes = recorded("ring");
    abi::PlainSegment client;
    ASSERT_EQ(bytes.size(), sizeof client.bytes);
    abi::PlainSegment daemon;
    abi::write_ring(&client, &daemon);
    EXPECT_EQ(std::memcmp(client.bytes, bytes.data(), bytes.size()), 0);

    // A reader that has read two records by itself finds the pad and the third in the recorded
    // bytes.
    abi::PlainSegment other;
    RingWriter writer(other.own(), daemon.peer());
    RingReader second(daemon.own(), other.peer());
    Record record;
    for (size_t n = 0; n < 2; ++n) {
        const std::string body = abi::ring_body(n);
        ASSERT_EQ(writer.write(abi::ring_id(n), std::as_bytes(std::span(body))), RingStatus::kOk);
        ASSERT_EQ(second.read(&record), RingStatus::kOk);
    }
    std::memcpy(other.bytes, bytes.data(), bytes.size());
    ASSERT_EQ(second.read(&record), RingStatus::kOk);
    EXPECT_EQ(record.request_id, abi::ring_id(2));
    const std::string body(reinterpret_cast<const char*>(record.body.data()), record.body.size());
    EXPECT_EQ(body, abi::ring_body(2) + std::string(4, '\0'));
    EXPECT_EQ(second.read(&record), RingStatus::kEmpty);
}

TEST(Abi11, RecordedRequestsMeanTheSame) {
    for (const auto& [name, expected] : abi::requests()) {
        std::string why;
        const auto request = decode_request(recorded(name), &why);
        ASSERT_TRUE(request) << name << ": " << why;
        EXPECT_TRUE(*request == expected) << name;
    }
}

TEST(Abi11, RecordedRepliesMeanTheSame) {
    for (const auto& [name, expected] : abi::replies()) {
        std::string why;
        const auto reply = decode_reply(recorded(name), &why);
        ASSERT_TRUE(reply) << name << ": " << why;
        EXPECT_TRUE(*reply == expected) << name;
    }
}

TEST(Abi11, ThereIsAFileForEveryMessageAndNoOther) {
    std::set<size_t> requests;
    std::set<size_t> replies;
    std::set<std::string> names{"hello",       "welcome",      "refusal", "notice_drain", "ring",
                                "segment_req", "segment_resp", "notice_enclosed"};
    for (const auto& [name, request] : abi::requests()) {
        requests.insert(request.index());
        names.insert(name);
    }
    for (const auto& [name, reply] : abi::replies()) {
        replies.insert(reply.index());
        names.insert(name);
    }
    // The messages of 1.1; later ones belong into the files of later versions.
    EXPECT_EQ(requests.size(), 7u);
    EXPECT_EQ(replies.size(), 12u);
    std::set<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(XP_ABI_GOLDEN)) {
        files.insert(entry.path().stem().string());
    }
    EXPECT_EQ(files, names);
}

// Fields behind the last one that is known here: a number, a text and a table in tables.
TEST(NewerMinor, FieldsAtTheEndOfATableAreIgnored) {
    flatbuffers::FlatBufferBuilder b;
    const auto text = b.CreateString("what this version does not know");
    const auto start_inner = b.StartTable();
    b.AddOffset(4, text);
    const flatbuffers::Offset<void> inner(b.EndTable(start_inner));
    constexpr flatbuffers::voffset_t kNewField = wire::Cancel::VT_CLIENT + 2;
    const auto start = b.StartTable();
    b.AddElement<uint64_t>(wire::Cancel::VT_TARGET, 5, 0);
    b.AddElement<uint64_t>(wire::Cancel::VT_CLIENT, 6, 0);
    b.AddElement<uint32_t>(kNewField, 99, 0);
    b.AddOffset(kNewField + 2, inner);
    const flatbuffers::Offset<void> cancel(b.EndTable(start));
    wire::FinishPacketBuffer(b, wire::CreatePacket(b, wire::Request::Cancel, cancel));
    std::string why;
    const auto request = decode_request(
        std::as_bytes(std::span(b.GetBufferPointer(), b.GetSize())), &why);
    ASSERT_TRUE(request) << why;
    EXPECT_TRUE(*request == Request(Cancel{5, 6}));
}

}  // namespace
}  // namespace xp::shm
