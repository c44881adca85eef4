// xpctl generate: what reaches the daemon, and what comes out.
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tests/client/xpctl/program.h"
#include "tests/client/xpctl/replies.h"

namespace xp::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

const shm::Chat& chat_of(const shm::Generate& request) {
    return std::get<shm::Chat>(request.prompt);
}

TEST(GenerateTest, streams_text_while_it_is_generated_and_ends_the_line) {
    Gate seen;
    FakeDaemon daemon([&](Session& connection) {
        const auto incoming = connection.next();
        ASSERT_TRUE(incoming);
        connection.reply(incoming->first, shm::Accepted{"demo", {1}});
        connection.reply(incoming->first, tokens({4}, "4"));
        seen.wait();
        connection.reply(incoming->first, tokens({2}, "2"));
        connection.reply(incoming->first, done());
        connection.wait_for_hang_up();
    });
    Program program({"generate", "What is", "17 + 25?"}, {.socket = daemon.path()});
    EXPECT_TRUE(program.wait_for_output("4"));
    seen.open();
    const Outcome outcome = program.wait();
    EXPECT_EQ(outcome.status, 0);
    EXPECT_EQ(outcome.out, "42\n");
    EXPECT_EQ(outcome.err, "");
}

TEST(GenerateTest, tool_calls_are_lines_of_their_own_and_objects_in_json) {
    const std::string line = R"({"name": "add", "arguments": "{\"a\": 1}"})" "\n";
    const auto replies = [&] {
        return answering({tokens({7}, "I add."), tokens({8}, line, shm::Channel::kToolCall),
                          tokens({9}, line, shm::Channel::kToolCall),
                          done(shm::FinishReason::kToolCalls)});
    };
    FakeDaemon daemon(replies());
    EXPECT_EQ(run_xpctl({"generate", "q"}, {.socket = daemon.path()}).out,
              "I add.\n" + line + line);
    FakeDaemon again(replies());
    const Outcome json = run_xpctl({"generate", "--json", "q"}, {.socket = again.path()});
    const Json object = Json::parse(json.out);
    EXPECT_EQ(object.at("text"), "I add.");
    EXPECT_EQ(object.at("tool_calls"),
              Json::parse(R"([{"name": "add", "arguments": "{\"a\": 1}"},
                              {"name": "add", "arguments": "{\"a\": 1}"}])"));
    EXPECT_EQ(object.at("tokens"), Json::parse("[7, 8, 9]"));
    EXPECT_EQ(object.at("finish_reason"), "tool_calls");
}

TEST(GenerateTest, adds_no_newline_to_a_text_that_has_one_or_to_none) {
    FakeDaemon with(answering({tokens({1}, "line\n"), done()}));
    EXPECT_EQ(run_xpctl({"generate", "x"}, {.socket = with.path()}).out, "line\n");
    FakeDaemon without(answering({tokens({1}, ""), done()}));
    EXPECT_EQ(run_xpctl({"generate", "x"}, {.socket = without.path()}).out, "");
}

TEST(GenerateTest, json_is_one_object_with_the_names_that_scripts_rely_on) {
    FakeDaemon daemon(answering({tokens({7}, "think", shm::Channel::kReasoning),
                                 tokens({4, 2}, "4"), tokens({}, "2"),
                                 done(shm::FinishReason::kLength)}));
    const Outcome outcome =
        run_xpctl({"generate", "--json", "--seed", "5", "x"}, {.socket = daemon.path()});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    const Json object = Json::parse(outcome.out);
    EXPECT_EQ(object.at("text"), "42");
    EXPECT_EQ(object.at("reasoning"), "think");
    EXPECT_EQ(object.at("tokens"), Json({7, 4, 2}));
    EXPECT_EQ(object.at("prompt_tokens"), Json({1, 2, 3}));
    EXPECT_EQ(object.at("finish_reason"), "length");
    EXPECT_EQ(object.at("model"), "demo");
    EXPECT_EQ(object.at("seed"), 5);
    EXPECT_FALSE(object.contains("logprobs"));
    const Json& timings = object.at("timings");
    EXPECT_DOUBLE_EQ(timings.at("queued_ms"), 1.5);
    EXPECT_DOUBLE_EQ(timings.at("prefill_ms"), 500);
    EXPECT_DOUBLE_EQ(timings.at("decode_ms"), 2000);
    EXPECT_DOUBLE_EQ(timings.at("prompt_tokens_per_second"), 20);
    EXPECT_DOUBLE_EQ(timings.at("tokens_per_second"), 2);  // 4 tokens after the prefill's one
    EXPECT_EQ(timings.at("expert_hits"), 30);
    EXPECT_EQ(timings.at("expert_misses"), 10);
    EXPECT_EQ(timings.at("read_bytes"), 4096);
}

TEST(GenerateTest, logprobs_are_listed_per_token) {
    shm::Tokens reply = tokens({4, 2}, "42");
    reply.logprobs = {{-0.5f, {{4, -0.5f}, {9, -2.0f}}}, {-0.25f, {{2, -0.25f}}}};
    shm::Generate request;
    FakeDaemon daemon(recording(&request, {reply, done()}));
    const Outcome outcome =
        run_xpctl({"generate", "--json", "--logprobs", "2", "x"}, {.socket = daemon.path()});
    const Json logprobs = Json::parse(outcome.out).at("logprobs");
    EXPECT_EQ(request.top_logprobs, 2u);
    EXPECT_EQ(logprobs, Json::parse(R"([
        {"token": 4, "logprob": -0.5, "top": [{"token": 4, "logprob": -0.5},
                                              {"token": 9, "logprob": -2.0}]},
        {"token": 2, "logprob": -0.25, "top": [{"token": 2, "logprob": -0.25}]}])"));
}

TEST(GenerateTest, a_prompt_in_words_is_a_chat_of_one_user_message) {
    shm::Generate request;
    FakeDaemon daemon(recording(&request, {done()}));
    EXPECT_EQ(run_xpctl({"generate", "What is", "17", "+ 25?"},
                        {.socket = daemon.path()}).status, 0);
    ASSERT_EQ(chat_of(request).messages.size(), 1u);
    EXPECT_EQ(chat_of(request).messages[0].role, shm::Role::kUser);
    EXPECT_EQ(chat_of(request).messages[0].content, "What is 17 + 25?");
    EXPECT_FALSE(chat_of(request).thinking);
    EXPECT_EQ(request.sampling.temperature, 1.0f);
    EXPECT_EQ(request.max_tokens, 0u);
}

TEST(GenerateTest, every_option_reaches_the_daemon) {
    shm::Generate request;
    FakeDaemon daemon(recording(&request, {done()}));
    const Outcome outcome = run_xpctl(
        {"generate", "--system", "Be brief.", "--think", "--effort", "max", "--model", "big",
         "--max-tokens", "12", "--temperature", "0.5", "--top-k", "40", "--top-p", "0.9",
         "--min-p", "0.05", "--seed", "18446744073709551615", "--stop", "END", "--stop", "[a,b]",
         "--stop={}", "--ignore-eos", "--quiet", "hello"},
        {.socket = daemon.path()});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    ASSERT_EQ(chat_of(request).messages.size(), 2u);
    EXPECT_EQ(chat_of(request).messages[0].role, shm::Role::kSystem);
    EXPECT_EQ(chat_of(request).messages[0].content, "Be brief.");
    EXPECT_EQ(chat_of(request).messages[1].content, "hello");
    EXPECT_TRUE(chat_of(request).thinking);
    EXPECT_EQ(chat_of(request).effort, shm::Effort::kMax);
    EXPECT_EQ(request.model, "big");
    EXPECT_EQ(request.max_tokens, 12u);
    EXPECT_EQ(request.sampling.temperature, 0.5f);
    EXPECT_EQ(request.sampling.top_k, 40u);
    EXPECT_EQ(request.sampling.top_p, 0.9f);
    EXPECT_EQ(request.sampling.min_p, 0.05f);
    EXPECT_EQ(request.sampling.seed, UINT64_MAX);
    EXPECT_THAT(request.stop, ElementsAre("END", "[a,b]", "{}"));
    EXPECT_TRUE(request.ignore_eos);
}

TEST(GenerateTest, raw_and_ids_prompts_are_passed_as_they_stand) {
    shm::Generate request;
    FakeDaemon daemon(recording(&request, {done()}));
    const Streams setup{.socket = daemon.path()};
    EXPECT_EQ(run_xpctl({"generate", "--raw", "<|x|> a  b "}, setup).status, 0);
    EXPECT_EQ(std::get<shm::RawText>(request.prompt).text, "<|x|> a  b ");
    EXPECT_EQ(run_xpctl({"generate", "--ids", "0, 5,2147483647"}, setup).status, 0);
    EXPECT_THAT(std::get<shm::RawTokens>(request.prompt).ids, ElementsAre(0, 5, 2147483647));
}

TEST(GenerateTest, prompts_that_look_like_something_else_come_through) {
    shm::Generate request;
    FakeDaemon daemon(recording(&request, {done()}));
    const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
        {{"[1,2]"}, "[1,2]"},
        {{"{}"}, "{}"},
        {{"a", "%%", "b"}, "a %% b"},
        {{"stats"}, "stats"},
        {{"ping", "generate"}, "ping generate"},
        {{"/help"}, "/help"},
        {{"a", "-"}, "a -"},
        {{"", "a"}, " a"},
        {{"--", "--json", "-h"}, "--json -h"},
        {{"e\u0301 \u05d0 \U0001f469\u200d\U0001f680 \xf4\x8f\xbf\xbf"},
         "e\u0301 \u05d0 \U0001f469\u200d\U0001f680 \xf4\x8f\xbf\xbf"},
    };
    for (const auto& [words, prompt] : cases) {
        std::vector<std::string> arguments = {"generate"};
        arguments.insert(arguments.end(), words.begin(), words.end());
        const Outcome outcome = run_xpctl(arguments, {.socket = daemon.path()});
        EXPECT_EQ(outcome.status, 0) << prompt << ": " << outcome.err;
        ASSERT_EQ(chat_of(request).messages.size(), 1u);
        EXPECT_EQ(chat_of(request).messages[0].content, prompt);
    }
}

TEST(GenerateTest, a_prompt_on_standard_input_loses_one_newline_in_a_chat_and_none_when_raw) {
    shm::Generate request;
    FakeDaemon daemon(recording(&request, {done()}));
    const Streams setup{.socket = daemon.path(), .input = "two\nlines\n\n"};
    for (const std::vector<std::string>& arguments :
         {std::vector<std::string>{"generate"}, {"generate", "-"}}) {
        EXPECT_EQ(run_xpctl(arguments, setup).status, 0);
        EXPECT_EQ(chat_of(request).messages[0].content, "two\nlines\n");
    }
    EXPECT_EQ(run_xpctl({"generate", "--raw"}, setup).status, 0);
    EXPECT_EQ(std::get<shm::RawText>(request.prompt).text, "two\nlines\n\n");
}

TEST(GenerateTest, a_seed_is_drawn_when_sampling_needs_one_and_shown_in_json) {
    shm::Generate request;
    FakeDaemon daemon(recording(&request, {done()}));
    const Streams setup{.socket = daemon.path()};
    const Json drawn = Json::parse(run_xpctl({"generate", "--json", "x"}, setup).out);
    EXPECT_EQ(drawn.at("seed"), request.sampling.seed);
    const uint64_t first = request.sampling.seed;
    run_xpctl({"generate", "--json", "x"}, setup);
    EXPECT_NE(request.sampling.seed, first);  // equal once in four billion runs
    const Json greedy =
        Json::parse(run_xpctl({"generate", "--json", "--temperature", "0", "x"}, setup).out);
    EXPECT_FALSE(greedy.contains("seed"));
}

TEST(GenerateTest, what_the_model_writes_reaches_a_pipe_unchanged) {
    const std::string text = "\033[31mred\x07\r\n\u009b1m \u05d0\u0301";
    FakeDaemon daemon(answering({tokens({1}, text), done()}));
    const Streams setup{.socket = daemon.path()};
    EXPECT_EQ(run_xpctl({"generate", "x"}, setup).out, text + "\n");
    EXPECT_EQ(Json::parse(run_xpctl({"generate", "--json", "x"}, setup).out).at("text"), text);
}

TEST(GenerateTest, a_failed_request_is_told_apart_by_the_exit_status) {
    FakeDaemon busy(answering({shm::Failed{"busy", "64 requests wait already"}}));
    const Outcome refused = run_xpctl({"generate", "x"}, {.socket = busy.path()});
    EXPECT_EQ(refused.status, 75);
    EXPECT_EQ(refused.out, "");
    EXPECT_EQ(refused.err, "xpctl: 64 requests wait already (busy)\n");

    FakeDaemon corrupt(answering(
        {tokens({1}, "par"), shm::Failed{"corrupt", "expert 3 of layer 1\033[0m is damaged"}}));
    const Streams setup{.socket = corrupt.path()};
    const Outcome failed = run_xpctl({"generate", "x"}, setup);
    EXPECT_EQ(failed.status, 1);
    EXPECT_EQ(failed.out, "par\n");
    EXPECT_EQ(failed.err, "xpctl: expert 3 of layer 1?[0m is damaged (corrupt)\n");
    const Outcome json = run_xpctl({"generate", "--json", "x"}, setup);
    EXPECT_EQ(json.status, 1);
    EXPECT_EQ(json.out, "");
}

TEST(GenerateTest, a_daemon_that_dies_in_the_middle_is_a_failure_with_a_message) {
    FakeDaemon daemon([](Session& connection) {
        const auto incoming = connection.next();
        ASSERT_TRUE(incoming);
        connection.reply(incoming->first, shm::Accepted{"demo", {1}});
        connection.reply(incoming->first, tokens({4}, "half a sen"));
    });
    const Outcome outcome = run_xpctl({"generate", "x"}, {.socket = daemon.path()});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_EQ(outcome.out, "half a sen\n");
    EXPECT_THAT(outcome.err, HasSubstr("daemon_gone"));
}

}  // namespace
}  // namespace xp::test
