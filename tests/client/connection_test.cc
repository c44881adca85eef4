// Connecting, synchronous questions, and what a client survives without its daemon dying.
#include <cstdlib>

#include <sys/wait.h>

#include "tests/client/client_fixture.h"

namespace xp::test {
namespace {

using ::testing::HasSubstr;

void idle(Session& session) {
    session.wait_for_hang_up();
}

// Answers pings, models and stats.
void answer(Session& session) {
    while (auto request = session.next()) {
        const uint64_t id = request->first;
        if (std::holds_alternative<shm::Ping>(request->second)) {
            session.reply(id, shm::Pong{"1.2.3", "cpu"});
        } else if (std::holds_alternative<shm::ListModels>(request->second)) {
            session.reply(id, shm::ModelsReply{{{"a", "deepseek4", "first", 4096, 129'280},
                                                {"b", "kimi-k3", "", 1, 2}}});
        } else if (std::holds_alternative<shm::GetStats>(request->second)) {
            session.reply(id, shm::StatsReply{R"({"hits":3})"});
        }
    }
}

TEST(ClientConnect, LearnsWhatTheDaemonOffers) {
    shm::ServerOffer offer;
    offer.boot_id.fill(0x42);
    offer.max_in_flight = 9;
    FakeDaemon daemon(
        [](Session& session) {
            EXPECT_STREQ(session.hello().client_name, "client_test");
            session.wait_for_hang_up();
        },
        offer);
    const ClientPtr client = connect(daemon);
    const xp_connection_info* info = xp_connection(client.get());
    ASSERT_NE(info, nullptr);
    EXPECT_EQ(info->boot_id[7], 0x42);
    EXPECT_EQ(info->protocol_major, 1u);
    EXPECT_EQ(info->max_in_flight, 9u);
    EXPECT_EQ(info->max_request_bytes, shm::kRequestRingBytes / 2 - 16);
    EXPECT_EQ(info->draining, 0);
    EXPECT_GE(xp_client_fd(client.get()), 0);
    EXPECT_EQ(xp_connect(client.get(), daemon.path().c_str(), 0), XP_INVALID);

    xp_disconnect(client.get());
    EXPECT_EQ(xp_connection(client.get()), nullptr);
    EXPECT_EQ(xp_client_fd(client.get()), -1);
    EXPECT_EQ(next_status(client), XP_GONE);
    EXPECT_STREQ(xp_client_error(client.get()), "the client is not connected");
}

TEST(ClientConnect, TakesThePathFromTheEnvironment) {
    FakeDaemon daemon(idle);
    ASSERT_EQ(::setenv("EXPERTPACK_SOCKET", daemon.path().c_str(), 1), 0);
    const ClientPtr client(xp_client_new(nullptr));
    EXPECT_EQ(xp_connect(client.get(), nullptr, kPatienceMs), XP_OK)
        << xp_client_error(client.get());
    ASSERT_EQ(::setenv("EXPERTPACK_SOCKET", "/nonexistent/sock", 1), 0);
    const ClientPtr other(xp_client_new(nullptr));
    EXPECT_EQ(xp_connect(other.get(), nullptr, kPatienceMs), XP_UNAVAILABLE);
    EXPECT_THAT(xp_client_error(other.get()), HasSubstr("/nonexistent/sock"));
    ::unsetenv("EXPERTPACK_SOCKET");
}

TEST(ClientConnect, RefusalsHaveTheirOwnStatus) {
    struct Case {
        shm::WelcomeStatus refusal;
        xp_status expected;
        const char* code;
    };
    const Case cases[] = {
        {shm::WelcomeStatus::kBadVersion, XP_BAD_VERSION, "bad_version"},
        {shm::WelcomeStatus::kTooManyClients, XP_REFUSED, "too_many_clients"},
        {shm::WelcomeStatus::kShuttingDown, XP_REFUSED, "shutting_down"},
    };
    for (const auto& [refusal, expected, code] : cases) {
        const shm::Listener listener;
        std::thread thread([&] {
            const shm::Fd socket = listener.accept();
            shm::send_refusal(socket.get(), refusal, "full up");
        });
        const ClientPtr client(xp_client_new("x"));
        EXPECT_EQ(xp_connect(client.get(), listener.path().c_str(), kPatienceMs), expected);
        EXPECT_THAT(xp_client_error(client.get()), HasSubstr("full up"));
        EXPECT_STREQ(xp_error_code(client.get()), code);
        thread.join();
    }
}

TEST(ClientErrorCode, IsTheDaemonsOrElseTheStatus) {
    FakeDaemon daemon([](Session& session) {
        while (const auto request = session.next()) {
            // The text of a failure is anybody's: no code is read out of it.
            session.reply(request->first, shm::Failed{"not_found", "none (of these)"});
            if (std::holds_alternative<shm::GetStats>(request->second)) return;
        }
    });
    const ClientPtr client(xp_client_new("x"));
    EXPECT_STREQ(xp_error_code(client.get()), "");
    EXPECT_EQ(xp_connect(client.get(), "/nonexistent/sock", 0), XP_UNAVAILABLE);
    EXPECT_STREQ(xp_error_code(client.get()), "unavailable");
    ASSERT_EQ(xp_connect(client.get(), daemon.path().c_str(), kPatienceMs), XP_OK);
    EXPECT_EQ(xp_models(client.get(), kPatienceMs, nullptr), XP_FAILED);
    EXPECT_STREQ(xp_error_code(client.get()), "not_found");
    EXPECT_STREQ(xp_client_error(client.get()), "none (of these) (not_found)");
    EXPECT_EQ(xp_cancel_request(client.get(), 0, 1, 0), XP_INVALID);
    EXPECT_STREQ(xp_error_code(client.get()), "invalid");
    EXPECT_EQ(xp_stats_json(client.get(), kPatienceMs, nullptr), XP_FAILED);  // then it goes away
    EXPECT_EQ(xp_ping(client.get(), kPatienceMs, nullptr), XP_GONE);
    EXPECT_STREQ(xp_error_code(client.get()), "gone");
    // Another failure in between does not change why the connection is dead.
    EXPECT_EQ(xp_cancel_request(client.get(), 0, 1, 0), XP_INVALID);
    EXPECT_EQ(xp_ping(client.get(), 0, nullptr), XP_GONE);
    EXPECT_STREQ(xp_error_code(client.get()), "gone");
    EXPECT_THAT(xp_client_error(client.get()), HasSubstr("closed the connection"));
}

TEST(ClientConnect, PathsThatAreTooLongAreInvalid) {
    const ClientPtr client(xp_client_new("x"));
    EXPECT_EQ(xp_connect(client.get(), std::string(200, 'p').c_str(), 0), XP_INVALID);
}

TEST(ClientAsk, AnswersComeAsStructs) {
    FakeDaemon daemon(answer);
    const ClientPtr client = connect(daemon);
    const xp_pong* pong = nullptr;
    ASSERT_EQ(xp_ping(client.get(), kPatienceMs, &pong), XP_OK);
    EXPECT_STREQ(pong->version, "1.2.3");
    EXPECT_STREQ(pong->backend, "cpu");
    const xp_model_list* list = nullptr;
    ASSERT_EQ(xp_models(client.get(), kPatienceMs, &list), XP_OK);
    ASSERT_EQ(list->count, 2u);
    EXPECT_STREQ(list->models[0]->name, "a");
    EXPECT_EQ(list->models[0]->context, 4096u);
    EXPECT_STREQ(list->models[1]->architecture, "kimi-k3");
    EXPECT_EQ(list->models[1]->n_vocab, 2u);
    const char* json = nullptr;
    ASSERT_EQ(xp_stats_json(client.get(), kPatienceMs, &json), XP_OK);
    EXPECT_STREQ(json, R"({"hits":3})");
}

TEST(ClientAsk, EventsThatArriveMeanwhileAreKeptInOrder) {
    FakeDaemon daemon([](Session& session) {
        const auto generate = session.next();
        const auto ping = session.next();
        ASSERT_TRUE(generate && ping);
        session.reply(generate->first, shm::Accepted{"m", {}});
        session.reply(generate->first, shm::Tokens{{1}, shm::Channel::kContent, "a", {}});
        session.reply(ping->first, shm::Pong{"1", "cpu"});
        session.reply(generate->first, shm::Done{});
        session.wait_for_hang_up();
    });
    const ClientPtr client = connect(daemon);
    submit(client);
    ASSERT_EQ(xp_ping(client.get(), kPatienceMs, nullptr), XP_OK);
    EXPECT_EQ(next(client).type, XP_EVENT_ACCEPTED);
    EXPECT_EQ(next(client).type, XP_EVENT_TOKENS);
    EXPECT_EQ(next(client).type, XP_EVENT_DONE);
}

TEST(ClientAsk, GivesUpWhenTooManyEventsWait) {
    FakeDaemon daemon([](Session& session) {
        const auto generate = session.next();
        const auto ping = session.next();
        ASSERT_TRUE(generate && ping);
        for (int i = 0; i < 5000; ++i) {
            if (!session.reply(generate->first, shm::Progress{1, 1})) return;
        }
        session.reply(ping->first, shm::Pong{"1", "cpu"});
        session.reply(generate->first, shm::Done{});
        session.wait_for_hang_up();
    });
    const ClientPtr client = connect(daemon);
    submit(client);
    EXPECT_EQ(xp_ping(client.get(), kPatienceMs, nullptr), XP_BUSY);
    int events = 0;
    while (next(client).type == XP_EVENT_PROGRESS) ++events;
    EXPECT_EQ(events, 5000);
}

TEST(ClientAsk, AnErrorOfTheDaemonIsReported) {
    FakeDaemon daemon([](Session& session) {
        while (auto request = session.next()) {
            session.reply(request->first, shm::Failed{"busy", "later please"});
        }
    });
    const ClientPtr client = connect(daemon);
    const char* json = nullptr;
    EXPECT_EQ(xp_stats_json(client.get(), kPatienceMs, &json), XP_FAILED);
    EXPECT_EQ(json, nullptr);
    EXPECT_STREQ(xp_client_error(client.get()), "later please (busy)");
}

TEST(ClientAsk, ALateAnswerIsIgnored) {
    FakeDaemon daemon([](Session& session) {
        const auto late = session.next();
        const auto models = session.next();
        ASSERT_TRUE(late && models);
        session.reply(late->first, shm::Pong{"late", "cpu"});
        session.reply(models->first, shm::ModelsReply{});
        const auto ping = session.next();
        ASSERT_TRUE(ping);
        session.reply(ping->first, shm::Pong{"new", "cpu"});
        session.wait_for_hang_up();
    });
    const ClientPtr client = connect(daemon);
    EXPECT_EQ(xp_ping(client.get(), 10, nullptr), XP_TIMEOUT);
    EXPECT_STREQ(xp_error_code(client.get()), "timeout");
    EXPECT_EQ(xp_models(client.get(), kPatienceMs, nullptr), XP_OK);
    const xp_pong* pong = nullptr;
    ASSERT_EQ(xp_ping(client.get(), kPatienceMs, &pong), XP_OK);
    EXPECT_STREQ(pong->version, "new");
}

TEST(ClientNotice, DrainShowsInTheConnection) {
    FakeDaemon daemon([](Session& session) {
        shm::send_notice(session.socket(), static_cast<shm::NoticeKind>(77));  // from the future
        shm::send_notice(session.socket(), shm::NoticeKind::kDrain);
        answer(session);
    });
    const ClientPtr client = connect(daemon);
    ASSERT_EQ(xp_ping(client.get(), kPatienceMs, nullptr), XP_OK);
    EXPECT_EQ(next_status(client), XP_IDLE);
    EXPECT_EQ(xp_connection(client.get())->draining, 1);
}

TEST(ClientFork, TheChildsCopyIsDeadAndTheParentsUnharmed) {
    FakeDaemon daemon(answer);
    ClientPtr client = connect(daemon);
    ASSERT_EQ(xp_ping(client.get(), kPatienceMs, nullptr), XP_OK);
    const pid_t child = ::fork();
    if (child == 0) {
        uint64_t id = 0;
        const xp_event* event = nullptr;
        int wrong = 0;
        wrong += xp_ping(client.get(), 0, nullptr) != XP_GONE;
        wrong += xp_submit(client.get(), text_request("x").get(), 0, &id) != XP_GONE;
        wrong += xp_next_event(client.get(), -1, &event) != XP_GONE;
        wrong += xp_cancel(client.get(), 1) != XP_GONE;
        wrong += xp_connect(client.get(), nullptr, 0) != XP_GONE;
        wrong += xp_client_fd(client.get()) != -1;
        wrong += xp_connection(client.get()) != nullptr;
        wrong += std::string(xp_client_error(client.get())).find("fork") == std::string::npos;
        xp_disconnect(client.get());
        client.reset();
        ::_exit(wrong);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(xp_ping(client.get(), kPatienceMs, nullptr), XP_OK);
}

TEST(ClientArguments, NullIsAnErrorAndNeverACrash) {
    const xp_event* event = nullptr;
    uint64_t id = 0;
    xp_client_free(nullptr);
    xp_disconnect(nullptr);
    EXPECT_EQ(xp_connect(nullptr, nullptr, 0), XP_INVALID);
    EXPECT_EQ(xp_submit(nullptr, nullptr, 0, &id), XP_INVALID);
    EXPECT_EQ(xp_cancel(nullptr, 1), XP_INVALID);
    EXPECT_EQ(xp_next_event(nullptr, 0, &event), XP_INVALID);
    EXPECT_EQ(xp_ping(nullptr, 0, nullptr), XP_INVALID);
    EXPECT_EQ(xp_client_fd(nullptr), -1);
    EXPECT_EQ(xp_connection(nullptr), nullptr);
    EXPECT_STREQ(xp_client_error(nullptr), "the client is NULL");
    EXPECT_STREQ(xp_error_code(nullptr), "invalid");

    FakeDaemon daemon(idle);
    const ClientPtr client = connect(daemon);
    EXPECT_EQ(xp_submit(client.get(), nullptr, 0, &id), XP_INVALID);
    EXPECT_EQ(xp_next_event(client.get(), 0, nullptr), XP_INVALID);
    const GeneratePtr empty(xp_generate_new());
    EXPECT_EQ(xp_submit(client.get(), empty.get(), 0, &id), XP_INVALID);
    EXPECT_THAT(xp_client_error(client.get()), HasSubstr("no prompt"));
}

}  // namespace
}  // namespace xp::test
