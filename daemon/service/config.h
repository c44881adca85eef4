// The daemon's configuration: one TOML file, described key by key in docs/config.md.
//
// Reading is strict: an unknown section or key, a wrong type or a number out of range is an error.
// All errors of a file are reported at once, one line each: "FILE:LINE: what, and what to do".
// Nothing is looked up on disk here; whether packs exist shows when they are opened.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "daemon/base/file.h"
#include "daemon/base/result.h"
#include "daemon/serve/model_host.h"
#include "daemon/serve/ring_server.h"
#include "daemon/serve/scheduler.h"

namespace xp {

inline constexpr char kDefaultConfigPath[] = "/etc/expertpackd/expertpackd.toml";

struct DaemonConfig {
    Path socket = "/run/expertpackd/expertpackd.sock";
    Path state_dir = "/var/lib/expertpackd";
    HostOptions host;
    RingServerOptions server;
    SchedulerOptions scheduler;
};

// `path` is for messages.
Result<DaemonConfig> parse_config(std::string_view toml, const Path& path);
Result<DaemonConfig> load_config(const Path& path);

}  // namespace xp
