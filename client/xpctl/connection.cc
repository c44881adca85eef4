#include "client/xpctl/connection.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "client/xpctl/exit_codes.h"
#include "client/xpctl/interrupt.h"
#include "client/xpctl/names.h"
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

// Where the socket may exist and this user has no access to it: who can change that. "" otherwise.
// Joining root's group is nobody's advice, and no help where the group has no access either.
std::string access_advice(const std::string& path) {
    if (::access(path.c_str(), W_OK) == 0 || errno != EACCES) return {};
    struct stat status {};
    std::string what = "the socket";
    mode_t needed = S_IWGRP;
    if (::stat(path.c_str(), &status) != 0) {
        const size_t slash = path.rfind('/');
        const std::string folder = slash == 0 || slash == std::string::npos ? "."
                                                                            : path.substr(0, slash);
        if (::stat(folder.c_str(), &status) != 0) return {};
        what = folder;
        needed = S_IXGRP;
    }
    if (status.st_gid == 0 || (status.st_mode & needed) == 0) {
        return fmt::format("{} is for user {} alone: the daemon there is not run as a service for "
                           "others", what, user_name(status.st_uid));
    }
    const std::string group = group_name(status.st_gid);
    return fmt::format("{0} is open to members of group {1}: 'sudo usermod -aG {1} $USER' makes "
                       "you one, from your next login on", what, group);
}

}  // namespace

int report(const Failure& failure) {
    // Whoever has to correct a command line reads it; scripts get their errors as they asked for.
    if (failure.exit_code == kExitUsage) {
        message(failure.message);
    } else {
        report_error(failure.code, failure.message);
    }
    return failure.exit_code;
}

// The library's header documents the same order.
std::string socket_path(const Options& options) {
    if (options.socket) return *options.socket;
    const char* variable = std::getenv("EXPERTPACK_SOCKET");
    return variable && *variable ? variable : "/run/expertpackd/expertpackd.sock";
}

bool try_connect(expertpack::Client& client, const Options& options, Failure* failure,
                 int timeout_ms) {
    const xp_status status =
        client.connect(options.socket ? options.socket->c_str() : nullptr, timeout_ms);
    if (status == XP_OK) return true;
    const std::string path = socket_path(options);
    // The library keeps no text for a timeout.
    std::string why = status == XP_TIMEOUT ? "the daemon did not answer in time" : client.error();
    if (why.find(path) == std::string::npos) why = path + ": " + why;
    if (status == XP_UNAVAILABLE) {
        const std::string advice = access_advice(path);
        why += "; " + (advice.empty() ? "'systemctl start expertpackd' starts the daemon, --socket "
                                        "or EXPERTPACK_SOCKET name another socket" : advice);
    }
    *failure = {xp_status_name(status), why, exit_code_of(status)};
    // A full house has room again when somebody has gone.
    if (status == XP_REFUSED && why.find("(too_many_clients)") != std::string::npos) {
        failure->exit_code = kExitTryAgain;
    }
    return false;
}

int connect(expertpack::Client& client, const Options& options) {
    Failure failure;
    return try_connect(client, options, &failure) ? kExitOk : report(failure);
}

int connect_for_requests(expertpack::Client& client, const Options& options) {
    const int connected = connect(client, options);
    if (connected != kExitOk || install_interrupt()) return connected;
    return report({"system", fmt::format("cannot watch for Ctrl-C: {}", std::strerror(errno)),
                   kExitFailed});
}

Failure failure_of(const expertpack::Client& client, xp_status status, const char* what) {
    const std::string why =
        status == XP_TIMEOUT ? "the daemon did not answer in time" : client.error();
    // The text of a question that the daemon declined ends with the code of its error.
    const size_t code = why.rfind('(');
    if (status == XP_FAILED && code != std::string::npos && why.ends_with(')')) {
        return {why.substr(code + 1, why.size() - code - 2),
                fmt::format("{}: {}", what, why), exit_code_of(status)};
    }
    return {xp_status_name(status),
            fmt::format("{}: {}", what, why.empty() ? xp_status_name(status) : why),
            exit_code_of(status)};
}

int report_failure(const expertpack::Client& client, xp_status status, const char* what) {
    return report(failure_of(client, status, what));
}

}  // namespace xp::ctl
