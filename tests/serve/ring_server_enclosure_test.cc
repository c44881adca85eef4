// Requests in sealed memfds: served like any other, and every fault costs its client only.
#include "tests/serve/ring_server_fixture.h"

#include <filesystem>

#include <sys/mman.h>

#include "shm/enclosure.h"

namespace xp {
namespace {

using ::testing::HasSubstr;

size_t open_descriptors() {
    const std::filesystem::directory_iterator entries("/proc/self/fd");
    return static_cast<size_t>(std::distance(begin(entries), end(entries)));
}

// The server closes what hung-up clients had when it sees that they did.
void expect_descriptors(size_t expected) {
    for (int n = 0; n < 4000 && open_descriptors() != expected; ++n) {
        std::this_thread::sleep_for(5ms);
    }
    EXPECT_EQ(open_descriptors(), expected);
}

shm::Fd memfd_of(std::span<const std::byte> message) {
    std::string error;
    shm::Fd fd = shm::enclose(message, &error);
    EXPECT_TRUE(fd) << error;
    return fd;
}

void send_notice(RawClient& client, const shm::Fd& fd, uint64_t bytes) {
    EXPECT_TRUE(shm::send_notice(client.channel.socket.get(), shm::NoticeKind::kEnclosed, bytes,
                                 fd.get()));
}

// As an honest client does it.
void send_enclosed(RawClient& client, uint64_t id, const shm::Request& request) {
    const auto message = shm::encode_request(request);
    send_notice(client, memfd_of(message), message.size());
    client.send(id, shm::Enclosed{message.size()});
}

TEST_F(RingServerTest, AnEnclosedRequestIsAnsweredUnderTheIdOfItsRecord) {
    make({});
    RawClient client(socket_);
    send_enclosed(client, 7, shm::Ping{});
    client.send(8, shm::Ping{});
    shm::Record record;
    std::vector<uint64_t> ids;
    for (int n = 0; n < 4000 && ids.size() < 2; ++n) {
        if (client.reader->read(&record) == shm::RingStatus::kOk) {
            ids.push_back(record.request_id);
        } else {
            std::this_thread::sleep_for(5ms);
        }
    }
    EXPECT_THAT(ids, ::testing::ElementsAre(7, 8));
    EXPECT_EQ(stats().at("clients").at("enclosures"), 1);
}

TEST_F(RingServerTest, AsManyEnclosuresAsRequestsInFlightMayComeBeforeTheirRecords) {
    make({});
    const size_t before = open_descriptors();
    {
        RawClient client(socket_);
        shm::Generate request = raw_request(1);
        const auto message = shm::encode_request(request);
        const uint32_t n = client.channel.welcome.max_in_flight;
        for (uint32_t i = 0; i < n; ++i) {
            send_notice(client, memfd_of(message), message.size());
        }
        for (uint32_t i = 0; i < n; ++i) {
            client.send(1 + i, shm::Enclosed{message.size()});
        }
        for (uint32_t done = 0; done < n;) {
            const auto reply = client.next_reply();
            ASSERT_TRUE(reply);
            done += std::holds_alternative<shm::Done>(*reply);
        }
        send_notice(client, memfd_of(message), message.size());
        for (uint32_t i = 0; i < n; ++i) {
            send_notice(client, memfd_of(message), message.size());
        }
        EXPECT_TRUE(client.hung_up());
    }
    EXPECT_EQ(stats().at("clients").at("violations"), 1);
    expect_descriptors(before);
}

TEST_F(RingServerTest, AFaultyEnclosureCostsItsClientAndNobodyElse) {
    make({});
    const size_t before = open_descriptors();
    const auto message = shm::encode_request(raw_request(1));
    const auto size = message.size();
    shm::Fd unsealed(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(::write(unsealed.get(), message.data(), size), static_cast<ssize_t>(size));
    const auto nested = shm::encode_request(shm::Enclosed{64});
    const std::vector<std::byte> garbage(5000, std::byte{0x5a});
    const uint64_t large = shm::kMaxEnclosedBytes + uint64_t{1};
    struct Case {
        const char* name;
        shm::Fd fd;
        uint64_t notice;
        uint64_t record;
    };
    Case cases[] = {
        {"not sealed", std::move(unsealed), size, size},
        {"longer than stated", memfd_of(message), size - 1, size - 1},
        {"record and notice differ", memfd_of(message), size, size + 1},
        {"too large", memfd_of(message), large, large},
        {"garbage", memfd_of(garbage), garbage.size(), garbage.size()},
        {"nested", memfd_of(nested), nested.size(), nested.size()},
        {"none", {}, 0, size},
    };
    int violations = 0;
    for (const Case& fault : cases) {
        SCOPED_TRACE(fault.name);
        RawClient bad(socket_);
        if (fault.fd) {
            send_notice(bad, fault.fd, fault.notice);
        }
        bad.send(7, shm::Enclosed{fault.record});
        const auto reply = bad.next_reply();
        ASSERT_TRUE(reply);
        EXPECT_EQ(std::get<shm::Failed>(*reply).code, "malformed");
        EXPECT_TRUE(bad.hung_up());
        EXPECT_EQ(stats().at("clients").at("violations"), ++violations);
    }
    for (Case& fault : cases) {
        fault.fd.reset();
    }
    expertpack::Client good = connect("good");
    submit(good, request_of(5));
    EXPECT_EQ(answer_of(good).ids.size(), 5u);
    good.disconnect();
    expect_descriptors(before);
    EXPECT_EQ(stats().at("accounts").at("request_bytes"), 0);
}

TEST_F(RingServerTest, EnclosuresThatWereNotAgreedUponAreRefused) {
    make({});
    RawClient old(socket_, shm::kResponseRingBytes, /*features=*/0);
    EXPECT_EQ(old.channel.welcome.max_enclosed_bytes, 0u);
    const auto message = shm::encode_request(shm::Ping{});
    send_notice(old, memfd_of(message), message.size());
    EXPECT_TRUE(old.hung_up());
    RawClient other(socket_, shm::kResponseRingBytes, /*features=*/0);
    other.send(1, shm::Enclosed{64});
    EXPECT_TRUE(other.hung_up());
    EXPECT_EQ(stats().at("clients").at("violations"), 2);
}

// Larger than a record, in words that are not all alike.
std::string long_text() {
    std::string text;
    for (int n = 0; text.size() < 2'500'000; ++n) {
        text += "The " + std::to_string(n) + "th city of the north is not Oslo; it is far away.\n";
    }
    return text;
}

TEST_F(RingServerTest, APromptLargerThanTheRingIsTokenizedWhole) {
    make({});
    expertpack::Client client = connect();
    const std::string text = long_text();
    expertpack::Generate request;
    request.text(text).task(XP_TASK_TOKENIZE);
    submit(client, request);
    const Answer answer = answer_of(client);
    EXPECT_EQ(answer.end, XP_EVENT_DONE) << answer.message;
    EXPECT_EQ(answer.ids, scripted::tokens_of(text));
    EXPECT_EQ(answer.text, "");
    EXPECT_EQ(stats().at("clients").at("enclosures"), 1);
}

TEST_F(RingServerTest, APromptBeyondTheContextIsRefusedByTheContextWhateverItsSize) {
    make({});
    expertpack::Client client = connect();
    for (const xp_task task : {XP_TASK_GENERATE, XP_TASK_SCORE}) {
        expertpack::Generate request;
        request.text(long_text()).task(task);
        submit(client, request);
        const Answer answer = answer_of(client);
        EXPECT_EQ(answer.end, XP_EVENT_FAILED);
        EXPECT_EQ(answer.code, "limit");
        EXPECT_THAT(answer.message, HasSubstr("context of model \"scripted\" is 4096 tokens"));
    }
}

TEST_F(RingServerTest, AnEnclosureBeyondTheUsersBytesIsBusyAndNotRead) {
    RingServerOptions options;
    options.user.request_bytes = 1000;
    make({}, options);
    RawClient client(socket_);
    shm::Generate request = raw_request(1);
    request.prompt = shm::RawTokens{std::vector<int32_t>(1000, 7)};
    send_enclosed(client, 1, request);
    const auto reply = client.next_reply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(std::get<shm::Failed>(*reply).code, "busy");
    client.send(2, shm::Ping{});
    const auto pong = client.next_reply();
    ASSERT_TRUE(pong);
    EXPECT_TRUE(std::holds_alternative<shm::Pong>(*pong));
}

}  // namespace
}  // namespace xp
