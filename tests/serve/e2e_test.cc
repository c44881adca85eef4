// The daemon as a user runs it: the demo model's pack, the real program, the client library. The
// expected ids are those of an independent implementation on the same weights.
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "daemon/pack/pack.h"
#include "tests/service/fake_manager.h"
#include "tests/support/demo_daemon.h"

namespace xp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using scripted::Process;
using scripted::TempDir;
using support::Answer;
using support::ask;
using support::Daemon;
using support::demo_pack;
using support::golden;
using support::greedy;
using support::kWaitMs;
using support::stats_of;

TEST(EndToEnd, AllGoldenPromptsGiveTheGoldenTokens) {
    Daemon daemon;
    expertpack::Client client("e2e");
    daemon.connect(client);
    ASSERT_EQ(golden().size(), 15u);
    for (const auto& entry : golden()) {
        const auto ids = entry.at("ids").get<std::vector<int32_t>>();
        const auto expected = entry.at("greedy").get<std::vector<int32_t>>();
        const Answer answer = ask(client, greedy(ids, expected.size()));
        EXPECT_EQ(answer.prompt, ids);
        EXPECT_EQ(answer.ids, expected) << entry.at("prompt");
        EXPECT_EQ(answer.end, expected.back() == 1 ? "stop" : "length");

        expertpack::Generate text;
        const auto prompt = entry.at("prompt").get<std::string>();
        text.text(prompt).temperature(0).max_tokens(1);
        EXPECT_EQ(ask(client, text).prompt, ids) << prompt;
    }
    const auto stats = stats_of(client);
    EXPECT_EQ(stats.at("clients").at("doorbell_missed"), 0);
    EXPECT_EQ(stats.at("requests").at("failed"), 0);
}

TEST(EndToEnd, AChatIsRenderedAndAnswered) {
    Daemon daemon;
    expertpack::Client client("e2e");
    daemon.connect(client);
    expertpack::Generate request;
    request.message(XP_ROLE_USER, "What is 17 + 25?").temperature(0);
    const Answer answer = ask(client, request);
    EXPECT_EQ(answer.text, "42");
    EXPECT_EQ(answer.end, "stop");
    EXPECT_EQ(answer.prompt, golden().at(0).at("ids").get<std::vector<int32_t>>());
}

TEST(EndToEnd, IgnoringTheEndGoesOnAfterTheSameBeginning) {
    Daemon daemon;
    expertpack::Client client("e2e");
    daemon.connect(client);
    const auto entry = golden().at(0);
    const auto expected = entry.at("greedy").get<std::vector<int32_t>>();
    auto request = greedy(entry.at("ids").get<std::vector<int32_t>>(), expected.size() + 10);
    request.ignore_eos(true);
    const Answer answer = ask(client, request);
    EXPECT_EQ(answer.end, "length");
    ASSERT_EQ(answer.ids.size(), expected.size() + 10);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), answer.ids.begin()));
}

// Slots for all experts, half of them, one token's working set and the hard floor; both kinds of
// reads; chunks of several sizes; checked reads.
TEST(EndToEnd, TheAnswerDoesNotDependOnCacheReadsOrChunks) {
    const auto entry = golden().at(14);
    const auto ids = entry.at("ids").get<std::vector<int32_t>>();
    ASSERT_EQ(ids.size(), 1403u);
    expertpack::Generate request;
    request.tokens(ids).temperature(0.8f).seed(7).max_tokens(24).ignore_eos(true);
    const auto golden_greedy = entry.at("greedy").get<std::vector<int32_t>>();

    Daemon first;
    expertpack::Client client("e2e");
    first.connect(client);
    const Answer expected = ask(client, request);
    ASSERT_EQ(expected.ids.size(), 24u);
    const auto cache = stats_of(client).at("models").at(0).at("cache");
    const uint64_t slots = cache.at("slots").get<uint64_t>();
    const uint64_t slot = cache.at("slot_bytes").get<uint64_t>() / slots;
    const uint64_t floor_bytes = slot * cache.at("floor_slots").get<uint64_t>();
    const uint64_t half_bytes = slot * (cache.at("objects").get<uint64_t>() / 2);

    const std::string variants[] = {
        fmt::format("cache = {}\n[io]\nbackend = \"pread\"", half_bytes),
        "cache = \"1248KiB\"\n[io]\nverify = \"read\"",
        fmt::format("cache = {}\n[engine]\nchunk_rows = 7\n[io]\nbackend = \"pread\"", floor_bytes),
        fmt::format("cache = {}\n[cache]\npolicy = \"lru\"", floor_bytes),
    };
    for (const std::string& variant : variants) {
        Daemon daemon(variant);
        expertpack::Client other("e2e");
        daemon.connect(other);
        const Answer answer = ask(other, request);
        EXPECT_EQ(answer.prompt, expected.prompt) << variant;
        EXPECT_EQ(answer.ids, expected.ids) << variant;
        EXPECT_EQ(answer.text, expected.text) << variant;
        EXPECT_EQ(ask(other, greedy(ids, golden_greedy.size())).ids, golden_greedy) << variant;
    }
}

// Flips one byte of a file.
void damage(const Path& file, uint64_t offset) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(offset));
    const int byte = stream.get();
    stream.seekp(static_cast<std::streamoff>(offset));
    stream.put(static_cast<char>(byte ^ 8));
    ASSERT_TRUE(stream.good());
}

// A copy of the demo pack that may be damaged.
class DamagedPack : public testing::Test {
protected:
    DamagedPack() { std::filesystem::copy(demo_pack(), pack_); }

    TempDir dir_{Path(XP_TEST_WORK)};
    const Path pack_ = dir_ / "copy.xpack";
};

TEST_F(DamagedPack, NoTextComesFromABadExpertAndTheErrorNamesIt) {
    // Every second expert of the first layer: any prompt needs some of them.
    const auto pack = Pack::open(pack_, PackOpenOptions{.direct = false});
    ASSERT_TRUE(pack.ok()) << pack.error().message;
    const PackLayer& layer = (*pack)->manifest().layers.front();
    for (uint32_t expert = 0; expert < layer.n_experts; expert += 2) {
        damage(pack_ / "experts.000.xpk", (*pack)->place(layer, expert).offset + 1000 + expert);
    }
    Daemon daemon("[io]\nverify = \"read\"", {}, pack_);
    expertpack::Client client("e2e");
    daemon.connect(client);
    const auto ids = golden().at(0).at("ids").get<std::vector<int32_t>>();
    for (int attempt = 0; attempt < 2; ++attempt) {
        const Answer answer = ask(client, greedy(ids, 8));
        EXPECT_THAT(answer.end, AllOf(HasSubstr("corrupt"), HasSubstr("expert "),
                                      HasSubstr("of layer 0 (experts.000.xpk")));
        EXPECT_EQ(answer.text, "");
        EXPECT_TRUE(answer.ids.empty());
    }
    EXPECT_EQ(stats_of(client).at("requests").at("failed"), 2);
    // The daemon lives, and with the good bytes back it answers: nothing bad was kept.
    std::filesystem::copy(demo_pack() / "experts.000.xpk", pack_ / "experts.000.xpk",
                          std::filesystem::copy_options::overwrite_existing);
    EXPECT_EQ(ask(client, greedy(ids, 8)).text, "42");
}

TEST_F(DamagedPack, ChangedResidentTensorsStopTheStart) {
    damage(pack_ / "resident.gguf", 6000000);
    Daemon daemon("[io]\nverify = \"read\"", {}, pack_);
    EXPECT_EQ(daemon.process().wait(), 1) << daemon.process().output();
    EXPECT_THAT(daemon.process().output(), HasSubstr("resident.gguf was changed"));
}

TEST(EndToEnd, AfterAKillTheRestartedDaemonAnswersTheSame) {
    Daemon daemon;
    const auto entry = golden().at(1);
    const auto ids = entry.at("ids").get<std::vector<int32_t>>();
    const auto expected = entry.at("greedy").get<std::vector<int32_t>>();
    expertpack::Client client("e2e");
    daemon.connect(client);
    EXPECT_EQ(ask(client, greedy(ids, expected.size())).ids, expected);
    uint64_t id = 0;
    auto endless = greedy(ids, 2000);
    endless.ignore_eos(true);
    ASSERT_EQ(client.submit(endless, &id, kWaitMs), XP_OK);
    daemon.process().signal(SIGKILL);
    EXPECT_EQ(daemon.process().wait(), 128 + SIGKILL);
    const xp_event* event = nullptr;
    do {
        ASSERT_EQ(client.next_event(&event, kWaitMs), XP_OK) << client.error();
    } while (!event->terminal);
    EXPECT_STREQ(event->code, "daemon_gone");

    daemon.start();
    expertpack::Client again("e2e");
    daemon.connect(again);
    EXPECT_EQ(ask(again, greedy(ids, expected.size())).ids, expected);
}

TEST(EndToEnd, TheManagerHearsReadyAndStoppingAndSigtermDrains) {
    service_test::FakeManager manager;
    ASSERT_TRUE(manager.ok());
    Daemon daemon("", {"NOTIFY_SOCKET=" + manager.path(), "WATCHDOG_USEC=200000"});
    expertpack::Client client("e2e");
    daemon.connect(client);
    const auto entry = golden().at(0);
    auto request = greedy(entry.at("ids").get<std::vector<int32_t>>(), 300);
    request.ignore_eos(true);
    uint64_t id = 0;
    ASSERT_EQ(client.submit(request, &id, kWaitMs), XP_OK);
    const xp_event* event = nullptr;
    ASSERT_EQ(client.next_event(&event, kWaitMs), XP_OK);
    std::vector<std::string> heard;
    while (heard.empty() || !heard.back().starts_with("WATCHDOG=1")) {
        auto message = manager.next(kWaitMs);
        ASSERT_TRUE(message);
        heard.push_back(*std::move(message));
    }
    daemon.process().signal(SIGTERM);
    do {
        ASSERT_EQ(client.next_event(&event, kWaitMs), XP_OK) << client.error();
    } while (!event->terminal);
    EXPECT_EQ(event->type, XP_EVENT_DONE);  // what ran was finished
    EXPECT_EQ(daemon.process().wait(), 0) << daemon.process().output();
    EXPECT_FALSE(std::filesystem::exists(daemon.socket()));
    while (!heard.back().starts_with("STOPPING=1")) {
        auto message = manager.next(kWaitMs);
        ASSERT_TRUE(message);
        heard.push_back(*std::move(message));
    }
    const auto position = [&](const std::string& start) {
        return std::find_if(heard.begin(), heard.end(),
                            [&](const auto& message) { return message.starts_with(start); }) -
               heard.begin();
    };
    EXPECT_LT(position("EXTEND_TIMEOUT_USEC="), position("READY=1"));
    EXPECT_LT(position("READY=1"), position("WATCHDOG=1"));
    EXPECT_LT(position("WATCHDOG=1"), position("STOPPING=1"));
}

TEST(EndToEnd, ASecondDaemonForTheSameSocketSaysSo) {
    Daemon daemon;
    expertpack::Client client("e2e");
    daemon.connect(client);
    Process second({XP_DAEMON, "--config", daemon.config()});
    EXPECT_EQ(second.wait(), 1);
    EXPECT_THAT(second.output(), HasSubstr("another expertpackd"));
    const xp_pong* pong = nullptr;
    EXPECT_EQ(client.ping(&pong, kWaitMs), XP_OK) << client.error();
}

TEST(EndToEnd, ACacheBelowTheHardFloorIsRefusedWithTheNumbers) {
    Daemon daemon("cache = \"64KiB\"\n");
    EXPECT_EQ(daemon.process().wait(), 78) << daemon.process().output();
    EXPECT_THAT(daemon.process().output(), AllOf(HasSubstr("model \"demo\""), HasSubstr("64")));
}

}  // namespace
}  // namespace xp
