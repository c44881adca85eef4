// xpctl chat: on a terminal, typed on as a person does, and with lines from a pipe.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>

#include <gmock/gmock.h>

#include <sys/stat.h>
#include <unistd.h>

#include "tests/client/xpctl/program.h"
#include "tests/client/xpctl/replies.h"

namespace xp::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Answers the chats of any number of connections, one after the other; keeps what was asked.
class Companion {
public:
    using Reply = std::function<std::vector<shm::Reply>(const std::string& message)>;
    explicit Companion(Reply reply) : reply_(std::move(reply)) {}

    // Connections end after this many answers, as if the daemon was restarted.
    void restart_after(int answers) { restart_after_ = answers; }

    void operator()(Session& connection) {
        int answers = 0;
        while (restart_after_ == 0 || answers < restart_after_) {
            const auto incoming = connection.next();
            if (!incoming) return;
            const uint64_t id = incoming->first;
            if (const auto* cancel = std::get_if<shm::Cancel>(&incoming->second)) {
                connection.reply(cancel->target, shm::Cancelled{"client", sample_timings()});
                connection.reply(id, shm::Done{});
            } else if (std::holds_alternative<shm::ListModels>(incoming->second)) {
                connection.reply(id, shm::ModelsReply{{{"demo", "a", "", 64, 9},
                                                       {"large", "b", "", 64, 9}}});
            } else if (const auto* request = std::get_if<shm::Generate>(&incoming->second)) {
                ++answers;
                std::string message = std::get<shm::Chat>(request->prompt).messages.back().content;
                const std::lock_guard lock(mutex_);
                requests_.push_back(*request);
                connection.reply(id, shm::Accepted{"demo", {1}});
                for (const shm::Reply& reply : reply_(message)) connection.reply(id, reply);
            }
        }
    }

    // "user:hello", "assistant:hi", ... of a request.
    std::vector<std::string> messages(size_t request) {
        static constexpr const char* kRoles[] = {"system", "developer", "user", "assistant"};
        const std::lock_guard lock(mutex_);
        std::vector<std::string> out;
        if (request >= requests_.size()) return {"no such request"};
        for (const shm::Message& message :
             std::get<shm::Chat>(requests_[request].prompt).messages) {
            out.push_back(std::string(kRoles[static_cast<size_t>(message.role)]) + ":" +
                          message.content);
        }
        return out;
    }
    shm::Generate request(size_t i) {
        const std::lock_guard lock(mutex_);
        return requests_.at(i);
    }

private:
    Reply reply_;
    int restart_after_ = 0;
    std::mutex mutex_;
    std::vector<shm::Generate> requests_;
};

std::vector<shm::Reply> echo(const std::string& message) {
    return {tokens({1}, "re: " + message), done()};
}

class ChatTest : public ::testing::Test {
protected:
    ChatTest() : folder_(::testing::TempDir() + "xpctl_chat_XXXXXX") {
        EXPECT_NE(::mkdtemp(folder_.data()), nullptr);
    }
    ~ChatTest() override { std::filesystem::remove_all(folder_); }

    Streams terminal(const FakeDaemon& daemon) const {
        return {.socket = daemon.path(), .terminal = true,
                .environment = {{"XDG_STATE_HOME", folder_}}};
    }
    std::string history_file() const { return folder_ + "/expertpack/chat_history"; }

    // Types a message and waits for its answer and the next prompt.
    static void say(Program& program, const std::string& text, const std::string& answer) {
        program.type_to_editor(text + "\n");
        EXPECT_TRUE(program.wait_for_new_output(answer)) << text;
        EXPECT_TRUE(program.wait_for_output("\n> ")) << text;
    }

    static int end_of(Program& program) {
        program.type_to_editor("\x04");
        return program.wait().status;
    }

    std::string folder_;
};

TEST_F(ChatTest, each_message_is_sent_with_all_before_it_and_ctrl_d_ends) {
    Companion companion(echo);
    FakeDaemon daemon(std::ref(companion));
    Program program({"chat", "--system", "Be brief.", "--temperature", "0"}, terminal(daemon));
    ASSERT_TRUE(program.wait_for_output("> "));
    say(program, "hello", "re: hello\n");
    say(program, "again", "re: again\n");
    EXPECT_EQ(end_of(program), 0);
    EXPECT_THAT(companion.messages(0), ElementsAre("system:Be brief.", "user:hello"));
    EXPECT_THAT(companion.messages(1), ElementsAre("system:Be brief.", "user:hello",
                                                   "assistant:re: hello", "user:again"));
    EXPECT_EQ(companion.request(1).sampling.temperature, 0.0f);
}

TEST_F(ChatTest, ctrl_c_stops_an_answer_and_keeps_what_came) {
    Companion companion([](const std::string& message) -> std::vector<shm::Reply> {
        if (message == "long") return {tokens({1}, "a part")};  // the rest never comes
        return echo(message);
    });
    FakeDaemon daemon(std::ref(companion));
    Program program({"chat"}, terminal(daemon));
    ASSERT_TRUE(program.wait_for_output("> "));
    program.type_to_editor("long\n");
    ASSERT_TRUE(program.wait_for_new_output("a part"));
    program.type("\x03");
    ASSERT_TRUE(program.wait_for_output("(stopped"));
    ASSERT_TRUE(program.wait_for_output("> "));
    say(program, "next", "re: next\n");
    program.type_to_editor("/quit\n");
    EXPECT_EQ(program.wait().status, 0);
    EXPECT_THAT(companion.messages(1), ElementsAre("user:long", "assistant:a part", "user:next"));
}

TEST_F(ChatTest, ctrl_c_at_the_prompt_drops_the_line) {
    Companion companion(echo);
    FakeDaemon daemon(std::ref(companion));
    Program program({"chat"}, terminal(daemon));
    ASSERT_TRUE(program.wait_for_output("> "));
    program.type_to_editor("unwanted");
    ASSERT_TRUE(program.wait_for_output("unwanted"));
    program.type("\x03");
    ASSERT_TRUE(program.wait_for_new_output("Ctrl-D or /quit"));
    ASSERT_TRUE(program.wait_for_output("> "));
    say(program, "wanted", "re: wanted\n");
    EXPECT_EQ(end_of(program), 0);
    EXPECT_THAT(companion.messages(0), ElementsAre("user:wanted"));
}

TEST_F(ChatTest, a_message_that_fails_is_no_turn_and_can_be_sent_again) {
    int failures = 1;
    Companion companion([&](const std::string& message) -> std::vector<shm::Reply> {
        if (message == "flaky" && failures-- > 0) {
            return {tokens({1}, "half"), shm::Failed{"io", "a drive is gone"}};
        }
        return echo(message);
    });
    FakeDaemon daemon(std::ref(companion));
    Program program({"chat"}, terminal(daemon));
    ASSERT_TRUE(program.wait_for_output("> "));
    say(program, "first", "re: first\n");
    say(program, "flaky", "a drive is gone (io)");
    say(program, "/retry", "re: flaky\n");
    say(program, "/undo", "1 left");
    say(program, "last", "re: last\n");
    EXPECT_EQ(end_of(program), 0);
    EXPECT_THAT(companion.messages(2), ElementsAre("user:first", "assistant:re: first",
                                                   "user:flaky"));
    EXPECT_THAT(companion.messages(3), ElementsAre("user:first", "assistant:re: first",
                                                   "user:last"));
}

TEST_F(ChatTest, any_unicode_comes_through_the_editor) {
    Companion companion(echo);
    FakeDaemon daemon(std::ref(companion));
    // Whatever the locale is: it is C here.
    Program program({"chat"}, terminal(daemon));
    ASSERT_TRUE(program.wait_for_output("> "));
    const std::string text = "h\u00e9 \u6f22\u5b57 e\u0301 \u05d0 \U0001f469\u200d\U0001f680 "
                             "\U0001f1e9\U0001f1ea";
    say(program, text, "re: h\u00e9");
    // Backspace takes one character back, however many bytes it has.
    say(program, "\u6f22\U0001f680\x7fz", "re: \u6f22z\n");
    EXPECT_EQ(end_of(program), 0);
    EXPECT_THAT(companion.messages(0), ElementsAre("user:" + text));
}

TEST_F(ChatTest, a_byte_that_is_no_character_costs_only_itself) {
    Companion companion(echo);
    FakeDaemon daemon(std::ref(companion));
    Program program({"chat"}, terminal(daemon));
    ASSERT_TRUE(program.wait_for_output("> "));
    say(program, "a\xc3""b\xe2\x82""c\xf0\xc3\xa9\xff!", "re: a");
    say(program, "\xe2\x82", "re: \ufffd\n");  // the newline is the byte that follows
    EXPECT_EQ(end_of(program), 0);
    EXPECT_THAT(companion.messages(0),
                ElementsAre("user:a\ufffdb\ufffdc\ufffd\u00e9\ufffd!"));
}

TEST_F(ChatTest, no_encoding_of_a_control_character_is_a_key) {
    Companion companion(echo);
    FakeDaemon daemon(std::ref(companion));
    Program program({"chat"}, terminal(daemon));
    ASSERT_TRUE(program.wait_for_output("> "));
    say(program, "\xe0\x80\x84" "a\xe0\x80\x8d" "b\xe0\x80\x88" "c\xf0\x80\x80\x80"
                 "d\xf0\x8f\xbf\xbf" "e\xc2\x88!", "re: ");
    EXPECT_EQ(end_of(program), 0);
    EXPECT_THAT(companion.messages(0),
                ElementsAre("user:\ufffda\ufffdb\ufffdc\ufffdd\ufffde\ufffd!"));
}

TEST_F(ChatTest, a_stop_during_an_answer_shows_the_prompt_once) {
    Gate asked, answer;
    Companion companion([&](const std::string& message) {
        asked.open();
        answer.wait();
        return echo(message);
    });
    FakeDaemon daemon(std::ref(companion));
    Program program({"chat"}, terminal(daemon));
    ASSERT_TRUE(program.wait_for_output("> "));
    program.type_to_editor("one\n");
    asked.wait();
    program.signal(SIGSTOP);
    ASSERT_TRUE(program.wait_until_stopped());
    program.signal(SIGCONT);
    answer.open();
    ASSERT_TRUE(program.wait_for_new_output("re: one\n"));
    program.type_to_editor("/quit\n");
    const Outcome outcome = program.wait();
    EXPECT_EQ(outcome.status, 0);
    const size_t prompt = outcome.out.find("> ", outcome.out.rfind("re: one\n"));
    ASSERT_NE(prompt, std::string::npos);
    EXPECT_EQ(outcome.out.find("> ", prompt + 1), std::string::npos) << outcome.out;
}

// As ^Z and fg do: the shell takes the terminal back into its own mode in between.
TEST_F(ChatTest, lines_can_be_edited_after_the_chat_was_stopped_and_continued) {
    Companion companion(echo);
    FakeDaemon daemon(std::ref(companion));
    Program program({"chat"}, terminal(daemon));
    ASSERT_TRUE(program.wait_for_output("> "));
    const termios shells = [&] {
        termios settings = program.settings();
        settings.c_lflag |= ICANON | ECHO | ISIG;
        return settings;
    }();
    program.type_to_editor("wan");
    ASSERT_TRUE(program.wait_for_output("wan"));
    program.signal(SIGSTOP);
    ASSERT_TRUE(program.wait_until_stopped());
    program.set(shells);
    program.signal(SIGCONT);
    ASSERT_TRUE(program.wait_for_editor());
    say(program, "x\x7fted", "re: wanted\n");
    EXPECT_EQ(end_of(program), 0);
    EXPECT_THAT(companion.messages(0), ElementsAre("user:wanted"));
}

TEST_F(ChatTest, a_signal_that_ends_the_chat_leaves_the_terminal_as_it_was) {
    Companion companion(echo);
    FakeDaemon daemon(std::ref(companion));
    for (const int number : {SIGTERM, SIGHUP}) {
        Program program({"chat"}, terminal(daemon));
        const tcflag_t cooked = ICANON | ECHO | ISIG;
        ASSERT_TRUE(program.wait_for_output("> "));
        ASSERT_TRUE(program.wait_for_editor());
        ASSERT_EQ(program.settings().c_lflag & ECHO, 0u);
        program.signal(number);
        for (int n = 0; program.running() && n < 30'000; ++n) ::usleep(1000);
        ASSERT_FALSE(program.running());
        EXPECT_EQ(program.settings().c_lflag & cooked, cooked);
        EXPECT_NE(program.settings().c_iflag & ICRNL, 0u);
        EXPECT_NE(program.settings().c_oflag & OPOST, 0u);
        EXPECT_EQ(program.wait().status, 256 + number);  // as the shell sees it
    }
}

TEST_F(ChatTest, escape_sequences_of_the_model_do_not_reach_the_terminal) {
    Companion companion([](const std::string&) -> std::vector<shm::Reply> {
        return {tokens({1}, "think\033[2J", shm::Channel::kReasoning),
                tokens({2}, "a\033]0;title\x07"), tokens({3}, "b\u009b1m"), done()};
    });
    FakeDaemon daemon(std::ref(companion));
    Streams setup = terminal(daemon);
    setup.environment["NO_COLOR"] = "1";
    Program program({"chat"}, setup);
    ASSERT_TRUE(program.wait_for_output("> "));
    program.type_to_editor("x\n");
    ASSERT_TRUE(program.wait_for_new_output("think[2J\na]0;titleb1m\n"));
    ASSERT_TRUE(program.wait_for_output("\n> "));
    EXPECT_EQ(end_of(program), 0);
    // The conversation keeps what the model said.
    EXPECT_EQ(companion.messages(0).size(), 1u);
}

TEST_F(ChatTest, a_daemon_that_restarts_between_two_turns_is_connected_to_again) {
    Companion companion(echo);
    companion.restart_after(1);
    FakeDaemon daemon(std::ref(companion));
    Program program({"chat"}, terminal(daemon));
    ASSERT_TRUE(program.wait_for_output("> "));
    say(program, "one", "re: one\n");
    program.type_to_editor("two\n");
    ASSERT_TRUE(program.wait_for_new_output("(connected to the daemon again)"));
    ASSERT_TRUE(program.wait_for_output("re: two\n"));
    ASSERT_TRUE(program.wait_for_output("\n> "));
    EXPECT_EQ(end_of(program), 0);
    EXPECT_THAT(companion.messages(1), ElementsAre("user:one", "assistant:re: one", "user:two"));
}

TEST_F(ChatTest, lines_typed_come_back_in_the_next_chat_and_are_nobody_elses) {
    Companion companion(echo);
    FakeDaemon daemon(std::ref(companion));
    {
        Program program({"chat"}, terminal(daemon));
        ASSERT_TRUE(program.wait_for_output("> "));
        say(program, "caf\u00e9 one", "re: caf\u00e9 one\n");
        EXPECT_EQ(end_of(program), 0);
    }
    struct stat status {};
    ASSERT_EQ(::stat(history_file().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u);
    Program program({"chat"}, terminal(daemon));
    ASSERT_TRUE(program.wait_for_output("> "));
    say(program, "\033[A", "re: caf\u00e9 one\n");  // arrow up
    EXPECT_EQ(end_of(program), 0);
    EXPECT_THAT(companion.messages(1), ElementsAre("user:caf\u00e9 one"));
}

TEST_F(ChatTest, several_lines_make_one_message) {
    Companion companion(echo);
    FakeDaemon daemon(std::ref(companion));
    Program program({"chat"}, terminal(daemon));
    ASSERT_TRUE(program.wait_for_output("> "));
    program.type_to_editor("one\\\n");
    ASSERT_TRUE(program.wait_for_new_output(". "));
    say(program, "two", "re: one\ntwo\n");
    program.type_to_editor("\"\"\"\n");
    ASSERT_TRUE(program.wait_for_new_output(". "));
    program.type_to_editor("/help\n");
    ASSERT_TRUE(program.wait_for_new_output(". "));
    say(program, "b\"\"\"", "re: /help\nb\n");
    say(program, "//path", "re: /path\n");
    EXPECT_EQ(end_of(program), 0);
}

TEST_F(ChatTest, commands_change_what_the_next_request_asks_for) {
    Companion companion(echo);
    FakeDaemon daemon(std::ref(companion));
    Program program({"chat"}, terminal(daemon));
    ASSERT_TRUE(program.wait_for_output("> "));
    say(program, "/model huge", "there is no model \"huge\"; there are demo, large");
    say(program, "/model large", "> ");
    say(program, "/think high", "> ");
    say(program, "/set top_k 40", "> ");
    say(program, "/set top_p 7", "top_p: \"7\" is not a number above 0, at most 1");
    say(program, "/help", "before it answers; on: low");
    say(program, "/system Be kind.", "> ");
    say(program, "/hepl", "do you mean /help?");
    say(program, "x", "re: x\n");
    say(program, "/stats", "5 tokens, 2.0 tokens/s");
    EXPECT_EQ(end_of(program), 0);
    const shm::Generate request = companion.request(0);
    EXPECT_EQ(request.model, "large");
    EXPECT_TRUE(std::get<shm::Chat>(request.prompt).thinking);
    EXPECT_EQ(std::get<shm::Chat>(request.prompt).effort, shm::Effort::kHigh);
    EXPECT_EQ(request.sampling.top_k, 40u);
    EXPECT_EQ(request.sampling.top_p, 1.0f);
    EXPECT_THAT(companion.messages(0), ElementsAre("system:Be kind.", "user:x"));
}

TEST_F(ChatTest, a_pipe_gets_the_answers_only) {
    Companion companion([](const std::string& message) -> std::vector<shm::Reply> {
        return {tokens({1}, "hm", shm::Channel::kReasoning), tokens({2}, "re: " + message), done()};
    });
    FakeDaemon daemon(std::ref(companion));
    const Outcome outcome = run_xpctl({"chat"}, {.socket = daemon.path(),
                                                 .input = "one\n\ntwo\\\nlines\nlast"});
    EXPECT_EQ(outcome.status, 0);
    EXPECT_EQ(outcome.out, "re: one\nre: two\nlines\nre: last\n");
    EXPECT_EQ(outcome.err, "");
    EXPECT_EQ(companion.messages(2).size(), 5u);
    const shm::Generate second = companion.request(1);
    EXPECT_EQ(std::get<shm::Chat>(second.prompt).messages[1].reasoning, "hm");
}

TEST_F(ChatTest, a_pipe_ends_at_the_first_message_that_fails) {
    Companion companion([](const std::string& message) -> std::vector<shm::Reply> {
        if (message == "bad") return {shm::Failed{"limit", "70 tokens, the context is 64"}};
        if (message == "busy") return {shm::Failed{"busy", "64 requests wait"}};
        return echo(message);
    });
    FakeDaemon daemon(std::ref(companion));
    Outcome outcome = run_xpctl({"chat"}, {.socket = daemon.path(), .input = "a\nbad\nb\n"});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_EQ(outcome.out, "re: a\n");
    EXPECT_EQ(outcome.err, "xpctl: 70 tokens, the context is 64 (limit); /new starts a new "
                           "conversation, /undo takes the last turn back\n");
    outcome = run_xpctl({"chat"}, {.socket = daemon.path(), .input = "busy\n"});
    EXPECT_EQ(outcome.status, 75);
    // A line that is wrong, and one that is right and cannot be done.
    outcome = run_xpctl({"chat"}, {.socket = daemon.path(), .input = "/nothing\nb\n"});
    EXPECT_EQ(outcome.status, 2);
    outcome = run_xpctl({"chat"}, {.socket = daemon.path(), .input = "/set top_k 010\nb\n"});
    EXPECT_EQ(outcome.status, 2);
    outcome = run_xpctl({"chat"}, {.socket = daemon.path(), .input = "/load /nowhere\nb\n"});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_EQ(outcome.out, "");
    outcome = run_xpctl({"chat"}, {.socket = daemon.path(), .input = "caf\xe9\nb\n"});
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.err, HasSubstr("UTF-8"));
    EXPECT_EQ(outcome.out, "");
}

TEST_F(ChatTest, conversations_are_saved_and_loaded_and_other_files_left_alone) {
    Companion companion(echo);
    FakeDaemon daemon(std::ref(companion));
    const std::string file = folder_ + "/saved.json", notes = folder_ + "/notes.txt";
    std::ofstream(notes) << "mine";
    const Streams setup{.socket = daemon.path(), .input = "one\n/save " + file + "\n"};
    EXPECT_EQ(run_xpctl({"chat", "--system", "s"}, setup).status, 0);
    const Outcome loaded = run_xpctl({"chat"}, {.socket = daemon.path(),
                                                .input = "/load " + file + "\ntwo\n"});
    EXPECT_EQ(loaded.out, "re: two\n");
    EXPECT_THAT(companion.messages(1), ElementsAre("system:s", "user:one", "assistant:re: one",
                                                   "user:two"));
    for (const char* command : {"/save ", "/load "}) {
        const Outcome refused =
            run_xpctl({"chat"}, {.socket = daemon.path(), .input = command + notes + "\n"});
        EXPECT_EQ(refused.status, 1);
        EXPECT_THAT(refused.err, HasSubstr(notes));
    }
    std::string kept;
    std::ifstream(notes) >> kept;
    EXPECT_EQ(kept, "mine");
}

TEST_F(ChatTest, saving_to_a_link_writes_the_file_it_leads_to) {
    Companion companion(echo);
    FakeDaemon daemon(std::ref(companion));
    const std::string file = folder_ + "/saved.json", link = folder_ + "/link";
    std::filesystem::create_symlink("second", link);
    std::filesystem::create_symlink(file, folder_ + "/second");
    for (const char* text : {"one", "two"}) {  // no file there yet, and one
        const Outcome outcome =
            run_xpctl({"chat"}, {.socket = daemon.path(),
                                 .input = text + ("\n/save " + link + "\n")});
        EXPECT_EQ(outcome.status, 0) << outcome.err;
        EXPECT_TRUE(std::filesystem::is_symlink(link));
        EXPECT_TRUE(std::filesystem::is_symlink(folder_ + "/second"));
        std::ifstream stream(file);
        const std::string saved{std::istreambuf_iterator<char>(stream), {}};
        EXPECT_THAT(saved, HasSubstr(text));
    }
}

TEST_F(ChatTest, saving_where_no_file_can_be_is_refused_and_changes_nothing) {
    Companion companion(echo);
    FakeDaemon daemon(std::ref(companion));
    const std::string circle = folder_ + "/circle";
    std::filesystem::create_symlink("circle", circle);
    for (const std::string& name :
         {std::string("~"), std::string("~/"), circle, folder_ + "/" + std::string(256, 'n')}) {
        const Outcome outcome = run_xpctl(
            {"chat"}, {.socket = daemon.path(), .input = "one\n/save " + name + "\n",
                       .environment = {{"HOME", folder_}}});
        EXPECT_EQ(outcome.status, 1) << name;
    }
    EXPECT_FALSE(std::filesystem::exists("~"));
    EXPECT_TRUE(std::filesystem::is_symlink(circle));
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
    // As long a name as file systems take.
    const std::string longest = folder_ + "/" + std::string(255, 'n');
    const Outcome outcome = run_xpctl(
        {"chat"}, {.socket = daemon.path(), .input = "one\n/save " + longest + "\n"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_TRUE(std::filesystem::exists(longest));
}

TEST_F(ChatTest, without_a_daemon_there_is_no_chat) {
    const Outcome outcome = run_xpctl({"chat"}, {.socket = "/nowhere", .input = "x\n"});
    EXPECT_EQ(outcome.status, 69);
}

}  // namespace
}  // namespace xp::test
