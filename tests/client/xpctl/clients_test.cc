// xpctl clients, cancel and stats --watch.
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <pwd.h>
#include <unistd.h>

#include "tests/client/xpctl/program.h"
#include "tests/client/xpctl/replies.h"

namespace xp::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Json = nlohmann::json;

// Nobody has this user id; it is shown as it is.
constexpr uint32_t kUnknownUser = 4'000'000'000;

shm::ClientsReply some_clients() {
    shm::RequestEntry running;
    running.id = 17;
    running.state = shm::RequestState::kPrefill;
    running.model = "demo";
    running.age_ms = 3200;
    running.prompt_tokens = 1400;
    running.prompt_done = 120;
    shm::RequestEntry waiting;
    waiting.id = 18;
    waiting.task = shm::Task::kScore;
    waiting.model = "demo";
    waiting.age_ms = 40;
    shm::ClientsReply reply;
    reply.clients.push_back({3, "ed\033[1mitor", 4242, kUnknownUser, 125'000, {running, waiting}});
    reply.clients.push_back({12, "xpctl", 99, 0, 2, {}});
    reply.hidden = 2;
    return reply;
}

// Lists some clients; knows request 3.17 and client 3 only.
void registry(Session& connection) {
    while (const auto incoming = connection.next()) {
        const uint64_t id = incoming->first;
        if (std::holds_alternative<shm::ListClients>(incoming->second)) {
            connection.reply(id, some_clients());
        } else if (const auto* cancel = std::get_if<shm::Cancel>(&incoming->second)) {
            if (cancel->client == 3 && (cancel->target == 17 || cancel->target == 0)) {
                connection.reply(id, shm::Done{});
            } else {
                connection.reply(id, shm::Failed{"not_found", "there is no such request"});
            }
        }
    }
}

TEST(ClientsTest, a_table_of_programs_and_one_of_requests) {
    FakeDaemon daemon(registry);
    const Outcome outcome = run_xpctl({"clients"}, {.socket = daemon.path()});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.out,
              "ID  user         pid  name        connected for  requests\n"
              " 3  4000000000  4242  ed?[1mitor      2 min 5 s         2\n"
              "12  root          99  xpctl              2.0 ms         0\n"
              "\n"
              "  ID  task      state    model      age       prompt  generated\n"
              "3.17  generate  prefill  demo     3.2 s  120 of 1400          0\n"
              "3.18  score     queued   demo   40.0 ms            -          0\n"
              "\n"
              "2 more of other users\n");
}

TEST(ClientsTest, json_names_requests_as_cancel_takes_them) {
    FakeDaemon daemon(registry);
    const Outcome outcome = run_xpctl({"clients", "--json"}, {.socket = daemon.path()});
    const Json object = Json::parse(outcome.out);
    EXPECT_EQ(object.at("hidden"), 2);
    const Json& client = object.at("clients").at(0);
    EXPECT_EQ(client.at("id"), "3");
    EXPECT_EQ(client.at("uid"), kUnknownUser);
    EXPECT_EQ(client.at("user"), "4000000000");
    EXPECT_EQ(client.at("name"), "ed\033[1mitor");
    EXPECT_EQ(client.at("requests").at(0), Json::parse(R"({"id": "3.17", "task": "generate",
        "state": "prefill", "model": "demo", "age_ms": 3200, "prompt_tokens": 1400,
        "prompt_done": 120, "generated_tokens": 0})"));
}

TEST(ClientsTest, cancel_tries_all_that_are_named) {
    FakeDaemon daemon(registry);
    const Streams setup{.socket = daemon.path()};
    const Outcome good = run_xpctl({"cancel", "3.17", "3"}, setup);
    EXPECT_EQ(good.status, 0) << good.err;
    EXPECT_EQ(good.out, "cancelled 3.17\ncancelled 3\n");
    const Outcome mixed = run_xpctl({"cancel", "4.1", "3"}, setup);
    EXPECT_EQ(mixed.status, 1);
    EXPECT_EQ(mixed.out, "cancelled 3\n");
    EXPECT_EQ(mixed.err, "xpctl: cannot cancel 4.1: there is no such request (not_found)\n");
    const Outcome json = run_xpctl({"cancel", "--json", "4.1", "3"}, setup);
    EXPECT_EQ(json.status, 1);
    EXPECT_EQ(Json::parse(json.out).at("cancelled"), Json({"3"}));
    EXPECT_EQ(Json::parse(json.out).at("failed").at(0).at("id"), "4.1");
    EXPECT_EQ(Json::parse(json.out).at("failed").at(0).at("code"), "not_found");
}

TEST(ClientsTest, what_is_no_request_is_wrong_usage) {
    for (const char* id : {"abc", "3.", "0", "3.0", ".5", "3.1.2", "+3", "99999999999999999999",
                           "3 ", "0x3", ""}) {
        const Outcome outcome = run_xpctl({"cancel", "1", id}, {.socket = "/nowhere"});
        EXPECT_EQ(outcome.status, 2) << id;
        EXPECT_THAT(outcome.err, HasSubstr("\"" + std::string(id) + "\" is no request"));
    }
    EXPECT_EQ(run_xpctl({"cancel"}, {.socket = "/nowhere"}).status, 2);
}

// Statistics that grow with each look; the connection ends after so many of them.
class Counters {
public:
    explicit Counters(int looks) : looks_(looks) {}

    void operator()(Session& connection) {
        for (int look = 0; look < looks_; ++look) {
            const auto incoming = connection.next();
            if (!incoming) return;
            const int n = ++total_;
            connection.reply(incoming->first, shm::StatsReply{
                R"({"version":"1.2.3","uptime_ms":)" + std::to_string(1000 + 2000 * n) +
                R"(,"io":{"read_bytes":)" + std::to_string(3'000'000 * n) +
                R"(},"models":[{"name":"demo","cache":{"hits":)" + std::to_string(9 * n) +
                R"(,"misses":)" + std::to_string(n) + R"(}}],"tokens":{"prompt":)" +
                std::to_string(100 * n) + R"(,"generated":)" + std::to_string(5 * n) + "}}"});
        }
    }

private:
    int looks_;
    int total_ = 0;
};

constexpr char kRates[] = "read 1.5 MB/s, hit rate 90.0 %";

TEST(WatchTest, a_terminal_is_drawn_over_and_ctrl_c_is_no_failure) {
    Counters counters(1'000'000);
    FakeDaemon daemon(std::ref(counters));
    Program program({"stats", "--watch", "0.1"}, {.socket = daemon.path(), .out_terminal = true});
    ASSERT_TRUE(program.wait_for_output(kRates));
    program.interrupt();
    const Outcome outcome = program.wait();
    EXPECT_EQ(outcome.status, 0);
    EXPECT_EQ(outcome.err, "");
    EXPECT_THAT(outcome.out, StartsWith("\033[2J\033[Hexpertpackd 1.2.3"));
    EXPECT_THAT(outcome.out, HasSubstr("rates     prompt 50.0 tokens/s, generated 2.5 tokens/s"));
    EXPECT_THAT(outcome.out, AllOf(HasSubstr("rates     -\033[K\n"), HasSubstr("\033[J\033[H")));
}

TEST(WatchTest, json_is_one_object_per_line) {
    Counters counters(1'000'000);
    FakeDaemon daemon(std::ref(counters));
    Program program({"stats", "--watch", "0.1", "--json"}, {.socket = daemon.path()});
    ASSERT_TRUE(program.wait_for_output("\"hit_rate\":0.9}}\n"));
    program.interrupt();
    const Outcome outcome = program.wait();
    EXPECT_EQ(outcome.status, 0);
    const size_t end = outcome.out.find('\n');
    EXPECT_EQ(Json::parse(outcome.out.substr(0, end)).at("rates"), nullptr);
    const Json second = Json::parse(outcome.out.substr(end + 1, outcome.out.find('\n', end + 1) -
                                                                    end - 1));
    EXPECT_EQ(second.at("uptime_ms"), 5000);
    EXPECT_EQ(second.at("rates"), Json::parse(R"({"seconds": 2, "prompt_tokens_per_second": 50,
        "generated_tokens_per_second": 2.5, "read_bytes_per_second": 1500000, "hit_rate": 0.9})"));
}

TEST(WatchTest, a_daemon_that_goes_away_is_waited_for) {
    Counters counters(1);
    FakeDaemon daemon(std::ref(counters));
    Program program({"stats", "--watch", "0.1"}, {.socket = daemon.path()});
    ASSERT_TRUE(program.wait_for_messages("xpctl: waiting for the daemon ("));
    ASSERT_TRUE(program.wait_for_new_output(kRates));  // of the next connection
    program.interrupt();
    EXPECT_EQ(program.wait().status, 0);
}

TEST(WatchTest, without_a_daemon_at_first_it_does_not_wait) {
    EXPECT_EQ(run_xpctl({"stats", "--watch"}, {.socket = "/nowhere"}).status, 69);
    EXPECT_EQ(run_xpctl({"stats", "--watch", "0"}, {.socket = "/nowhere"}).status, 2);
    EXPECT_EQ(run_xpctl({"stats", "--watch", "soon"}, {.socket = "/nowhere"}).status, 2);
}

TEST(WatchTest, a_reader_that_goes_away_ends_it) {
    Counters counters(1'000'000);
    FakeDaemon daemon(std::ref(counters));
    Program program({"stats", "--watch", "600"}, {.socket = daemon.path()});
    ASSERT_TRUE(program.wait_for_output("rates"));
    program.close_output();
    EXPECT_EQ(program.wait().status, 1);
}

}  // namespace
}  // namespace xp::test
