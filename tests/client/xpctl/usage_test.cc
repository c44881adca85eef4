// Wrong command lines and daemons that cannot be reached: exit status, message, and nothing on
// standard output.
#include <cstdio>
#include <fstream>

#include <gmock/gmock.h>

#include <sys/stat.h>
#include <unistd.h>

#include "tests/client/xpctl/program.h"
#include "tests/client/xpctl/replies.h"

namespace xp::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(UsageTest, a_wrong_command_line_is_one_message_and_status_2) {
    // No daemon listens there: whoever connects fails with 69 instead.
    const Streams setup{.socket = "/nowhere/daemon.sock", .input = "prompt"};
    const std::pair<std::vector<std::string>, const char*> cases[] = {
        {{}, "which command"},
        {{"generte"}, "do you mean generate?"},
        {{"chta"}, "do you mean chat?"},
        {{"frobnicate"}, "\"frobnicate\"; there are generate, chat"},
        {{"generate", "--temprature", "0", "x"}, "--temprature"},
        {{"generate", "--temperature", "warm", "x"}, "--temperature"},
        {{"generate", "--temperature", "nan", "x"}, "--temperature"},
        {{"generate", "--temperature", "-1", "x"}, "--temperature"},
        {{"generate", "--top-p", "1.5", "x"}, "--top-p"},
        {{"generate", "--max-tokens", "4294967296", "x"}, "--max-tokens"},
        {{"generate", "--seed", "-1", "x"},
         "--seed: \"-1\" is not a whole number from 0 to 18446744073709551615"},
        {{"generate", "--seed", "010", "x"}, "--seed: \"010\""},
        {{"generate", "--seed", "18446744073709551616", "x"}, "--seed: \"18446744073709551616\""},
        {{"generate", "--max-tokens", "", "x"}, "--max-tokens: \"\" is not"},
        {{"generate", "--top-k", " 1", "x"}, "--top-k: \" 1\" is not"},
        {{"generate", "--top-k", "0x10", "x"}, "--top-k"},
        {{"generate", "--min-p", "+0.1", "x"}, "--min-p: \"+0.1\" is not a number from 0 to 1"},
        {{"generate", "--temperature", "100.5", "x"}, "a number from 0 to 100"},
        {{"chat", "--seed", "1\x1b[m"}, "--seed: \"1\\x1b[m\""},
        {{"stats", "--watch", ""}, "--watch: \"\" is not a number from 0.1 to 86400"},
        {{"stats", "--watch="}, "--watch: \"\" is not a number from 0.1 to 86400"},
        {{"stats", "--watch", "01"}, "--watch: \"01\""},
        {{"perplexity", "x", "--window", "010"}, "--window: \"010\""},
        {{"tokenize", "--ids", "010"}, "item 1 (\"010\")"},
        {{"cancel", "3.01"}, "\"3.01\""},
        {{"generate", "--effort", "low", "x"}, "--think"},
        {{"generate", "--think", "--effort", "some", "x"}, "--effort"},
        {{"generate", "--stop", "", "x"}, "--stop"},
        {{"generate", "--ids", "1,2", "x"}, "--ids"},
        {{"generate", "--ids", "1,x,3"}, "item 2 (\"x\")"},
        {{"generate", "--ids", "1,2", "--raw"}, "--raw"},
        {{"generate", "--ids", "1", "--system", "s"}, "--system"},
        {{"generate", "--raw", "--think", "x"}, "--think"},
        {{"generate", "--logprobs", "2", "x"}, "--json"},
        {{"generate", "--json", "--logprobs", "21", "x"}, "--logprobs"},
        {{"generate", "--model", std::string(300, 'm'), "x"}, "--model"},
        {{"generate", ""}, "empty"},
        {{"generate", "caf\xe9"}, "UTF-8"},
        {{"stats", "now"}, "now"},
        {{"score", "--ids", "1", "x"}, "--ids"},
        {{"score", "--no-logits", "x"}, "--json"},
        {{"score", ""}, "empty"},
        {{"tokenize", "--count", "--json", "x"}, "--count"},
        {{"perplexity"}, "file"},
        {{"perplexity", "x", "--window", "1"}, "--window: \"1\" is not a whole number from 2"},
        {{"perplexity", "x", "--stride", "0"}, "--stride"},
        {{"perplexity", "x", "--window", "8", "--stride", "8"}, "--stride"},
        {{"chat", "--effort", "low"}, "--think"},
    };
    for (const auto& [arguments, word] : cases) {
        const Outcome outcome = run_xpctl(arguments, setup);
        EXPECT_EQ(outcome.status, 2) << outcome.err;
        EXPECT_EQ(outcome.out, "");
        EXPECT_THAT(outcome.err, AllOf(StartsWith("xpctl: "), HasSubstr(word)));
        EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    }
}

TEST(UsageTest, long_arguments_are_not_repeated_whole) {
    const std::string long_one(130'000, '7');
    const std::vector<std::string> cases[] = {
        {long_one}, {"ping", long_one}, {"generate", "--seed", long_one, "x"},
        {"generate", "--ids", long_one}, {"generate", "--think", "--effort", long_one, "x"},
        {"cancel", "x" + long_one}, {"perplexity", long_one}, {"generate", "--" + long_one},
        {"stats", "--watch", long_one}, {"ping", "--socket", long_one},
        {"version", "--socket", long_one}};
    for (const auto& arguments : cases) {
        const Outcome outcome = run_xpctl(arguments, {});
        EXPECT_LT(outcome.err.size(), 600u) << arguments[0].substr(0, 20);
        EXPECT_THAT(outcome.err, HasSubstr("777...777"));
    }
}

TEST(UsageTest, without_memory_there_is_one_line_and_no_signal) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "sanitizers reserve terabytes of addresses";
#endif
    const std::string input = ::testing::TempDir() + "xpctl_large_input";
    std::ofstream(input) << std::string(size_t{60} << 20, 'a');
    for (const auto& [option, line] :
         {std::pair{"", "xpctl: out of memory\n"},
          std::pair{"--json", "{\"error\":{\"code\":\"no_memory\",\"message\":\"out of memory\"}}"
                              "\n"}}) {
        const Outcome outcome = run_limited(
            "-v 60000", "/nowhere", "generate --raw " + std::string(option) + " -", input);
        EXPECT_EQ(outcome.status, 1);
        EXPECT_EQ(outcome.out, line);
    }
    std::remove(input.c_str());
}

TEST(UsageTest, more_stop_texts_than_the_protocol_carries_are_refused) {
    std::vector<std::string> arguments = {"generate", "x"};
    for (int i = 0; i < 17; ++i) arguments.insert(arguments.end(), {"--stop", "s"});
    const Outcome outcome = run_xpctl(arguments, {.socket = "/nowhere"});
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.err, HasSubstr("16"));
}

TEST(UsageTest, no_prompt_at_a_terminal_is_an_error_and_no_waiting) {
    const Outcome outcome = run_xpctl({"generate"}, {.socket = "/nowhere", .input_terminal = true});
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.err, HasSubstr("no prompt"));
}

TEST(UsageTest, help_and_version_go_to_standard_output) {
    const Outcome help = run_xpctl({"--help"}, {});
    EXPECT_EQ(help.status, 0);
    EXPECT_EQ(help.err, "");
    for (const char* word : {"generate", "chat", "score", "perplexity", "tokenize", "stats",
                             "models", "clients", "cancel", "ping", "version", "--socket",
                             "EXPERTPACK_SOCKET", "NO_COLOR", "XDG_STATE_HOME", "Examples:", "75",
                             "130"}) {
        EXPECT_THAT(help.out, HasSubstr(word));
    }
    const Outcome generate = run_xpctl({"generate", "--help"}, {});
    EXPECT_EQ(generate.status, 0);
    for (const char* word : {"--system", "--think", "--effort", "--raw", "--ids", "--model",
                             "--max-tokens", "--temperature", "--top-k", "--top-p", "--min-p",
                             "--seed", "--stop", "--ignore-eos", "--json", "--logprobs",
                             "--quiet", "Ctrl-C"}) {
        EXPECT_THAT(generate.out, HasSubstr(word));
    }
    EXPECT_THAT(generate.out, Not(HasSubstr("\n\n\n")));
    EXPECT_THAT(run_xpctl({"--version"}, {}).out, StartsWith("xpctl "));
    for (const char* command : {"chat", "score", "perplexity", "tokenize", "stats", "cancel"}) {
        EXPECT_EQ(run_xpctl({command, "--help"}, {}).status, 0) << command;
    }
}

TEST(UsageTest, with_json_the_reason_of_a_failure_is_json_on_standard_error) {
    const Outcome outcome = run_xpctl({"models", "--json"}, {.socket = "/nowhere/daemon.sock"});
    EXPECT_EQ(outcome.status, 69);
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, StartsWith("{\"error\":{\"code\":\"unavailable\",\"message\":\""));
}

// Needs a user whom a socket's mode keeps out, which root is not.
TEST(UsageTest, a_socket_of_another_group_says_which_group_to_join) {
    if (::geteuid() == 0) GTEST_SKIP() << "root may connect to any socket";
    shm::Listener listener;
    ASSERT_EQ(::chmod(listener.path().c_str(), 0), 0);
    const Outcome alone = run_xpctl({"ping"}, {.socket = listener.path()});
    EXPECT_EQ(alone.status, 69);
    EXPECT_THAT(alone.err, AllOf(HasSubstr("alone"), Not(HasSubstr("usermod"))));
    ASSERT_EQ(::chmod(listener.path().c_str(), 0060), 0);
    const Outcome group = run_xpctl({"ping"}, {.socket = listener.path()});
    EXPECT_THAT(group.err, HasSubstr("usermod -aG "));
}

TEST(UsageTest, without_a_daemon_the_message_names_the_socket_and_what_to_do) {
    for (const char* command : {"ping", "stats", "models"}) {
        const Outcome outcome = run_xpctl({command}, {.socket = "/nowhere/daemon.sock"});
        EXPECT_EQ(outcome.status, 69);
        EXPECT_EQ(outcome.out, "");
        EXPECT_THAT(outcome.err, AllOf(HasSubstr("/nowhere/daemon.sock"), HasSubstr("systemctl"),
                                       HasSubstr("--socket"), HasSubstr("EXPERTPACK_SOCKET")));
    }
    const Outcome generate = run_xpctl({"generate", "x"}, {.socket = "/nowhere/daemon.sock"});
    EXPECT_EQ(generate.status, 69);
    EXPECT_EQ(generate.out, "");
}

TEST(UsageTest, a_socket_behind_a_circle_of_links_is_not_available) {
    const std::string link = ::testing::TempDir() + "xpctl_circle";
    std::remove(link.c_str());
    ASSERT_EQ(::symlink(link.c_str(), link.c_str()), 0);
    const Outcome outcome = run_xpctl({"ping"}, {.socket = link});
    EXPECT_EQ(outcome.status, 69);
    EXPECT_THAT(outcome.err, HasSubstr(link + ": Too many levels of symbolic links"));
    std::remove(link.c_str());
}

TEST(UsageTest, the_socket_comes_from_the_environment_unless_an_option_names_it) {
    const Streams setup{.environment = {{"EXPERTPACK_SOCKET", "/variable/daemon.sock"}}};
    EXPECT_THAT(run_xpctl({"ping"}, setup).err, HasSubstr("/variable/daemon.sock"));
    const Outcome option = run_xpctl({"ping", "--socket", "/option/daemon.sock"}, setup);
    EXPECT_THAT(option.err, HasSubstr("/option/daemon.sock"));
}

TEST(UsageTest, a_daemon_that_has_too_many_clients_is_worth_trying_again) {
    shm::Listener listener;
    std::thread daemon([&] {
        const shm::Fd socket = listener.accept();
        shm::wait_readable(socket.get());
        shm::Hello hello;
        shm::WelcomeStatus status;
        std::string error;
        EXPECT_EQ(shm::receive_hello(socket.get(), &hello, &status, &error),
                  shm::ReceiveStatus::kOk);
        shm::send_refusal(socket.get(), shm::WelcomeStatus::kTooManyClients, "64 are connected");
    });
    const Outcome outcome = run_xpctl({"ping"}, {.socket = listener.path()});
    daemon.join();
    EXPECT_EQ(outcome.status, 75);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr(listener.path()), HasSubstr("64 are connected"),
                                   Not(HasSubstr("systemctl"))));
}

TEST(UsageTest, a_prompt_larger_than_the_ring_is_refused_with_the_limit) {
    FakeDaemon daemon(answering({done()}));
    const Outcome outcome = run_xpctl({"generate", "--raw"},
                                      {.socket = daemon.path(),
                                       .input = std::string(size_t{5} << 20, 'a')});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, ::testing::ContainsRegex("[0-9]+ bytes"));
}

}  // namespace
}  // namespace xp::test
