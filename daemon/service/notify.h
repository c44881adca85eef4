// Messages to the service manager over $NOTIFY_SOCKET; without one, all of this does nothing.
//
// Belongs to the control thread. Status lines go out at most once a second: one that comes too
// early is dropped, since the next one says more.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "daemon/base/file.h"

namespace xp {

class Notifier {
public:
    using Clock = std::chrono::steady_clock;
    static constexpr std::chrono::milliseconds kStatusInterval{1000};

    Notifier();

    void ready(const std::string& status);
    void stopping(const std::string& status);
    void status(const std::string& status, Clock::time_point now);
    // The start takes longer: give it at least `more` from now.
    void extend_timeout(std::chrono::seconds more);

    // How often heartbeat() is to be called: half of what the manager waits; nothing when it does
    // not watch this process.
    std::optional<Clock::duration> heartbeat_interval() const { return heartbeat_interval_; }
    void heartbeat();

private:
    std::optional<Clock::duration> heartbeat_interval_;
    std::optional<Clock::time_point> last_status_;
};

// The listening socket that socket activation passed under the name "control"; empty when there is
// none. Other passed descriptors are closed, and their names appended to `unknown`.
UniqueFd take_passed_socket(std::vector<std::string>* unknown);

}  // namespace xp
