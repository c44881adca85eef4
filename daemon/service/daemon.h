// The daemon as a process: takes its locks, opens the models, serves until it is told to stop.
//
// run_daemon() is the control thread: it owns signals, messages to the service manager and the
// order of start and stop. SIGTERM or SIGINT drains: no new requests, running ones may finish
// within kDrainLimit, then they are cancelled; a second signal ends the process at once. SIGHUP is
// logged and changes nothing, as no key can be changed while running. When the device is lost, all
// clients are told, and the process ends with kExitDeviceLost.
#pragma once

#include <chrono>

#include "daemon/service/config.h"

namespace xp {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
// The device failed and needs a new process; the unit restarts the service (EX_OSERR).
inline constexpr int kExitDeviceLost = 71;
inline constexpr int kExitConfig = 78;  // EX_CONFIG: the unit does not restart the service then

// Below TimeoutStopSec=60 of the unit, so that clients are told before they are cut off.
inline constexpr std::chrono::seconds kDrainLimit{45};

// To be called with all threads yet to come: it blocks the signals it handles.
int run_daemon(const DaemonConfig& config);

}  // namespace xp
