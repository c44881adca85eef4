// What xpctl's exit status means: a contract with scripts, listed in `xpctl --help`.
#pragma once

namespace xp::ctl {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;         // the command line is wrong; nothing was asked
inline constexpr int kExitUnavailable = 69;  // no daemon answers (EX_UNAVAILABLE of sysexits)
inline constexpr int kExitTryAgain = 75;     // the daemon is busy (EX_TEMPFAIL)
inline constexpr int kExitInterrupted = 130; // Ctrl-C, as shells count it: 128 + SIGINT

}  // namespace xp::ctl
