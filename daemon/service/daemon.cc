#include "daemon/service/daemon.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <exception>
#include <new>
#include <cstdlib>
#include <fcntl.h>
#include <optional>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <thread>

#include <spdlog/spdlog.h>

#include "daemon/base/size.h"
#include "daemon/serve/listener.h"
#include "daemon/serve/model_host.h"
#include "daemon/serve/outbox.h"
#include "daemon/serve/ring_server.h"
#include "daemon/serve/scheduler.h"
#include "daemon/service/notify.h"

namespace xp {
namespace {

using Clock = std::chrono::steady_clock;

// One wave may read hundreds of experts from a slow drive and compute a chunk of rows on a slow
// processor; an engine thread that shows nothing for this long is taken to be stuck.
constexpr std::chrono::seconds kEngineStuck{120};
// How much start-up time is asked for in advance, and how often. Loading has no limit of its own:
// it is bounded by the size of the weights.
constexpr std::chrono::seconds kLoadExtension{30};
constexpr std::chrono::seconds kLoadExtensionEvery{10};
constexpr std::chrono::milliseconds kTick{1000};
constexpr std::chrono::milliseconds kDrainTick{50};
// Ends of requests are told between two steps, which a lost device fails at once.
constexpr std::chrono::seconds kLostLimit{5};

class Control {
public:
    explicit Control(const DaemonConfig& config) : config_(config) {}
    Result<void> start();
    // Until a signal comes, or the device is lost: then false.
    bool serve();
    void shut_down();
    [[noreturn]] void end_without_device();

private:
    Result<void> take_locks();
    Result<void> load_models();
    // The next signal within `wait`, or 0. `also` may be readable before.
    int wait_for_signal(std::chrono::milliseconds wait, int also = -1);
    void beat();
    void compare_memory();
    std::string what_is_served() const;
    std::string status_line();

    const DaemonConfig& config_;
    Notifier notifier_;
    UniqueFd signals_;
    UniqueFd state_lock_;
    UniqueFd socket_lock_;
    UniqueFd passed_socket_;
    std::unique_ptr<ModelHost> host_;
    std::unique_ptr<Outbox> outbox_;
    std::unique_ptr<Scheduler> scheduler_;
    std::unique_ptr<RingServer> server_;

    Clock::time_point last_progress_ = Clock::now();
    std::optional<Clock::time_point> last_beat_;
    Clock::time_point last_status_ = Clock::now();
    uint64_t last_generated_ = 0;
    bool memory_compared_ = false;
};

Result<UniqueFd> block_signals() {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
        sigaddset(&set, signal);
    }
    if (::pthread_sigmask(SIG_BLOCK, &set, nullptr) != 0) {
        return errno_error(errno, "cannot block signals");
    }
    std::signal(SIGPIPE, SIG_IGN);
    UniqueFd fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!fd) {
        return errno_error(errno, "signalfd");
    }
    return fd;
}

// The soft limit is often 1024, and a service may use what the hard one allows.
void raise_descriptor_limit(uint64_t clients) {
    constexpr uint64_t kOwn = 64;        // packs, rings of io_uring, logs
    constexpr uint64_t kPerClient = 5;   // see UserLimits
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return;
    }
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
    const uint64_t needed = kOwn + kPerClient * clients;
    if (limit.rlim_max < needed) {
        spdlog::warn("the limit on open files is {}, {} clients may need {}: raise it "
                     "(LimitNOFILE= of the unit, ulimit -n), or lower [limits] clients",
                     limit.rlim_max, clients, needed);
    }
}

Result<void> make_directory(const Path& path, const char* key) {
    std::error_code code;
    std::filesystem::create_directories(path, code);
    if (code) {
        return errno_error(code.value(),
                           fmt::format("cannot create {} ([daemon] {})", path.string(), key));
    }
    return {};
}

// Whoever may not write there most likely runs the daemon by hand, as another user.
Result<UniqueFd> naming_key(Result<UniqueFd> result, const char* key) {
    if (result || result.error().code == ErrorCode::kBusy) {
        return result;
    }
    Error error = std::move(result).error();
    error.message +=
        fmt::format(" ([daemon] {}: run as the service's user, or set another path)", key);
    return error;
}

Result<void> Control::start() {
    XP_TRY(signals_, block_signals());
    raise_descriptor_limit(config_.server.clients);
    XP_CHECK(take_locks());
    XP_CHECK(load_models());
    for (const auto& model : host_->models()) {
        const CacheStats cache = model->cache->stats();
        spdlog::info("model {}: {} of expert slots, {} of {} experts; context {} tokens",
                     model->name, format_size(cache.slot_bytes), cache.slots, cache.n_objects,
                     model->model->info().context);
    }
    for (const std::string& line : host_->memory_plan().lines(host_->backend())) {
        spdlog::info("{}", line);
    }
    for (const std::string& warning : host_->warnings()) {
        spdlog::warn("{}", warning);
    }
    XP_TRY(outbox_, Outbox::create());
    scheduler_ = std::make_unique<Scheduler>(*host_, *outbox_, config_.scheduler);

    auto listener = passed_socket_ ? Listener::adopt(std::move(passed_socket_))
                                   : Listener::bind(config_.socket, std::move(socket_lock_));
    if (!listener) {
        return std::move(listener).error();
    }
    XP_TRY(server_, RingServer::create(*std::move(listener), *host_, *scheduler_, *outbox_,
                                       config_.server));
    scheduler_->start();
    server_->start();
    notifier_.ready(status_line());
    spdlog::info("ready: {}, serving {}", what_is_served(), config_.socket.string());
    return {};
}

Result<void> Control::take_locks() {
    XP_CHECK(make_directory(config_.state_dir, "state_dir"));
    const Path lock_path = config_.state_dir / "expertpackd.lock";
    XP_TRY(state_lock_, naming_key(open_file(lock_path, O_RDWR | O_CREAT | O_NOFOLLOW, 0600),
                                   "state_dir"));
    if (::flock(state_lock_.get(), LOCK_EX | LOCK_NB) != 0) {
        return make_error(ErrorCode::kBusy, "another expertpackd uses {} (it holds {}): stop it "
                          "first, or set another directory ([daemon] state_dir)",
                          config_.state_dir.string(), lock_path.string());
    }
    std::vector<std::string> unknown;
    passed_socket_ = take_passed_socket(&unknown);
    for (const std::string& name : unknown) {
        spdlog::warn("closed the passed descriptor \"{}\", which is not known here", name);
    }
    if (!passed_socket_) {
        XP_CHECK(make_directory(config_.socket.parent_path(), "socket"));
        // What would make bind() fail, before minutes of loading, and before a lock file is left
        // beside what is no socket.
        XP_CHECK(check_socket_path(config_.socket));
        XP_TRY(socket_lock_, naming_key(lock_socket_path(config_.socket), "socket"));
    }
    return {};
}

// Models load in a thread of their own, so that the manager is told of the progress, and a signal
// ends the process without waiting for a terabyte to be looked at.
Result<void> Control::load_models() {
    UniqueFd loaded(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!loaded) {
        return errno_error(errno, "eventfd");
    }
    std::mutex mutex;
    std::string phase = "starting";
    std::optional<Result<std::unique_ptr<ModelHost>>> host;
    std::exception_ptr failure;
    // Joins whatever happens here.
    std::jthread loader([&] {
        try {
            host = ModelHost::open(config_.host, [&](const std::string& what) {
                spdlog::info("{}", what);
                const std::lock_guard lock(mutex);
                phase = what;
            });
        } catch (...) {
            failure = std::current_exception();
        }
        const uint64_t one = 1;
        (void)!::write(loaded.get(), &one, sizeof one);
    });
    Clock::time_point extended = Clock::now() - kLoadExtensionEvery;
    for (;;) {
        const Clock::time_point now = Clock::now();
        if (now - extended >= kLoadExtensionEvery) {
            extended = now;
            notifier_.extend_timeout(kLoadExtension);
        }
        {
            const std::lock_guard lock(mutex);
            notifier_.status(phase, now);
        }
        const int signal = wait_for_signal(kTick, loaded.get());
        if (signal == SIGTERM || signal == SIGINT) {
            spdlog::info("told to stop while loading");
            notifier_.stopping("stopping");
            std::_Exit(kExitOk);  // nobody is connected, and nothing is written by loading
        }
        uint64_t done = 0;
        if (::read(loaded.get(), &done, sizeof done) == sizeof done) {
            break;
        }
    }
    loader.join();
    if (failure) {
        std::rethrow_exception(failure);
    }
    XP_TRY(host_, *std::move(host));
    return {};
}

bool Control::serve() {
    for (;;) {
        const auto interval = notifier_.heartbeat_interval();
        const auto tick = interval ? std::min<Clock::duration>(kTick, *interval) : kTick;
        const int signal =
            wait_for_signal(std::chrono::duration_cast<std::chrono::milliseconds>(tick));
        if (signal == SIGTERM || signal == SIGINT) {
            return true;
        }
        if (scheduler_->lost()) {
            return false;
        }
        if (signal == SIGHUP) {
            spdlog::info("SIGHUP: no key can be changed while running; restart to apply changes");
        }
        try {
            beat();
            compare_memory();
            notifier_.status(status_line(), Clock::now());
        } catch (const std::bad_alloc&) {
            // The next tick tells it.
        }
    }
}

// Clients are told, and nothing else is taken down: destructors would ask the device once more.
void Control::end_without_device() {
    const std::string why = scheduler_->lost()->message;
    spdlog::critical("{}", why);
    notifier_.stopping(why);
    server_->begin_drain();
    const Clock::time_point limit = Clock::now() + kLostLimit;
    while (!scheduler_->empty() && Clock::now() < limit) {
        std::this_thread::sleep_for(kDrainTick);
    }
    server_->stop();  // delivers what there is to tell
    std::_Exit(kExitDeviceLost);
}

void Control::shut_down() {
    const SchedulerStats stats = scheduler_->stats();
    if (const uint64_t left = stats.running + stats.queued; left > 0) {
        spdlog::info("stopping: {} to finish, for which there are up to {} s; a second signal ends "
                     "at once", left == 1 ? "1 request" : fmt::format("{} requests", left),
                     kDrainLimit.count());
    } else {
        spdlog::info("stopping: nothing is left to finish");
    }
    notifier_.stopping("finishing requests");
    scheduler_->begin_drain();
    server_->begin_drain();
    const Clock::time_point limit = Clock::now() + kDrainLimit;
    while (!scheduler_->empty() && Clock::now() < limit) {
        const int signal = wait_for_signal(kDrainTick);
        if (signal == SIGTERM || signal == SIGINT) {
            spdlog::warn("second signal: ending at once");
            std::_Exit(kExitOk);
        }
        try {
            beat();
        } catch (const std::bad_alloc&) {
            // The next tick tells it.
        }
    }
    scheduler_->stop();
    server_->stop();
    spdlog::info("stopped");
}

int Control::wait_for_signal(std::chrono::milliseconds wait, int also) {
    std::array<pollfd, 2> polls = {pollfd{signals_.get(), POLLIN, 0}, pollfd{also, POLLIN, 0}};
    ::poll(polls.data(), polls.size(), static_cast<int>(std::max<int64_t>(wait.count(), 1)));
    signalfd_siginfo info{};
    return ::read(signals_.get(), &info, sizeof info) == sizeof info
               ? static_cast<int>(info.ssi_signo)
               : 0;
}

void Control::beat() {
    const auto interval = notifier_.heartbeat_interval();
    const Clock::time_point now = Clock::now();
    if (scheduler_->made_progress()) {
        last_progress_ = now;
    }
    // A tick may come a little early; half the interval keeps a beat from being left out.
    if (!interval || (last_beat_ && now - *last_beat_ < *interval / 2)) {
        return;
    }
    if (now - last_progress_ > kEngineStuck) {
        spdlog::critical("the engine thread has made no progress for {} s",
                         std::chrono::duration_cast<std::chrono::seconds>(now - last_progress_)
                             .count());
        return;  // the manager's watchdog ends and restarts the service
    }
    last_beat_ = now;
    notifier_.heartbeat();
}

// Once, after the first real prompt.
void Control::compare_memory() {
    if (memory_compared_ || scheduler_->stats().prefill.tokens == 0) {
        return;
    }
    memory_compared_ = true;
    if (const std::string warning = host_->compare_memory(); !warning.empty()) {
        spdlog::warn("{}", warning);
    }
}

std::string Control::what_is_served() const {
    const size_t n = host_->models().size();
    return fmt::format("{} model{} on {}", n, n == 1 ? "" : "s", host_->backend());
}

std::string Control::status_line() {
    const SchedulerStats stats = scheduler_->stats();
    const Clock::time_point now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - last_status_).count();
    const double rate =
        seconds > 0 ? static_cast<double>(stats.generated_tokens - last_generated_) / seconds : 0;
    last_status_ = now;
    last_generated_ = stats.generated_tokens;
    return fmt::format("{}, {} clients, {} running, {} waiting, {:.1f} tokens/s", what_is_served(),
                       server_->n_clients(), stats.running, stats.queued, rate);
}

}  // namespace

int run_daemon(const DaemonConfig& config) {
    Control control(config);
    if (const auto started = control.start(); !started) {
        spdlog::critical("cannot start: {}", started.error().message);
        const bool config_fault = started.error().code == ErrorCode::kInvalidArgument ||
                                  started.error().code == ErrorCode::kUnsupported;
        return config_fault ? kExitConfig : kExitFailed;
    }
    if (!control.serve()) {
        control.end_without_device();
    }
    control.shut_down();
    return kExitOk;
}

}  // namespace xp
