#include "client/xpctl/connection.h"

#include <cerrno>
#include <cstdlib>
#include <string>

#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "client/xpctl/exit_codes.h"
#include "client/xpctl/interrupt.h"
#include "client/xpctl/names.h"
#include "client/xpctl/output.h"
#include "client/xpctl/slow_note.h"

namespace xp::ctl {
namespace {

int exit_code_of(xp_status status, std::string_view code) {
    // A full house has room again when somebody has gone.
    if (code == "too_many_clients") return kExitTryAgain;
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

std::string connect_error(const expertpack::Client& client, const Options& options) {
    const std::string path = socket_path(options);
    std::string why = client.error();
    const size_t at = why.find(path);
    if (at == std::string::npos) return echoed(path) + ": " + why;
    return why.replace(at, path.size(), echoed(path));
}

// The library's header documents the same order.
std::string socket_path(const Options& options) {
    if (options.socket) return *options.socket;
    const char* variable = std::getenv("EXPERTPACK_SOCKET");
    return variable && *variable ? variable : "/run/expertpackd/expertpackd.sock";
}

bool try_connect(expertpack::Client& client, const Options& options, Failure* failure,
                 int timeout_ms) {
    const SlowNote note(timeout_ms);
    const xp_status status =
        client.connect(options.socket ? options.socket->c_str() : nullptr, timeout_ms);
    if (status == XP_OK) return true;
    std::string why = connect_error(client, options);
    if (status == XP_UNAVAILABLE) {
        const std::string advice = access_advice(socket_path(options));
        why += "; " + (advice.empty() ? "'systemctl start expertpackd' starts the daemon, --socket "
                                        "or EXPERTPACK_SOCKET name another socket" : advice);
    }
    *failure = {client.error_code(), why, exit_code_of(status, client.error_code())};
    return false;
}

int connect(expertpack::Client& client, const Options& options) {
    Failure failure;
    return try_connect(client, options, &failure) ? kExitOk : report(failure);
}

int connect_for_requests(expertpack::Client& client, const Options& options) {
    const int connected = connect(client, options);
    if (connected != kExitOk || install_interrupt()) return connected;
    return report({"system", fmt::format("cannot watch for Ctrl-C: {}", errno_text(errno)),
                   kExitFailed});
}

Failure failure_of(const expertpack::Client& client, xp_status status, const char* what) {
    // What failed before the library was asked, such as a request that could not be made, left it
    // without a code.
    const std::string code = *client.error_code() ? client.error_code() : xp_status_name(status);
    const std::string why = *client.error() ? client.error() : xp_status_name(status);
    return {code, fmt::format("{}: {}", what, why), exit_code_of(status, code)};
}

int report_failure(const expertpack::Client& client, xp_status status, const char* what) {
    return report(failure_of(client, status, what));
}

}  // namespace xp::ctl
