// What xpctl generate does differently on a terminal.
#include <gmock/gmock.h>

#include "tests/client/xpctl/program.h"
#include "tests/client/xpctl/replies.h"

namespace xp::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const std::vector<shm::Reply> kReasoned = {tokens({1}, "hm, so", shm::Channel::kReasoning),
                                           tokens({2}, "42"), done()};

TEST(TerminalTest, control_characters_of_the_model_do_not_reach_a_terminal) {
    const char text[] = "a\033]0;title\x07\r\n\tb\u009b1m\x7f\u00e9";
    FakeDaemon daemon(answering({tokens({1}, text), done()}));
    const Outcome outcome = run_xpctl({"generate", "x"}, {.socket = daemon.path(),
                                                          .out_terminal = true});
    EXPECT_EQ(outcome.out, "a]0;title\n\tb1m\u00e9\n");
}

TEST(TerminalTest, reasoning_and_timings_go_to_standard_error_when_it_is_a_terminal) {
    FakeDaemon daemon(answering(kReasoned));
    const Outcome outcome = run_xpctl({"generate", "x"}, {.socket = daemon.path(),
                                                          .err_terminal = true});
    EXPECT_EQ(outcome.out, "42\n");
    EXPECT_EQ(outcome.err,
              "\033[2mhm, so\033[0m\n"
              "xpctl: 5 tokens, 2.0 tokens/s; prompt 10 tokens, 20.0 tokens/s; "
              "75.0 % expert hits\n");
}

TEST(TerminalTest, no_color_and_dumb_terminals_get_no_escape_sequences) {
    FakeDaemon daemon(answering(kReasoned));
    for (const auto& variable : {std::pair{"NO_COLOR", "1"}, std::pair{"TERM", "dumb"}}) {
        const Outcome outcome =
            run_xpctl({"generate", "x"}, {.socket = daemon.path(), .err_terminal = true,
                                          .environment = {variable}});
        EXPECT_THAT(outcome.err, StartsWith("hm, so\n"));
        EXPECT_THAT(outcome.err, Not(HasSubstr("\033")));
    }
    // An empty NO_COLOR counts as none (no-color.org).
    const Outcome outcome =
        run_xpctl({"generate", "x"}, {.socket = daemon.path(), .err_terminal = true,
                                      .environment = {{"NO_COLOR", ""}}});
    EXPECT_THAT(outcome.err, HasSubstr("\033[2m"));
}

TEST(TerminalTest, quiet_leaves_only_the_text) {
    FakeDaemon daemon(answering(kReasoned));
    const Outcome outcome =
        run_xpctl({"generate", "--quiet", "x"}, {.socket = daemon.path(),
                                                 .err_terminal = true});
    EXPECT_EQ(outcome.out, "42\n");
    EXPECT_EQ(outcome.err, "");
}

TEST(TerminalTest, a_long_prefill_shows_its_progress_and_takes_it_away) {
    FakeDaemon daemon([](Session& connection) {
        const auto incoming = connection.next();
        ASSERT_TRUE(incoming);
        connection.reply(incoming->first, shm::Accepted{"demo", {1}});
        connection.reply(incoming->first, shm::Progress{100, 1400});  // too early to be shown
        std::this_thread::sleep_for(std::chrono::milliseconds(1200));
        connection.reply(incoming->first, shm::Progress{700, 1400});
        connection.reply(incoming->first, tokens({1}, "text"));
        connection.reply(incoming->first, done());
        connection.wait_for_hang_up();
    });
    const Outcome outcome = run_xpctl({"generate", "x"}, {.socket = daemon.path(),
                                                          .err_terminal = true});
    EXPECT_THAT(outcome.err, ::testing::MatchesRegex(
        ".*\r\033\\[Kprompt: 700 of 1400 tokens \\(50 %\\), [0-9.]+ tokens/s, [0-9]+ s left"
        "\r\033\\[Kxpctl: 5 tokens.*\n"));
}

// A daemon that is stopped still has its socket listen.
TEST(TerminalTest, a_daemon_that_does_not_answer_is_told_of_while_it_is_waited_for) {
    const std::string note = "xpctl: the daemon does not answer yet; waiting for up to 30 s\n";
    shm::Listener stopped;
    Program connecting({"models"}, {.socket = stopped.path(), .err_terminal = true});
    FakeDaemon silent([](Session& connection) {
        const auto incoming = connection.next();
        ASSERT_TRUE(incoming);
        std::this_thread::sleep_for(std::chrono::milliseconds(2500));
        connection.reply(incoming->first, shm::Pong{"1", "cpu"});
        connection.wait_for_hang_up();
    });
    const Outcome asking = run_xpctl({"ping"}, {.socket = silent.path(), .err_terminal = true});
    EXPECT_EQ(asking.status, 0);
    EXPECT_EQ(asking.err, note);
    EXPECT_TRUE(connecting.wait_for_messages(note));
    EXPECT_TRUE(connecting.running());
}

TEST(TerminalTest, a_prompt_that_waits_in_the_queue_says_so) {
    FakeDaemon daemon([](Session& connection) {
        const auto incoming = connection.next();
        ASSERT_TRUE(incoming);
        std::this_thread::sleep_for(std::chrono::milliseconds(1200));
        connection.reply(incoming->first, shm::Accepted{"demo", {1}});
        connection.reply(incoming->first, tokens({1}, "text"));
        connection.reply(incoming->first, done());
        connection.wait_for_hang_up();
    });
    const Outcome outcome = run_xpctl({"generate", "x"}, {.socket = daemon.path(),
                                                          .err_terminal = true});
    EXPECT_THAT(outcome.err, StartsWith("\r\033[Kwaiting: queued 1 s\r\033[K"));
}

}  // namespace
}  // namespace xp::test
