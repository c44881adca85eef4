// The queue of requests and the one engine thread that works on them, first come first served.
//
// A request is a job from submit() on. Whatever happens to it, it leaves through end(), which takes
// it out of the list and posts its one terminal reply: Done, Failed or Cancelled. Replies go to the
// outbox; nothing here knows connections beyond their numbers. Accepted comes when a job's turn
// comes: turning a prompt into tokens is work for the engine thread, not for that of the rings.
//
// Between two steps of a model (wave boundaries, at the latest every token) the engine thread looks
// for cancellations, deadlines and clients that lag behind. A job whose client does not take its
// replies is parked until it has taken half of what waits: it keeps its sequence, and jobs of
// other clients run in the meantime; those of the same client wait. The engine is faster than any
// reader, so being parked is no fault. Only a few jobs have sequences at a time; when all of them
// are parked and another is to start, it waits, but not longer than parked_patience for a client
// that takes nothing: who does not read stops nobody else for good.
//
// An error that leaves the backend unusable ends every job, and those that come later: see lost().
// Too little memory fails the job that wanted it. An end that cannot be told for want of memory is
// told when there is some again.
// `priority` of a request is carried and not used yet.
//
// Threads: start() makes the engine thread, which calls run_once() for ever; without start() a
// caller may pump run_once() itself. All other functions are for any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "daemon/serve/accounts.h"
#include "daemon/serve/model_host.h"
#include "daemon/serve/outbox.h"
#include "daemon/serve/task.h"
#include "shm/codec.h"

namespace xp {

struct SchedulerOptions {
    using Clock = std::chrono::steady_clock;

    TaskOptions task;
    // Waiting jobs. A full queue is minutes of work for most models; who comes later is told to try
    // again instead of waiting without knowing.
    size_t queue_limit = 64;
    // Jobs that keep a sequence in memory while another one runs. What is to start beyond them
    // waits.
    size_t parked_limit = 4;
    // When a job waits for that reason and nothing else can run, the one that has been parked the
    // longest is cancelled ("client_stalled") once it was parked for this long without a break. Who
    // reads at all takes 32 KiB in less time, on a busy machine too.
    std::chrono::milliseconds parked_patience{5'000};
    // Replies of one request that may wait for room in its client's ring: 64 KiB of text is more
    // than a person reads in a quarter of an hour, on top of the ring itself.
    uint64_t backlog_limit = uint64_t{64} << 10;
    std::function<Clock::time_point()> now = [] { return Clock::now(); };
};

// What one kind of steps took: those that compute prompts, or those that generate.
struct StepStats {
    uint64_t tokens = 0;    // rows computed
    uint64_t launches = 0;  // see OperatorCounts
    uint64_t waits = 0;
    // Of the engine thread in these steps, less its waits for the drive and for the device.
    uint64_t host_us = 0;
};

struct SchedulerStats {
    uint64_t submitted = 0;
    uint64_t stopped = 0;      // Done, by a stop string or an ending token
    uint64_t length = 0;       // Done, by max_tokens or the context
    uint64_t cancelled = 0;
    uint64_t failed = 0;       // refusals included
    uint64_t busy = 0;         // of those, refused because the queue was full
    uint64_t prompt_tokens = 0;
    uint64_t generated_tokens = 0;
    uint64_t queued = 0;
    uint64_t running = 0;      // with a sequence, parked ones included
    uint64_t parked = 0;
    uint64_t queue_limit = 0;
    StepStats prefill, decode;
    std::vector<uint64_t> sequences;  // per model of the host
};

// A job as others may see it; what counts tokens is as of its last step.
struct JobInfo {
    JobKey key;
    shm::Task task = shm::Task::kGenerate;
    shm::RequestState state = shm::RequestState::kQueued;
    std::string model;
    std::chrono::milliseconds age{0};
    uint32_t prompt_tokens = 0;
    uint32_t prompt_done = 0;
    uint32_t generated_tokens = 0;
};

class Scheduler {
public:
    // Both outlive the scheduler.
    Scheduler(const ModelHost& host, Outbox& outbox, SchedulerOptions options);
    ~Scheduler();
    Scheduler(const Scheduler&) = delete;
    Scheduler& operator=(const Scheduler&) = delete;

    void start();
    // Cancels what is left ("shutdown"), and joins the engine thread.
    void stop();

    // `key` must not be that of a job that has not ended. Refusals (unknown model, full queue,
    // draining) are replies like any other. The charge is released before the terminal reply.
    void submit(JobKey key, shm::Generate request, Charge charge = {});
    // At the next boundary. How many jobs there are that have not ended; 0: no effect.
    size_t cancel(JobKey key, const std::string& why);
    size_t cancel_client(uint64_t client, const std::string& why);
    void cancel_all(const std::string& why);
    // A backlog fell to resume_level().
    void wake();

    // New requests fail from now on; accepted ones go on.
    void begin_drain();
    // No job is left.
    bool empty() const;

    // A parked job goes on when no more than this waits for its client.
    uint64_t resume_level() const { return options_.backlog_limit / 2; }
    SchedulerStats stats() const;
    // All that have not ended, in order of arrival.
    std::vector<JobInfo> jobs() const;

    // Why the backend can compute no more: nothing is left to do then but to end the process.
    std::optional<Error> lost() const;

    // Whether the engine thread has moved since the last call, or has nothing to do: what a
    // watchdog wants to know.
    bool made_progress();

    // Ends what was cancelled, then does one step of one job. False when there is nothing to do.
    bool run_once();

private:
    struct Job {
        JobKey key;
        Charge charge;
        shm::Task kind = shm::Task::kGenerate;
        ServedModel* model = nullptr;
        SchedulerOptions::Clock::time_point submitted;
        std::optional<SchedulerOptions::Clock::time_point> deadline;
        std::optional<std::string> cancelled;  // why
        std::shared_ptr<Backlog> backlog = std::make_shared<Backlog>();
        bool started = false;
        // Since when it is parked.
        std::optional<SchedulerOptions::Clock::time_point> parked_since;
        bool out_of_memory = false;  // and to be ended for that
        // Of its task, after its last step.
        shm::Timings timings;
        uint64_t prompt_done = 0;
        // The engine thread's alone, as is everything it works on without the lock. The request
        // goes when the task was made of it.
        shm::Generate request;
        std::unique_ptr<Task> task;
    };
    using Jobs = std::list<Job>;

    void run();
    void run_until_stopped();
    // With the lock:
    void reap();
    void park_and_resume();
    // The job to step or start next, and whether one waits for another to give way.
    Jobs::iterator pick(bool* blocked);
    bool give_way();
    // All or nothing when there is no memory for it.
    void end(Jobs::iterator job, const shm::Reply& reply);
    template <class Condition>
    size_t cancel_if(const std::string& why, Condition condition);
    bool behind_parked(Jobs::iterator job);
    std::optional<SchedulerOptions::Clock::time_point> next_deadline();
    // Without it; the engine thread only:
    void advance(Jobs::iterator job);
    void account(Jobs::iterator job);
    Result<std::optional<shm::FinishReason>> work_on(Job& job);
    Result<std::optional<shm::FinishReason>> measured_step(Job& job,
                                                           std::vector<shm::Reply>* replies);
    std::optional<Error> loss_of(const Error& error) const;

    const ModelHost& host_;
    Outbox& outbox_;
    const SchedulerOptions options_;

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    // In order of arrival. Jobs are added by any thread and taken out by end() only; list iterators
    // stay valid meanwhile, so the engine thread works on its job without the lock.
    Jobs jobs_;
    SchedulerStats stats_;
    bool draining_ = false;
    bool stopping_ = false;
    bool wake_ = false;
    std::optional<Error> lost_;
    StepStats prefill_, decode_;  // the engine thread's alone
    // Counted by the engine thread while it works.
    std::atomic<uint64_t> steps_{0};
    std::atomic<uint64_t> prompt_tokens_{0};
    std::atomic<uint64_t> generated_tokens_{0};
    uint64_t steps_seen_ = 0;

    std::thread thread_;
};

}  // namespace xp
