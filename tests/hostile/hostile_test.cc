// Every misbehaviour of hostile_client against the real daemon, one after the other, while another
// client of another user generates all the time: its answers stay the same byte for byte. Each time
// the offender pays what its entry says, the log has one line for each connection it lost, and
// afterwards the daemon holds what it held before.
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/hostile/behaviours.h"
#include "tests/support/demo_daemon.h"

namespace xp {
namespace {

using Clock = std::chrono::steady_clock;
using hostile::Behaviour;
using hostile::kAny;
using scripted::Process;
using support::Answer;
using support::Daemon;
using support::Holdings;
using support::kWaitMs;

constexpr char kNobody[] = "65534";

// Asks for the same answer again and again, and compares.
class Bystander {
public:
    explicit Bystander(Daemon& daemon) {
        daemon.connect(client_);
        expected_ = support::ask(client_, request());
        EXPECT_EQ(expected_.end, "length");
        EXPECT_EQ(expected_.ids.size(), 12u);
        thread_ = std::thread([this] { run(); });
    }
    ~Bystander() {
        pause();
        {
            const std::lock_guard lock(mutex_);
            over_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }

    void go_on() {
        const std::lock_guard lock(mutex_);
        paused_ = false;
        changed_.notify_all();
    }
    // Returns when nothing of it is in flight.
    void pause() {
        std::unique_lock lock(mutex_);
        paused_ = true;
        changed_.wait(lock, [this] { return idle_; });
    }
    // Returns when an answer came that was asked for after this call.
    void wait_for_another() {
        std::unique_lock lock(mutex_);
        const int before = answers_;
        changed_.wait(lock, [&] { return answers_ >= before + 2; });
    }

private:
    static const expertpack::Generate& request() {
        static const expertpack::Generate request = [] {
            expertpack::Generate generate;
            generate.text("Once upon a time").temperature(0.8f).seed(11).max_tokens(12);
            generate.ignore_eos(true).model("demo");
            return generate;
        }();
        return request;
    }

    void run() {
        for (;;) {
            {
                std::unique_lock lock(mutex_);
                idle_ = true;
                changed_.notify_all();
                changed_.wait(lock, [this] { return over_ || !paused_; });
                if (over_) return;
                idle_ = false;
            }
            const Answer answer = support::ask(client_, request());
            EXPECT_EQ(answer.ids, expected_.ids);
            EXPECT_EQ(answer.text, expected_.text);
            EXPECT_EQ(answer.end, expected_.end);
            const std::lock_guard lock(mutex_);
            ++answers_;
            changed_.notify_all();
        }
    }

    expertpack::Client client_{"bystander"};
    Answer expected_;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool paused_ = true;
    bool idle_ = false;
    bool over_ = false;
    int answers_ = 0;
    std::thread thread_;
};

class Hostile : public testing::TestWithParam<Behaviour> {
protected:
    static void SetUpTestSuite() {
        daemon_ = std::make_unique<Daemon>();
        watcher_ = std::make_unique<expertpack::Client>("watcher");
        daemon_->connect(*watcher_);
        // So that a user who owns nothing here can connect as well.
        ASSERT_EQ(::chmod(Path(daemon_->socket()).parent_path().c_str(), 0755), 0);
        ASSERT_EQ(::chmod(daemon_->socket().c_str(), 0666), 0);
        bystander_ = std::make_unique<Bystander>(*daemon_);
    }
    static void TearDownTestSuite() {
        bystander_.reset();
        watcher_.reset();
        daemon_->process().signal(SIGTERM);
        EXPECT_EQ(daemon_->process().wait(), 0) << daemon_->process().output();
        daemon_.reset();
    }

    static Holdings holdings() { return support::holdings_of(*daemon_, *watcher_); }
    static uint64_t counter(const char* name) {
        return support::stats_of(*watcher_).at("clients").at(name).get<uint64_t>();
    }
    static std::vector<std::string> log() {
        std::istringstream stream(daemon_->process().output());
        std::vector<std::string> lines;
        for (std::string line; std::getline(stream, line);) lines.push_back(line);
        return lines;
    }
    // The lines behind the first `before`, which account for exactly so many offences: of very many
    // in a second the daemon logs some, and at the second's end how many more there were.
    static std::vector<std::string> log_of(size_t before, uint64_t offences) {
        std::vector<std::string> lines;
        uint64_t accounted = 0;
        const auto deadline = Clock::now() + std::chrono::milliseconds(kWaitMs);
        do {
            lines = log();
            lines.erase(lines.begin(), lines.begin() + static_cast<ptrdiff_t>(before));
            accounted = 0;
            for (const std::string& line : lines) {
                const size_t more = line.find(" more complaints");
                accounted += more == std::string::npos
                                 ? 1
                                 : std::stoull(line.substr(line.rfind(' ', more - 1) + 1));
            }
            if (accounted >= offences) break;
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        } while (Clock::now() < deadline);
        EXPECT_EQ(accounted, offences) << ::testing::PrintToString(lines);
        return lines;
    }

    static std::unique_ptr<Daemon> daemon_;
    static std::unique_ptr<expertpack::Client> watcher_;
    static std::unique_ptr<Bystander> bystander_;
};
std::unique_ptr<Daemon> Hostile::daemon_;
std::unique_ptr<expertpack::Client> Hostile::watcher_;
std::unique_ptr<Bystander> Hostile::bystander_;

void expect_count(uint64_t got, int expected, const char* what) {
    if (expected != kAny) {
        EXPECT_EQ(got, static_cast<uint64_t>(expected)) << what;
    }
}

TEST_P(Hostile, CostsTheOffenderWhatItShouldAndNobodyElseAnything) {
    const Behaviour& behaviour = GetParam();
    if (behaviour.as_other_user && ::geteuid() != 0) {
        GTEST_SKIP() << "needs root, to misbehave as another user";
    }
    ASSERT_TRUE(daemon_->process().running()) << daemon_->process().output();
    bystander_->pause();
    const Holdings before = holdings();
    const uint64_t violations = counter("violations");
    const uint64_t refused = counter("refused");
    const size_t log_before = log().size();

    bystander_->go_on();
    std::vector<std::string> command{XP_HOSTILE_CLIENT, behaviour.name, daemon_->socket()};
    if (::geteuid() == 0) command.push_back(kNobody);
    Process offender(command);
    // One that stands still goes on with its misbehaviour meanwhile.
    for (;;) {
        const bool stands_still = offender.wait_for_stop();
        bystander_->wait_for_another();
        if (!stands_still) break;
        offender.signal(SIGCONT);
    }
    EXPECT_EQ(offender.wait(), 0) << offender.output();
    bystander_->pause();

    EXPECT_EQ(support::settled_holdings(*daemon_, *watcher_, before), before);

    const uint64_t new_violations = counter("violations") - violations;
    const uint64_t new_refusals = counter("refused") - refused;
    expect_count(new_violations, behaviour.violations, "violations");
    expect_count(new_refusals, behaviour.refusals, "refusals");
    const std::vector<std::string> news = log_of(log_before, new_violations + new_refusals);
    for (const std::string& line : news) {
        EXPECT_TRUE(std::all_of(line.begin(), line.end(),
                                [](char c) { return c >= ' ' && c <= '~'; }))
            << ::testing::PrintToString(line);
    }
}

std::string name_of(const testing::TestParamInfo<Behaviour>& info) {
    return info.param.name;
}
auto all(std::span<const Behaviour> group) {
    return testing::ValuesIn(group.begin(), group.end());
}

INSTANTIATE_TEST_SUITE_P(Handshake, Hostile, all(hostile::handshake_behaviours()), name_of);
INSTANTIATE_TEST_SUITE_P(Rings, Hostile, all(hostile::ring_behaviours()), name_of);
INSTANTIATE_TEST_SUITE_P(Sockets, Hostile, all(hostile::socket_behaviours()), name_of);
INSTANTIATE_TEST_SUITE_P(Enclosures, Hostile, all(hostile::enclosure_behaviours()), name_of);
INSTANTIATE_TEST_SUITE_P(Messages, Hostile, all(hostile::message_behaviours()), name_of);
INSTANTIATE_TEST_SUITE_P(Requests, Hostile, all(hostile::request_behaviours()), name_of);
INSTANTIATE_TEST_SUITE_P(Processes, Hostile, all(hostile::process_behaviours()), name_of);

}  // namespace

namespace hostile {
void PrintTo(const Behaviour& behaviour, std::ostream* stream) {
    *stream << behaviour.name;
}
}  // namespace hostile
}  // namespace xp
