// The daemon's counters as one JSON object: what GetStats answers. docs/stats.md describes every
// member; members are added, never renamed.
#pragma once

#include <chrono>
#include <string>

#include "daemon/serve/model_host.h"
#include "daemon/serve/ring_server.h"
#include "daemon/serve/scheduler.h"

namespace xp {

std::string format_stats(const ModelHost& host, const SchedulerStats& scheduler,
                         const RingServerStats& server, const RingServerOptions& limits,
                         std::chrono::milliseconds uptime);

}  // namespace xp
