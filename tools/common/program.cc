#include "tools/common/program.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>
#include <system_error>

#include <fmt/format.h>

#include "daemon/base/file.h"
#include "tools/common/terminal_text.h"

namespace xp {

namespace {

volatile std::sig_atomic_t interrupted_flag = 0;

void on_signal(int) { interrupted_flag = 1; }

}  // namespace

int report_error(const Error& error) {
    print_error(error.message);
    return error.code == ErrorCode::kCancelled ? kExitInterrupted : kExitFailed;
}

void watch_signals() {
    struct sigaction action = {};
    action.sa_handler = on_signal;
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    ::sigaction(SIGINT, &action, nullptr);
    ::sigaction(SIGTERM, &action, nullptr);
    // A limit on file sizes is an error to be told, not an end without a word.
    std::signal(SIGXFSZ, SIG_IGN);
}

bool interrupted() { return interrupted_flag != 0; }

int run_program(int argc, char** argv, int (*run)(int argc, char** argv)) {
    if (!occupy_standard_descriptors()) return kExitFailed;
    int code = kExitFailed;
    try {
        code = run(argc, argv);
    } catch (const std::system_error& error) {  // of the output, or a thread that did not start
        print_error(error.what());
        return kExitFailed;
    } catch (const std::bad_alloc&) {
        // Nothing that would need memory itself.
        std::fprintf(stderr, "%s: not enough memory\n", program_invocation_short_name);
        return kExitFailed;
    }
    // A result that nobody got is no success.
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
        print_error(fmt::format("cannot write to standard output: {}", std::strerror(errno)));
        return code == kExitOk ? kExitFailed : code;
    }
    return code;
}

}  // namespace xp
