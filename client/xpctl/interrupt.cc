#include "client/xpctl/interrupt.h"

#include <cerrno>
#include <csignal>

#include <fcntl.h>
#include <unistd.h>

#include "client/xpctl/exit_codes.h"

namespace xp::ctl {
namespace {

volatile std::sig_atomic_t g_interrupted = 0;
int g_pipe[2] = {-1, -1};

extern "C" void on_interrupt(int) {
    if (g_interrupted) _exit(kExitInterrupted);
    g_interrupted = 1;
    const int saved = errno;
    // The pipe holds at least one byte, so this cannot fail while the first byte is all it gets.
    [[maybe_unused]] const ssize_t written = ::write(g_pipe[1], "!", 1);
    errno = saved;
}

}  // namespace

bool install_interrupt() {
    struct sigaction action = {};
    if (::sigaction(SIGINT, nullptr, &action) != 0) return false;
    if (action.sa_handler == SIG_IGN) return true;
    if (::pipe2(g_pipe, O_CLOEXEC | O_NONBLOCK) != 0) return false;
    action = {};
    action.sa_handler = on_interrupt;
    // No SA_RESTART: a write to a pipe that nobody reads must come back, so that the request can be
    // cancelled.
    return ::sigaction(SIGINT, &action, nullptr) == 0;
}

bool interrupted() { return g_interrupted != 0; }

void forget_interrupt() {
    char byte;
    while (g_pipe[0] >= 0 && ::read(g_pipe[0], &byte, 1) == 1) {
    }
    g_interrupted = 0;
}

int interrupt_fd() { return g_pipe[0]; }

}  // namespace xp::ctl
