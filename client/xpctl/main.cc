// xpctl: generate text with expertpackd, and look at what it does, from a shell.
#include <csignal>
#include <exception>
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
    using xp::ctl::Command;
    switch (options.command) {
        case Command::kGenerate: return xp::ctl::run_generate(options);
        case Command::kChat: return xp::ctl::run_chat(options);
        case Command::kScore: return xp::ctl::run_score(options);
        case Command::kPerplexity: return xp::ctl::run_perplexity(options);
        case Command::kTokenize: return xp::ctl::run_tokenize(options);
        case Command::kStats:
            return options.watch ? xp::ctl::run_watch(options) : xp::ctl::run_stats(options);
        case Command::kModels: return xp::ctl::run_models(options);
        case Command::kClients: return xp::ctl::run_clients(options);
        case Command::kCancel: return xp::ctl::run_cancel(options);
        case Command::kPing: return xp::ctl::run_ping(options);
        case Command::kVersion: return xp::ctl::run_version(options);
    }
    return xp::ctl::kExitFailed;
}

int run(int argc, char** argv) {
    const auto parsed = xp::ctl::parse_options(argc, argv);
    if (const auto* help = std::get_if<xp::ctl::HelpText>(&parsed)) {
        return xp::ctl::print_result(help->text);
    }
    if (const auto* error = std::get_if<xp::ctl::UsageError>(&parsed)) {
        xp::ctl::message(error->message);
        return xp::ctl::kExitUsage;
    }
    const auto& options = std::get<xp::ctl::Options>(parsed);
    xp::ctl::set_json_errors(options.json);
    return run(options);
}

}  // namespace

int main(int argc, char** argv) {
    if (!occupy_standard_descriptors()) return xp::ctl::kExitFailed;
    // A reader that goes away is noticed at the write, so that the request can be cancelled.
    std::signal(SIGPIPE, SIG_IGN);
    // A limit on file sizes, which counts for shared memory too, is an error to be told.
    std::signal(SIGXFSZ, SIG_IGN);
    try {
        return run(argc, argv);
    } catch (const std::exception& error) {
        xp::ctl::report_exception(error);
    }
    return xp::ctl::kExitFailed;
}
