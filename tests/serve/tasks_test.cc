// Scoring and tokenizing, against a scripted model: what numbers and ids come out, whatever the
// chunks.
#include "daemon/serve/task.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/serve/scoring.h"
#include "shm/handshake.h"
#include "tests/serve/scripted_model.h"

namespace xp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Outcome : scripted::Outcome {
    std::vector<float> logprobs;
    std::vector<TokenId> argmax;
    std::vector<float> logits;
    std::vector<TokenId> ids;
};

Outcome run(ServedModel& model, const shm::Generate& request, TaskOptions options = {}) {
    Outcome outcome{scripted::run_task(model, request, options), {}, {}, {}, {}};
    for (const shm::Reply& reply : outcome.replies) {
        EXPECT_FALSE(shm::is_terminal(reply));
        EXPECT_LE(shm::encode_reply(reply).size(), shm::kMinRingBytes / 2 - 16);
        if (const auto* scores = std::get_if<shm::Scores>(&reply)) {
            EXPECT_EQ(scores->first, outcome.argmax.size());
            outcome.logprobs.insert(outcome.logprobs.end(), scores->logprobs.begin(),
                                    scores->logprobs.end());
            outcome.argmax.insert(outcome.argmax.end(), scores->argmax.begin(),
                                  scores->argmax.end());
        } else if (const auto* some = std::get_if<shm::Logits>(&reply)) {
            EXPECT_EQ(some->first, outcome.logits.size());
            outcome.logits.insert(outcome.logits.end(), some->values.begin(),
                                  some->values.end());
        } else if (const auto* tokens = std::get_if<shm::Tokens>(&reply)) {
            EXPECT_EQ(tokens->text, "");
            outcome.ids.insert(outcome.ids.end(), tokens->ids.begin(), tokens->ids.end());
        }
    }
    return outcome;
}

shm::Generate request_of(shm::Task task, std::vector<TokenId> prompt) {
    shm::Generate request;
    request.prompt = shm::RawTokens{std::move(prompt)};
    request.task = task;
    return request;
}

// Numbers from 0 to 2.4 in steps of a fortieth, so that there are ties.
std::vector<float> uneven_logits(std::span<const TokenId> tokens) {
    std::vector<float> logits(scripted::n_vocab());
    for (size_t i = 0; i < logits.size(); ++i) {
        logits[i] = static_cast<float>((i * 7919 + tokens.size() * 104729 +
                                        static_cast<size_t>(tokens.back()) * 31) % 97) / 40.0f;
    }
    return logits;
}

TEST(Scoring, GivesEachTokensProbabilityAndTheLikeliestNext) {
    scripted::Script script;
    script.logits = uneven_logits;
    const auto model = scripted::make_served("m", script);
    const std::vector<TokenId> prompt = {0, 17, 5, 5, 900};
    const Outcome outcome = run(*model, request_of(shm::Task::kScore, prompt));
    EXPECT_EQ(outcome.reason, shm::FinishReason::kStop);
    ASSERT_EQ(outcome.logprobs.size(), prompt.size());
    ASSERT_EQ(outcome.argmax.size(), prompt.size());
    EXPECT_EQ(outcome.logprobs[0], 0.0f);
    for (size_t p = 0; p < prompt.size(); ++p) {
        const auto logits = uneven_logits(std::span(prompt).first(p + 1));
        const auto best = std::max_element(logits.begin(), logits.end());  // the first one
        EXPECT_EQ(outcome.argmax[p], best - logits.begin());
        if (p + 1 < prompt.size()) {
            double sum = 0;
            for (const float logit : logits) {
                sum += std::exp(static_cast<double>(logit));
            }
            const double expected = logits[static_cast<size_t>(prompt[p + 1])] - std::log(sum);
            EXPECT_NEAR(outcome.logprobs[p + 1], expected, 1e-5);
        }
    }
    EXPECT_TRUE(outcome.logits.empty());
    EXPECT_EQ(outcome.timings.prompt_tokens, 5u);
    EXPECT_EQ(outcome.timings.generated_tokens, 0u);
}

TEST(Scoring, DoesNotDependOnChunksOrSampling) {
    scripted::Script script;
    script.logits = uneven_logits;
    const auto model = scripted::make_served("m", script);
    std::vector<TokenId> prompt;
    for (TokenId i = 0; i < 50; ++i) {
        prompt.push_back(i * 13 % 1000);
    }
    shm::Generate request = request_of(shm::Task::kScore, prompt);
    request.last_logits = true;
    const Outcome whole = run(*model, request);
    EXPECT_EQ(whole.logits, uneven_logits(prompt));
    request.sampling = {.temperature = 0.1f, .top_k = 1, .top_p = 0.5f, .min_p = 0.5f, .seed = 3};
    request.max_tokens = 1;
    request.stop = {"a"};
    for (const uint32_t rows : {1u, 3u, 49u}) {
        TaskOptions options;
        options.chunk_rows = rows;
        const Outcome chunked = run(*model, request, options);
        EXPECT_EQ(chunked.logprobs, whole.logprobs) << rows;
        EXPECT_EQ(chunked.argmax, whole.argmax) << rows;
        EXPECT_EQ(chunked.logits, whole.logits) << rows;
    }
}

TEST(Scoring, ChunksAreBoundedByTheMemoryOfTheirLogits) {
    std::vector<size_t> rows;
    scripted::Script script;
    script.context = 1 << 20;
    script.logits = [](auto) { return std::vector<float>(scripted::n_vocab()); };
    script.on_pass = [&](std::span<const Row> pass) {
        rows.push_back(pass.size());
        EXPECT_TRUE(std::all_of(pass.begin(), pass.end(), [](const Row& r) { return r.logits; }));
    };
    const auto model = scripted::make_served("m", script);
    const size_t most = kMaxChunkLogitBytes / (sizeof(float) * scripted::n_vocab());
    TaskOptions options;
    options.chunk_rows = 1 << 20;
    const auto request =
        request_of(shm::Task::kScore, std::vector<TokenId>(most + 10, 5));
    EXPECT_EQ(run(*model, request, options).argmax.size(), most + 10);
    EXPECT_THAT(rows, ElementsAre(most, 10));
}

TEST(Scoring, APromptMayFillTheContextButNotMore) {
    scripted::Script script;
    script.context = 8;
    const auto model = scripted::make_served("small", script);
    EXPECT_EQ(run(*model, request_of(shm::Task::kScore, std::vector<TokenId>(8, 5))).argmax.size(),
              8u);
    const Outcome outcome =
        run(*model, request_of(shm::Task::kScore, std::vector<TokenId>(9, 5)));
    ASSERT_TRUE(outcome.error);
    EXPECT_EQ(outcome.error->code, ErrorCode::kLimit);
    EXPECT_THAT(outcome.error->message, HasSubstr("9 tokens: the context of model \"small\" is 8"));
    EXPECT_THAT(run(*model, request_of(shm::Task::kScore, {})).error->message,
                HasSubstr("prompt is empty"));
}

TEST(Scoring, ATextAndAChatAreScoredAsTheirTokens) {
    scripted::Script script;
    script.logits = uneven_logits;
    const auto model = scripted::make_served("m", script);
    shm::Generate text;
    text.task = shm::Task::kScore;
    text.prompt = shm::RawText{"The city of Oslo"};
    EXPECT_EQ(run(*model, text).logprobs,
              run(*model, request_of(shm::Task::kScore, scripted::tokens_of("The city of Oslo")))
                  .logprobs);
    shm::Chat chat;
    chat.messages.push_back({shm::Role::kUser, "Hello", "", {}, ""});
    text.prompt = chat;
    const auto rendered = model->chat->render({{ChatRole::kUser, "Hello", ""}}, {});
    ASSERT_TRUE(rendered);
    EXPECT_EQ(run(*model, text).argmax.size(), rendered->tokens.size());
}

TEST(Scoring, AModelErrorIsHandedOn) {
    scripted::Script script;
    script.on_step = [] { return make_error(ErrorCode::kIo, "a read failed"); };
    const auto model = scripted::make_served("m", script);
    const Outcome outcome = run(*model, request_of(shm::Task::kScore, {1, 2}));
    ASSERT_TRUE(outcome.error);
    EXPECT_EQ(outcome.error->code, ErrorCode::kIo);
}

TEST(Tokenizing, GivesIdsInPiecesWhateverTheContext) {
    scripted::Script script;
    script.context = 8;
    script.on_pass = [](std::span<const Row>) { ADD_FAILURE() << "no model is needed"; };
    const auto model = scripted::make_served("small", script);
    shm::Generate request;
    request.task = shm::Task::kTokenize;
    std::string text;
    while (text.size() < 60'000) {
        text += "The city of Oslo is in the north. ";
    }
    request.prompt = shm::RawText{text};
    const Outcome outcome = run(*model, request);
    EXPECT_EQ(outcome.reason, shm::FinishReason::kStop);
    EXPECT_EQ(outcome.ids, scripted::tokens_of(text));
    EXPECT_GT(outcome.ids.size(), kReplyNumbers);
    EXPECT_EQ(outcome.replies.size(), (outcome.ids.size() + kReplyNumbers - 1) / kReplyNumbers);
}

TEST(Tokenizing, NothingHasNoIds) {
    const auto model = scripted::make_served("m", {});
    shm::Generate request;
    request.task = shm::Task::kTokenize;
    request.prompt = shm::RawText{""};
    const Outcome outcome = run(*model, request);
    EXPECT_EQ(outcome.reason, shm::FinishReason::kStop);
    EXPECT_TRUE(outcome.replies.empty());
    EXPECT_EQ(run(*model, request_of(shm::Task::kTokenize, {})).reason, shm::FinishReason::kStop);
}

TEST(Tokenizing, ChatsAreRenderedAndIdsChecked) {
    const auto model = scripted::make_served("m", {});
    shm::Generate request;
    request.task = shm::Task::kTokenize;
    shm::Chat chat;
    chat.messages.push_back({shm::Role::kUser, "Hello", "", {}, ""});
    request.prompt = chat;
    const auto rendered = model->chat->render({{ChatRole::kUser, "Hello", ""}}, {});
    ASSERT_TRUE(rendered);
    EXPECT_EQ(run(*model, request).ids, rendered->tokens);
    EXPECT_THAT(run(*model, request_of(shm::Task::kTokenize, {3, 1, 2})).ids,
                ElementsAre(3, 1, 2));
    EXPECT_THAT(run(*model, request_of(shm::Task::kTokenize, {1, 1 << 30})).error->message,
                HasSubstr("prompt token 1 is"));
}

}  // namespace
}  // namespace xp
