#include "daemon/serve/scheduler.h"

#include <algorithm>
#include <new>

#include "daemon/text/printable.h"

namespace xp {
namespace {

// How long the engine thread waits for memory to tell an end.
constexpr std::chrono::milliseconds kMemoryPause{100};

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
    try {
        reap();
    } catch (const std::bad_alloc&) {
        jobs_.clear();  // their clients see the end of the connection
    }
}

void Scheduler::submit(JobKey key, shm::Generate request, Charge charge) {
    {
        // Listed when complete: whatever throws before leaves no trace.
        Jobs made;
        Job& job = made.emplace_back();
        const std::lock_guard lock(mutex_);
        const auto waiting = static_cast<size_t>(std::count_if(
            jobs_.begin(), jobs_.end(), [](const Job& other) { return !other.started; }));
        job.key = key;
        job.charge = std::move(charge);
        job.kind = request.task;
        job.submitted = options_.now();
        if (request.deadline_ms > 0) {
            job.deadline = job.submitted + std::chrono::milliseconds(request.deadline_ms);
        }
        job.model = host_.find(request.model);
        job.request = std::move(request);
        std::optional<Error> refusal;
        if (draining_) {
            refusal = make_error(ErrorCode::kShutdown, "the daemon is shutting down");
        } else if (lost_) {
            refusal = lost_;
        } else if (!job.model) {
            refusal = make_error(ErrorCode::kNotFound,
                                 "there is no model \"{}\"; `xpctl models` lists those served",
                                 printable_text(job.request.model, kMaxModelNameBytes));
        } else if (waiting >= options_.queue_limit) {
            ++stats_.busy;
            refusal = make_error(ErrorCode::kBusy, "{} requests are waiting, which is the limit "
                                 "([limits] queue): try again later", waiting);
        }
        std::optional<shm::Reply> end_reply;
        if (refusal) {
            end_reply = failed(*refusal);
        }
        jobs_.splice(jobs_.end(), made);
        ++stats_.submitted;
        if (refusal) {
            try {
                end(std::prev(jobs_.end()), *end_reply);
                return;
            } catch (const std::bad_alloc&) {
                jobs_.back().out_of_memory = true;
            }
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

std::optional<Error> Scheduler::lost() const {
    const std::lock_guard lock(mutex_);
    return lost_;
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
        stats.parked += job.parked_since.has_value();
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
        info.model = job.model ? job.model->name : std::string();
        info.age = std::chrono::duration_cast<std::chrono::milliseconds>(options_.now() -
                                                                         job.submitted);
        info.prompt_tokens = job.timings.prompt_tokens;
        info.prompt_done = static_cast<uint32_t>(job.prompt_done);
        info.generated_tokens = job.timings.generated_tokens;
        if (!job.started) {
            info.state = shm::RequestState::kQueued;
        } else if (job.parked_since) {
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
    bool blocked = false;
    return moved || pick(&blocked) == jobs_.end();
}

bool Scheduler::run_once() {
    Jobs::iterator job;
    {
        const std::lock_guard lock(mutex_);
        reap();
        park_and_resume();
        bool blocked = false;
        job = pick(&blocked);
        if (job == jobs_.end() && blocked && give_way()) {
            job = pick(&blocked);
        }
        if (job == jobs_.end()) {
            return false;
        }
        if (!job->started) {
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
        try {
            return run_until_stopped();
        } catch (const std::bad_alloc&) {
            // Nothing was lost (end()); others may give memory back meanwhile.
        }
        std::unique_lock lock(mutex_);
        if (stopping_) {
            jobs_.clear();  // their clients see the end of the connection
            return;
        }
        changed_.wait_for(lock, kMemoryPause, [this] { return stopping_; });
    }
}

void Scheduler::run_until_stopped() {
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
        if (job->out_of_memory) {
            end(job, failed(make_error(ErrorCode::kNoMemory,
                                       "there is not enough memory for this request; try again "
                                       "when others have ended, or make it smaller")));
        } else if (job->cancelled) {
            end(job, shm::Cancelled{*job->cancelled, job->timings});
        } else if (lost_) {
            end(job, failed(*lost_));
        }
        job = next;
    }
}

void Scheduler::park_and_resume() {
    const auto now = options_.now();
    for (Job& job : jobs_) {
        const uint64_t waiting = job.backlog->bytes.load(std::memory_order_relaxed);
        if (waiting <= resume_level()) {
            job.parked_since.reset();
        } else if (waiting > options_.backlog_limit && !job.parked_since) {
            job.parked_since = now;
        }
    }
}

Scheduler::Jobs::iterator Scheduler::pick(bool* blocked) {
    const auto started = static_cast<size_t>(
        std::count_if(jobs_.begin(), jobs_.end(), [](const Job& job) { return job.started; }));
    *blocked = false;
    for (auto job = jobs_.begin(); job != jobs_.end(); ++job) {
        if (job->started ? job->parked_since.has_value() : behind_parked(job)) {
            continue;
        }
        if (job->started || started <= options_.parked_limit) {
            return job;
        }
        *blocked = true;
    }
    return jobs_.end();
}

// Whether an earlier job of its client is parked.
bool Scheduler::behind_parked(Jobs::iterator job) {
    return std::any_of(jobs_.begin(), job, [&](const Job& other) {
        return other.parked_since && other.key.client == job->key.client;
    });
}

// True when a job was cancelled whose client has not read for too long.
bool Scheduler::give_way() {
    auto oldest = jobs_.end();
    for (auto job = jobs_.begin(); job != jobs_.end(); ++job) {
        if (job->parked_since &&
            (oldest == jobs_.end() || *job->parked_since < *oldest->parked_since)) {
            oldest = job;
        }
    }
    if (oldest == jobs_.end() ||
        options_.now() - *oldest->parked_since < options_.parked_patience) {
        return false;
    }
    end(oldest, shm::Cancelled{"client_stalled", oldest->timings});
    return true;
}

// The only way out of jobs_, and the only place where a terminal reply of a job is made.
void Scheduler::end(Jobs::iterator job, const shm::Reply& reply) {
    XP_ASSERT(shm::is_terminal(reply));
    // First: a client that has seen the end may ask for the next at once.
    job->charge.release();
    outbox_.post(job->key, reply, job->backlog);
    if (const auto* done = std::get_if<shm::Done>(&reply)) {
        ++(done->reason == shm::FinishReason::kStop ? stats_.stopped : stats_.length);
    } else if (std::holds_alternative<shm::Cancelled>(reply)) {
        ++stats_.cancelled;
    } else {
        ++stats_.failed;
    }
    jobs_.erase(job);
}

// When the engine thread has to look again although nobody wakes it.
std::optional<SchedulerOptions::Clock::time_point> Scheduler::next_deadline() {
    bool blocked = false;
    pick(&blocked);
    std::optional<SchedulerOptions::Clock::time_point> next;
    const auto consider = [&](SchedulerOptions::Clock::time_point time) {
        next = next ? std::min(*next, time) : time;
    };
    for (const Job& job : jobs_) {
        if (job.deadline) {
            consider(*job.deadline);
        }
        if (blocked && job.parked_since) {
            consider(*job.parked_since + options_.parked_patience);
        }
    }
    return next;
}

void Scheduler::advance(Jobs::iterator job) {
    try {
        const auto reason = work_on(*job);
        std::optional<Error> loss;
        if (!reason) {
            loss = loss_of(reason.error());
        }
        const std::lock_guard lock(mutex_);
        account(job);
        if (loss) {
            lost_ = std::move(loss);  // reap() tells all
        } else if (!reason) {
            end(job, failed(reason.error()));
        } else if (*reason) {
            end(job, shm::Done{**reason, job->timings});
        }
    } catch (const std::bad_alloc&) {
        // What the request made is its own, and goes with it; then reap() can tell its client.
        const std::lock_guard lock(mutex_);
        account(job);
        job->task.reset();
        job->request = {};
        job->out_of_memory = true;
    }
}

void Scheduler::account(Jobs::iterator job) {
    if (job->task) {
        const uint64_t queued_us = job->timings.queued_us;
        job->timings = job->task->timings();
        job->timings.queued_us = queued_us;
        job->prompt_done = job->task->prompt_done();
    }
    stats_.prefill = prefill_;
    stats_.decode = decode_;
}

// Nothing when only the request failed.
std::optional<Error> Scheduler::loss_of(const Error& error) const {
    const auto loss = [](const Error& cause) {
        return make_error(ErrorCode::kDeviceLost,
                          "the device can no longer be used, and the daemon ends; where it is "
                          "restarted, try again: {}", cause.message);
    };
    if (const Result<void> status = host_.status(); !status) {
        return loss(status.error());
    }
    return error.code == ErrorCode::kDeviceLost ? std::optional(loss(error)) : std::nullopt;
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
    auto reason = measured_step(job, &replies);
    generated_tokens_.fetch_add(job.task->timings().generated_tokens - generated_before,
                                std::memory_order_relaxed);
    for (const shm::Reply& reply : replies) {
        outbox_.post(job.key, reply, job.backlog);
    }
    return reason;
}

Result<std::optional<shm::FinishReason>> Scheduler::measured_step(
    Job& job, std::vector<shm::Reply>* replies) {
    using Steady = std::chrono::steady_clock;
    Task& task = *job.task;
    const bool prefill = task.prompt_done() < task.prompt().size();
    if (!prefill && job.kind != shm::Task::kGenerate) {
        return task.step(replies);  // computes nothing
    }
    const ExpertCache* const cache = job.model->cache.get();
    const auto stalled_us = [cache] { return cache ? cache->stats().stall_us : uint64_t{0}; };
    const uint64_t tokens = prefill ? task.prompt_done() : task.timings().generated_tokens;
    const OperatorCounts before = host_.counts();
    const uint64_t stalled_before = stalled_us();
    const Steady::time_point begin = Steady::now();
    auto reason = task.step(replies);
    const auto wall_us = static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(Steady::now() - begin).count());
    const OperatorCounts after = host_.counts();
    const uint64_t waited_us = stalled_us() - stalled_before + after.wait_us - before.wait_us;
    StepStats& stats = prefill ? prefill_ : decode_;
    stats.tokens += (prefill ? task.prompt_done() : task.timings().generated_tokens) - tokens;
    stats.launches += after.launches - before.launches;
    stats.waits += after.waits - before.waits;
    stats.host_us += wall_us - std::min(wall_us, waited_us);
    return reason;
}

}  // namespace xp
