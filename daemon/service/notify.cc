#include "daemon/service/notify.h"

#include <cstdlib>

#include <fmt/format.h>
#include <systemd/sd-daemon.h>

namespace xp {
namespace {

// A status is one line of a dozen words; a control character in a model's name must not become a
// second message.
std::string one_line(std::string text) {
    for (char& c : text) {
        c = static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    return text;
}

// Failure is of no consequence that this process could act on: the manager then sees a timeout.
void send(const std::string& message) { ::sd_notify(0, message.c_str()); }

}  // namespace

Notifier::Notifier() {
    uint64_t microseconds = 0;
    if (::sd_watchdog_enabled(0, &microseconds) > 0) {
        heartbeat_interval_ = std::chrono::microseconds(microseconds / 2);
    }
}

void Notifier::ready(const std::string& status) {
    send(fmt::format("READY=1\nSTATUS={}", one_line(status)));
}

void Notifier::stopping(const std::string& status) {
    send(fmt::format("STOPPING=1\nSTATUS={}", one_line(status)));
}

void Notifier::status(const std::string& status, Clock::time_point now) {
    if (last_status_ && now - *last_status_ < kStatusInterval) {
        return;
    }
    last_status_ = now;
    send(fmt::format("STATUS={}", one_line(status)));
}

void Notifier::extend_timeout(std::chrono::seconds more) {
    send(fmt::format("EXTEND_TIMEOUT_USEC={}", std::chrono::microseconds(more).count()));
}

void Notifier::heartbeat() { send("WATCHDOG=1"); }

UniqueFd take_passed_socket(std::vector<std::string>* unknown) {
    char** names = nullptr;
    const int n = ::sd_listen_fds_with_names(1, &names);
    UniqueFd control;
    for (int i = 0; i < n; ++i) {
        UniqueFd fd(SD_LISTEN_FDS_START + i);
        const std::string name = names && names[i] ? names[i] : "";
        if (name == "control" && !control) {
            control = std::move(fd);
        } else {
            unknown->push_back(name);
        }
    }
    for (int i = 0; names && names[i]; ++i) {
        std::free(names[i]);
    }
    std::free(names);
    return control;
}

}  // namespace xp
