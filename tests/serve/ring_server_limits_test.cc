// What the ring server bounds: clients, requests, rates, and patience with those that do not read.
#include "tests/serve/ring_server_fixture.h"

#include <sys/socket.h>
#include <sys/un.h>

namespace xp {
namespace {

using ::testing::HasSubstr;

TEST_F(RingServerTest, WhoSaysNoHelloIsDroppedAndMakesRoom) {
    RingServerOptions options;
    use_clock(options);
    options.half_open = 2;
    make({}, options);
    std::vector<UniqueFd> silent;
    for (int n = 0; n < 5; ++n) {
        silent.emplace_back(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        socket_.string().copy(address.sun_path, sizeof address.sun_path - 1);
        ASSERT_EQ(::connect(silent.back().get(), reinterpret_cast<sockaddr*>(&address),
                            sizeof address), 0);
    }
    for (const UniqueFd& fd : silent) {
        pollfd poll{fd.get(), POLLIN, 0};
        while (::poll(&poll, 1, 50) == 0) {
            clock_offset_s_ += 6;
        }
        shm::Welcome welcome;
        ASSERT_EQ(::recv(fd.get(), &welcome, sizeof welcome, 0),
                  static_cast<ssize_t>(sizeof welcome));
        EXPECT_EQ(welcome.status, static_cast<uint32_t>(shm::WelcomeStatus::kBadHello));
        EXPECT_EQ(::recv(fd.get(), &welcome, sizeof welcome, 0), 0);
    }
    EXPECT_EQ(stats().at("clients").at("refused"), 5);
}

TEST_F(RingServerTest, OneClientTooManyIsRefusedWithTheLimit) {
    RingServerOptions options;
    options.user.clients = 2;
    make({}, options);
    expertpack::Client clients[3];
    EXPECT_EQ(clients[0].connect(socket_.c_str(), kWaitMs), XP_OK);
    EXPECT_EQ(clients[1].connect(socket_.c_str(), kWaitMs), XP_OK);
    EXPECT_EQ(clients[2].connect(socket_.c_str(), kWaitMs), XP_REFUSED);
    EXPECT_THAT(clients[2].error(), HasSubstr("2 clients of user"));
}

TEST_F(RingServerTest, TooManyRequestsOfOneClientAreBusy) {
    RingServerOptions options;
    options.requests_per_client = 2;
    make(gated(), options);
    RawClient client(socket_);
    const auto request = shm::encode_request(raw_request(5));
    for (uint64_t id = 1; id <= 3; ++id) {
        client.send(id, request);
    }
    // The refusal, then the acceptance of the first; in whichever order threads come.
    bool refused = false;
    for (int n = 0; n < 2; ++n) {
        const auto reply = client.next_reply();
        ASSERT_TRUE(reply);
        if (const auto* failed = std::get_if<shm::Failed>(&*reply)) {
            EXPECT_EQ(failed->code, "busy");
            EXPECT_THAT(failed->message, HasSubstr("2 requests in flight"));
            refused = true;
        }
    }
    EXPECT_TRUE(refused);
}

TEST_F(RingServerTest, AReaderThatStallsIsParkedThenDroppedWhileOthersAreServed) {
    scripted::Script script;
    script.next = [](std::span<const TokenId>) { return TokenId{50}; };
    script.context = 1 << 20;
    RingServerOptions options;
    use_clock(options);
    SchedulerOptions scheduler_options;
    scheduler_options.backlog_limit = 16 << 10;
    make(script, options, scheduler_options);
    RawClient lazy(socket_, shm::kMinRingBytes);
    lazy.send(1, shm::encode_request(raw_request(1'000'000)));
    wait_until([](const auto& json) { return json.at("queue").at("parked") == 1; });

    expertpack::Client good = connect("good");
    submit(good, request_of(5));
    EXPECT_EQ(answer_of(good).ids.size(), 5u);

    // The job may have been parked for a moment only, before the ring was full: hence in steps.
    pollfd poll{lazy.channel.socket.get(), POLLRDHUP, 0};
    for (int n = 0; n < 400 && ::poll(&poll, 1, 50) == 0; ++n) {
        clock_offset_s_ += 31;
    }
    EXPECT_TRUE(lazy.hung_up());
    wait_until([](const auto& json) { return json.at("requests").at("cancelled") == 1; });
    EXPECT_EQ(stats().at("clients").at("stalled"), 1);
}

TEST_F(RingServerTest, AReaderThatComesBackGetsEverything) {
    scripted::Script script;
    script.next = [](std::span<const TokenId> tokens) {
        return static_cast<TokenId>(100 + tokens.size() % 1000);
    };
    SchedulerOptions scheduler_options;
    scheduler_options.backlog_limit = 8 << 10;
    make(script, {}, scheduler_options);
    RawClient slow(socket_, shm::kMinRingBytes);
    slow.send(1, shm::encode_request(raw_request(3000)));
    wait_until([](const auto& json) { return json.at("queue").at("parked") == 1; });
    std::vector<int32_t> ids;
    for (;;) {
        const auto reply = slow.next_reply();
        ASSERT_TRUE(reply);
        if (const auto* tokens = std::get_if<shm::Tokens>(&*reply)) {
            ids.insert(ids.end(), tokens->ids.begin(), tokens->ids.end());
        }
        if (shm::is_terminal(*reply)) {
            EXPECT_TRUE(std::holds_alternative<shm::Done>(*reply));
            break;
        }
    }
    ASSERT_EQ(ids.size(), 3000u);
    for (size_t i = 0; i < ids.size(); ++i) {
        ASSERT_EQ(ids[i], static_cast<int32_t>(100 + (i + 3) % 1000));
    }
}

// What came of a request that a client did not read for a while.
struct LateAnswer {
    size_t scored = 0;
    size_t logits = 0;
    size_t ids = 0;
    bool done = false;
};

LateAnswer late_answer_of(RawClient& client) {
    LateAnswer answer;
    while (auto reply = client.next_reply()) {
        if (const auto* scores = std::get_if<shm::Scores>(&*reply)) {
            EXPECT_EQ(scores->first, answer.scored);
            answer.scored += scores->argmax.size();
        } else if (const auto* some = std::get_if<shm::Logits>(&*reply)) {
            EXPECT_EQ(some->first, answer.logits);
            answer.logits += some->values.size();
        } else if (const auto* tokens = std::get_if<shm::Tokens>(&*reply)) {
            answer.ids += tokens->ids.size();
        } else if (shm::is_terminal(*reply)) {
            answer.done = std::holds_alternative<shm::Done>(*reply);
            break;
        }
    }
    return answer;
}

// Their answers are much larger than ring and backlog.
TEST_F(RingServerTest, ScoresAndTokenIdsWaitForAReaderThatComesBack) {
    scripted::Script script;
    script.context = 20'000;
    SchedulerOptions scheduler_options;
    scheduler_options.backlog_limit = 8 << 10;
    make(script, {}, scheduler_options);
    RawClient scorer(socket_, shm::kMinRingBytes);
    RawClient tokenizer(socket_, shm::kMinRingBytes);
    shm::Generate request = raw_request(0);
    request.task = shm::Task::kScore;
    request.last_logits = true;
    request.prompt = shm::RawTokens{std::vector<int32_t>(15'000, 7)};
    scorer.send(1, request);
    wait_until([](const auto& json) { return json.at("queue").at("parked") == 1; });
    request.task = shm::Task::kTokenize;
    request.prompt = shm::RawTokens{std::vector<int32_t>(50'000, 9)};
    tokenizer.send(1, request);
    wait_until([](const auto& json) { return json.at("queue").at("parked") == 2; });
    expertpack::Client good = connect("good");
    submit(good, request_of(5));
    EXPECT_EQ(answer_of(good).ids.size(), 5u);

    const LateAnswer score = late_answer_of(scorer);
    EXPECT_TRUE(score.done);
    EXPECT_EQ(score.scored, 15'000u);
    EXPECT_EQ(score.logits, scripted::n_vocab());
    const LateAnswer ids = late_answer_of(tokenizer);
    EXPECT_TRUE(ids.done);
    EXPECT_EQ(ids.ids, 50'000u);
}

TEST_F(RingServerTest, RequestsOfAUserCountOverAllItsConnections) {
    RingServerOptions options;
    options.user.requests = 2;
    make(gated(), options);
    expertpack::Client one = connect();
    expertpack::Client two = connect();
    submit(one, request_of(5));
    submit(two, request_of(5));
    wait_until([](const auto& json) { return json.at("accounts").at("requests") == 2; });
    submit(two, request_of(5));
    const xp_event* event = nullptr;
    do {
        ASSERT_EQ(two.next_event(&event, kWaitMs), XP_OK);
    } while (!event->terminal);
    EXPECT_STREQ(event->code, "busy");
    EXPECT_THAT(event->message, HasSubstr("2 requests of user"));
    EXPECT_THAT(event->message, HasSubstr("requests_per_user"));
    EXPECT_THAT(event->message, HasSubstr("try again"));
    EXPECT_EQ(stats().at("requests").at("busy"), 1);

    gate_.open();
    EXPECT_EQ(answer_of(one).end, XP_EVENT_DONE);
    EXPECT_EQ(answer_of(two).end, XP_EVENT_DONE);
    // Whoever has seen an end may ask at once.
    for (int n = 0; n < 20; ++n) {
        submit(one, request_of(1));
        submit(two, request_of(1));
        EXPECT_EQ(answer_of(one).end, XP_EVENT_DONE);
        EXPECT_EQ(answer_of(two).end, XP_EVENT_DONE);
    }
    EXPECT_EQ(stats().at("accounts").at("request_bytes"), 0);
}

TEST_F(RingServerTest, BytesOfAUsersRequestsAreBounded) {
    RingServerOptions options;
    options.user.request_bytes = 20'000;
    make(gated(), options);
    RawClient client(socket_);
    shm::Generate large = raw_request(5);
    large.prompt = shm::RawTokens{std::vector<int32_t>(3000, 7)};
    client.send(1, large);
    gate_.wait_for_arrival();
    auto reply = client.next_reply();
    ASSERT_TRUE(reply && std::holds_alternative<shm::Accepted>(*reply));
    client.send(2, large);
    reply = client.next_reply();
    ASSERT_TRUE(reply);
    const auto& failed = std::get<shm::Failed>(*reply);
    EXPECT_EQ(failed.code, "busy");
    EXPECT_THAT(failed.message, HasSubstr("request_bytes_per_user"));
    client.send(3, raw_request(5));
    wait_until([](const auto& json) { return json.at("accounts").at("requests") == 2; });
}

TEST_F(RingServerTest, OneUsersRequestsAreNoneOfAnothers) {
    if (::geteuid() != 0) {
        GTEST_SKIP() << "needs root, to become another user";
    }
    OtherUser other([this] {
        expertpack::Client client("other");
        uint64_t id = 0;
        if (client.connect(socket_.c_str(), kWaitMs) != XP_OK ||
            client.submit(request_of(1), &id, kWaitMs) != XP_OK) {
            return 1;
        }
        return answer_of(client).end == XP_EVENT_DONE ? 0 : 2;
    });
    RingServerOptions options;
    options.user.requests = 1;
    make(gated(), options);
    open_to_all();
    expertpack::Client client = connect();
    submit(client, request_of(5));
    gate_.wait_for_arrival();
    other.go();
    wait_until([](const auto& json) { return json.at("accounts").at("users") == 2; });
    wait_until([](const auto& json) { return json.at("accounts").at("requests") == 2; });
    gate_.open();
    EXPECT_EQ(other.result(), 0);
}

TEST_F(RingServerTest, AFloodWaitsForTicksAndEverythingIsAnswered) {
    RingServerOptions options;
    options.housekeeping = 10ms;
    options.user.units_per_tick = 100;
    make({}, options);
    RawClient flood(socket_);
    constexpr uint64_t kPings = 1000;
    for (uint64_t id = 1; id <= kPings; ++id) {
        flood.send(id, shm::encode_request(shm::Ping{}), /*bell=*/false);
    }
    shm::ring_bell(flood.channel.req_bell.get());
    for (uint64_t n = 0; n < kPings; ++n) {
        const auto reply = flood.next_reply();
        ASSERT_TRUE(reply && std::holds_alternative<shm::Pong>(*reply)) << n;
    }
    const auto json = stats();
    EXPECT_GE(json.at("clients").at("held_back").get<int>(), 5);
    EXPECT_EQ(json.at("clients").at("violations"), 0);
}

TEST_F(RingServerTest, AFloodOfOneUserHoldsNobodyElseBack) {
    if (::geteuid() != 0) {
        GTEST_SKIP() << "needs root, to become another user";
    }
    OtherUser other([this] {
        expertpack::Client client("other");
        const xp_pong* pong = nullptr;
        if (client.connect(socket_.c_str(), kWaitMs) != XP_OK) {
            return 1;
        }
        for (int n = 0; n < 20; ++n) {
            if (client.ping(&pong, kWaitMs) != XP_OK) {
                return 2;
            }
        }
        return 0;
    });
    RingServerOptions options;
    options.housekeeping = std::chrono::hours(1);  // no tick comes
    options.user.units_per_tick = 100;
    make({}, options);
    open_to_all();
    RawClient flood(socket_);
    for (uint64_t id = 1; id <= 300; ++id) {
        flood.send(id, shm::Ping{});
    }
    for (int n = 0; n < 100; ++n) {
        const auto reply = flood.next_reply();
        ASSERT_TRUE(reply && std::holds_alternative<shm::Pong>(*reply)) << n;
    }
    other.go();
    EXPECT_EQ(other.result(), 0);
    shm::Record record;
    EXPECT_EQ(flood.reader->read(&record), shm::RingStatus::kEmpty);
}

}  // namespace
}  // namespace xp
