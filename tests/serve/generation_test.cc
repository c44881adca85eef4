// The life of one request, against a scripted model: what text, ids and finish reasons come out.
#include "daemon/serve/generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/serve/scripted_model.h"

namespace xp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Outcome : scripted::Outcome {
    std::vector<TokenId> ids;
    std::string content;
    std::string reasoning;
    std::string calls;
};

Outcome run(ServedModel& model, const shm::Generate& request,
            TaskOptions options = {}) {
    Outcome outcome{scripted::run_task(model, request, options), {}, {}, {}, {}};
    for (const shm::Reply& reply : outcome.replies) {
        EXPECT_FALSE(shm::is_terminal(reply));
        if (const auto* tokens = std::get_if<shm::Tokens>(&reply)) {
            EXPECT_TRUE(shm::is_valid_utf8(tokens->text));
            outcome.ids.insert(outcome.ids.end(), tokens->ids.begin(), tokens->ids.end());
            (tokens->channel == shm::Channel::kContent    ? outcome.content
             : tokens->channel == shm::Channel::kToolCall ? outcome.calls
                                                          : outcome.reasoning) += tokens->text;
        }
    }
    return outcome;
}

const std::vector<TokenId> kPrompt = {0, 5, 7};

shm::Generate prompt_request(std::vector<TokenId> prompt = kPrompt) {
    shm::Generate request;
    request.prompt = shm::RawTokens{std::move(prompt)};
    request.sampling.temperature = 0;
    return request;
}

std::vector<TokenId> with_end(std::vector<TokenId> tokens) {
    tokens.push_back(scripted::kEos);
    return tokens;
}

TEST(Generation, StopsAtTheEndTokenWhoseIdIsGivenOutWithoutText) {
    const auto words = scripted::tokens_of("Paris is a city.");
    const auto model = scripted::make_served("m", scripted::say(words, kPrompt.size()));
    const Outcome outcome = run(*model, prompt_request());
    EXPECT_EQ(outcome.reason, shm::FinishReason::kStop);
    EXPECT_EQ(outcome.content, "Paris is a city.");
    EXPECT_EQ(outcome.ids, with_end(words));
    EXPECT_EQ(outcome.timings.prompt_tokens, 3u);
    EXPECT_EQ(outcome.timings.generated_tokens, words.size() + 1);
}

TEST(Generation, IgnoringTheEndTokenGoesOnWithoutTextForIt) {
    const auto words = scripted::tokens_of("One.");
    auto script = scripted::say(words, kPrompt.size());
    const auto model = scripted::make_served("m", script);
    shm::Generate request = prompt_request();
    request.ignore_eos = true;
    request.max_tokens = static_cast<uint32_t>(words.size() + 3);
    const Outcome outcome = run(*model, request);
    EXPECT_EQ(outcome.reason, shm::FinishReason::kLength);
    EXPECT_EQ(outcome.content, "One.");
    EXPECT_EQ(outcome.ids.size(), words.size() + 3);
    EXPECT_EQ(outcome.ids.back(), scripted::kEos);
}

TEST(Generation, MaxTokensFinishWithLength) {
    const auto words = scripted::tokens_of("one two three four five six seven");
    const auto model = scripted::make_served("m", scripted::say(words, kPrompt.size()));
    shm::Generate request = prompt_request();
    request.max_tokens = 2;
    const Outcome outcome = run(*model, request);
    EXPECT_EQ(outcome.reason, shm::FinishReason::kLength);
    EXPECT_THAT(outcome.ids, ElementsAre(words[0], words[1]));
}

TEST(Generation, AFullContextFinishesWithLength) {
    auto script = scripted::say(std::vector<TokenId>(100, 50), kPrompt.size());
    script.context = 8;
    const auto model = scripted::make_served("m", script);
    const Outcome outcome = run(*model, prompt_request());
    EXPECT_EQ(outcome.reason, shm::FinishReason::kLength);
    EXPECT_EQ(outcome.ids.size(), 5u);
}

TEST(Generation, APromptThatLeavesNoRoomIsRefusedWithTheNumbers) {
    scripted::Script script;
    script.context = 8;
    const auto model = scripted::make_served("small", script);
    const Outcome outcome = run(*model, prompt_request(std::vector<TokenId>(8, 5)));
    ASSERT_TRUE(outcome.error);
    EXPECT_EQ(outcome.error->code, ErrorCode::kLimit);
    EXPECT_THAT(outcome.error->message, HasSubstr("8 tokens"));
    EXPECT_THAT(outcome.error->message, HasSubstr("\"small\""));
    EXPECT_TRUE(run(*model, prompt_request(std::vector<TokenId>(7, 5))).reason);
}

TEST(Generation, PrefillGoesInChunksAndAsksForTheLastLogitsOnly) {
    std::vector<size_t> rows;
    std::vector<size_t> logits;
    scripted::Script script;
    script.on_pass = [&](std::span<const Row> pass) {
        rows.push_back(pass.size());
        logits.push_back(static_cast<size_t>(
            std::count_if(pass.begin(), pass.end(), [](const Row& row) { return row.logits; })));
        EXPECT_TRUE(logits.back() == 0 || pass.back().logits);
    };
    const auto model = scripted::make_served("m", script);
    TaskOptions options;
    options.chunk_rows = 4;
    options.progress_interval = std::chrono::milliseconds(0);
    const Outcome outcome = run(*model, prompt_request(std::vector<TokenId>(10, 5)), options);
    EXPECT_EQ(outcome.reason, shm::FinishReason::kStop);
    EXPECT_THAT(rows, ElementsAre(4, 4, 2));
    EXPECT_THAT(logits, ElementsAre(0, 0, 1));
    std::vector<uint32_t> done;
    for (const shm::Reply& reply : outcome.replies) {
        if (const auto* progress = std::get_if<shm::Progress>(&reply)) {
            EXPECT_EQ(progress->total, 10u);
            done.push_back(progress->done);
        }
    }
    EXPECT_THAT(done, ElementsAre(4, 8, 10));
}

TEST(Generation, AStopStringAcrossTokensEndsAndIsNotGivenOut) {
    // The stop string begins and ends inside tokens.
    const auto words = scripted::tokens_of("The city of Oslo is north. More text.");
    const auto model = scripted::make_served("m", scripted::say(words, kPrompt.size()));
    shm::Generate request = prompt_request();
    request.stop = {"lo is nor", "never"};
    const Outcome outcome = run(*model, request);
    EXPECT_EQ(outcome.reason, shm::FinishReason::kStop);
    EXPECT_EQ(outcome.content, "The city of Os");
    EXPECT_LT(outcome.ids.size(), words.size());
}

TEST(Generation, TextHeldBackForAStopStringIsReleasedAtTheEnd) {
    const auto words = scripted::tokens_of("The city of Oslo");
    const auto model = scripted::make_served("m", scripted::say(words, kPrompt.size()));
    shm::Generate request = prompt_request();
    request.stop = {"Oslo is"};
    EXPECT_EQ(run(*model, request).content, "The city of Oslo");
    request.max_tokens = static_cast<uint32_t>(words.size());
    EXPECT_EQ(run(*model, request).content, "The city of Oslo");
}

TEST(Generation, TextNeverEndsInsideACharacter) {
    // U+20AC, one byte per token.
    const std::vector<TokenId> euro = {scripted::token_of_bytes("\xe2"),
                                       scripted::token_of_bytes("\x82"),
                                       scripted::token_of_bytes("\xac")};
    const auto model = scripted::make_served("m", scripted::say(euro, kPrompt.size()));
    const Outcome whole = run(*model, prompt_request());
    EXPECT_EQ(whole.content, "\xe2\x82\xac");
    EXPECT_EQ(whole.ids, with_end(euro));
    shm::Generate cut = prompt_request();
    cut.max_tokens = 2;
    EXPECT_EQ(run(*model, cut).content, "\xef\xbf\xbd");
}

shm::Generate chat_request(bool thinking) {
    shm::Generate request;
    shm::Chat chat;
    chat.messages.push_back({shm::Role::kUser, "Hello", "", {}, ""});
    chat.thinking = thinking;
    request.prompt = chat;
    request.sampling.temperature = 0;
    return request;
}

TEST(Generation, ReasoningTurnsIntoContentAtItsEndToken) {
    auto words = scripted::tokens_of("Let me STOP think.");
    const auto answer = scripted::tokens_of("Good STOP day");
    const auto probe = scripted::make_served("m", {});
    words.push_back(probe->tokenizer.find("</think>").value());
    words.insert(words.end(), answer.begin(), answer.end());
    const auto prompt = probe->chat->render({{ChatRole::kUser, "Hello", ""}}, {.thinking = true});
    ASSERT_TRUE(prompt);
    const auto model = scripted::make_served("m", scripted::say(words, prompt->tokens.size()));
    shm::Generate request = chat_request(true);
    for (const bool stream : {true, false}) {
        request.stream = stream;
        const Outcome outcome = run(*model, request);
        EXPECT_EQ(outcome.reasoning, "Let me STOP think.");
        EXPECT_EQ(outcome.content, "Good STOP day");
        EXPECT_EQ(outcome.ids, with_end(words));
    }
    // Stop strings count in the content only.
    request.stop = {" STOP"};
    const Outcome stopped = run(*model, request);
    EXPECT_EQ(stopped.reasoning, "Let me STOP think.");
    EXPECT_EQ(stopped.content, "Good");
    EXPECT_EQ(stopped.reason, shm::FinishReason::kStop);
}

// The answer that a Kimi-K3 gives to a chat; `answer` has its structure tokens spelled out.
struct KimiRun : Outcome {
    std::vector<TokenId> said;
};
KimiRun run_kimi(const std::string& answer, shm::Generate request) {
    const auto probe = scripted::make_served("k", {}, scripted::kimi_metadata());
    const auto said = probe->tokenizer.encode(answer, SpecialTokens::kAll);
    auto prompt = prompt_of(*probe, request);
    EXPECT_TRUE(prompt) << prompt.error().message;
    const auto model = scripted::make_served("k", scripted::say(said, prompt->tokens.size()),
                                             scripted::kimi_metadata());
    return {run(*model, request), said};
}

TEST(Generation, AKimiAnswerIsSplitAndShowsNoMarkup) {
    const std::string answer =
        "Let me STOP.<|close|>think<|sep|><|open|>response<|sep|>Good STOP day<|close|>response"
        "<|sep|><|close|>message<|sep|>";
    shm::Generate request = chat_request(true);
    for (const bool stream : {true, false}) {
        request.stream = stream;
        const KimiRun outcome = run_kimi(answer + "never said", request);
        EXPECT_EQ(outcome.reasoning, "Let me STOP.");
        EXPECT_EQ(outcome.content, "Good STOP day");
        EXPECT_EQ(outcome.reason, shm::FinishReason::kStop);
        // The last tag ends it: what the model would have said then is not computed.
        EXPECT_LT(outcome.ids.size(), outcome.said.size());
        EXPECT_TRUE(std::equal(outcome.ids.begin(), outcome.ids.end(), outcome.said.begin()));
    }
    request.stop = {" STOP", "STOP day!"};
    EXPECT_EQ(run_kimi(answer, request).content, "Good");
    request.stop = {"day!"};  // held back, and given out when the channel ends
    EXPECT_EQ(run_kimi(answer, request).content, "Good STOP day");
    EXPECT_EQ(run_kimi("Paris.<|end_of_msg|>", chat_request(false)).content, "Paris.");
    request.ignore_eos = true;
    request.max_tokens = 60;
    const KimiRun on = run_kimi(answer + "never shown", request);
    EXPECT_EQ(on.reason, shm::FinishReason::kLength);
    EXPECT_EQ(on.ids.size(), 60u);
    EXPECT_EQ(on.content, "Good STOP day");
}

TEST(Generation, AKimiAnswerCutByItsLengthShowsNoMarkup) {
    const std::string answer = "Hi<|close|>response<|sep|><|close|>message<|sep|>";
    shm::Generate request = chat_request(false);
    const size_t n = run_kimi(answer, request).ids.size();
    for (uint32_t most = 1; most < n; ++most) {
        request.max_tokens = most;
        const KimiRun outcome = run_kimi(answer, request);
        EXPECT_EQ(outcome.reason, shm::FinishReason::kLength) << most;
        EXPECT_TRUE(std::string("Hi").starts_with(outcome.content)) << outcome.content;
    }
}

TEST(Generation, KimiToolsAreDeclaredCalledAndAnswered) {
    shm::Generate request = chat_request(false);
    auto& chat = std::get<shm::Chat>(request.prompt);
    chat.tools_json = R"([{"type":"function","function":{"name":"add"}}])";
    const std::string answer =
        "I add.<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"add\" index=\"1\""
        "<|sep|><|open|>argument key=\"a\" type=\"number\"<|sep|>1<|close|>argument<|sep|>"
        "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>";
    const KimiRun outcome = run_kimi(answer, request);
    EXPECT_EQ(outcome.content, "I add.");
    EXPECT_EQ(outcome.calls, "{\"name\": \"add\", \"arguments\": \"{\\\"a\\\": 1}\"}\n");
    EXPECT_EQ(outcome.reason, shm::FinishReason::kToolCalls);

    chat.messages.push_back(
        {shm::Role::kAssistant, "I add.", "", {{"7", "add", "{\"a\": 1}"}}, ""});
    chat.messages.push_back({shm::Role::kTool, "1", "", {}, "7"});
    EXPECT_EQ(run_kimi("1<|end_of_msg|>", request).content, "1");
    const auto model = scripted::make_served("k", {}, scripted::kimi_metadata());
    const auto prompt = prompt_of(*model, request);
    ASSERT_TRUE(prompt);
    std::string text;
    for (const TokenId id : prompt->tokens) text += model->tokenizer.token_text(id);
    EXPECT_THAT(text, HasSubstr("[{\"function\":{\"name\":\"add\"},\"type\":\"function\"}]"));
    EXPECT_THAT(text, HasSubstr("<|open|>argument key=\"a\" type=\"number\"<|sep|>1<|close|>"));
    EXPECT_THAT(text, HasSubstr("role=\"tool\" tool=\"add\" index=\"1\"<|sep|>1<|close|>"));
}

TEST(Generation, WithoutStreamingAllTokensComeInOneReply) {
    const auto words = scripted::tokens_of("one two three four five");
    const auto model = scripted::make_served("m", scripted::say(words, kPrompt.size()));
    shm::Generate request = prompt_request();
    request.stream = false;
    const Outcome outcome = run(*model, request);
    EXPECT_EQ(outcome.replies.size(), 1u);
    EXPECT_EQ(outcome.content, "one two three four five");
    EXPECT_EQ(outcome.ids, with_end(words));
}

TEST(Generation, LogprobsComeOncePerToken) {
    const auto words = scripted::tokens_of("one two");
    const auto model = scripted::make_served("m", scripted::say(words, kPrompt.size()));
    shm::Generate request = prompt_request();
    request.top_logprobs = 3;
    const Outcome outcome = run(*model, request);
    size_t n = 0;
    for (const shm::Reply& reply : outcome.replies) {
        const auto& tokens = std::get<shm::Tokens>(reply);
        ASSERT_EQ(tokens.logprobs.size(), tokens.ids.size());
        for (size_t i = 0; i < tokens.ids.size(); ++i, ++n) {
            ASSERT_EQ(tokens.logprobs[i].top.size(), 3u);
            EXPECT_EQ(tokens.logprobs[i].top[0].id, tokens.ids[i]);
            EXPECT_EQ(tokens.logprobs[i].top[0].logprob, tokens.logprobs[i].chosen);
            EXPECT_LT(tokens.logprobs[i].chosen, 0.0f);
        }
    }
    EXPECT_EQ(n, words.size() + 1);
}

TEST(Generation, TheSeedDecidesWhatIsSampled) {
    scripted::Script script;
    script.logits = [](std::span<const TokenId> tokens) {
        std::vector<float> logits(scripted::n_vocab());
        for (size_t i = 0; i < logits.size(); ++i) {
            logits[i] = static_cast<float>((i * 7919 + tokens.size() * 104729) % 97) / 40.0f;
        }
        return logits;
    };
    const auto model = scripted::make_served("m", script);
    shm::Generate request = prompt_request();
    request.sampling = {.temperature = 1.0f, .top_k = 0, .top_p = 1.0f, .min_p = 0, .seed = 5};
    request.max_tokens = 50;
    request.ignore_eos = true;
    const Outcome first = run(*model, request);
    const Outcome again = run(*model, request);
    EXPECT_EQ(first.ids, again.ids);
    EXPECT_EQ(first.content, again.content);
    request.sampling.seed = 6;
    EXPECT_NE(run(*model, request).ids, first.ids);
}

TEST(Generation, WhatCannotBeServedIsRefusedWithTheReason) {
    const auto model = scripted::make_served("m", {});
    const auto error_of = [&](const shm::Generate& request) {
        const Outcome outcome = run(*model, request);
        return outcome.error.value_or(Error{ErrorCode::kInternal, "no error"});
    };
    EXPECT_THAT(error_of(prompt_request({})).message, HasSubstr("prompt is empty"));
    EXPECT_THAT(error_of(prompt_request({1, 1 << 30})).message, HasSubstr("prompt token 1 is"));
    EXPECT_EQ(error_of(prompt_request({-1})).code, ErrorCode::kInvalidArgument);

    shm::Generate sampling = prompt_request();
    sampling.sampling.top_p = -1;
    EXPECT_EQ(error_of(sampling).code, ErrorCode::kInvalidArgument);

    shm::Generate tools = chat_request(false);
    std::get<shm::Chat>(tools.prompt).tools_json = "[]";
    EXPECT_EQ(error_of(tools).code, ErrorCode::kUnsupported);

    shm::Generate result = chat_request(false);
    std::get<shm::Chat>(result.prompt).messages.push_back({shm::Role::kTool, "42", "", {}, "1"});
    EXPECT_EQ(error_of(result).code, ErrorCode::kUnsupported);
    EXPECT_THAT(error_of(result).message, HasSubstr("message 1"));

    const auto silent = scripted::make_served("raw-only", {});
    silent->chat.reset();
    silent->chat_missing = "unknown architecture";
    const Outcome chat = run(*silent, chat_request(false));
    ASSERT_TRUE(chat.error);
    EXPECT_THAT(chat.error->message, HasSubstr("unknown architecture"));
}

TEST(Generation, AnErrorOfTheModelIsHandedOn) {
    scripted::Script script;
    script.on_step = [] {
        return make_error(ErrorCode::kCorrupt, "expert 3 of layer 1 has a wrong checksum");
    };
    const auto model = scripted::make_served("m", script);
    const Outcome outcome = run(*model, prompt_request());
    ASSERT_TRUE(outcome.error);
    EXPECT_EQ(outcome.error->code, ErrorCode::kCorrupt);
    EXPECT_THAT(outcome.error->message, HasSubstr("expert 3 of layer 1"));
}

}  // namespace
}  // namespace xp
