// The parts of a chat that need no process: messages out of lines, saved chats, the history's file.
#include <deque>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/xpctl/chat_commands.h"
#include "client/xpctl/chat_history.h"
#include "client/xpctl/chat_input.h"
#include "client/xpctl/conversation.h"

namespace xp::ctl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Lines : public LineSource {
public:
    explicit Lines(std::deque<std::string> lines) : lines_(std::move(lines)) {}
    InputStatus read(const char*, std::string* line) override {
        if (lines_.empty()) return InputStatus::kEnd;
        *line = lines_.front();
        lines_.pop_front();
        return InputStatus::kOk;
    }

private:
    std::deque<std::string> lines_;
};

std::string message_of(std::deque<std::string> text) {
    Lines lines(std::move(text));
    ChatMessage message;
    EXPECT_EQ(read_message(lines, &message), InputStatus::kOk);
    return message.text;
}

TEST(ChatInputTest, lines_become_messages) {
    EXPECT_EQ(message_of({"one", "two"}), "one");
    EXPECT_EQ(message_of({"one\\", "two\\", "three", "four"}), "one\ntwo\nthree");
    EXPECT_EQ(message_of({"one\\"}), "one");  // the end of input ends it
    EXPECT_EQ(message_of({"\"\"\"", "a", "", "b", "\"\"\"", "c"}), "a\n\nb");
    EXPECT_EQ(message_of({"\"\"\"a", "b\"\"\""}), "a\nb");
    EXPECT_EQ(message_of({"\"\"\"a\\", "b"}), "a\\\nb");
    EXPECT_EQ(message_of({"\"\"\"one\"\"\""}), "one");
    EXPECT_EQ(message_of({"\"\"\"", "\"\"\""}), "");
    Lines none({});
    ChatMessage message;
    EXPECT_EQ(read_message(none, &message), InputStatus::kEnd);
}

TEST(ConversationTest, what_is_no_saved_chat_is_refused_with_the_place) {
    std::string error;
    for (const char* json : {"", "[]", "null", R"({"messages": []})",
                             R"({"format": "expertpack-chat", "messages": 3})"}) {
        EXPECT_FALSE(parse_conversation(json, &error)) << json;
        EXPECT_THAT(error, HasSubstr("no saved chat"));
    }
    const auto with = [](const std::string& messages) {
        return R"({"format": "expertpack-chat", "messages": [)" + messages + "]}";
    };
    const std::string user = R"({"role": "user", "content": "q"})";
    const std::string assistant = R"({"role": "assistant", "content": "a", "reasoning": "r"})";
    const std::pair<std::string, const char*> cases[] = {
        {assistant, "message 1"}, {user + "," + user, "message 2"}, {user, "no answer"},
        {user + "," + assistant + R"(,{"role": "system", "content": "s"})", "message 3"},
        {R"({"role": "user", "content": 3})", "message 1"}, {"7", "message 1"},
        {R"({"role": "tool", "content": ""})", "message 1"}};
    for (const auto& [messages, place] : cases) {
        EXPECT_FALSE(parse_conversation(with(messages), &error)) << messages;
        EXPECT_THAT(error, HasSubstr(place)) << messages;
    }
    const auto good = parse_conversation(with(user + "," + assistant), &error);
    ASSERT_TRUE(good);
    EXPECT_EQ(good->turns.at(0).reasoning, "r");
}

TEST(ChatHistoryTest, is_cut_to_the_newest_lines_and_free_of_junk) {
    const std::string path = ::testing::TempDir() + "xpctl_history_test/deep/file";
    std::filesystem::remove_all(::testing::TempDir() + "xpctl_history_test");
    { ChatHistory(path).append("made"); }
    {
        std::ofstream file(path, std::ios::app);
        file << "\xff\n\n" << std::string(kHistoryLineBytes + 1, 'x') << "\n";
        for (size_t i = 0; i < kHistoryLines; ++i) file << "line " << i << "\n";
    }
    {
        ChatHistory history(path);
        ASSERT_EQ(history.lines().size(), kHistoryLines);
        EXPECT_EQ(history.lines().front(), "line 0");
        history.append("newest");
        history.append("two\nlines");
    }
    ChatHistory again(path);
    EXPECT_EQ(again.lines().size(), kHistoryLines);
    EXPECT_EQ(again.lines().back(), "newest");
    EXPECT_EQ(std::filesystem::status(path).permissions(),
              std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    std::filesystem::remove_all(::testing::TempDir() + "xpctl_history_test");
    ChatHistory(::testing::TempDir()).append("a folder is no file");
    ChatHistory("").append("nowhere");
}

CommandResult run(const char* line, ChatState* state) {
    return run_chat_command(line, state, [](std::vector<std::string>* names) {
        *names = {"demo", "large"};
        return Failure();
    });
}

// Every chat that begins cuts a long file, which then is another file.
TEST(ChatHistoryTest, loses_no_line_when_another_chat_cuts_the_file) {
    const std::string path = ::testing::TempDir() + "xpctl_history_cut";
    const std::string link = path + "_link";
    std::filesystem::remove(link);
    {
        std::ofstream file(path);
        for (size_t i = 0; i < 2 * kHistoryLines; ++i) file << "line " << i << "\n";
    }
    std::filesystem::create_symlink(path, link);
    ChatHistory first(link);
    first.append("one");
    ChatHistory second(link);
    first.append("two");
    second.append("three");
    const std::vector<std::string> lines = ChatHistory(path).lines();
    EXPECT_THAT(std::vector(lines.end() - 3, lines.end()),
                ::testing::ElementsAre("one", "two", "three"));
    EXPECT_TRUE(std::filesystem::is_symlink(link));
    std::filesystem::remove(link);
    std::filesystem::remove(path);
}

TEST(ChatCommandTest, settings_are_taken_or_left_as_they_were) {
    ChatState state;
    for (const char* good : {"/set temperature 0.5", "/set top_p 0.9", "/set min_p 0",
                             "/set max_tokens 12", "/set seed 18446744073709551615",
                             "/think max", "/model large", "/set  top_k   3 "}) {
        EXPECT_EQ(run(good, &state).exit_code, 0) << good;
    }
    for (const char* bad : {"/set temperature warm", "/set temperature 101", "/set top_k -1",
                            "/set temperature nan", "/set seed", "/set", "/set colour 3",
                            "/set seed 010", "/set top_k  +1", "/set min_p 1e99",
                            "/think maybe", "/save", "/load", "/new now", "/xyzzy", "/"}) {
        const CommandResult result = run(bad, &state);
        EXPECT_EQ(result.exit_code, 2) << bad;
        EXPECT_NE(result.say, "") << bad;
    }
    // Right, as far as the line goes.
    EXPECT_EQ(run("/model huge", &state).exit_code, 1);
    const std::string long_name = "/" + std::string(100'000, 'x');
    EXPECT_LT(run(long_name.c_str(), &state).say.size(), 400u);
    EXPECT_EQ(state.settings.temperature, 0.5f);
    EXPECT_EQ(state.settings.top_k, 3u);
    EXPECT_EQ(state.settings.seed, UINT64_MAX);
    EXPECT_EQ(state.settings.model, "large");
    EXPECT_TRUE(state.settings.think);
    run("/set seed default", &state);
    EXPECT_FALSE(state.settings.seed);
    run("/think off", &state);
    EXPECT_FALSE(state.settings.think);
    EXPECT_THAT(run("/model", &state).say, HasSubstr("* large"));
    EXPECT_THAT(run("/show", &state).say, HasSubstr("temperature  0.5\n"));
}

TEST(ChatCommandTest, retry_undo_and_new_change_the_turns) {
    ChatState state;
    EXPECT_EQ(run("/retry", &state).exit_code, 1);
    EXPECT_EQ(run("/undo", &state).exit_code, 1);
    state.conversation.turns = {{"a", "1", ""}, {"b", "2", ""}};
    EXPECT_EQ(run("/retry", &state).send, "b");
    EXPECT_EQ(state.conversation.turns.size(), 1u);
    state.unanswered = "c";
    EXPECT_EQ(run("/retry", &state).send, "c");
    EXPECT_EQ(state.conversation.turns.size(), 1u);
    EXPECT_EQ(run("/undo", &state).exit_code, 0);
    EXPECT_TRUE(state.conversation.turns.empty());
    state.conversation = {"system", {{"a", "1", ""}}};
    run("/clear", &state);
    EXPECT_TRUE(state.conversation.turns.empty());
    EXPECT_EQ(state.conversation.system, "system");
    run("/system -", &state);
    EXPECT_EQ(state.conversation.system, "");
    EXPECT_TRUE(run("/exit", &state).quit);
}

}  // namespace
}  // namespace xp::ctl
