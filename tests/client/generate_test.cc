// Requests and their events, against a daemon that behaves.
#include <ctime>

#include <poll.h>

#include "tests/client/client_fixture.h"
#include "tests/shm/messages.h"

namespace xp::test {
namespace {

using ::testing::HasSubstr;

// Answers every Generate with its prompt, one token per byte; Cancel and the rest as they come.
void echo(Session& session) {
    while (auto request = session.next()) {
        const uint64_t id = request->first;
        if (const auto* generate = std::get_if<shm::Generate>(&request->second)) {
            const std::string& text = std::get<shm::RawText>(generate->prompt).text;
            session.reply(id, shm::Accepted{"echo", {7, 8}});
            for (const char c : text) {
                session.reply(id, shm::Tokens{{c}, shm::Channel::kContent, std::string(1, c), {}});
            }
            session.reply(id, shm::Done{});
        } else {
            session.reply(id, shm::Pong{"1.2.3", "cpu"});
        }
    }
}

TEST(Generate, StreamsItsEventsInOrderAndEndsOnce) {
    FakeDaemon daemon([](Session& session) {
        const auto request = session.next();
        ASSERT_TRUE(request);
        const uint64_t id = request->first;
        session.reply(id, shm::Accepted{"demo", {1, 2, 3}});
        session.reply(id, shm::Progress{1, 3});
        session.reply(id, shm::full_tokens());
        session.reply(id, shm::Tokens{{4}, shm::Channel::kReasoning, "", {}});
        session.reply(id, shm::Done{shm::FinishReason::kLength, shm::full_timings()});
        session.wait_for_hang_up();
    });
    const ClientPtr client = connect(daemon);
    const uint64_t id = submit(client);
    EXPECT_NE(id, 0u);

    const xp_event* event = &next(client);
    EXPECT_EQ(event->type, XP_EVENT_ACCEPTED);
    EXPECT_EQ(event->request_id, id);
    EXPECT_EQ(event->terminal, 0);
    EXPECT_STREQ(event->model, "demo");
    ASSERT_EQ(event->prompt_token_count, 3u);
    EXPECT_EQ(event->prompt_tokens[2], 3);
    EXPECT_STREQ(event->text, "");

    event = &next(client);
    EXPECT_EQ(event->type, XP_EVENT_PROGRESS);
    EXPECT_EQ(event->prefill_done, 1u);
    EXPECT_EQ(event->prefill_total, 3u);

    event = &next(client);
    EXPECT_EQ(event->type, XP_EVENT_TOKENS);
    EXPECT_EQ(event->channel, XP_CHANNEL_TOOL_CALL);
    EXPECT_EQ(std::string(event->text, event->text_length), "né");
    ASSERT_EQ(event->token_count, 3u);
    EXPECT_EQ(event->token_ids[2], std::numeric_limits<int32_t>::max());
    ASSERT_NE(event->logprobs, nullptr);
    EXPECT_EQ(event->logprobs[0].top_count, 2u);
    EXPECT_EQ(event->logprobs[0].top[1].token_id, 4);
    EXPECT_EQ(event->logprobs[0].top[1].logprob, -1.5f);
    EXPECT_EQ(event->logprobs[1].top_count, 0u);
    EXPECT_EQ(event->logprobs[2].top[0].token_id, 0);
    EXPECT_EQ(event->logprobs[2].chosen, -FLT_MAX);

    event = &next(client);
    EXPECT_EQ(event->channel, XP_CHANNEL_REASONING);
    EXPECT_EQ(event->text_length, 0u);
    EXPECT_EQ(event->logprobs, nullptr);

    event = &next(client);
    EXPECT_EQ(event->type, XP_EVENT_DONE);
    EXPECT_EQ(event->terminal, 1);
    EXPECT_EQ(event->finish_reason, XP_FINISH_LENGTH);
    EXPECT_EQ(event->timings.queued_us, 1u);
    EXPECT_EQ(event->timings.prompt_tokens, 4u);
    EXPECT_EQ(event->timings.read_bytes, std::numeric_limits<uint64_t>::max());

    EXPECT_EQ(next_status(client), XP_IDLE);
}

TEST(Generate, SeveralRequestsInFlightAreToldApartById) {
    FakeDaemon daemon([](Session& session) {
        std::vector<uint64_t> ids;
        while (ids.size() < 3) {
            const auto request = session.next();
            ASSERT_TRUE(request);
            ids.push_back(request->first);
        }
        for (auto id = ids.rbegin(); id != ids.rend(); ++id) session.reply(*id, shm::Done{});
        session.wait_for_hang_up();
    });
    const ClientPtr client = connect(daemon);
    const uint64_t first = submit(client);
    const uint64_t second = submit(client);
    const uint64_t third = submit(client);
    EXPECT_EQ(next(client).request_id, third);
    EXPECT_EQ(next(client).request_id, second);
    EXPECT_EQ(next_status(client), XP_OK);
    EXPECT_EQ(next_status(client), XP_IDLE);
    EXPECT_LT(first, second);
}

// Far more than the response ring holds: both sides sleep and wake each other again and again.
TEST(Generate, LongStreamsFlowThroughASmallRing) {
    FakeDaemon daemon(echo, small_rings());
    const ClientPtr client = connect(daemon);
    std::string text(20'000, 'x');
    for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>('a' + i % 26);
    submit(client, text);
    std::string got;
    for (;;) {
        const xp_event& event = next(client);
        if (event.type == XP_EVENT_TOKENS) got.append(event.text, event.text_length);
        if (event.type == 0 || event.terminal) break;
    }
    EXPECT_EQ(got, text);
}

TEST(Generate, ACancelledRequestEndsOnceAndTheCancelItselfIsSilent) {
    FakeDaemon daemon([](Session& session) {
        const auto generate = session.next();
        ASSERT_TRUE(generate);
        session.reply(generate->first, shm::Accepted{"demo", {}});
        const auto cancel = session.next();
        ASSERT_TRUE(cancel);
        ASSERT_TRUE(std::holds_alternative<shm::Cancel>(cancel->second));
        EXPECT_EQ(std::get<shm::Cancel>(cancel->second).target, generate->first);
        EXPECT_NE(cancel->first, generate->first);
        session.reply(cancel->first, shm::Done{});
        session.reply(generate->first, shm::Cancelled{"client", {}});
        session.wait_for_hang_up();
    });
    const ClientPtr client = connect(daemon);
    const uint64_t id = submit(client);
    EXPECT_EQ(next(client).type, XP_EVENT_ACCEPTED);
    EXPECT_EQ(xp_cancel(client.get(), id), XP_OK);
    const xp_event& event = next(client);
    EXPECT_EQ(event.type, XP_EVENT_CANCELLED);
    EXPECT_EQ(event.terminal, 1);
    EXPECT_STREQ(event.code, "client");
    EXPECT_EQ(next_status(client), XP_IDLE);
    // Over already, or never there: nothing to do.
    EXPECT_EQ(xp_cancel(client.get(), id), XP_OK);
    EXPECT_EQ(xp_cancel(client.get(), 999), XP_OK);
}

TEST(Generate, AFailureCarriesCodeAndMessage) {
    FakeDaemon daemon([](Session& session) {
        const auto request = session.next();
        ASSERT_TRUE(request);
        session.reply(request->first, shm::Failed{"not_found", "no model 'x'"});
        session.wait_for_hang_up();
    });
    const ClientPtr client = connect(daemon);
    submit(client);
    const xp_event& event = next(client);
    EXPECT_EQ(event.type, XP_EVENT_FAILED);
    EXPECT_EQ(event.terminal, 1);
    EXPECT_STREQ(event.code, "not_found");
    EXPECT_STREQ(event.message, "no model 'x'");
}

TEST(Generate, WaitsEndWithATimeoutAndTheEventStillComes) {
    FakeDaemon daemon([](Session& session) {
        const auto request = session.next();
        ASSERT_TRUE(request);
        ASSERT_TRUE(session.next());  // the ping says when to go on
        session.reply(request->first, shm::Done{});
        session.wait_for_hang_up();
    });
    const ClientPtr client = connect(daemon);
    submit(client);
    EXPECT_EQ(next_status(client, 0), XP_TIMEOUT);
    EXPECT_EQ(next_status(client, 20), XP_TIMEOUT);
    EXPECT_EQ(xp_ping(client.get(), 0, nullptr), XP_TIMEOUT);
    EXPECT_EQ(next(client).type, XP_EVENT_DONE);
}

TEST(Generate, WaitingDoesNotSpin) {
    FakeDaemon daemon([](Session& session) { session.wait_for_hang_up(); });
    const ClientPtr client = connect(daemon);
    submit(client);
    const auto cpu_ms = [] {
        timespec t{};
        ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
        return t.tv_sec * 1000 + t.tv_nsec / 1'000'000;
    };
    const auto before = cpu_ms();
    EXPECT_EQ(next_status(client, 500), XP_TIMEOUT);
    // A spinning wait uses nearly all of the 500 ms.
    EXPECT_LT(cpu_ms() - before, 250);
}

// The protocol of xp_client_fd(): drain until nothing comes, poll, repeat.
TEST(Generate, PollingTheDescriptorMissesNothing) {
    FakeDaemon daemon(echo, small_rings());
    const ClientPtr client = connect(daemon);
    const std::string text(5'000, 'p');
    submit(client, text);
    size_t tokens = 0;
    for (bool over = false; !over;) {
        const xp_event* event = nullptr;
        const xp_status status = xp_next_event(client.get(), 0, &event);
        if (status == XP_OK) {
            tokens += event->token_count;
            over = event->terminal;
            continue;
        }
        ASSERT_EQ(status, XP_TIMEOUT);
        pollfd wait{xp_client_fd(client.get()), POLLIN, 0};
        ASSERT_EQ(::poll(&wait, 1, kPatienceMs), 1) << "a wake-up was lost";
    }
    EXPECT_EQ(tokens, text.size());
}

TEST(Generate, ARequestTooLargeForTheRingIsRefusedWithTheLimit) {
    FakeDaemon daemon(echo, small_rings());
    const ClientPtr client = connect(daemon);
    const uint64_t limit = xp_connection(client.get())->max_request_bytes;
    EXPECT_EQ(limit, shm::kMinRingBytes / 2 - 16);
    uint64_t id = 0;
    const GeneratePtr request = text_request(std::string(limit, 'x'));
    EXPECT_EQ(xp_submit(client.get(), request.get(), kPatienceMs, &id), XP_TOO_LARGE);
    EXPECT_THAT(xp_client_error(client.get()), HasSubstr(std::to_string(limit)));
    EXPECT_EQ(id, 0u);
    EXPECT_EQ(next_status(client), XP_IDLE);
}

TEST(Generate, AFullRingIsBusyUntilTheDaemonReads) {
    FakeDaemon daemon(
        [](Session& session) {
            // Reads nothing until the client sleeps for room.
            shm::RingReader observer(session.channel().own(), session.channel().peer());
            while (!observer.peer_waits_for_space()) ::usleep(1000);
            size_t count = 0;
            while (auto request = session.next()) {
                ++count;
                session.reply(request->first, shm::Done{});
            }
            EXPECT_GT(count, 3u);
        },
        small_rings());
    const ClientPtr client = connect(daemon);
    const GeneratePtr request = text_request(std::string(15'000, 'x'));
    uint64_t id = 0;
    size_t submitted = 0;
    xp_status status;
    while ((status = xp_submit(client.get(), request.get(), 0, &id)) == XP_OK) ++submitted;
    EXPECT_EQ(status, XP_BUSY);
    EXPECT_THAT(xp_client_error(client.get()), HasSubstr("full"));
    EXPECT_GE(submitted, 3u);
    EXPECT_EQ(xp_submit(client.get(), request.get(), kPatienceMs, &id), XP_OK);
    for (size_t i = 0; i <= submitted; ++i) EXPECT_EQ(next(client).type, XP_EVENT_DONE);
}

TEST(Generate, MoreThanTheDaemonAllowsInFlightIsBusy) {
    shm::ServerOffer offer;
    offer.max_in_flight = 2;
    FakeDaemon daemon(
        [](Session& session) {
            const auto first = session.next();
            ASSERT_TRUE(first);
            session.reply(first->first, shm::Done{});
            session.wait_for_hang_up();
        },
        offer);
    const ClientPtr client = connect(daemon);
    submit(client);
    submit(client);
    uint64_t id = 0;
    EXPECT_EQ(xp_submit(client.get(), text_request("x").get(), kPatienceMs, &id), XP_BUSY);
    EXPECT_EQ(next(client).type, XP_EVENT_DONE);
    submit(client);
}

}  // namespace
}  // namespace xp::test
