#include "client/xpctl/connection.h"

#include <cstdlib>
#include <string>

#include <fmt/format.h>

#include "client/xpctl/exit_codes.h"
#include "client/xpctl/output.h"

namespace xp::ctl {
namespace {

int exit_code_of(xp_status status) {
    switch (status) {
        case XP_OK: return kExitOk;
        case XP_INVALID: return kExitUsage;
        case XP_UNAVAILABLE:
        case XP_REFUSED:
        case XP_TIMEOUT: return kExitUnavailable;
        case XP_BUSY: return kExitTryAgain;
        default: return kExitFailed;
    }
}

// The path that the library uses, for messages: its header documents the same order.
std::string socket_path(const Options& options) {
    if (options.socket) return *options.socket;
    const char* variable = std::getenv("EXPERTPACK_SOCKET");
    return variable && *variable ? variable : "/run/expertpackd/expertpackd.sock";
}

}  // namespace

int connect(expertpack::Client& client, const Options& options, int timeout_ms) {
    const xp_status status =
        client.connect(options.socket ? options.socket->c_str() : nullptr, timeout_ms);
    if (status == XP_OK) return kExitOk;
    const std::string path = socket_path(options);
    // The library keeps no text for a timeout.
    std::string why = status == XP_TIMEOUT ? "the daemon did not answer in time" : client.error();
    if (why.find(path) == std::string::npos) why = path + ": " + why;
    if (status == XP_UNAVAILABLE) {
        why += "; 'systemctl start expertpackd' starts the daemon, --socket or EXPERTPACK_SOCKET "
               "name another socket";
    }
    message(why);
    return exit_code_of(status);
}

int report_failure(const expertpack::Client& client, xp_status status, const char* what) {
    const std::string why =
        status == XP_TIMEOUT ? "the daemon did not answer in time" : client.error();
    message(fmt::format("{}: {}", what, why.empty() ? xp_status_name(status) : why));
    return exit_code_of(status);
}

}  // namespace xp::ctl
