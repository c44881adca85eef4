// xpctl stats, models, ping and version.
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tests/client/xpctl/program.h"
#include "tests/client/xpctl/replies.h"

namespace xp::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::json;

FakeDaemon::Script questions(std::string stats) {
    return [stats](Session& connection) {
        while (const auto incoming = connection.next()) {
            if (std::holds_alternative<shm::Ping>(incoming->second)) {
                connection.reply(incoming->first, shm::Pong{"1.2.3", "cpu"});
            } else if (std::holds_alternative<shm::ListModels>(incoming->second)) {
                connection.reply(incoming->first, shm::ModelsReply{
                    {{"demo", "deepseek4", "a d\u00e9mo\033[1m", 4096, 1000},
                     {"large", "kimi", "", 131072, 160000}}});
            } else if (std::holds_alternative<shm::GetStats>(incoming->second)) {
                connection.reply(incoming->first, shm::StatsReply{stats});
            }
        }
    };
}

TEST(QueryTest, ping_tells_version_backend_and_time) {
    FakeDaemon daemon(questions("{}"));
    const Streams setup{.socket = daemon.path()};
    const Outcome text = run_xpctl({"ping"}, setup);
    EXPECT_EQ(text.status, 0) << text.err;
    EXPECT_THAT(text.out, StartsWith("expertpackd 1.2.3 answers in "));
    EXPECT_THAT(text.out, HasSubstr("backend cpu\n"));
    const Json object = Json::parse(run_xpctl({"ping", "--json"}, setup).out);
    EXPECT_EQ(object.at("version"), "1.2.3");
    EXPECT_EQ(object.at("backend"), "cpu");
    EXPECT_GE(object.at("round_trip_us").get<int64_t>(), 0);
}

TEST(QueryTest, models_are_listed_default_first) {
    FakeDaemon daemon(questions("{}"));
    const Streams setup{.socket = daemon.path()};
    EXPECT_EQ(run_xpctl({"models"}, setup).out,
              "model           architecture  context  vocabulary  description\n"
              "demo (default)  deepseek4        4096        1000  a d\u00e9mo?[1m\n"
              "large           kimi           131072      160000\n");
    const Json models = Json::parse(run_xpctl({"models", "--json"}, setup).out).at("models");
    ASSERT_EQ(models.size(), 2u);
    EXPECT_EQ(models[0].at("name"), "demo");
    EXPECT_EQ(models[0].at("default"), true);
    EXPECT_EQ(models[1].at("default"), false);
    EXPECT_EQ(models[1].at("context"), 131072);
    EXPECT_EQ(models[1].at("vocabulary"), 160000);
    EXPECT_EQ(models[0].at("description"), "a d\u00e9mo\033[1m");
}

TEST(QueryTest, stats_are_the_daemons_json_or_tables) {
    const std::string stats = R"({"version":"1.2.3","big":18446744073709551615,"x":[1.50]})";
    FakeDaemon daemon(questions(stats));
    const Streams setup{.socket = daemon.path()};
    EXPECT_EQ(run_xpctl({"stats", "--json"}, setup).out, stats + "\n");
    const Outcome tables = run_xpctl({"stats"}, setup);
    EXPECT_EQ(tables.status, 0);
    EXPECT_THAT(tables.out, StartsWith("expertpackd 1.2.3"));
}

TEST(QueryTest, stats_that_are_no_json_object_are_an_error) {
    FakeDaemon daemon(questions("[1, 2"));
    for (const std::vector<std::string>& arguments :
         {std::vector<std::string>{"stats"}, {"stats", "--json"}}) {
        const Outcome outcome = run_xpctl(arguments, {.socket = daemon.path()});
        EXPECT_EQ(outcome.status, 1);
        EXPECT_EQ(outcome.out, "");
        EXPECT_THAT(outcome.err, HasSubstr("no JSON object"));
    }
}

TEST(QueryTest, a_question_that_the_daemon_refuses_is_a_failure) {
    FakeDaemon daemon([](Session& connection) {
        while (const auto incoming = connection.next()) {
            connection.reply(incoming->first, shm::Failed{"internal", "counters are broken"});
        }
    });
    const Outcome outcome = run_xpctl({"stats"}, {.socket = daemon.path()});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err, HasSubstr("counters are broken"));
}

TEST(QueryTest, version_is_an_answer_with_and_without_a_daemon) {
    FakeDaemon daemon(questions("{}"));
    const Streams with{.socket = daemon.path()};
    const Streams without{.socket = "/nowhere/daemon.sock"};
    EXPECT_EQ(run_xpctl({"version"}, with).out,
              "xpctl " XP_VERSION "\nexpertpackd 1.2.3, backend cpu\n");
    const Outcome alone = run_xpctl({"version"}, without);
    EXPECT_EQ(alone.status, 0);
    EXPECT_EQ(alone.out, "xpctl " XP_VERSION "\n");
    EXPECT_THAT(alone.err, HasSubstr("/nowhere/daemon.sock"));
    EXPECT_EQ(Json::parse(run_xpctl({"version", "--json"}, with).out),
              Json({{"xpctl", XP_VERSION}, {"expertpackd", "1.2.3"}, {"backend", "cpu"}}));
    EXPECT_EQ(Json::parse(run_xpctl({"version", "--json"}, without).out),
              Json({{"xpctl", XP_VERSION}, {"expertpackd", nullptr}, {"backend", nullptr}}));
}

TEST(QueryTest, a_result_that_cannot_be_written_is_a_failure) {
    FakeDaemon daemon(questions("{}"));
    const Outcome outcome = run_xpctl({"ping"}, {.socket = daemon.path(),
                                                 .out_path = "/dev/full"});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err, HasSubstr("No space left on device"));
}

}  // namespace
}  // namespace xp::test
