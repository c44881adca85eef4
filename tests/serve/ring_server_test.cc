// The ring server with real connections: the client library where clients behave, the raw halves of
// the protocol where they do not. The model behind it is scripted.
#include "daemon/serve/ring_server.h"

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include "expertpack.hpp"
#include "tests/serve/scripted_model.h"
#include "tests/serve/temp_dir.h"

namespace xp {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

// Long enough for a loaded machine; tests wait for events, not for times.
constexpr int kWaitMs = 20'000;

// Holds the engine thread in a step until it is opened.
class Gate {
public:
    void open() {
        const std::lock_guard lock(mutex_);
        open_ = true;
        changed_.notify_all();
    }
    void pass() {
        std::unique_lock lock(mutex_);
        ++arrived_;
        changed_.notify_all();
        changed_.wait(lock, [&] { return open_; });
    }
    void wait_for_arrival() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return arrived_ > 0; });
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool open_ = false;
    int arrived_ = 0;
};

class RingServerTest : public ::testing::Test {
protected:
    RingServerTest() { spdlog::set_level(spdlog::level::off); }
    ~RingServerTest() override {
        gate_.open();
        if (scheduler_) {
            scheduler_->stop();
            server_->stop();
        }
    }

    void make(scripted::Script script, RingServerOptions options = {},
              SchedulerOptions scheduler_options = {}) {
        host_ = scripted::make_host(std::move(script));
        outbox_ = *Outbox::create();
        scheduler_ = std::make_unique<Scheduler>(*host_, *outbox_, scheduler_options);
        auto lock = lock_socket_path(socket_);
        ASSERT_TRUE(lock);
        auto listener = Listener::bind(socket_, *std::move(lock));
        ASSERT_TRUE(listener) << listener.error().message;
        auto server =
            RingServer::create(*std::move(listener), *host_, *scheduler_, *outbox_, options);
        ASSERT_TRUE(server) << server.error().message;
        server_ = *std::move(server);
        scheduler_->start();
        server_->start();
    }
    // A script that waits at the gate in its first steps, until the test opens it.
    scripted::Script gated() {
        scripted::Script script;
        script.next = [](std::span<const TokenId>) { return TokenId{50}; };
        script.on_step = [this]() -> Result<void> {
            gate_.pass();
            return {};
        };
        return script;
    }
    nlohmann::json stats() {
        expertpack::Client client("stats");
        EXPECT_EQ(client.connect(socket_.c_str(), kWaitMs), XP_OK) << client.error();
        const char* json = nullptr;
        EXPECT_EQ(client.stats_json(&json, kWaitMs), XP_OK) << client.error();
        return json ? nlohmann::json::parse(json) : nlohmann::json();
    }
    // Until the daemon's counters say so.
    template <class Condition>
    void wait_until(Condition condition) {
        for (int n = 0; n < 2000; ++n) {
            if (condition(stats())) {
                return;
            }
            std::this_thread::sleep_for(5ms);
        }
        FAIL() << "never happened: " << stats().dump(2);
    }

    // Deadlines of the server are tested by moving its clock, so that a slow machine fails none.
    void use_clock(RingServerOptions& options) {
        options.housekeeping = 10ms;
        options.now = [this] {
            return RingServerOptions::Clock::now() + std::chrono::seconds(clock_offset_s_.load());
        };
    }

    std::atomic<int64_t> clock_offset_s_{0};
    scripted::TempDir dir_;
    const Path socket_ = dir_ / "d.sock";
    Gate gate_;
    std::unique_ptr<ModelHost> host_;
    std::unique_ptr<Outbox> outbox_;
    std::unique_ptr<Scheduler> scheduler_;
    std::unique_ptr<RingServer> server_;
};

expertpack::Generate request_of(uint32_t max_tokens) {
    static constexpr int32_t kPrompt[] = {0, 5, 7};
    expertpack::Generate request;
    request.tokens(kPrompt).temperature(0).max_tokens(max_tokens).ignore_eos(true);
    EXPECT_EQ(request.status(), XP_OK) << request.error();
    return request;
}

struct Answer {
    std::string text;
    std::vector<int32_t> ids;
    int terminals = 0;
    xp_event_type end{};
    std::string code;
    std::string message;
    xp_finish_reason reason{};
};

Answer answer_of(expertpack::Client& client) {
    Answer answer;
    const xp_event* event = nullptr;
    while (client.next_event(&event, kWaitMs) == XP_OK) {
        if (event->type == XP_EVENT_TOKENS) {
            answer.text.append(event->text, event->text_length);
            answer.ids.insert(answer.ids.end(), event->token_ids,
                              event->token_ids + event->token_count);
        }
        if (event->terminal) {
            ++answer.terminals;
            answer.end = event->type;
            answer.code = event->code;
            answer.message = event->message;
            answer.reason = event->finish_reason;
        }
    }
    return answer;
}

// A client that keeps to the protocol only as far as a test wants.
struct RawClient {
    explicit RawClient(const Path& socket, uint32_t resp_ring_bytes = shm::kResponseRingBytes) {
        shm::Hello hello;
        hello.resp_ring_bytes = resp_ring_bytes;
        std::string error;
        const auto status =
            shm::connect_channel(socket.string(), hello, kWaitMs, &channel, &error);
        EXPECT_EQ(status, shm::ConnectStatus::kOk) << error;
        writer.emplace(channel.own(), channel.peer());
        reader.emplace(channel.own(), channel.peer());
    }
    void send(uint64_t id, std::span<const std::byte> body, bool bell = true) {
        ASSERT_EQ(writer->write(id, body), shm::RingStatus::kOk);
        if (bell) {
            shm::ring_bell(channel.req_bell.get());
        }
    }
    bool hung_up() const {
        pollfd poll{channel.socket.get(), POLLRDHUP, 0};
        return ::poll(&poll, 1, kWaitMs) > 0 && (poll.revents & (POLLHUP | POLLRDHUP)) != 0;
    }
    std::optional<shm::Reply> next_reply() {
        shm::Record record;
        for (int n = 0; n < 4000; ++n) {
            const auto status = reader->read(&record);
            if (status == shm::RingStatus::kOk) {
                std::string why;
                return shm::decode_reply(record.body, &why);
            }
            if (status != shm::RingStatus::kEmpty) {
                return std::nullopt;
            }
            std::this_thread::sleep_for(5ms);
        }
        return std::nullopt;
    }

    shm::ClientChannel channel;
    std::optional<shm::RingWriter> writer;
    std::optional<shm::RingReader> reader;
};

shm::Generate raw_request(uint32_t max_tokens) {
    shm::Generate request;
    request.prompt = shm::RawTokens{{0, 5, 7}};
    request.sampling.temperature = 0;
    request.max_tokens = max_tokens;
    request.ignore_eos = true;
    return request;
}

TEST_F(RingServerTest, AnswersPingModelsAndStats) {
    make({});
    expertpack::Client client("test");
    ASSERT_EQ(client.connect(socket_.c_str(), kWaitMs), XP_OK) << client.error();
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
    expertpack::Client client("test");
    ASSERT_EQ(client.connect(socket_.c_str(), kWaitMs), XP_OK) << client.error();
    expertpack::Generate request = request_of(0);
    request.ignore_eos(false);
    uint64_t id = 0;
    ASSERT_EQ(client.submit(request, &id, kWaitMs), XP_OK) << client.error();
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
            expertpack::Client client("test");
            ASSERT_EQ(client.connect(socket_.c_str(), kWaitMs), XP_OK) << client.error();
            for (int32_t round = 0; round < 5; ++round) {
                const int32_t first = 100 + n * 100 + round * 10;
                const int32_t prompt[] = {0, first};
                expertpack::Generate request;
                request.tokens(prompt).temperature(0).max_tokens(3).ignore_eos(true);
                uint64_t id = 0;
                ASSERT_EQ(client.submit(request, &id, kWaitMs), XP_OK) << client.error();
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
    expertpack::Client client("test");
    ASSERT_EQ(client.connect(socket_.c_str(), kWaitMs), XP_OK) << client.error();
    uint64_t id = 0;
    ASSERT_EQ(client.submit(request_of(4000), &id, kWaitMs), XP_OK);
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
        expertpack::Client client("test");
        ASSERT_EQ(client.connect(socket_.c_str(), kWaitMs), XP_OK) << client.error();
        uint64_t id = 0;
        ASSERT_EQ(client.submit(request_of(4000), &id, kWaitMs), XP_OK);
        ASSERT_EQ(client.submit(request_of(4000), &id, kWaitMs), XP_OK);
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
    expertpack::Client good("good");
    ASSERT_EQ(good.connect(socket_.c_str(), kWaitMs), XP_OK) << good.error();
    RawClient bad(socket_);
    const std::vector<std::byte> garbage(64, std::byte{0x5a});
    bad.send(7, garbage);
    const auto reply = bad.next_reply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(std::get<shm::Failed>(*reply).code, "malformed");
    EXPECT_TRUE(bad.hung_up());

    uint64_t id = 0;
    ASSERT_EQ(good.submit(request_of(5), &id, kWaitMs), XP_OK);
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
    options.clients_per_uid = 2;
    make({}, options);
    expertpack::Client clients[3];
    EXPECT_EQ(clients[0].connect(socket_.c_str(), kWaitMs), XP_OK);
    EXPECT_EQ(clients[1].connect(socket_.c_str(), kWaitMs), XP_OK);
    EXPECT_EQ(clients[2].connect(socket_.c_str(), kWaitMs), XP_REFUSED);
    EXPECT_THAT(clients[2].error(), HasSubstr("limit 2"));
}

TEST_F(RingServerTest, TooManyRequestsOfOneClientAreBusy) {
    RingServerOptions options;
    options.in_flight = 2;
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

    expertpack::Client good("good");
    ASSERT_EQ(good.connect(socket_.c_str(), kWaitMs), XP_OK) << good.error();
    uint64_t id = 0;
    ASSERT_EQ(good.submit(request_of(5), &id, kWaitMs), XP_OK);
    EXPECT_EQ(answer_of(good).ids.size(), 5u);

    clock_offset_s_ = 31;
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
        // A whole client would look at the flag; an additional bell does no harm.
        shm::ring_bell(slow.channel.req_bell.get());
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

TEST_F(RingServerTest, DrainingTellsClientsFinishesWhatRunsAndTakesNobodyNew) {
    make(gated());
    expertpack::Client client("test");
    ASSERT_EQ(client.connect(socket_.c_str(), kWaitMs), XP_OK) << client.error();
    uint64_t id = 0;
    ASSERT_EQ(client.submit(request_of(5), &id, kWaitMs), XP_OK);
    gate_.wait_for_arrival();
    scheduler_->begin_drain();
    server_->begin_drain();
    ASSERT_EQ(client.submit(request_of(5), &id, kWaitMs), XP_OK);
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
    expertpack::Client client("test");
    ASSERT_EQ(client.connect(socket_.c_str(), kWaitMs), XP_OK) << client.error();
    uint64_t id = 0;
    ASSERT_EQ(client.submit(request_of(4000), &id, kWaitMs), XP_OK);
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
