#include "client/expertpack.hpp"

#include "tests/client/client_fixture.h"

namespace xp::test {
namespace {

TEST(Wrapper, GeneratesAndAsks) {
    FakeDaemon daemon([](Session& session) {
        while (auto request = session.next()) {
            if (std::holds_alternative<shm::Ping>(request->second)) {
                session.reply(request->first, shm::Pong{"1", "cpu"});
                continue;
            }
            const auto& generate = std::get<shm::Generate>(request->second);
            EXPECT_EQ(std::get<shm::Chat>(generate.prompt).messages.size(), 2u);
            EXPECT_EQ(generate.sampling.temperature, 0.0f);
            session.reply(request->first, shm::Done{});
        }
    });
    expertpack::Client client("wrapper");
    ASSERT_EQ(client.connect(daemon.path().c_str()), XP_OK) << client.error();
    const xp_pong* pong = nullptr;
    EXPECT_EQ(client.ping(&pong), XP_OK);
    expertpack::Generate request;
    request.message(XP_ROLE_SYSTEM, "be brief")
        .message(XP_ROLE_USER, "hi")
        .temperature(0)
        .stop("\n")
        .max_tokens(5);
    ASSERT_EQ(request.status(), XP_OK) << request.error();
    uint64_t id = 0;
    ASSERT_EQ(client.submit(request, &id), XP_OK) << client.error();
    const xp_event* event = nullptr;
    ASSERT_EQ(client.next_event(&event, kPatienceMs), XP_OK);
    EXPECT_EQ(event->type, XP_EVENT_DONE);
    expertpack::Client moved = std::move(client);
    EXPECT_EQ(moved.ping(&pong), XP_OK);
}

TEST(Wrapper, KeepsTheFirstFailureOfASetterAndSendsNothing) {
    FakeDaemon daemon([](Session& session) { EXPECT_FALSE(session.next()); });
    expertpack::Client client;
    EXPECT_EQ(client.connect("/nonexistent/sock"), XP_UNAVAILABLE);
    EXPECT_STREQ(client.error_code(), "unavailable");
    ASSERT_EQ(client.connect(daemon.path().c_str()), XP_OK);
    expertpack::Generate request;
    request.text("x").top_p(7).top_logprobs(99);
    EXPECT_EQ(request.status(), XP_INVALID);
    EXPECT_THAT(request.error(), ::testing::HasSubstr("top_p"));
    uint64_t id = 0;
    EXPECT_EQ(client.submit(request, &id), XP_INVALID);
}

}  // namespace
}  // namespace xp::test
