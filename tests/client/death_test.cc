// Daemons that die or send garbage: every request still ends in exactly one terminal event.
#include <atomic>
#include <cstring>

#include <poll.h>

#include "tests/client/client_fixture.h"

namespace xp::test {
namespace {

using ::testing::HasSubstr;

TEST(DaemonDeath, WhatHadArrivedComesFirstThenOneFailureForEachRequest) {
    FakeDaemon daemon([](Session& session) {
        const auto first = session.next();
        const auto second = session.next();
        ASSERT_TRUE(first && second);
        session.reply(first->first, shm::Accepted{"m", {}});
        session.reply(first->first, shm::Tokens{{1}, shm::Channel::kContent, "a", {}});
        session.reply(second->first, shm::Done{});
    });
    const ClientPtr client = connect(daemon);
    const uint64_t first = submit(client);
    const uint64_t second = submit(client);
    const uint64_t third = submit(client);
    // The descriptor says that there is something, also about a death.
    pollfd wait{xp_client_fd(client.get()), POLLIN, 0};
    EXPECT_EQ(::poll(&wait, 1, kPatienceMs), 1);

    EXPECT_EQ(next(client).type, XP_EVENT_ACCEPTED);
    EXPECT_EQ(next(client).type, XP_EVENT_TOKENS);
    EXPECT_EQ(next(client).request_id, second);
    for (const uint64_t id : {first, third}) {
        const xp_event& event = next(client);
        EXPECT_EQ(event.type, XP_EVENT_FAILED);
        EXPECT_EQ(event.terminal, 1);
        EXPECT_EQ(event.request_id, id);
        EXPECT_STREQ(event.code, "daemon_gone");
        EXPECT_STREQ(event.message, "the daemon closed the connection");
    }
    EXPECT_EQ(next_status(client), XP_GONE);
    EXPECT_EQ(next_status(client), XP_GONE);
    uint64_t id = 0;
    EXPECT_EQ(xp_submit(client.get(), text_request("x").get(), 0, &id), XP_GONE);
    EXPECT_EQ(xp_ping(client.get(), 0, nullptr), XP_GONE);
    EXPECT_EQ(xp_cancel(client.get(), first), XP_GONE);
    EXPECT_EQ(xp_connection(client.get()), nullptr);
    EXPECT_EQ(::poll(&wait, 1, 0), 1);
}

TEST(DaemonDeath, WakesAClientThatWaits) {
    FakeDaemon daemon([](Session& session) {
        ASSERT_TRUE(session.next());
        ::usleep(20'000);
    });
    const ClientPtr client = connect(daemon);
    submit(client);
    EXPECT_EQ(next(client).type, XP_EVENT_FAILED);
    EXPECT_EQ(next_status(client), XP_GONE);
}

TEST(DaemonDeath, EndsAQuestionAndAWaitForRoom) {
    FakeDaemon daemon([](Session& session) { ASSERT_TRUE(session.next()); }, small_rings());
    {
        const ClientPtr client = connect(daemon);
        EXPECT_EQ(xp_ping(client.get(), kPatienceMs, nullptr), XP_GONE);
    }
    const ClientPtr client = connect(daemon);
    const GeneratePtr request = text_request(std::string(30'000, 'x'));
    uint64_t id = 0;
    xp_status status;
    size_t submitted = 0;
    while ((status = xp_submit(client.get(), request.get(), kPatienceMs, &id)) == XP_OK) {
        ++submitted;
    }
    EXPECT_EQ(status, XP_GONE);
    for (size_t i = 0; i < submitted; ++i) EXPECT_EQ(next(client).type, XP_EVENT_FAILED);
    EXPECT_EQ(next_status(client), XP_GONE);
}

TEST(DaemonDeath, IsNoticedWithoutARequestInFlight) {
    FakeDaemon daemon([](Session&) {});
    const ClientPtr client = connect(daemon);
    pollfd wait{xp_client_fd(client.get()), POLLIN, 0};
    EXPECT_EQ(::poll(&wait, 1, kPatienceMs), 1);
    EXPECT_EQ(next_status(client, 0), XP_GONE);
}

TEST(DaemonDeath, TheClientCanConnectAgain) {
    int connections = 0;
    FakeDaemon daemon([&](Session& session) {
        const bool dies = connections++ == 0;
        const auto request = session.next();
        ASSERT_TRUE(request);
        if (dies) return;
        session.reply(request->first, shm::Done{});
        session.wait_for_hang_up();
    });
    const ClientPtr client = connect(daemon);
    const uint64_t first = submit(client);
    EXPECT_EQ(next(client).type, XP_EVENT_FAILED);
    ASSERT_EQ(xp_connect(client.get(), daemon.path().c_str(), kPatienceMs), XP_OK)
        << xp_client_error(client.get());
    const uint64_t second = submit(client);
    EXPECT_NE(second, first);
    const xp_event& event = next(client);
    EXPECT_EQ(event.type, XP_EVENT_DONE);
    EXPECT_EQ(event.request_id, second);
}

// ---- garbage ----------------------------------------------------------------------------------

struct Garbage {
    std::string name;
    std::function<void(Session&, uint64_t id)> send;
    std::string expected;
};
void PrintTo(const Garbage& one, std::ostream* out) {
    *out << one.name;
}

void poke(Session& session, uint64_t offset, uint64_t value) {
    std::memcpy(session.channel().resp.base() + offset, &value, sizeof value);
    shm::ring_bell(session.channel().resp_bell.get());
}

const Garbage kGarbage[] = {
    {"NoiseForAMessage",
     [](Session& s, uint64_t id) { s.raw(id, std::vector<std::byte>(64, std::byte{0x5a})); },
     "invalid message"},
    {"ARequestForAReply",
     [](Session& s, uint64_t id) { s.raw(id, shm::encode_request(shm::Ping{})); },
     "not a reply"},
    {"TextThatIsNotUtf8",
     [](Session& s, uint64_t id) {
         s.reply(id, shm::Tokens{{1}, shm::Channel::kContent, "\xff", {}});
     },
     "not valid UTF-8"},
    {"APongForAGenerate", [](Session& s, uint64_t id) { s.reply(id, shm::Pong{"", ""}); },
     "wrong kind"},
    {"ATailBeyondTheRing", [](Session& s, uint64_t) { poke(s, shm::kTailOffset, 1 << 30); },
     "response ring"},
    {"AZeroRecord", [](Session& s, uint64_t) { poke(s, shm::kTailOffset, 64); }, "response ring"},
    {"NoiseOnTheSocket",
     [](Session& s, uint64_t) { ::send(s.socket(), "garbage!garbage!", 16, MSG_NOSIGNAL); },
     "no notice"},
    {"AnswersToNothing",
     [](Session& s, uint64_t) {
         for (int i = 0; i < 5000 && s.reply(1'000'000, shm::Progress{}); ++i) {}
     },
     "not asked"},
};

class DaemonGarbage : public ::testing::TestWithParam<Garbage> {};

TEST_P(DaemonGarbage, ClosesTheConnectionAndFailsTheRequestOnce) {
    std::atomic<bool> hung_up{false};
    {
        FakeDaemon daemon([&](Session& session) {
            const auto request = session.next();
            ASSERT_TRUE(request);
            GetParam().send(session, request->first);
            hung_up = session.wait_for_hang_up();
        });
        const ClientPtr client = connect(daemon);
        const uint64_t id = submit(client);
        const xp_event& event = next(client);
        EXPECT_EQ(event.type, XP_EVENT_FAILED);
        EXPECT_EQ(event.request_id, id);
        EXPECT_STREQ(event.code, "daemon_gone");
        EXPECT_THAT(event.message, HasSubstr(GetParam().expected));
        EXPECT_EQ(next_status(client), XP_PROTOCOL);
        EXPECT_THAT(xp_client_error(client.get()), HasSubstr(GetParam().expected));
        // The client is still there, and yet the daemon must see that the lease has ended.
        while (!hung_up) ::usleep(1000);
    }
    EXPECT_TRUE(hung_up);
}

INSTANTIATE_TEST_SUITE_P(Client, DaemonGarbage, ::testing::ValuesIn(kGarbage),
                         [](const auto& info) { return info.param.name; });

TEST(DaemonGarbageForAQuestion, EndsItWithAProtocolError) {
    FakeDaemon daemon([](Session& session) {
        const auto request = session.next();
        ASSERT_TRUE(request);
        session.reply(request->first, shm::Tokens{});
        session.wait_for_hang_up();
    });
    const ClientPtr client = connect(daemon);
    EXPECT_EQ(xp_ping(client.get(), kPatienceMs, nullptr), XP_PROTOCOL);
}

// A terminal event of the right family, but not an answer.
TEST(DaemonGarbageForAQuestion, AnAnswerOfAnotherKindIsAFailure) {
    FakeDaemon daemon([](Session& session) {
        const auto request = session.next();
        ASSERT_TRUE(request);
        session.reply(request->first, shm::StatsReply{"{}"});
        session.wait_for_hang_up();
    });
    const ClientPtr client = connect(daemon);
    EXPECT_EQ(xp_ping(client.get(), kPatienceMs, nullptr), XP_FAILED);
}

}  // namespace
}  // namespace xp::test
