// Scores of the demo model through the real program, against an independent implementation on the
// same weights, and the same bytes whatever cache and chunks.
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/demo_daemon.h"

namespace xp {
namespace {

using ::testing::HasSubstr;
using support::Daemon;
using support::golden;
using support::kWaitMs;

struct Sheet {
    std::vector<float> logprobs;
    std::vector<int32_t> argmax;
    std::vector<float> logits;
    std::vector<int32_t> ids;  // of a tokenize task
    std::string end;           // "done", or a code and a message
    bool operator==(const Sheet&) const = default;
};

Sheet run(expertpack::Client& client, const expertpack::Generate& request) {
    Sheet sheet;
    uint64_t id = 0;
    EXPECT_EQ(client.submit(request, &id, kWaitMs), XP_OK) << client.error();
    const xp_event* event = nullptr;
    while (client.next_event(&event, kWaitMs) == XP_OK) {
        if (event->type == XP_EVENT_SCORES) {
            EXPECT_EQ(event->first, sheet.argmax.size());
            for (size_t i = 0; i < event->score_count; ++i) {
                sheet.logprobs.push_back(event->scores[i].logprob);
                sheet.argmax.push_back(event->scores[i].argmax);
            }
        } else if (event->type == XP_EVENT_LOGITS) {
            EXPECT_EQ(event->first, sheet.logits.size());
            sheet.logits.insert(sheet.logits.end(), event->logits,
                                event->logits + event->logit_count);
        } else if (event->type == XP_EVENT_TOKENS) {
            sheet.ids.insert(sheet.ids.end(), event->token_ids,
                             event->token_ids + event->token_count);
        } else if (event->terminal) {
            sheet.end = event->type == XP_EVENT_DONE
                            ? "done"
                            : std::string(event->code) + ": " + event->message;
        }
    }
    return sheet;
}

Sheet score(expertpack::Client& client, const std::vector<int32_t>& ids) {
    expertpack::Generate request;
    request.tokens(ids).task(XP_TASK_SCORE).last_logits(true);
    return run(client, request);
}

TEST(ScoreEndToEnd, AllGoldenPromptsScoreAsTheReferenceSays) {
    Daemon daemon;
    expertpack::Client client("e2e");
    daemon.connect(client);
    for (const auto& entry : golden()) {
        const auto prompt = entry.at("prompt").get<std::string>();
        SCOPED_TRACE(prompt.substr(0, 80));
        const auto ids = entry.at("ids").get<std::vector<int32_t>>();
        const Sheet sheet = score(client, ids);
        ASSERT_EQ(sheet.end, "done");
        ASSERT_EQ(sheet.argmax.size(), ids.size());
        const auto argmax = entry.at("argmax").get<std::vector<int32_t>>();
        double nll = 0;
        for (size_t p = 0; p < ids.size(); ++p) {
            nll -= sheet.logprobs[p];
            if (sheet.argmax[p] == argmax[p]) {
                continue;
            }
            // Another winner is a fault unless the two were too close to call.
            const auto prefix = std::vector<int32_t>(ids.begin(), ids.begin() + p + 1);
            const auto logits = score(client, prefix).logits;
            EXPECT_LE(logits.at(static_cast<size_t>(sheet.argmax[p])) -
                          logits.at(static_cast<size_t>(argmax[p])), 1e-3f) << "position " << p;
        }
        EXPECT_NEAR(nll / entry.at("nll_sum").get<double>(), 1, 1e-3);
        const auto last = entry.at("last_logits").get<std::vector<double>>();
        ASSERT_EQ(sheet.logits.size(), last.size());
        for (size_t i = 0; i < last.size(); ++i) {
            ASSERT_NEAR(sheet.logits[i], last[i], 2e-3) << "logit " << i;
        }
        expertpack::Generate text;
        text.text(prompt).task(XP_TASK_TOKENIZE);
        EXPECT_EQ(run(client, text).ids, ids);
    }
}

TEST(ScoreEndToEnd, TheSheetDoesNotDependOnCacheOrChunks) {
    const auto ids = golden().at(14).at("ids").get<std::vector<int32_t>>();
    ASSERT_EQ(ids.size(), 1403u);
    Daemon first;
    expertpack::Client client("e2e");
    first.connect(client);
    const Sheet expected = score(client, ids);
    ASSERT_EQ(expected.end, "done");
    const auto cache = support::stats_of(client).at("models").at(0).at("cache");
    const uint64_t slot =
        cache.at("slot_bytes").get<uint64_t>() / cache.at("slots").get<uint64_t>();
    Daemon floor(fmt::format("cache = {}\n[engine]\nchunk_rows = 50\n",
                             slot * cache.at("floor_slots").get<uint64_t>()));
    expertpack::Client other("e2e");
    floor.connect(other);
    EXPECT_TRUE(score(other, ids) == expected);
}

// 5 MB, more than a ring holds: the ids are those of its parts, and no model can read it.
TEST(ScoreEndToEnd, APromptOfMegabytesIsTokenizedAndRefusedByTheContextOtherwise) {
    Daemon daemon;
    expertpack::Client client("e2e");
    daemon.connect(client);
    const std::string part = "<\xef\xbd\x9cUser\xef\xbd\x9c>The city of Oslo lies in the north.";
    expertpack::Generate request;
    request.text(part).task(XP_TASK_TOKENIZE);
    const auto part_ids = run(client, request).ids;
    ASSERT_FALSE(part_ids.empty());
    // Parts begin with a special token, so that each is cut as if it were alone.
    ASSERT_EQ(part_ids.front(), golden().at(0).at("ids").at(1).get<int32_t>());
    std::string text;
    std::vector<int32_t> ids;
    while (text.size() < 5'000'000) {
        text += part;
        ids.insert(ids.end(), part_ids.begin(), part_ids.end());
    }
    expertpack::Generate whole;
    whole.text(text).task(XP_TASK_TOKENIZE);
    const Sheet sheet = run(client, whole);
    EXPECT_EQ(sheet.end, "done");
    EXPECT_TRUE(sheet.ids == ids);
    expertpack::Generate generate;
    generate.text(text);
    EXPECT_THAT(run(client, generate).end, HasSubstr("context of model \"demo\" is 4096 tokens"));
    EXPECT_EQ(support::stats_of(client).at("clients").at("enclosures"), 2);
}

}  // namespace
}  // namespace xp
