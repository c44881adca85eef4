// Ways in which a request ends early: Ctrl-C, a reader that goes away, the daemon's own decision.
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tests/client/xpctl/program.h"
#include "tests/client/xpctl/replies.h"

namespace xp::test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

// Generates one piece of text, waits for the Cancel, tells the test, waits for its leave and sends
// `ending`.
struct CancelScript {
    shm::Reply ending = shm::Cancelled{"client", sample_timings()};
    Gate started;
    Gate cancelled;
    Gate leave;
    uint64_t id = 0;
    uint64_t target = 0;

    void operator()(Session& connection) {
        const auto incoming = connection.next();
        ASSERT_TRUE(incoming);
        id = incoming->first;
        started.open();
        connection.reply(id, shm::Accepted{"demo", {1}});
        connection.reply(id, tokens({4}, "some text"));
        const auto cancel = connection.next();
        if (!cancel) return;
        ASSERT_TRUE(std::holds_alternative<shm::Cancel>(cancel->second));
        target = std::get<shm::Cancel>(cancel->second).target;
        cancelled.open();
        leave.wait();
        connection.reply(id, ending);
        connection.reply(cancel->first, shm::Done{});
        // False after 30 s: the program slept through its terminal record.
        EXPECT_TRUE(connection.wait_for_hang_up());
    }
};

TEST(CancelTest, ctrl_c_cancels_and_waits_for_the_terminal_record) {
    CancelScript script;
    FakeDaemon daemon(std::ref(script));
    Program program({"generate", "x"}, {.socket = daemon.path()});
    ASSERT_TRUE(program.wait_for_output("some text"));
    program.interrupt();
    ASSERT_TRUE(script.cancelled.wait());
    EXPECT_EQ(script.target, script.id);
    // Long enough for a program that does not wait to be gone.
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_TRUE(program.running());
    script.leave.open();
    const Outcome outcome = program.wait();
    EXPECT_EQ(outcome.status, 130);
    EXPECT_EQ(outcome.out, "some text\n");
    EXPECT_EQ(outcome.err, "xpctl: cancelled\n");
}

TEST(CancelTest, ctrl_c_with_json_still_prints_what_there_is) {
    CancelScript script;
    FakeDaemon daemon(std::ref(script));
    Program program({"generate", "--json", "x"}, {.socket = daemon.path(),
                                                  .err_terminal = true});
    // The handler is installed before the request is sent.
    ASSERT_TRUE(script.started.wait());
    program.interrupt();
    ASSERT_TRUE(script.cancelled.wait());
    script.leave.open();
    const Outcome outcome = program.wait();
    EXPECT_EQ(outcome.status, 130);
    const Json object = Json::parse(outcome.out);
    EXPECT_EQ(object.at("finish_reason"), "cancelled");
    EXPECT_EQ(object.at("cancel_reason"), "client");
    EXPECT_EQ(object.at("text"), "some text");
}

TEST(CancelTest, a_request_that_was_done_already_is_interrupted_all_the_same) {
    CancelScript script;
    script.ending = done();
    script.leave.open();
    FakeDaemon daemon(std::ref(script));
    Program program({"generate", "x"}, {.socket = daemon.path()});
    ASSERT_TRUE(program.wait_for_output("some text"));
    program.interrupt();
    EXPECT_EQ(program.wait().status, 130);
}

TEST(CancelTest, a_second_ctrl_c_ends_the_program_at_once) {
    CancelScript script;
    FakeDaemon daemon(std::ref(script));
    Program program({"generate", "x"}, {.socket = daemon.path()});
    ASSERT_TRUE(program.wait_for_output("some text"));
    program.interrupt();
    ASSERT_TRUE(script.cancelled.wait());
    program.interrupt();
    EXPECT_EQ(program.wait().status, 130);  // the daemon has not answered
    script.leave.open();
}

TEST(CancelTest, a_reader_that_goes_away_cancels_the_request_quietly) {
    for (const bool json : {false, true}) {
        CancelScript script;
        script.leave.open();
        FakeDaemon daemon(std::ref(script));
        std::vector<std::string> arguments = {"generate", "x"};
        if (json) arguments.push_back("--json");
        Program program(arguments, {.socket = daemon.path()});
        EXPECT_TRUE(json ? script.started.wait() : program.wait_for_output("some text"));
        // The daemon sends nothing more: the pipe alone tells.
        program.close_output();
        EXPECT_TRUE(script.cancelled.wait());
        const Outcome outcome = program.wait();
        EXPECT_EQ(outcome.status, 1);
        EXPECT_EQ(outcome.err, "");
    }
}

TEST(CancelTest, a_full_disk_is_a_failure_with_a_message) {
    FakeDaemon daemon(answering({tokens({1}, "text"), shm::Cancelled{"client", {}}}));
    const Outcome outcome = run_xpctl({"generate", "x"}, {.socket = daemon.path(),
                                                          .out_path = "/dev/full"});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err, HasSubstr("No space left on device"));
}

TEST(CancelTest, a_daemon_that_gives_up_says_why) {
    const std::pair<const char*, const char*> cases[] = {
        {"shutdown", "shutting down"}, {"deadline", "deadline"}, {"new_reason", "new_reason"}};
    for (const auto& [code, words] : cases) {
        FakeDaemon daemon(answering({tokens({1}, "a"), shm::Cancelled{code, sample_timings()}}));
        const Outcome outcome = run_xpctl({"generate", "x"}, {.socket = daemon.path()});
        EXPECT_EQ(outcome.status, 1);
        EXPECT_EQ(outcome.out, "a\n");
        EXPECT_THAT(outcome.err, HasSubstr(words));
    }
}

}  // namespace
}  // namespace xp::test
