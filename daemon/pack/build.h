// Building a pack from a GGUF: each source byte is read once, hashed and written; a journal per
// layer makes an interrupted build resumable; the manifest appears last.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "daemon/base/file.h"
#include "daemon/base/result.h"
#include "daemon/gguf/types.h"

namespace xp {

struct BuildProgress {
    uint64_t done_bytes = 0;   // of the source
    uint64_t total_bytes = 0;
    uint64_t resumed_bytes = 0;  // found done by the journal; no time was spent on them now
};

struct BuildOptions {
    // Directories on other drives for further stripes; empty: one stripe inside the pack.
    std::vector<Path> stripe_directories;
    // How MXFP4 matrices are stored.
    StorageLayout mxfp4_layout = StorageLayout::kSplit;
    // Kept free on every target file system, beyond what the pack needs.
    uint64_t reserve_bytes = uint64_t{64} << 20;
    std::function<void(const BuildProgress&)> progress;  // called often; may be empty
    // Polled between objects; true ends the build with kCancelled, resumable.
    std::function<bool()> cancelled;
};

// Builds `destination` (a directory NAME.xpack) from the GGUF `source` (any shard). A complete pack
// there is kInvalidArgument; an unfinished one of the same source and layout is resumed; one of
// another source is refused and left alone.
Result<void> build_pack(const Path& source, const Path& destination, const BuildOptions& options);

}  // namespace xp
