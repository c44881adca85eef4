// A ring server with a scripted model behind it, and its clients: the library where clients behave,
// the raw halves of the protocol where they do not.
#pragma once

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <fcntl.h>
#include <functional>
#include <mutex>
#include <optional>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include "daemon/serve/ring_server.h"
#include "expertpack.hpp"
#include "tests/serve/scripted_model.h"
#include "tests/serve/temp_dir.h"

namespace xp {

using namespace std::chrono_literals;

// Long enough for a loaded machine; tests wait for events, not for times.
inline constexpr int kWaitMs = 20'000;

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

// Runs a function in a process of another user, once it is told to. To be made before the server's
// threads, so that the child may use everything; needs root.
class OtherUser {
public:
    static constexpr uid_t kUid = 65534;

    // `act` returns 0 when all was as it should be.
    explicit OtherUser(std::function<int()> act) {
        EXPECT_EQ(::pipe2(go_, O_CLOEXEC), 0);
        child_ = ::fork();
        EXPECT_GE(child_, 0);
        if (child_ == 0) {
            char byte = 0;
            (void)!::read(go_[0], &byte, 1);
            ::_exit(::setgid(kUid) == 0 && ::setuid(kUid) == 0 ? act() : 125);
        }
    }
    ~OtherUser() {
        if (child_ > 0) {  // a negative number would be a group, or everything
            ::kill(child_, SIGKILL);
            result();
        }
        ::close(go_[0]);
        ::close(go_[1]);
    }
    void go() { ASSERT_EQ(::write(go_[1], "x", 1), 1); }
    // What `act` returned, or 128 and more.
    int result() {
        int status = 0;
        if (child_ > 0 && ::waitpid(std::exchange(child_, -1), &status, 0) > 0) {
            result_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        }
        return result_;
    }

private:
    int go_[2] = {-1, -1};
    pid_t child_ = -1;
    int result_ = 255;
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
    // So that other users can connect, too.
    void open_to_all() {
        ASSERT_EQ(::chmod(socket_.c_str(), 0666), 0);
        ASSERT_EQ(::chmod(socket_.parent_path().c_str(), 0711), 0);
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
    // A connected client.
    expertpack::Client connect(const char* name = "test") {
        expertpack::Client client(name);
        EXPECT_EQ(client.connect(socket_.c_str(), kWaitMs), XP_OK) << client.error();
        return client;
    }
    // The id of a submitted request.
    static uint64_t submit(expertpack::Client& client, const expertpack::Generate& request) {
        uint64_t id = 0;
        EXPECT_EQ(client.submit(request, &id, kWaitMs), XP_OK) << client.error();
        return id;
    }
    static nlohmann::json stats_of(expertpack::Client& client) {
        const char* json = nullptr;
        EXPECT_EQ(client.stats_json(&json, kWaitMs), XP_OK) << client.error();
        return json ? nlohmann::json::parse(json) : nlohmann::json();
    }
    nlohmann::json stats() {
        expertpack::Client client = connect("stats");
        return stats_of(client);
    }
    // Until the daemon's counters say so.
    template <class Condition>
    void wait_until(Condition condition) {
        expertpack::Client client = connect("stats");
        nlohmann::json json;
        for (int n = 0; n < 4000; ++n) {
            json = stats_of(client);
            if (condition(json)) {
                return;
            }
            std::this_thread::sleep_for(5ms);
        }
        FAIL() << "never happened: " << json.dump(2);
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

inline expertpack::Generate request_of(uint32_t max_tokens) {
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

inline Answer answer_of(expertpack::Client& client) {
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
    explicit RawClient(const Path& socket, uint32_t resp_ring_bytes = shm::kResponseRingBytes,
                       uint64_t features = shm::kFeatures) {
        shm::Hello hello;
        hello.resp_ring_bytes = resp_ring_bytes;
        hello.features = features;
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
    void send(uint64_t id, const shm::Request& request) {
        send(id, shm::encode_request(request));
    }
    bool hung_up() const {
        pollfd poll{channel.socket.get(), POLLRDHUP, 0};
        return ::poll(&poll, 1, kWaitMs) > 0 && (poll.revents & (POLLHUP | POLLRDHUP)) != 0;
    }
    // A whole client would look at the daemon's flag; an additional bell does no harm.
    std::optional<shm::Reply> next_reply() {
        shm::Record record;
        for (int n = 0; n < 4000; ++n) {
            const auto status = reader->read(&record);
            if (status == shm::RingStatus::kOk) {
                shm::ring_bell(channel.req_bell.get());
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

inline shm::Generate raw_request(uint32_t max_tokens) {
    shm::Generate request;
    request.prompt = shm::RawTokens{{0, 5, 7}};
    request.sampling.temperature = 0;
    request.max_tokens = max_tokens;
    request.ignore_eos = true;
    return request;
}

}  // namespace xp
