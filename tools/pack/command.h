// The parts of xp-pack that its commands share.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "daemon/base/file.h"
#include "daemon/base/result.h"
#include "daemon/gguf/types.h"

namespace xp {

// Exit codes of xp-pack, which its help tells. Too little memory is kExitFailed, as is too little
// space; 130 is what shells show for an interrupted program.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInterrupted = 130;

struct BuildCommand {
    Path source;
    Path destination;
    std::vector<Path> stripe_directories;
    StorageLayout layout = StorageLayout::kSplit;
    uint64_t reserve_bytes = 0;
    bool keep_non_finite = false;
    bool json = false;
    bool quiet = false;
};

struct InfoCommand {
    Path pack;
    bool json = false;
};

struct VerifyCommand {
    Path pack;
    bool deep = false;
    std::optional<Path> against;
    bool json = false;
    bool quiet = false;
};

int run_build(const BuildCommand& command);
int run_info(const InfoCommand& command);
int run_verify(const VerifyCommand& command);

// Prints the error on stderr and gives the exit code.
int report_error(const Error& error);

// True from the first SIGINT or SIGTERM on, once watch_signals() was called.
void watch_signals();
bool interrupted();

}  // namespace xp
