// The parts of xp-pack that its commands share.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "daemon/base/file.h"
#include "daemon/base/result.h"
#include "daemon/gguf/types.h"
#include "tools/common/program.h"

namespace xp {

struct BuildCommand {
    std::vector<Path> paths;  // sources and destination, as they were given
    std::vector<Path> sources;
    Path destination;
    std::vector<Path> stripe_directories;
    StorageLayout layout = StorageLayout::kSplit;
    uint64_t reserve_bytes = 0;
    bool keep_non_finite = false;
    bool consume = false;
    bool dry_run = false;
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

}  // namespace xp
