#include "client/xpctl/slow_note.h"

#include <cerrno>
#include <csignal>

#include <unistd.h>

#include "client/xpctl/connection.h"

namespace xp::ctl {
namespace {

constexpr unsigned kPatienceSeconds = 2;
constexpr char kSlow[] = "xpctl: the daemon does not answer yet; waiting for up to 30 s\n";
static_assert(kConnectTimeoutMs == 30'000 && kAnswerTimeoutMs == 30'000);

extern "C" void on_alarm(int) {
    const int saved = errno;
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kSlow, sizeof kSlow - 1);
    // Not again.
    ::signal(SIGALRM, SIG_IGN);
    errno = saved;
}

bool install() {
    if (::isatty(STDERR_FILENO) != 1) return false;
    struct sigaction action = {};
    action.sa_handler = on_alarm;
    action.sa_flags = SA_RESTART;
    return ::sigaction(SIGALRM, &action, nullptr) == 0;
}

}  // namespace

SlowNote::SlowNote(int timeout_ms) {
    if (timeout_ms <= static_cast<int>(kPatienceSeconds) * 1000) return;
    static const bool installed = install();
    if (installed) ::alarm(kPatienceSeconds);
}

SlowNote::~SlowNote() { ::alarm(0); }

}  // namespace xp::ctl
