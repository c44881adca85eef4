// A thousand requests from eight processes at once, a third of them cancelled or killed at random.
// Every client that lives sees exactly one end of each of its requests, the daemon's counters add
// up, and in the end it holds what it held before.
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/demo_daemon.h"

namespace xp {
namespace {

using scripted::Process;
using support::Daemon;

constexpr int kProcesses = 8;
constexpr uint64_t kRequests = 1000;

uint64_t choose_seed() {
    const char* given = std::getenv("XP_SEED");
    return given ? std::strtoull(given, nullptr, 10) : std::random_device()();
}

// What the clients of one place, one after the other, have noted.
struct Notes {
    std::map<std::string, int> sent;     // by kind
    std::map<std::string, int> ended{{"busy", 0}};  // by outcome
    int total = 0;
    int cancels = 0;
    int unanswered = 0;
    int twice = 0;
};

Notes read_notes(const Path& file) {
    Notes notes;
    std::set<uint64_t> open;
    std::ifstream stream(file);
    std::string what, kind, outcome;
    for (uint64_t id = 0; stream >> what >> id;) {
        if (what == "sent") {
            stream >> kind;
            ++notes.sent[kind];
            ++notes.total;
            open.insert(id);
        } else if (what == "end") {
            stream >> kind >> outcome;
            ++notes.ended[outcome];
            notes.twice += open.erase(id) == 0;
        } else {
            ++notes.cancels;
        }
    }
    notes.unanswered = static_cast<int>(open.size());
    return notes;
}

// One of the eight places: a client, and when that killed itself, the next one.
struct Place {
    scripted::TempDir dir;
    uint64_t left = kRequests / kProcesses;
    int n = 0;
    std::unique_ptr<Process> process;

    Path log() const { return dir / ("log" + std::to_string(n)); }
};

TEST(Storm, EveryRequestEndsOnceAndNothingIsLeftBehind) {
    const uint64_t seed = choose_seed();
    RecordProperty("seed", std::to_string(seed));
    std::cout << "seed " << seed << " (XP_SEED repeats it)\n";
    Daemon daemon;
    expertpack::Client watcher("watcher");
    daemon.connect(watcher);
    const auto before = support::holdings_of(daemon, watcher);
    const auto counters_before = support::stats_of(watcher).at("requests");

    std::mt19937_64 random(seed);
    std::vector<Place> places(kProcesses);
    Notes all;
    int killed = 0;
    const auto start = [&](Place& place) {
        place.process = std::make_unique<Process>(std::vector<std::string>{
            XP_STORM_CLIENT, daemon.socket(), std::to_string(random()),
            std::to_string(place.left), place.log().string()});
    };
    for (Place& place : places) start(place);
    for (Place& place : places) {
        while (place.left > 0) {
            const int status = place.process->wait();
            const Notes notes = read_notes(place.log());
            EXPECT_EQ(notes.twice, 0);
            if (status == 128 + SIGKILL) {
                ++killed;
                EXPECT_GT(notes.total, 0);
            } else {
                ASSERT_EQ(status, 0) << place.process->output();
                EXPECT_EQ(notes.unanswered, 0);
            }
            for (const auto& [kind, count] : notes.sent) all.sent[kind] += count;
            for (const auto& [outcome, count] : notes.ended) all.ended[outcome] += count;
            all.total += notes.total;
            all.cancels += notes.cancels;
            all.unanswered += notes.unanswered;
            const int asked = notes.total - notes.ended.at("busy");
            place.left -= std::min<uint64_t>(place.left, static_cast<uint64_t>(asked));
            ++place.n;
            if (place.left > 0) start(place);
        }
    }
    std::cout << all.total << " requests: " << ::testing::PrintToString(all.sent) << ", ends "
              << ::testing::PrintToString(all.ended) << ", " << all.cancels << " cancels, "
              << killed << " clients killed with " << all.unanswered << " in flight\n";
    EXPECT_EQ(all.total - all.ended["busy"], static_cast<int>(kRequests));
    for (const char* kind : {"generate", "score", "tokenize", "enclosed", "stats"}) {
        EXPECT_GT(all.sent[kind], 50) << kind;
    }
    EXPECT_GT(killed, 5);
    EXPECT_GT(all.cancels, 100);
    for (const auto& [outcome, count] : all.ended) {
        EXPECT_THAT(outcome, ::testing::AnyOf("done", "answered", "cancelled", "busy")) << count;
    }

    EXPECT_EQ(support::settled_holdings(daemon, watcher, before), before);
    const auto stats = support::stats_of(watcher);
    const auto counters = stats.at("requests");
    const auto added = [&](const char* name) {
        return counters.at(name).get<int>() - counters_before.at(name).get<int>();
    };
    EXPECT_EQ(added("submitted"),
              added("stopped") + added("length") + added("cancelled") + added("failed"));
    // Of a killed client's requests, some were never seen and some not noted any more.
    const int jobs = all.total - all.sent["stats"];
    EXPECT_LE(added("submitted"), jobs);
    EXPECT_GE(added("submitted"), jobs - all.unanswered - all.ended["busy"]);
    EXPECT_GE(added("stopped") + added("length"), all.ended["done"]);
    EXPECT_GE(added("cancelled"), all.ended["cancelled"]);
    EXPECT_EQ(stats.at("clients").at("violations"), 0) << daemon.process().output();
    EXPECT_EQ(stats.at("clients").at("doorbell_missed"), 0);

    // It still answers as it should.
    const auto entry = support::golden().at(0);
    const auto expected = entry.at("greedy").get<std::vector<int32_t>>();
    const auto prompt = entry.at("ids").get<std::vector<int32_t>>();
    EXPECT_EQ(support::ask(watcher, support::greedy(prompt, expected.size())).ids, expected);
}

}  // namespace
}  // namespace xp
