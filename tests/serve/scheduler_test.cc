// Order, bounds, cancellation and the promise of exactly one terminal reply.
#include "daemon/serve/scheduler.h"

#include <map>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/serve/scripted_model.h"
#include "tests/support/fake_device.h"

namespace xp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

shm::Generate request_for(uint32_t max_tokens = 0) {
    shm::Generate request;
    request.prompt = shm::RawTokens{{0, 5, 7}};
    request.sampling.temperature = 0;
    request.max_tokens = max_tokens;
    request.ignore_eos = max_tokens > 0;
    return request;
}

// A scheduler that the test pumps, and what came out of it.
class SchedulerTest : public ::testing::Test {
protected:
    void make(scripted::Script script, SchedulerOptions options = {}) {
        host_ = scripted::make_host(std::move(script));
        outbox_ = *Outbox::create();
        options.now = [this] { return now_; };
        scheduler_ = std::make_unique<Scheduler>(*host_, *outbox_, options);
    }
    void pump() {
        for (int n = 0; n < 100'000 && scheduler_->run_once(); ++n) {
        }
        collect();
    }
    void collect() {
        for (Outgoing& outgoing : outbox_->take()) {
            std::string why;
            auto reply = shm::decode_reply(outgoing.bytes, &why);
            ASSERT_TRUE(reply) << why;
            EXPECT_EQ(outgoing.terminal, shm::is_terminal(*reply));
            if (outgoing.terminal) {
                ended_.push_back(outgoing.key.request);
                ASSERT_TRUE(terminal_.emplace(outgoing.key.request, *reply).second)
                    << "request " << outgoing.key.request << " ended twice";
            } else if (std::holds_alternative<shm::Accepted>(*reply)) {
                accepted_.push_back(outgoing.key.request);
            }
            kept_.push_back(std::move(outgoing));
        }
    }
    // What the ring server does once replies have reached a ring.
    void settle() {
        for (const Outgoing& outgoing : std::exchange(kept_, {})) {
            if (outgoing.backlog) {
                outgoing.backlog->bytes.fetch_sub(outgoing.bytes.size());
            }
        }
        scheduler_->wake();
    }
    template <class T>
    const T& end_of(uint64_t request) {
        return std::get<T>(terminal_.at(request));
    }

    std::unique_ptr<ModelHost> host_;
    std::unique_ptr<Outbox> outbox_;
    std::unique_ptr<Scheduler> scheduler_;
    SchedulerOptions::Clock::time_point now_{};
    std::vector<uint64_t> accepted_;
    std::vector<uint64_t> ended_;
    std::map<uint64_t, shm::Reply> terminal_;
    std::vector<Outgoing> kept_;
};

TEST_F(SchedulerTest, FirstComeFirstServed) {
    make({});
    for (const uint64_t id : {5, 3, 9}) {
        scheduler_->submit({1, id}, request_for(4));
    }
    pump();
    EXPECT_THAT(ended_, ElementsAre(5, 3, 9));
    EXPECT_THAT(accepted_, ElementsAre(5, 3, 9));
    EXPECT_EQ(end_of<shm::Done>(9).timings.generated_tokens, 4u);
    EXPECT_TRUE(scheduler_->empty());
    EXPECT_EQ(scheduler_->stats().length, 3u);
    EXPECT_EQ(scheduler_->stats().generated_tokens, 12u);
    EXPECT_EQ(scheduler_->stats().prompt_tokens, 9u);
}

TEST_F(SchedulerTest, AFullQueueSaysTryAgain) {
    SchedulerOptions options;
    options.queue_limit = 2;
    make({}, options);
    for (uint64_t id = 1; id <= 3; ++id) {
        scheduler_->submit({1, id}, request_for());
    }
    collect();
    EXPECT_EQ(end_of<shm::Failed>(3).code, "busy");
    EXPECT_THAT(end_of<shm::Failed>(3).message, HasSubstr("2 requests are waiting"));
    pump();
    EXPECT_THAT(ended_, ElementsAre(3, 1, 2));
}

TEST_F(SchedulerTest, AnUnknownModelFailsAtOnce) {
    make({});
    shm::Generate request = request_for();
    request.model = "other";
    scheduler_->submit({1, 1}, request);
    collect();
    EXPECT_EQ(end_of<shm::Failed>(1).code, "not_found");
    EXPECT_THAT(end_of<shm::Failed>(1).message, HasSubstr("\"other\""));
    EXPECT_TRUE(scheduler_->empty());
}

TEST_F(SchedulerTest, AWaitingRequestCanBeCancelled) {
    make({});
    scheduler_->submit({1, 1}, request_for(3));
    scheduler_->submit({1, 2}, request_for(3));
    scheduler_->submit({2, 2}, request_for(3));
    scheduler_->cancel({1, 2}, "client");
    scheduler_->cancel({1, 77}, "client");
    ASSERT_TRUE(scheduler_->run_once());
    collect();
    EXPECT_EQ(end_of<shm::Cancelled>(2).why, "client");
    terminal_.clear();
    pump();
    EXPECT_EQ(terminal_.size(), 2u);
}

TEST_F(SchedulerTest, CancellingDuringPrefillEndsAtAWaveBoundary) {
    int steps = 0;
    scripted::Script script;
    script.steps_per_pass = 1000;
    script.on_step = [&]() -> Result<void> {
        ++steps;
        return {};
    };
    make(script);
    scheduler_->submit({1, 1}, request_for());
    for (int i = 0; i < 3; ++i) {
        ASSERT_TRUE(scheduler_->run_once());
    }
    scheduler_->cancel({1, 1}, "client");
    pump();
    EXPECT_EQ(steps, 3);
    EXPECT_EQ(end_of<shm::Cancelled>(1).timings.prompt_tokens, 3u);
    EXPECT_EQ(end_of<shm::Cancelled>(1).timings.generated_tokens, 0u);
}

TEST_F(SchedulerTest, AClientThatHungUpLosesItsRequestsOnly) {
    make({});
    scheduler_->submit({1, 1}, request_for(3));
    scheduler_->submit({2, 2}, request_for(3));
    scheduler_->submit({1, 3}, request_for(3));
    scheduler_->cancel_client(1, "client");
    pump();
    EXPECT_EQ(end_of<shm::Cancelled>(1).why, "client");
    EXPECT_EQ(end_of<shm::Cancelled>(3).why, "client");
    EXPECT_EQ(end_of<shm::Done>(2).reason, shm::FinishReason::kLength);
}

TEST_F(SchedulerTest, DeadlinesCountFromSubmission) {
    make({});
    shm::Generate late = request_for(1000);
    late.deadline_ms = 50;
    scheduler_->submit({1, 1}, late);
    scheduler_->submit({1, 2}, late);
    ASSERT_TRUE(scheduler_->run_once());
    now_ += std::chrono::milliseconds(49);
    ASSERT_TRUE(scheduler_->run_once());
    now_ += std::chrono::milliseconds(1);
    EXPECT_FALSE(scheduler_->run_once());
    collect();
    EXPECT_EQ(end_of<shm::Cancelled>(1).why, "deadline");
    EXPECT_EQ(end_of<shm::Cancelled>(2).why, "deadline");
}

TEST_F(SchedulerTest, DrainingFinishesWhatWasAcceptedAndRefusesTheRest) {
    make({});
    scheduler_->submit({1, 1}, request_for(3));
    scheduler_->begin_drain();
    scheduler_->submit({1, 2}, request_for(3));
    pump();
    EXPECT_EQ(end_of<shm::Failed>(2).code, "shutdown");
    EXPECT_EQ(end_of<shm::Done>(1).timings.generated_tokens, 3u);
}

TEST_F(SchedulerTest, StoppingCancelsWhatIsLeft) {
    make({});
    scheduler_->submit({1, 1}, request_for(3));
    ASSERT_TRUE(scheduler_->run_once());
    scheduler_->submit({1, 2}, request_for(3));
    scheduler_->stop();
    collect();
    EXPECT_EQ(end_of<shm::Cancelled>(1).why, "shutdown");
    EXPECT_EQ(end_of<shm::Cancelled>(2).why, "shutdown");
}

TEST_F(SchedulerTest, StoppingEndsALongPrefillAtAWaveBoundary) {
    scripted::Script script;
    script.steps_per_pass = 1000;
    make(script);
    shm::Generate score = request_for();
    score.task = shm::Task::kScore;
    scheduler_->submit({1, 1}, score);
    scheduler_->submit({1, 2}, score);
    for (int i = 0; i < 3; ++i) {
        ASSERT_TRUE(scheduler_->run_once());
    }
    scheduler_->stop();
    collect();
    EXPECT_EQ(end_of<shm::Cancelled>(1).why, "shutdown");
    EXPECT_EQ(end_of<shm::Cancelled>(2).why, "shutdown");
}

TEST_F(SchedulerTest, JobsAreListedWithHowFarTheyAre) {
    SchedulerOptions options;
    options.task.chunk_rows = 2;
    options.backlog_limit = 500;
    make({}, options);
    scheduler_->submit({1, 5}, request_for(100));
    now_ += std::chrono::milliseconds(30);
    shm::Generate score = request_for();
    score.task = shm::Task::kScore;
    scheduler_->submit({2, 6}, score);
    ASSERT_EQ(scheduler_->jobs().size(), 2u);
    EXPECT_EQ(scheduler_->jobs()[0].state, shm::RequestState::kQueued);
    ASSERT_TRUE(scheduler_->run_once());
    auto jobs = scheduler_->jobs();
    EXPECT_EQ(jobs[0].key, (JobKey{1, 5}));
    EXPECT_EQ(jobs[0].state, shm::RequestState::kPrefill);
    EXPECT_EQ(jobs[0].age, std::chrono::milliseconds(30));
    EXPECT_EQ(jobs[0].prompt_tokens, 3u);
    EXPECT_EQ(jobs[0].prompt_done, 2u);
    EXPECT_EQ(jobs[1].state, shm::RequestState::kQueued);
    EXPECT_EQ(jobs[1].task, shm::Task::kScore);
    EXPECT_EQ(jobs[1].prompt_tokens, 0u);
    ASSERT_TRUE(scheduler_->run_once());
    jobs = scheduler_->jobs();
    EXPECT_EQ(jobs[0].state, shm::RequestState::kDecode);
    EXPECT_EQ(jobs[0].prompt_done, 3u);
    EXPECT_EQ(jobs[0].generated_tokens, 1u);
    pump();
    jobs = scheduler_->jobs();
    ASSERT_EQ(jobs.size(), 1u);  // the score is done meanwhile
    EXPECT_EQ(jobs[0].state, shm::RequestState::kParked);
}

TEST_F(SchedulerTest, AChargeIsGivenBackBeforeTheEndIsTold) {
    UserAccounts accounts({.requests = 1});
    make({});
    scheduler_->submit({1, 1}, request_for(3), *accounts.charge_request(7, 10));
    EXPECT_FALSE(accounts.charge_request(7, 10));
    pump();
    EXPECT_EQ(ended_.size(), 1u);
    auto next = accounts.charge_request(7, 10);
    ASSERT_TRUE(next);
    scheduler_->begin_drain();
    scheduler_->submit({1, 2}, request_for(3), *std::move(next));
    EXPECT_TRUE(accounts.charge_request(7, 10));
}

TEST_F(SchedulerTest, AModelErrorEndsTheRequestAndNothingElse) {
    bool broken = true;
    scripted::Script script;
    script.on_step = [&]() -> Result<void> {
        if (std::exchange(broken, false)) {
            return make_error(ErrorCode::kCorrupt, "expert 3 of layer 1: wrong checksum \xff");
        }
        return {};
    };
    make(script);
    scheduler_->submit({1, 1}, request_for(3));
    scheduler_->submit({1, 2}, request_for(3));
    pump();
    EXPECT_EQ(end_of<shm::Failed>(1).code, "corrupt");
    EXPECT_EQ(end_of<shm::Failed>(1).message, "expert 3 of layer 1: wrong checksum ?");
    EXPECT_EQ(end_of<shm::Done>(2).timings.generated_tokens, 3u);
}

TEST_F(SchedulerTest, AClientThatLagsIsParkedWhileOthersRun) {
    SchedulerOptions options;
    options.backlog_limit = 500;
    options.parked_limit = 1;
    make({}, options);
    scheduler_->submit({1, 1}, request_for(100));
    pump();
    EXPECT_TRUE(ended_.empty());
    EXPECT_EQ(scheduler_->stats().parked, 1u);
    EXPECT_TRUE(scheduler_->made_progress());
    // Another of its requests waits behind it; another client's runs, and is parked in its turn.
    scheduler_->submit({1, 2}, request_for(1));
    scheduler_->submit({2, 3}, request_for(100));
    pump();
    EXPECT_THAT(accepted_, ElementsAre(1, 3));
    EXPECT_EQ(scheduler_->stats().parked, 2u);
    for (int n = 0; n < 1000 && !scheduler_->empty(); ++n) {
        settle();
        pump();
    }
    EXPECT_THAT(terminal_, ::testing::SizeIs(3));
    EXPECT_EQ(end_of<shm::Done>(1).timings.generated_tokens, 100u);
    EXPECT_EQ(end_of<shm::Done>(3).timings.generated_tokens, 100u);
}

// The engine outruns every ring, so that readers who take what is there are parked all the time.
TEST_F(SchedulerTest, ReadersThatTakeWhatIsThereAllEndWithTheirAnswers) {
    SchedulerOptions options;
    options.backlog_limit = 500;
    options.parked_limit = 2;
    make({}, options);
    for (uint64_t client = 1; client <= 8; ++client) {
        scheduler_->submit({client, client}, request_for(100));
    }
    uint64_t most_running = 0;
    for (int n = 0; n < 10'000 && !scheduler_->empty(); ++n) {
        pump();
        most_running = std::max(most_running, scheduler_->stats().running);
        now_ += options.parked_patience - std::chrono::milliseconds(1);
        settle();
    }
    EXPECT_TRUE(scheduler_->empty());
    EXPECT_EQ(most_running, 3u);
    EXPECT_EQ(scheduler_->stats().length, 8u);
    EXPECT_EQ(scheduler_->stats().cancelled, 0u);
}

TEST_F(SchedulerTest, AParkedJobGivesWayWhenItsClientTakesNothingForLongAndAnotherWaits) {
    SchedulerOptions options;
    options.backlog_limit = 500;
    options.parked_limit = 1;
    make({}, options);
    for (const uint64_t client : {1, 2}) {
        scheduler_->submit({client, client}, request_for(100));
        pump();
        now_ += std::chrono::milliseconds(1000);
    }
    scheduler_->submit({3, 3}, request_for(1));
    now_ += std::chrono::milliseconds(2999);
    pump();
    EXPECT_TRUE(ended_.empty());
    EXPECT_EQ(scheduler_->stats().parked, 2u);
    EXPECT_EQ(scheduler_->stats().queued, 1u);
    EXPECT_TRUE(scheduler_->made_progress());
    now_ += std::chrono::milliseconds(1);
    pump();
    EXPECT_THAT(ended_, ElementsAre(1, 3));
    EXPECT_EQ(end_of<shm::Cancelled>(1).why, "client_stalled");
    EXPECT_EQ(end_of<shm::Done>(3).timings.generated_tokens, 1u);
    // Nobody wants the place of the other.
    now_ += std::chrono::hours(1);
    pump();
    EXPECT_EQ(scheduler_->stats().parked, 1u);
}

TEST_F(SchedulerTest, AParkedJobGoesOnWhenHalfOfTheLimitWasTaken) {
    SchedulerOptions options;
    options.backlog_limit = 2000;
    make({}, options);
    scheduler_->submit({1, 1}, request_for(100));
    pump();
    const auto backlog = kept_.front().backlog;
    ASSERT_GT(backlog->bytes.load(), 2000u);
    while (backlog->bytes.load() > scheduler_->resume_level()) {
        EXPECT_FALSE(scheduler_->run_once());
        ASSERT_FALSE(kept_.empty());
        backlog->bytes.fetch_sub(kept_.front().bytes.size());
        kept_.erase(kept_.begin());
    }
    EXPECT_TRUE(scheduler_->run_once());
}

TEST_F(SchedulerTest, ProgressIsSeenWhenStepsHappenOrNothingIsToDo) {
    make({});
    EXPECT_TRUE(scheduler_->made_progress());
    scheduler_->submit({1, 1}, request_for(10));
    EXPECT_FALSE(scheduler_->made_progress());
    ASSERT_TRUE(scheduler_->run_once());
    EXPECT_TRUE(scheduler_->made_progress());
    EXPECT_FALSE(scheduler_->made_progress());
}

// A device that is lost while the first of three requests runs.
TEST_F(SchedulerTest, ALostDeviceEndsEveryRequestAndThoseThatComeLater) {
    auto operators = std::make_unique<support::FakeDeviceOperators>(2);
    support::FakeDeviceOperators& device = *operators;
    scripted::Script script;
    script.on_step = [&]() -> Result<void> {
        device.matmul({}, nullptr, 0, nullptr);
        return device.status();
    };
    std::vector<std::unique_ptr<ServedModel>> models;
    models.push_back(scripted::make_served("scripted", script));
    host_ = std::make_unique<ModelHost>(std::move(models), "test", std::move(operators));
    outbox_ = *Outbox::create();
    scheduler_ = std::make_unique<Scheduler>(*host_, *outbox_, SchedulerOptions{});
    for (uint64_t id = 1; id <= 3; ++id) {
        scheduler_->submit({id, id}, request_for(10));
    }
    ASSERT_TRUE(scheduler_->run_once());
    ASSERT_TRUE(scheduler_->run_once());
    EXPECT_FALSE(scheduler_->lost());
    pump();
    ASSERT_TRUE(scheduler_->lost());
    EXPECT_TRUE(scheduler_->empty());
    scheduler_->submit({4, 4}, request_for(10));
    collect();
    ASSERT_THAT(ended_, ElementsAre(1, 2, 3, 4));
    for (uint64_t id = 1; id <= 4; ++id) {
        EXPECT_EQ(end_of<shm::Failed>(id).code, "device_lost");
        EXPECT_THAT(end_of<shm::Failed>(id).message, HasSubstr("fakeErrorFellOffTheBus"));
    }
}

// The same when only the error tells, as that of a copy into expert slots does.
TEST_F(SchedulerTest, AnErrorThatSaysSoIsALostDeviceAnyOtherIsTheRequestsOwn) {
    ErrorCode code = ErrorCode::kIo;
    scripted::Script script;
    script.on_step = [&]() -> Result<void> { return make_error(code, "a copy failed"); };
    make(script);
    scheduler_->submit({1, 1}, request_for(10));
    pump();
    EXPECT_EQ(end_of<shm::Failed>(1).code, "io");
    EXPECT_FALSE(scheduler_->lost());
    code = ErrorCode::kDeviceLost;
    scheduler_->submit({1, 2}, request_for(10));
    pump();
    EXPECT_EQ(end_of<shm::Failed>(2).code, "device_lost");
    EXPECT_TRUE(scheduler_->lost());
}

TEST_F(SchedulerTest, LaunchesAndWaitsAreCountedForPromptsAndForGeneration) {
    auto operators = std::make_unique<support::FakeDeviceOperators>();
    support::FakeDeviceOperators& device = *operators;
    scripted::Script script;
    script.steps_per_pass = 2;
    script.on_step = [&]() -> Result<void> {
        device.matmul({}, nullptr, 0, nullptr);
        return {};
    };
    std::vector<std::unique_ptr<ServedModel>> models;
    models.push_back(scripted::make_served("scripted", script));
    host_ = std::make_unique<ModelHost>(std::move(models), "test", std::move(operators));
    outbox_ = *Outbox::create();
    scheduler_ = std::make_unique<Scheduler>(*host_, *outbox_, SchedulerOptions{});
    scheduler_->submit({1, 1}, request_for(4));
    pump();
    const SchedulerStats stats = scheduler_->stats();
    EXPECT_EQ(stats.prefill.tokens, 3u);
    EXPECT_EQ(stats.prefill.launches, 2u);
    EXPECT_EQ(stats.decode.tokens, 3u);  // the first comes of the prompt's pass
    EXPECT_EQ(stats.decode.launches, 6u);
    EXPECT_EQ(stats.decode.waits, 0u);
}

// Requests of every fate, submitted and cancelled from another thread than the engine's.
TEST_F(SchedulerTest, EveryRequestEndsExactlyOnceWhateverHappens) {
    const uint32_t seed = std::random_device{}();
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    std::atomic<uint32_t> steps{0};
    scripted::Script script;
    script.on_step = [&]() -> Result<void> {
        return ++steps % 97 == 0 ? Result<void>(make_error(ErrorCode::kIo, "a read failed"))
                                 : Result<void>();
    };
    SchedulerOptions options;
    options.queue_limit = 20;
    options.backlog_limit = 4000;
    host_ = scripted::make_host(script);
    outbox_ = *Outbox::create();
    scheduler_ = std::make_unique<Scheduler>(*host_, *outbox_, options);
    scheduler_->start();
    constexpr uint64_t kRequests = 1000;
    for (uint64_t id = 1; id <= kRequests; ++id) {
        shm::Generate request = request_for(random() % 20);
        request.deadline_ms = random() % 8 == 0 ? 1 : 0;
        request.model = random() % 50 == 0 ? "none" : "";
        if (random() % 20 == 0) {
            request.prompt = shm::RawTokens{};
        }
        scheduler_->submit({1 + id % 7, id}, request);
        if (random() % 3 == 0) {
            const uint64_t target = 1 + random() % id;
            scheduler_->cancel({1 + target % 7, target}, "client");
        }
        if (random() % 40 == 0) {
            scheduler_->cancel_client(1 + random() % 7, "client");
        }
        if (random() % 4 == 0) {
            collect();
            settle();
        }
    }
    scheduler_->begin_drain();
    scheduler_->submit({1, kRequests + 1}, request_for());
    while (terminal_.size() < kRequests && !HasFatalFailure()) {
        collect();
        settle();
        std::this_thread::yield();
    }
    scheduler_->stop();
    collect();
    EXPECT_EQ(terminal_.size(), kRequests + 1);
    EXPECT_TRUE(scheduler_->empty());
    const SchedulerStats stats = scheduler_->stats();
    EXPECT_EQ(stats.stopped + stats.length + stats.cancelled + stats.failed, kRequests + 1);
}

}  // namespace
}  // namespace xp
