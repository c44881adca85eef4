#include "daemon/serve/scheduler.h"

#include <algorithm>

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

void Scheduler::submit(JobKey key, shm::Generate request) {
    {
        const std::lock_guard lock(mutex_);
        const auto waiting = static_cast<size_t>(std::count_if(
            jobs_.begin(), jobs_.end(), [](const Job& other) { return !other.started; }));
        Job& job = jobs_.emplace_back();
        job.key = key;
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
            refusal = make_error(ErrorCode::kBusy, "{} requests are waiting, which is the limit; "
                                 "try again later", waiting);
        }
        if (refusal) {
            end(std::prev(jobs_.end()), failed(*refusal));
            return;
        }
        wake_ = true;
    }
    changed_.notify_one();
}

void Scheduler::cancel(JobKey key, std::string why) {
    {
        const std::lock_guard lock(mutex_);
        for (Job& job : jobs_) {
            if (job.key == key && !job.cancelled) {
                job.cancelled = std::move(why);
                break;
            }
        }
        wake_ = true;
    }
    changed_.notify_one();
}

void Scheduler::cancel_client(uint64_t client, const std::string& why) {
    {
        const std::lock_guard lock(mutex_);
        for (Job& job : jobs_) {
            if (job.key.client == client && !job.cancelled) {
                job.cancelled = why;
            }
        }
        wake_ = true;
    }
    changed_.notify_one();
}

void Scheduler::cancel_all(const std::string& why) {
    {
        const std::lock_guard lock(mutex_);
        for (Job& job : jobs_) {
            if (!job.cancelled) {
                job.cancelled = why;
            }
        }
        wake_ = true;
    }
    changed_.notify_one();
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
            job->started = true;
            job->queued_us = static_cast<uint64_t>(
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
            shm::Cancelled reply{*job->cancelled, {}};
            if (job->task) {
                reply.timings = job->task->timings();
            }
            reply.timings.queued_us = job->queued_us;
            end(job, reply);
        }
        job = next;
    }
}

Scheduler::Jobs::iterator Scheduler::pick() {
    size_t parked = 0;
    for (auto job = jobs_.begin(); job != jobs_.end(); ++job) {
        if (!job->started) {
            return parked <= options_.parked_limit ? job : jobs_.end();
        }
        if (!lags(*job)) {
            return job;
        }
        ++parked;
    }
    return jobs_.end();
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
    auto reason = work_on(*job);
    if (reason && !*reason) {
        return;
    }
    const std::lock_guard lock(mutex_);
    if (!reason) {
        end(job, failed(reason.error()));
        return;
    }
    shm::Done done{**reason, job->task->timings()};
    done.timings.queued_us = job->queued_us;
    end(job, done);
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
