// xpctl: generate text with expertpackd, and look at what it does, from a shell.
#include <csignal>
#include <variant>

#include <fcntl.h>
#include <unistd.h>

#include "client/xpctl/commands.h"
#include "client/xpctl/exit_codes.h"
#include "client/xpctl/options.h"
#include "client/xpctl/output.h"

namespace {

// Were one of the three standard descriptors closed, a socket or memfd would get its number, and
// our own output would go there. /dev/null opened for the other direction makes a write or read of
// it fail as before.
bool occupy_standard_descriptors() {
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
        if (::fcntl(fd, F_GETFD) != -1) continue;
        if (::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd) return false;
    }
    return true;
}

int run(const xp::ctl::Options& options) {
    switch (options.command) {
        case xp::ctl::Command::kGenerate: return xp::ctl::run_generate(options);
        case xp::ctl::Command::kStats: return xp::ctl::run_stats(options);
        case xp::ctl::Command::kModels: return xp::ctl::run_models(options);
        case xp::ctl::Command::kPing: return xp::ctl::run_ping(options);
        case xp::ctl::Command::kVersion: return xp::ctl::run_version(options);
    }
    return xp::ctl::kExitFailed;
}

}  // namespace

int main(int argc, char** argv) {
    if (!occupy_standard_descriptors()) return xp::ctl::kExitFailed;
    // A reader that goes away is noticed at the write, so that the request can be cancelled.
    std::signal(SIGPIPE, SIG_IGN);
    const auto parsed = xp::ctl::parse_options(argc, argv);
    if (const auto* help = std::get_if<xp::ctl::HelpText>(&parsed)) {
        return xp::ctl::print_result(help->text);
    }
    if (const auto* error = std::get_if<xp::ctl::UsageError>(&parsed)) {
        xp::ctl::message(error->message);
        return xp::ctl::kExitUsage;
    }
    return run(std::get<xp::ctl::Options>(parsed));
}
