#include "daemon/serve/scheduler.h"

#include <algorithm>
#include <new>

namespace xp {
namespace {

shm::Failed failed(const Error& error) {
    return {error_code_name(error.code), reply_text(error.message)};
}

}  // namespace

Scheduler::Scheduler(const ModelHost& host, Outbox& outbox, SchedulerOptions options)
    : host_(host), outbox_(outbox), options_(std::move(options)) {
    stats_.queue_limit = options_.queue_limit;
}

Scheduler::~Scheduler() { stop(); }

void Scheduler::start() {
    XP_ASSERT(!thread_.joinable());
    thread_ = std::thread([this] { run(); });
}

void Scheduler::stop() {
    {
        const std::lock_guard lock(mutex_);
        draining_ = true;
        stopping_ = true;
    }
    cancel_all("shutdown");
    if (thread_.joinable()) {
        thread_.join();
    }
    // What is left when there was no engine thread, or when it ended before it saw the last orders.
    const std::lock_guard lock(mutex_);
    reap();
}

void Scheduler::submit(JobKey key, shm::Generate request, Charge charge) {
    {
        const std::lock_guard lock(mutex_);
        const auto waiting = static_cast<size_t>(std::count_if(
            jobs_.begin(), jobs_.end(), [](const Job& other) { return !other.started; }));
        Job& job = jobs_.emplace_back();
        job.key = key;
        job.charge = std::move(charge);
        job.kind = request.task;
        job.submitted = options_.now();
        if (request.deadline_ms > 0) {
            job.deadline = job.submitted + std::chrono::milliseconds(request.deadline_ms);
        }
        job.model = host_.find(request.model);
        job.request = std::move(request);
        ++stats_.submitted;
        std::optional<Error> refusal;
        if (draining_) {
            refusal = make_error(ErrorCode::kShutdown, "the daemon is shutting down");
        } else if (!job.model) {
            refusal = make_error(ErrorCode::kNotFound,
                                 "there is no model \"{}\"; `xpctl models` lists those served",
                                 job.request.model);
        } else if (waiting >= options_.queue_limit) {
            ++stats_.busy;
            refusal = make_error(ErrorCode::kBusy, "{} requests are waiting, which is the limit "
                                 "([limits] queue): try again later", waiting);
        }
        if (refusal) {
            end(std::prev(jobs_.end()), failed(*refusal));
            return;
        }
        wake_ = true;
    }
    changed_.notify_one();
}

size_t Scheduler::cancel(JobKey key, const std::string& why) {
    return cancel_if(why, [key](const Job& job) { return job.key == key; });
}

size_t Scheduler::cancel_client(uint64_t client, const std::string& why) {
    return cancel_if(why, [client](const Job& job) { return job.key.client == client; });
}

void Scheduler::cancel_all(const std::string& why) {
    cancel_if(why, [](const Job&) { return true; });
}

// The first reason counts.
template <class Condition>
size_t Scheduler::cancel_if(const std::string& why, Condition condition) {
    size_t found = 0;
    {
        const std::lock_guard lock(mutex_);
        for (Job& job : jobs_) {
            if (condition(job)) {
                ++found;
                job.cancelled = job.cancelled.value_or(why);
            }
        }
        wake_ = true;
    }
    changed_.notify_one();
    return found;
}

void Scheduler::wake() {
    {
        const std::lock_guard lock(mutex_);
        wake_ = true;
    }
    changed_.notify_one();
}

void Scheduler::begin_drain() {
    const std::lock_guard lock(mutex_);
    draining_ = true;
}

bool Scheduler::empty() const {
    const std::lock_guard lock(mutex_);
    return jobs_.empty();
}

SchedulerStats Scheduler::stats() const {
    const std::lock_guard lock(mutex_);
    SchedulerStats stats = stats_;
    stats.prompt_tokens = prompt_tokens_.load(std::memory_order_relaxed);
    stats.generated_tokens = generated_tokens_.load(std::memory_order_relaxed);
    const auto models = host_.models();
    stats.sequences.resize(models.size());
    for (const Job& job : jobs_) {
        if (!job.started) {
            ++stats.queued;
            continue;
        }
        ++stats.running;
        stats.parked += lags(job);
        for (size_t i = 0; i < models.size(); ++i) {
            stats.sequences[i] += models[i].get() == job.model;
        }
    }
    return stats;
}

std::vector<JobInfo> Scheduler::jobs() const {
    const std::lock_guard lock(mutex_);
    std::vector<JobInfo> jobs;
    jobs.reserve(jobs_.size());
    for (const Job& job : jobs_) {
        JobInfo& info = jobs.emplace_back();
        info.key = job.key;
        info.task = job.kind;
        info.model = job.model->name;
        info.age = std::chrono::duration_cast<std::chrono::milliseconds>(options_.now() -
                                                                         job.submitted);
        info.prompt_tokens = job.timings.prompt_tokens;
        info.prompt_done = static_cast<uint32_t>(job.prompt_done);
        info.generated_tokens = job.timings.generated_tokens;
        if (!job.started) {
            info.state = shm::RequestState::kQueued;
        } else if (lags(job)) {
            info.state = shm::RequestState::kParked;
        } else if (job.timings.generated_tokens == 0) {
            info.state = shm::RequestState::kPrefill;
        } else {
            info.state = shm::RequestState::kDecode;
        }
    }
    return jobs;
}

bool Scheduler::made_progress() {
    const std::lock_guard lock(mutex_);
    const uint64_t steps = steps_.load(std::memory_order_relaxed);
    const bool moved = std::exchange(steps_seen_, steps) != steps;
    return moved || pick() == jobs_.end();
}

bool Scheduler::run_once() {
    Jobs::iterator job;
    {
        const std::lock_guard lock(mutex_);
        reap();
        job = pick();
        if (job == jobs_.end()) {
            return false;
        }
        if (!job->started) {
            limit_parked();
            job->started = true;
            job->timings.queued_us = static_cast<uint64_t>(
                std::chrono::duration_cast<std::chrono::microseconds>(options_.now() -
                                                                      job->submitted)
                    .count());
        }
    }
    advance(job);
    steps_.fetch_add(1, std::memory_order_relaxed);
    return true;
}

void Scheduler::run() {
    for (;;) {
        if (run_once()) {
            continue;
        }
        std::unique_lock lock(mutex_);
        if (stopping_ && jobs_.empty()) {
            return;
        }
        const auto woken = [this] { return wake_; };
        if (const auto deadline = next_deadline()) {
            changed_.wait_until(lock, *deadline, woken);
        } else {
            changed_.wait(lock, woken);
        }
        wake_ = false;
    }
}

void Scheduler::reap() {
    const auto now = options_.now();
    for (auto job = jobs_.begin(); job != jobs_.end();) {
        const auto next = std::next(job);
        if (!job->cancelled && job->deadline && *job->deadline <= now) {
            job->cancelled = "deadline";
        }
        if (job->cancelled) {
            end(job, shm::Cancelled{*job->cancelled, job->timings});
        }
        job = next;
    }
}

Scheduler::Jobs::iterator Scheduler::pick() {
    std::vector<uint64_t> lagging;
    for (auto job = jobs_.begin(); job != jobs_.end(); ++job) {
        if (!job->started) {
            if (std::ranges::find(lagging, job->key.client) == lagging.end()) {
                return job;
            }
        } else if (!lags(*job)) {
            return job;
        } else {
            lagging.push_back(job->key.client);
        }
    }
    return jobs_.end();
}

// Before another job starts: of those parked, the oldest give way.
void Scheduler::limit_parked() {
    auto parked = std::count_if(jobs_.begin(), jobs_.end(),
                                [this](const Job& job) { return job.started && lags(job); });
    for (auto job = jobs_.begin(); parked > static_cast<ptrdiff_t>(options_.parked_limit);) {
        const auto next = std::next(job);
        if (job->started && lags(*job)) {
            end(job, shm::Cancelled{"client_stalled", job->timings});
            --parked;
        }
        job = next;
    }
}

// The only way out of jobs_, and the only place where a terminal reply of a job is made.
void Scheduler::end(Jobs::iterator job, const shm::Reply& reply) {
    XP_ASSERT(shm::is_terminal(reply));
    if (const auto* done = std::get_if<shm::Done>(&reply)) {
        ++(done->reason == shm::FinishReason::kStop ? stats_.stopped : stats_.length);
    } else if (std::holds_alternative<shm::Cancelled>(reply)) {
        ++stats_.cancelled;
    } else {
        ++stats_.failed;
    }
    // First: a client that has seen the end may ask for the next at once.
    job->charge.release();
    outbox_.post(job->key, reply, job->backlog);
    jobs_.erase(job);
}

bool Scheduler::lags(const Job& job) const {
    return job.backlog->bytes.load(std::memory_order_relaxed) > options_.backlog_limit;
}

std::optional<SchedulerOptions::Clock::time_point> Scheduler::next_deadline() const {
    std::optional<SchedulerOptions::Clock::time_point> next;
    for (const Job& job : jobs_) {
        if (job.deadline && (!next || *job.deadline < *next)) {
            next = job.deadline;
        }
    }
    return next;
}

void Scheduler::advance(Jobs::iterator job) {
    Result<std::optional<shm::FinishReason>> reason = std::optional<shm::FinishReason>();
    try {
        reason = work_on(*job);
    } catch (const std::bad_alloc&) {
        // What the request made is its own, and goes with it.
        reason = make_error(ErrorCode::kNoMemory, "there is not enough memory for this request; "
                            "try again when others have ended, or make it smaller");
    }
    const std::lock_guard lock(mutex_);
    if (job->task) {
        const uint64_t queued_us = job->timings.queued_us;
        job->timings = job->task->timings();
        job->timings.queued_us = queued_us;
        job->prompt_done = job->task->prompt_done();
    }
    if (!reason) {
        end(job, failed(reason.error()));
    } else if (*reason) {
        end(job, shm::Done{**reason, job->timings});
    }
}

Result<std::optional<shm::FinishReason>> Scheduler::work_on(Job& job) {
    if (!job.task) {
        XP_TRY(job.task, make_task(*job.model, job.request, options_.task));
        job.request = {};
        const auto prompt = job.task->prompt();
        prompt_tokens_.fetch_add(prompt.size(), std::memory_order_relaxed);
        shm::Accepted accepted{job.model->name, {}};
        if (prompt.size() <= kReplyNumbers) {
            accepted.prompt_tokens.assign(prompt.begin(), prompt.end());
        }
        outbox_.post(job.key, accepted, job.backlog);
    }
    std::vector<shm::Reply> replies;
    const uint64_t generated_before = job.task->timings().generated_tokens;
    auto reason = job.task->step(&replies);
    generated_tokens_.fetch_add(job.task->timings().generated_tokens - generated_before,
                                std::memory_order_relaxed);
    for (const shm::Reply& reply : replies) {
        outbox_.post(job.key, reply, job.backlog);
    }
    return reason;
}

}  // namespace xp
