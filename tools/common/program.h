// What the command line programs share: exit codes, signals, errors as one line on stderr, and a
// main() that turns exceptions and output that nobody got into exit codes.
#pragma once

#include "daemon/base/result.h"

namespace xp {

// Exit codes, which the programs' help tells. Too little memory is kExitFailed, as is too little
// space; 130 is what shells show for an interrupted program.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInterrupted = 130;

// Prints the error on stderr and gives the exit code.
int report_error(const Error& error);

// True from the first SIGINT or SIGTERM on, once watch_signals() was called. The second one ends
// the program at once.
void watch_signals();
bool interrupted();

// To be returned from main().
int run_program(int argc, char** argv, int (*run)(int argc, char** argv));

}  // namespace xp
