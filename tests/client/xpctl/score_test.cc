// The arithmetic behind score and perplexity, and the commands themselves with scripted scores.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>


#include "client/xpctl/likelihood.h"
#include "tests/client/xpctl/program.h"
#include "tests/client/xpctl/replies.h"

namespace xp::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

struct Counted {
    size_t begin, end, first;
    bool operator==(const Counted&) const = default;
};

std::vector<Counted> windows_of(size_t tokens, size_t size, size_t stride) {
    const ctl::Windows windows(tokens, size, stride);
    std::vector<Counted> out;
    for (size_t i = 0; i < windows.count(); ++i) {
        const ctl::Window window = windows.at(i);
        out.push_back({window.begin, window.end, window.first});
    }
    return out;
}

TEST(WindowsTest, hand_computed_cases) {
    EXPECT_THAT(windows_of(0, 4, 2), ElementsAre());
    EXPECT_THAT(windows_of(1, 4, 2), ElementsAre());
    EXPECT_THAT(windows_of(2, 4, 2), ElementsAre(Counted{0, 2, 1}));
    EXPECT_THAT(windows_of(4, 4, 2), ElementsAre(Counted{0, 4, 1}));
    EXPECT_THAT(windows_of(5, 4, 2), ElementsAre(Counted{0, 4, 1}, Counted{2, 5, 4}));
    EXPECT_THAT(windows_of(8, 4, 2),
                ElementsAre(Counted{0, 4, 1}, Counted{2, 6, 4}, Counted{4, 8, 6}));
    // The last window scores one token, less than a stride.
    EXPECT_THAT(windows_of(8, 4, 3), ElementsAre(Counted{0, 4, 1}, Counted{3, 7, 4},
                                                 Counted{6, 8, 7}));
    EXPECT_THAT(windows_of(4, 2, 1), ElementsAre(Counted{0, 2, 1}, Counted{1, 3, 2},
                                                 Counted{2, 4, 3}));
}

TEST(WindowsTest, every_token_but_the_first_counts_once_and_has_size_minus_stride_before_it) {
    for (size_t size = 2; size <= 9; ++size) {
        for (size_t stride = 1; stride < size; ++stride) {
            for (size_t tokens = 0; tokens <= 40; ++tokens) {
                std::vector<int> times(tokens, 0);
                const std::vector<Counted> windows = windows_of(tokens, size, stride);
                for (size_t i = 0; i < windows.size(); ++i) {
                    const Counted& window = windows[i];
                    ASSERT_LE(window.end, tokens);
                    ASSERT_LE(window.end - window.begin, size);
                    ASSERT_LT(window.first, window.end);
                    const size_t before = window.first - window.begin;
                    ASSERT_GE(before, i == 0 ? 1 : size - stride);
                    for (size_t at = window.first; at < window.end; ++at) ++times[at];
                }
                for (size_t at = 0; at < tokens; ++at) {
                    ASSERT_EQ(times[at], at > 0 ? 1 : 0)
                        << "token " << at << " of " << tokens << ", " << size << "/" << stride;
                }
            }
        }
    }
}

TEST(LikelihoodTest, perplexity_and_its_standard_error) {
    ctl::Likelihood likelihood;
    EXPECT_FALSE(likelihood.perplexity());
    likelihood.add(-1);
    EXPECT_DOUBLE_EQ(likelihood.perplexity().value(), std::exp(1.0));
    EXPECT_FALSE(likelihood.standard_error());  // one value has no spread
    likelihood.add(-2);
    likelihood.add(-6);
    // mean 3; squared differences 4 + 1 + 9 = 14; 14 / 2 / 3 of the mean.
    EXPECT_DOUBLE_EQ(likelihood.nll().value(), 9);
    EXPECT_DOUBLE_EQ(likelihood.perplexity().value(), std::exp(3.0));
    EXPECT_DOUBLE_EQ(likelihood.standard_error().value(), std::exp(3.0) * std::sqrt(14.0 / 6));
}

// Scores as a daemon gives them: -token / 4 for each token, in parts of two. Keeps the requests.
struct Scorer {
    std::vector<int32_t> text;  // the ids of any text
    std::vector<shm::Generate> requests = {};
    Gate* reached = nullptr;    // opened when as many score requests have come,
    size_t limit = 1000;        // which then wait for their Cancel

    void operator()(Session& connection) {
        size_t scored = 0;
        while (const auto incoming = connection.next()) {
            const uint64_t id = incoming->first;
            if (std::holds_alternative<shm::ListModels>(incoming->second)) {
                connection.reply(id, shm::ModelsReply{{{"demo", "deepseek4", "", 64, 100}}});
                continue;
            }
            if (std::holds_alternative<shm::Cancel>(incoming->second)) {
                connection.reply(std::get<shm::Cancel>(incoming->second).target,
                                 shm::Cancelled{"client", {}});
                connection.reply(id, shm::Done{});
                continue;
            }
            const auto& request = std::get<shm::Generate>(incoming->second);
            requests.push_back(request);
            const auto* ids = std::get_if<shm::RawTokens>(&request.prompt);
            const std::vector<int32_t> tokens = ids ? ids->ids : text;
            connection.reply(id, shm::Accepted{"demo", tokens});
            if (request.task == shm::Task::kTokenize) {
                for (const int32_t token : tokens) connection.reply(id, shm::Tokens{{token}, {}, "",
                                                                                    {}});
            } else if (++scored >= limit) {
                if (reached) reached->open();
                continue;
            } else {
                answer(connection, id, request, tokens);
            }
            connection.reply(id, done());
        }
    }

    static void answer(Session& connection, uint64_t id, const shm::Generate& request,
                       const std::vector<int32_t>& tokens) {
        for (size_t i = 0; i < tokens.size(); i += 2) {
            shm::Scores scores{static_cast<uint32_t>(i), {}, {}};
            for (size_t k = i; k < std::min(i + 2, tokens.size()); ++k) {
                scores.logprobs.push_back(k == 0 ? 0.0f : -static_cast<float>(tokens[k]) / 4);
                scores.argmax.push_back(tokens[k] + 50);
            }
            connection.reply(id, scores);
        }
        if (request.last_logits) {
            connection.reply(id, shm::Logits{0, {0.1f, -2.5f}});
            connection.reply(id, shm::Logits{2, {1e-7f}});
        }
    }
};

TEST(ScoreTest, a_line_per_token_and_what_they_sum_up_to) {
    Scorer scorer{.text = {5, 4, 8}};
    FakeDaemon daemon(std::ref(scorer));
    const Outcome outcome = run_xpctl({"score", "some", "text"}, {.socket = daemon.path()});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.out, "position  token  log-probability  likeliest next\n"
                           "       0      5                -              55\n"
                           "       1      4          -1.0000              54\n"
                           "       2      8          -2.0000              58\n"
                           "\n"
                           "nll 3.0000, perplexity 4.4817 (2 tokens predicted)\n");
    ASSERT_EQ(scorer.requests.size(), 1u);
    EXPECT_EQ(std::get<shm::RawText>(scorer.requests[0].prompt).text, "some text");
    EXPECT_EQ(scorer.requests[0].task, shm::Task::kScore);
    EXPECT_FALSE(scorer.requests[0].last_logits);
}

TEST(ScoreTest, json_has_every_number_as_the_float_it_is) {
    Scorer scorer;
    FakeDaemon daemon(std::ref(scorer));
    const Streams setup{.socket = daemon.path()};
    const Outcome outcome = run_xpctl({"score", "--json", "--ids", "5,4,9"}, setup);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    const Json object = Json::parse(outcome.out);
    EXPECT_EQ(object.at("model"), "demo");
    EXPECT_EQ(object.at("tokens"), Json({5, 4, 9}));
    EXPECT_EQ(object.at("logprobs"), Json({nullptr, -1.0, -2.25}));
    EXPECT_EQ(object.at("argmax"), Json({55, 54, 59}));
    EXPECT_EQ(object.at("nll"), 3.25);
    EXPECT_DOUBLE_EQ(object.at("perplexity"), std::exp(3.25 / 2));
    EXPECT_THAT(outcome.out, HasSubstr("\"last_logits\":[0.1,-2.5,1e-07]"));
    EXPECT_EQ(object.at("timings").at("prompt_tokens"), 10);
    const Outcome bare = run_xpctl({"score", "--json", "--no-logits", "--ids", "7"}, setup);
    EXPECT_EQ(Json::parse(bare.out).at("perplexity"), nullptr);  // nothing predicts a lone token
    EXPECT_EQ(Json::parse(bare.out).at("nll"), 0);
    EXPECT_FALSE(Json::parse(bare.out).contains("last_logits"));
    EXPECT_FALSE(scorer.requests.back().last_logits);
}

// Codec and wire know no infinity: the lowest float comes in its place.
TEST(ScoreTest, what_is_not_finite_is_told_and_counted_into_nothing) {
    const float none = -std::numeric_limits<float>::infinity();
    FakeDaemon daemon(answering({shm::Scores{0, {0, none, -1}, {1, 2, 3}},
                                 shm::Logits{0, {std::nanf(""), 2.5f}}, done()}));
    const Outcome text = run_xpctl({"score", "x"}, {.socket = daemon.path()});
    EXPECT_EQ(text.status, 0) << text.err;
    EXPECT_THAT(text.out, HasSubstr("       1      2       not finite               2\n"));
    EXPECT_THAT(text.out, HasSubstr("\nno nll and perplexity: the model's log-probability of 1 of "
                                    "2 tokens is no finite number\n"));
    const Json object =
        Json::parse(run_xpctl({"score", "--json", "x"}, {.socket = daemon.path()}).out);
    EXPECT_EQ(object.at("logprobs"), Json({nullptr, nullptr, -1.0}));
    EXPECT_EQ(object.at("last_logits"), Json({nullptr, 2.5}));
    EXPECT_EQ(object.at("nll"), nullptr);
    EXPECT_EQ(object.at("perplexity"), nullptr);
}

TEST(PerplexityTest, what_is_not_finite_leaves_no_figure) {
    const float lowest = std::numeric_limits<float>::lowest();
    FakeDaemon daemon([&](Session& connection) {
        while (const auto incoming = connection.next()) {
            const uint64_t id = incoming->first;
            if (std::holds_alternative<shm::ListModels>(incoming->second)) {
                connection.reply(id, shm::ModelsReply{{{"demo", "a", "", 64, 9}}});
                continue;
            }
            const auto& request = std::get<shm::Generate>(incoming->second);
            connection.reply(id, shm::Accepted{"demo", {1, 2}});
            if (request.task == shm::Task::kTokenize) {
                connection.reply(id, shm::Tokens{{1, 2}, {}, "", {}});
            } else {
                connection.reply(id, shm::Scores{0, {0, lowest}, {1, 2}});
            }
            connection.reply(id, done());
        }
    });
    const Streams setup{.socket = daemon.path(), .input = "x"};
    EXPECT_EQ(run_xpctl({"perplexity", "-"}, setup).out,
              "no perplexity: the model's log-probability of 1 of 1 tokens is no finite number\n");
    const Json object = Json::parse(run_xpctl({"perplexity", "--json", "-"}, setup).out);
    EXPECT_EQ(object.at("perplexity"), nullptr);
    EXPECT_EQ(object.at("nll"), nullptr);
    EXPECT_EQ(object.at("tokens"), 1);
}

TEST(ScoreTest, chat_scores_the_text_as_a_message) {
    Scorer scorer{.text = {1, 2}};
    FakeDaemon daemon(std::ref(scorer));
    EXPECT_EQ(run_xpctl({"score", "--chat", "--model", "demo", "hi"},
                        {.socket = daemon.path()}).status, 0);
    const auto& chat = std::get<shm::Chat>(scorer.requests.at(0).prompt);
    EXPECT_EQ(chat.messages.at(0).content, "hi");
    EXPECT_EQ(scorer.requests[0].model, "demo");
}

TEST(ScoreTest, failures_are_told_in_words_or_as_json_on_standard_error) {
    FakeDaemon daemon(answering({shm::Failed{"limit", "the prompt is too long"}}));
    const Streams setup{.socket = daemon.path()};
    const Outcome words = run_xpctl({"score", "x"}, setup);
    EXPECT_EQ(words.status, 1);
    EXPECT_EQ(words.err, "xpctl: the prompt is too long (limit)\n");
    const Outcome json = run_xpctl({"score", "--json", "x"}, setup);
    EXPECT_EQ(json.status, 1);
    EXPECT_EQ(json.out, "");
    EXPECT_EQ(json.err, "{\"error\":{\"code\":\"limit\",\"message\":\"the prompt is too long "
                        "(limit)\"}}\n");
    FakeDaemon busy(answering({shm::Failed{"busy", "64 requests wait"}}));
    EXPECT_EQ(run_xpctl({"score", "--json", "x"}, {.socket = busy.path()}).status, 75);
}

TEST(ScoreTest, scores_that_are_missing_are_a_failure) {
    FakeDaemon daemon(answering({shm::Scores{0, {0, -1}, {1, 2}}, done()}));  // of three tokens
    const Outcome outcome = run_xpctl({"score", "x"}, {.socket = daemon.path()});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err, HasSubstr("incomplete"));
}

TEST(TokenizeTest, prints_ids_as_the_ids_option_takes_them) {
    Scorer scorer{.text = {5, 4, 8}};
    FakeDaemon daemon(std::ref(scorer));
    Streams setup{.socket = daemon.path(), .input = "two\nlines\n"};
    EXPECT_EQ(run_xpctl({"tokenize", "-"}, setup).out, "5,4,8\n");
    EXPECT_EQ(std::get<shm::RawText>(scorer.requests.at(0).prompt).text, "two\nlines\n");
    EXPECT_EQ(scorer.requests[0].task, shm::Task::kTokenize);
    EXPECT_EQ(run_xpctl({"tokenize", "--count", "x"}, setup).out, "3\n");
    EXPECT_EQ(Json::parse(run_xpctl({"tokenize", "--json", "x"}, setup).out),
              Json::parse(R"({"model": "demo", "tokens": [5, 4, 8], "count": 3})"));
}

TEST(PerplexityTest, counts_every_token_once_in_the_windows_asked_for) {
    Scorer scorer{.text = {1, 2, 3, 4, 5, 6, 7, 8}};
    FakeDaemon daemon(std::ref(scorer));
    const Streams setup{.socket = daemon.path(), .input = "text"};
    const Outcome text = run_xpctl({"perplexity", "-", "--window", "4", "--stride", "3"}, setup);
    EXPECT_EQ(text.status, 0) << text.err;
    // nll of the tokens 2 to 8: 35 / 4, over 7; variance of token/4: 28 / 16 / 6.
    EXPECT_EQ(text.out, "perplexity 3.4903 ± 0.7125 (7 tokens, window 4, stride 3)\n");
    ASSERT_EQ(scorer.requests.size(), 4u);
    EXPECT_THAT(std::get<shm::RawTokens>(scorer.requests[1].prompt).ids, ElementsAre(1, 2, 3, 4));
    EXPECT_THAT(std::get<shm::RawTokens>(scorer.requests[2].prompt).ids, ElementsAre(4, 5, 6, 7));
    EXPECT_THAT(std::get<shm::RawTokens>(scorer.requests[3].prompt).ids, ElementsAre(7, 8));
    const Outcome json = run_xpctl({"perplexity", "--json", "-"}, setup);
    const Json object = Json::parse(json.out);
    EXPECT_EQ(object.at("window"), 64);  // the model's context
    EXPECT_EQ(object.at("stride"), 32);
    EXPECT_EQ(object.at("windows"), 1);
    EXPECT_EQ(object.at("tokens"), 7);
    EXPECT_EQ(object.at("text_tokens"), 8);
    EXPECT_EQ(object.at("nll"), 35.0 / 4);
    EXPECT_EQ(object.at("complete"), true);
    EXPECT_DOUBLE_EQ(object.at("perplexity"), std::exp(1.25));
    EXPECT_NEAR(object.at("standard_error"), std::exp(1.25) * std::sqrt(28.0 / 16 / 6 / 7), 1e-12);
}

TEST(PerplexityTest, two_tokens_are_enough_and_one_is_not) {
    Scorer two{.text = {1, 4}};
    FakeDaemon daemon_of_two(std::ref(two));
    EXPECT_EQ(run_xpctl({"perplexity", "-"}, {.socket = daemon_of_two.path(), .input = "x"}).out,
              "perplexity 2.7183 (1 token, window 64, stride 32)\n");
    Scorer one{.text = {1}};
    FakeDaemon daemon_of_one(std::ref(one));
    const Outcome lone =
        run_xpctl({"perplexity", "-"}, {.socket = daemon_of_one.path(), .input = "x"});
    EXPECT_EQ(lone.status, 1);
    EXPECT_EQ(lone.out, "");
    EXPECT_THAT(lone.err, HasSubstr("1 token, and"));
    const Outcome empty = run_xpctl({"perplexity", "-"}, {.socket = daemon_of_one.path()});
    EXPECT_EQ(empty.status, 1);
    EXPECT_THAT(empty.err, HasSubstr("standard input is empty"));
}

TEST(PerplexityTest, files_that_are_no_text_or_not_there_are_named) {
    const std::string path = ::testing::TempDir() + "xpctl_binary";
    std::ofstream(path) << "text \xff\xfe";
    const Outcome binary = run_xpctl({"perplexity", path}, {.socket = "/nowhere"});
    EXPECT_EQ(binary.status, 1);
    EXPECT_THAT(binary.err, AllOf(HasSubstr(path), HasSubstr("UTF-8"), HasSubstr("byte 5")));
    std::remove(path.c_str());
    const Outcome missing = run_xpctl({"perplexity", "/nowhere/file"}, {.socket = "/nowhere"});
    EXPECT_EQ(missing.status, 1);
    EXPECT_THAT(missing.err, HasSubstr("/nowhere/file: No such file"));
    EXPECT_THAT(run_xpctl({"perplexity", "/"}, {.socket = "/nowhere"}).err,
                HasSubstr("cannot read /"));
}

// Address space from what does not load the program to what is enough.
TEST(PerplexityTest, without_memory_every_command_says_so) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "sanitizers reserve terabytes of addresses";
#endif
    Scorer scorer{.text = {4, 8}};
    FakeDaemon daemon(std::ref(scorer));
    const std::string input = ::testing::TempDir() + "xpctl_memory_text";
    std::ofstream(input) << std::string(size_t{6} << 20, 'a');
    for (const char* command : {"perplexity -", "perplexity --json -", "tokenize -",
                                "score --json -", "chat"}) {
        const bool json = std::string_view(command).find("--json") != std::string_view::npos;
        int refused = 0;
        for (size_t kib = 12'000; kib < 120'000; kib += 4'000) {
            const Outcome outcome =
                run_limited("-v " + std::to_string(kib), daemon.path(), command, input);
            if (outcome.status == 127) continue;  // not loaded
            SCOPED_TRACE(std::string(command) + " " + std::to_string(kib) + ": " + outcome.out);
            const bool memory = outcome.out.find("memory") != std::string::npos;
            refused += memory;
            if (!memory) break;  // enough
            EXPECT_EQ(outcome.status, 1);
            EXPECT_THAT(outcome.out, HasSubstr(json ? "\"code\":\"no_memory\"" : "xpctl: "));
            EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 1);
        }
        EXPECT_GT(refused, 0) << command;
    }
    std::remove(input.c_str());
}

TEST(PerplexityTest, too_many_open_files_name_the_limit) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "the sanitizers' own checks need descriptors";
#endif
    Scorer scorer{.text = {4, 8}};
    FakeDaemon daemon(std::ref(scorer));
    const std::string input = ::testing::TempDir() + "xpctl_files_text";
    std::ofstream(input) << "text";
    int refused = 0;
    for (int files = 4; files < 32; ++files) {
        const Outcome outcome = run_limited("-n " + std::to_string(files), daemon.path(),
                                            "perplexity " + input, input);
        if (outcome.status == 0 || outcome.status == 127) continue;  // enough, or not loaded
        EXPECT_EQ(outcome.status, 1);
        EXPECT_THAT(outcome.out, HasSubstr("Too many open files (ulimit -n)")) << files;
        ++refused;
    }
    EXPECT_GT(refused, 0);
    std::remove(input.c_str());
}

TEST(PerplexityTest, a_window_larger_than_the_context_is_wrong_usage) {
    Scorer scorer{.text = {1, 2, 3}};
    FakeDaemon daemon(std::ref(scorer));
    const Outcome outcome = run_xpctl({"perplexity", "-", "--window", "65"},
                                      {.socket = daemon.path(), .input = "x"});
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.err, HasSubstr("64 tokens"));
}

TEST(PerplexityTest, ctrl_c_cancels_and_prints_what_there_is) {
    Gate reached;
    Scorer scorer{.text = {1, 2, 3, 4, 5}, .reached = &reached, .limit = 2};
    FakeDaemon daemon(std::ref(scorer));
    Program program({"perplexity", "-", "--window", "3"}, {.socket = daemon.path(), .input = "x"});
    ASSERT_TRUE(reached.wait());
    program.interrupt();
    const Outcome outcome = program.wait();
    EXPECT_EQ(outcome.status, 130);
    EXPECT_THAT(outcome.out, HasSubstr("(interrupted after 2 tokens, window 3, stride 1)"));
    EXPECT_EQ(outcome.err, "xpctl: cancelled\n");
}

TEST(PerplexityTest, a_terminal_shows_the_running_estimate) {
    Scorer scorer{.text = {1, 2, 3, 4, 5}};
    FakeDaemon daemon(std::ref(scorer));
    const Outcome outcome = run_xpctl({"perplexity", "-", "--window", "4"},
                                      {.socket = daemon.path(), .input = "x",
                                       .err_terminal = true});
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("window 1 of 2"),
                                   HasSubstr("window 2 of 2: perplexity 2.1170 so far")));
}

}  // namespace
}  // namespace xp::test
