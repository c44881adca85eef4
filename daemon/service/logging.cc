#include "daemon/service/logging.h"

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <mutex>

#include <fmt/chrono.h>
#include <spdlog/cfg/env.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/text/printable.h"

namespace xp {
namespace {

// Paths have up to 4 KiB, and a line may name two; the journal splits lines above 48 KiB.
constexpr size_t kMaxLineBytes = 10'000;
constexpr size_t kMaxMessageBytes = 20'000;

int syslog_priority(spdlog::level::level_enum level) {
    switch (level) {
        case spdlog::level::critical: return 2;
        case spdlog::level::err: return 3;
        case spdlog::level::warn: return 4;
        case spdlog::level::info: return 6;
        default: return 7;
    }
}

class LogSink final : public spdlog::sinks::base_sink<std::mutex> {
public:
    LogSink(int fd, bool journal) : fd_(fd), journal_(journal) {}

protected:
    void sink_it_(const spdlog::details::log_msg& message) override {
        std::string line;
        if (journal_) {
            line = fmt::format("<{}>", syslog_priority(message.level));
        } else {
            const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(
                                          message.time.time_since_epoch()).count() % 1000;
            const auto level = spdlog::level::to_string_view(message.level);
            line = fmt::format("{:%Y-%m-%d %H:%M:%S}.{:03} {}: ",
                               fmt::localtime(spdlog::log_clock::to_time_t(message.time)),
                               milliseconds, std::string_view(level.data(), level.size()));
        }
        // The journal would take each line of a longer message as a message without priority.
        std::string_view text(message.payload.data(), message.payload.size());
        for (;;) {
            const size_t end = text.find('\n');
            line += printable_text(text.substr(0, end), kMaxLineBytes);
            if (end == text.npos || line.size() > kMaxMessageBytes) {
                break;
            }
            line += "; ";
            text.remove_prefix(end + 1);
        }
        line += '\n';
        // One write for a line, so that lines of other processes do not come between. A log that
        // cannot be written is no reason to stop.
        (void)!::write(fd_, line.data(), line.size());
    }
    void flush_() override {}

private:
    const int fd_;
    const bool journal_;
};

}  // namespace

void set_up_logging() {
    auto sink = make_log_sink(STDERR_FILENO,
                              is_journal_stream(std::getenv("JOURNAL_STREAM"), STDERR_FILENO));
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("expertpackd", std::move(sink)));
    spdlog::cfg::load_env_levels();
}

bool is_journal_stream(const char* journal_stream, int fd) {
    uint64_t device = 0;
    uint64_t inode = 0;
    char rest = 0;
    struct stat info {};
    return journal_stream &&
           std::sscanf(journal_stream, "%" SCNu64 ":%" SCNu64 "%c", &device, &inode, &rest) == 2 &&
           ::fstat(fd, &info) == 0 && info.st_dev == device && info.st_ino == inode;
}

std::shared_ptr<spdlog::sinks::sink> make_log_sink(int fd, bool journal) {
    return std::make_shared<LogSink>(fd, journal);
}

}  // namespace xp
