// What clients get: answers, cancellations, orderly ends, and their own faults only.
#include "tests/serve/ring_server_fixture.h"

#include <csignal>
#include <sys/wait.h>

namespace xp {
namespace {

TEST_F(RingServerTest, AnswersPingModelsAndStats) {
    make({});
    expertpack::Client client = connect();
    const xp_pong* pong = nullptr;
    ASSERT_EQ(client.ping(&pong, kWaitMs), XP_OK) << client.error();
    EXPECT_STREQ(pong->version, XP_VERSION);
    EXPECT_STREQ(pong->backend, "test");
    const xp_model_list* models = nullptr;
    ASSERT_EQ(client.models(&models, kWaitMs), XP_OK) << client.error();
    ASSERT_EQ(models->count, 1u);
    EXPECT_STREQ(models->models[0]->name, "scripted");
    EXPECT_EQ(models->models[0]->context, 4096u);
    const nlohmann::json json = stats();
    EXPECT_EQ(json.at("version"), XP_VERSION);
    EXPECT_EQ(json.at("models").at(0).at("name"), "scripted");
    EXPECT_EQ(json.at("clients").at("connected"), 2);
    EXPECT_EQ(json.at("clients").at("doorbell_missed"), 0);
}

TEST_F(RingServerTest, StreamsAnAnswer) {
    const auto words = scripted::tokens_of("The answer is 42.");
    make(scripted::say(words, 3));
    expertpack::Client client = connect();
    expertpack::Generate request = request_of(0);
    request.ignore_eos(false);
    submit(client, request);
    const Answer answer = answer_of(client);
    EXPECT_EQ(answer.text, "The answer is 42.");
    EXPECT_EQ(answer.end, XP_EVENT_DONE);
    EXPECT_EQ(answer.terminals, 1);
    EXPECT_EQ(answer.ids.size(), words.size() + 1);
}

TEST_F(RingServerTest, SeveralClientsAtOnceGetTheirOwnAnswers) {
    scripted::Script script;
    script.next = [](std::span<const TokenId> tokens) { return tokens.back() + 1; };
    make(script);
    std::vector<std::thread> threads;
    for (int32_t n = 0; n < 6; ++n) {
        threads.emplace_back([&, n] {
            expertpack::Client client = connect();
            for (int32_t round = 0; round < 5; ++round) {
                const int32_t first = 100 + n * 100 + round * 10;
                const int32_t prompt[] = {0, first};
                expertpack::Generate request;
                request.tokens(prompt).temperature(0).max_tokens(3).ignore_eos(true);
                submit(client, request);
                const Answer answer = answer_of(client);
                EXPECT_THAT(answer.ids, ::testing::ElementsAre(first + 1, first + 2, first + 3));
                EXPECT_EQ(answer.terminals, 1);
                EXPECT_EQ(answer.reason, XP_FINISH_LENGTH);
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    const auto json = stats();
    EXPECT_EQ(json.at("requests").at("length"), 30);
    EXPECT_EQ(json.at("clients").at("doorbell_missed"), 0);
    EXPECT_EQ(json.at("clients").at("violations"), 0);
}

TEST_F(RingServerTest, CancelEndsARunningRequest) {
    make(gated());
    expertpack::Client client = connect();
    const uint64_t id = submit(client, request_of(4000));
    gate_.wait_for_arrival();
    ASSERT_EQ(client.cancel(id), XP_OK) << client.error();
    // Rings are read in order: the answer to a ping says that the cancel was seen.
    const xp_pong* pong = nullptr;
    ASSERT_EQ(client.ping(&pong, kWaitMs), XP_OK);
    gate_.open();
    const Answer answer = answer_of(client);
    EXPECT_EQ(answer.end, XP_EVENT_CANCELLED);
    EXPECT_EQ(answer.code, "client");
    EXPECT_EQ(answer.terminals, 1);
    EXPECT_LE(answer.ids.size(), 1u);
}

TEST_F(RingServerTest, HangingUpCancelsAClientsRequests) {
    make(gated());
    {
        expertpack::Client client = connect();
        submit(client, request_of(4000));
        submit(client, request_of(4000));
        gate_.wait_for_arrival();
    }
    wait_until([](const auto& json) { return json.at("clients").at("connected") == 1; });
    gate_.open();
    wait_until([](const auto& json) { return json.at("requests").at("cancelled") == 2; });
    EXPECT_TRUE(scheduler_->empty());
}

TEST_F(RingServerTest, AKilledClientCostsNothingButItself) {
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    // Before the server's threads exist: the child may then use the library.
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        char byte = 0;
        (void)!::read(ready[0], &byte, 1);
        expertpack::Client client("victim");
        uint64_t id = 0;
        if (client.connect(socket_.c_str(), kWaitMs) == XP_OK) {
            client.submit(request_of(4000), &id, kWaitMs);
        }
        ::pause();
        ::_exit(0);
    }
    make(gated());
    ASSERT_EQ(::write(ready[1], "x", 1), 1);
    gate_.wait_for_arrival();
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    wait_until([](const auto& json) { return json.at("clients").at("connected") == 1; });
    gate_.open();
    wait_until([](const auto& json) { return json.at("requests").at("cancelled") == 1; });
    ::close(ready[0]);
    ::close(ready[1]);
}

TEST_F(RingServerTest, AMalformedRequestCostsItsClientOnly) {
    scripted::Script script;
    script.next = [](std::span<const TokenId>) { return TokenId{50}; };
    make(script);
    expertpack::Client good = connect("good");
    RawClient bad(socket_);
    const std::vector<std::byte> garbage(64, std::byte{0x5a});
    bad.send(7, garbage);
    const auto reply = bad.next_reply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(std::get<shm::Failed>(*reply).code, "malformed");
    EXPECT_TRUE(bad.hung_up());

    submit(good, request_of(5));
    EXPECT_EQ(answer_of(good).ids.size(), 5u);
    EXPECT_EQ(stats().at("clients").at("violations"), 1);
}

TEST_F(RingServerTest, BrokenRingIndicesCostTheConnection) {
    make({});
    RawClient bad(socket_);
    // More than the ring holds.
    *reinterpret_cast<volatile uint64_t*>(bad.channel.req.base() + shm::kTailOffset) = 1ull << 40;
    shm::ring_bell(bad.channel.req_bell.get());
    EXPECT_TRUE(bad.hung_up());
    EXPECT_EQ(stats().at("clients").at("violations"), 1);
}

TEST_F(RingServerTest, ARequestIdInUseIsAViolation) {
    make(gated());
    RawClient bad(socket_);
    const auto request = shm::encode_request(raw_request(4000));
    bad.send(7, request);
    gate_.wait_for_arrival();
    bad.send(7, request);
    EXPECT_TRUE(bad.hung_up());
    gate_.open();
    wait_until([](const auto& json) { return json.at("requests").at("cancelled") == 1; });
}

TEST_F(RingServerTest, ALostBellIsFoundAndCounted) {
    RingServerOptions options;
    options.housekeeping = 20ms;
    make({}, options);
    RawClient quiet(socket_);
    wait_until([](const auto& json) { return json.at("clients").at("connected") == 2; });
    quiet.send(1, shm::encode_request(shm::Ping{}), /*bell=*/false);
    const auto reply = quiet.next_reply();
    ASSERT_TRUE(reply);
    EXPECT_TRUE(std::holds_alternative<shm::Pong>(*reply));
    EXPECT_EQ(stats().at("clients").at("doorbell_missed"), 1);
}

TEST_F(RingServerTest, DrainingTellsClientsFinishesWhatRunsAndTakesNobodyNew) {
    make(gated());
    expertpack::Client client = connect();
    submit(client, request_of(5));
    gate_.wait_for_arrival();
    scheduler_->begin_drain();
    server_->begin_drain();
    const uint64_t id = submit(client, request_of(5));
    const xp_event* event = nullptr;
    do {
        ASSERT_EQ(client.next_event(&event, kWaitMs), XP_OK);
    } while (!event->terminal);
    EXPECT_EQ(event->request_id, id);
    EXPECT_STREQ(event->code, "shutdown");
    gate_.open();
    const Answer answer = answer_of(client);
    EXPECT_EQ(answer.end, XP_EVENT_DONE);
    EXPECT_EQ(client.connection()->draining, 1);
    expertpack::Client late("late");
    EXPECT_EQ(late.connect(socket_.c_str(), 200), XP_UNAVAILABLE);
}

TEST_F(RingServerTest, StoppingDeliversTheLastRepliesBeforeHangingUp) {
    make(gated());
    expertpack::Client client = connect();
    submit(client, request_of(4000));
    gate_.wait_for_arrival();
    scheduler_->cancel_all("shutdown");
    gate_.open();
    scheduler_->stop();
    server_->stop();
    const Answer answer = answer_of(client);
    EXPECT_EQ(answer.end, XP_EVENT_CANCELLED);
    EXPECT_EQ(answer.code, "shutdown");
    EXPECT_EQ(answer.terminals, 1);
}

}  // namespace
}  // namespace xp
