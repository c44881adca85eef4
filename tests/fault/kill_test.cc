// kill -9 of the daemon and of its clients at moments that a seed chooses. XP_TEST_SEED repeats
// another run than the usual one.
#include <atomic>
#include <cstdlib>
#include <random>
#include <thread>

#include <gmock/gmock.h>

#include "daemon/pack/verify.h"
#include "tests/support/demo_daemon.h"

namespace xp::support {
namespace {

using scripted::Process;
using std::chrono::milliseconds;

constexpr int kDaemonKills = 30;
constexpr int kClientKills = 120;
constexpr int kVictims = 4;  // at a time

uint64_t the_seed() {
    const char* given = std::getenv("XP_TEST_SEED");
    const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 20'241;
    std::printf("XP_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
    std::fflush(stdout);
    return seed;
}

struct Prompt {
    std::vector<int32_t> ids;
    std::vector<int32_t> expected;
};
Prompt prompt(size_t index) {
    const auto entry = golden().at(index);
    return {entry.at("ids").get<std::vector<int32_t>>(),
            entry.at("greedy").get<std::vector<int32_t>>()};
}

// Every request in flight ends once, with daemon_gone, and then the connection is over.
void expect_gone(expertpack::Client& client, std::map<uint64_t, int> terminals) {
    const xp_event* event = nullptr;
    xp_status status;
    while ((status = client.next_event(&event, kWaitMs)) == XP_OK) {
        if (!event->terminal) continue;
        ASSERT_TRUE(terminals.contains(event->request_id));
        EXPECT_EQ(++terminals[event->request_id], 1) << "request " << event->request_id;
        if (event->type != XP_EVENT_DONE) {
            EXPECT_STREQ(event->code, "daemon_gone");
        }
    }
    EXPECT_EQ(status, XP_GONE) << client.error();
    for (const auto& [id, count] : terminals) EXPECT_EQ(count, 1) << "request " << id;
}

TEST(KillTest, AKilledDaemonEndsEachRequestOnceAndTheNextOneStartsAndAnswersTheSame) {
    std::mt19937_64 random(the_seed());
    const Prompt golden_prompt = prompt(1);
    Daemon daemon;
    int in_use = 0;
    for (int round = 0; round < kDaemonKills; ++round) {
        SCOPED_TRACE(fmt::format("kill {}", round));
        // Some are killed while they start.
        if (random() % 4 == 0) {
            std::this_thread::sleep_for(milliseconds(random() % 200));
        } else {
            std::vector<expertpack::Client> clients;
            std::vector<std::map<uint64_t, int>> terminals;
            for (int i = 0; i < 2; ++i) {
                daemon.connect(clients.emplace_back("kill"));
                auto endless = greedy(golden_prompt.ids, 2000);
                endless.ignore_eos(true);
                auto& ids = terminals.emplace_back();
                for (uint64_t n = random() % 3; n > 0; --n) {
                    uint64_t id = 0;
                    ASSERT_EQ(clients.back().submit(endless, &id, kWaitMs), XP_OK);
                    ids[id] = 0;
                }
            }
            std::this_thread::sleep_for(milliseconds(random() % 120));
            daemon.process().signal(SIGKILL);
            for (size_t i = 0; i < clients.size(); ++i) {
                if (terminals[i].empty()) continue;
                expect_gone(clients[i], terminals[i]);
            }
            ++in_use;
        }
        daemon.process().signal(SIGKILL);
        EXPECT_EQ(daemon.process().wait(), 128 + SIGKILL) << daemon.process().output();
        daemon.start();
    }
    EXPECT_GT(in_use, kDaemonKills / 2);
    expertpack::Client client("after");
    daemon.connect(client);
    EXPECT_EQ(ask(client, greedy(golden_prompt.ids, golden_prompt.expected.size())).ids,
              golden_prompt.expected);
    daemon.process().signal(SIGTERM);
    EXPECT_EQ(daemon.process().wait(), 0) << daemon.process().output();
    EXPECT_FALSE(std::filesystem::exists(daemon.socket()));
    const auto report = verify_pack(demo_pack(), {});
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_THAT(report->faults, testing::IsEmpty());
}

// What must be as before once the dead are gone.
nlohmann::json held(expertpack::Client& client) {
    const auto stats = stats_of(client);
    return {{"connected", stats.at("clients").at("connected")},
            {"half_open", stats.at("clients").at("half_open")},
            {"waiting_replies", stats.at("clients").at("waiting_replies")},
            {"waiting", stats.at("queue").at("waiting")},
            {"running", stats.at("queue").at("running")},
            {"parked", stats.at("queue").at("parked")},
            {"sequences", stats.at("models").at(0).at("sequences")},
            {"in_flight", stats.at("io").at("in_flight")}};
}

TEST(KillTest, KilledClientsLeaveNothingBehindAndABystanderNoticesNothing) {
    std::mt19937_64 random(the_seed());
    // The fewest slots there can be: one that stayed pinned would soon be missed.
    const Prompt golden_prompt = prompt(0);
    Daemon daemon("cache = \"1248KiB\"\n");
    expertpack::Client observer("observer");
    daemon.connect(observer);
    expertpack::Client bystander("bystander");
    daemon.connect(bystander);
    // All clients are of one user here, so its share may be used up: then it asks again.
    const auto answer = [&] {
        for (;;) {
            const Answer one =
                ask(bystander, greedy(golden_prompt.ids, golden_prompt.expected.size()));
            if (!one.end.starts_with("busy: ")) return one.ids;
            std::this_thread::sleep_for(milliseconds(1));
        }
    };
    ASSERT_EQ(answer(), golden_prompt.expected);
    const auto held_before = held(observer);
    const Resources before = resources_of(daemon.process().pid());

    std::atomic<bool> stop = false;
    std::atomic<int> answers = 0;
    std::thread bystanding([&] {
        while (!stop) {
            EXPECT_EQ(answer(), golden_prompt.expected);
            ++answers;
        }
    });
    for (int killed = 0; killed < kClientKills; killed += kVictims) {
        std::vector<std::unique_ptr<Process>> victims;
        for (int i = 0; i < kVictims; ++i) {
            victims.push_back(std::make_unique<Process>(std::vector<std::string>{
                XP_VICTIM, daemon.socket(), std::to_string(random())}));
        }
        std::this_thread::sleep_for(milliseconds(random() % 60));
        for (const auto& victim : victims) {
            victim->signal(SIGKILL);
            if (random() % 2 == 0) std::this_thread::sleep_for(milliseconds(random() % 4));
        }
    }
    stop = true;
    bystanding.join();
    std::printf("the bystander got %d answers\n", answers.load());
    EXPECT_GT(answers, 0);

    // Requests of the dead end at the next step of the engine.
    for (int i = 0; i < kWaitMs / 20 && held(observer) != held_before; ++i) {
        std::this_thread::sleep_for(milliseconds(20));
    }
    EXPECT_EQ(held(observer), held_before);
    EXPECT_EQ(resources_of(daemon.process().pid()), before);
    EXPECT_EQ(answer(), golden_prompt.expected);
    const auto stats = stats_of(observer);
    EXPECT_EQ(stats.at("clients").at("doorbell_missed"), 0);
    EXPECT_EQ(stats.at("clients").at("violations"), 0);
    std::printf("%d connections accepted\n", stats.at("clients").at("accepted").get<int>());
}

}  // namespace
}  // namespace xp::support
