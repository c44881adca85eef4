// Where the daemon's log lines go: standard error, in every case. Under journald (which
// $JOURNAL_STREAM tells, if it names what standard error really is) each line begins with "<N>",
// its syslog priority; elsewhere with date and level.
#pragma once

#include <memory>

#include <spdlog/sinks/sink.h>

namespace xp {

// Replaces spdlog's default logger. $SPDLOG_LEVEL may raise or lower the level.
void set_up_logging();

// Whether `journal_stream` ("DEVICE:INODE", may be null) names the file behind `fd`.
bool is_journal_stream(const char* journal_stream, int fd);

std::shared_ptr<spdlog::sinks::sink> make_log_sink(int fd, bool journal);

}  // namespace xp
