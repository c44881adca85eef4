// Building a pack from a GGUF: the source is read once, in file order, hashed and written; the
// manifest appears last. A journal makes a build resumable that was cancelled, ran out of space or
// was killed at any moment: expert tensors that it names are neither read nor hashed again. What an
// interrupted build does read twice are the resident tensors before the interruption (resident.gguf
// is written afresh) and the expert tensors that were not yet durable.
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

// What was done about a source file that is to be deleted, in this order (consume.h).
enum class ConsumeStep : uint8_t { kKept, kVerified, kJournalled, kDeleted };

struct BuildOptions {
    // Further files or directories that hold shards of the source.
    std::vector<Path> more_sources = {};
    // Deletes each source file once its bytes are verified in the pack. What is left on the way is
    // resumed with or without this.
    bool consume = false;
    // After each step, with the file's path.
    std::function<void(ConsumeStep, const Path&)> consumed = nullptr;
    // Directories on other drives for further stripes; empty: one stripe inside the pack.
    std::vector<Path> stripe_directories = {};
    // How MXFP4 matrices are stored.
    StorageLayout mxfp4_layout = StorageLayout::kSplit;
    // Refuses weights with scales or floats that are not finite: kCorrupt with tensor and block.
    bool check_values = true;
    // Kept free on every target file system, beyond what the pack needs.
    uint64_t reserve_bytes = uint64_t{64} << 20;
    // Progress becomes durable after this many bytes of experts, at the end of a tensor: what a
    // crash may cost, against waiting for a drive to flush each time.
    uint64_t sync_bytes = uint64_t{256} << 20;
    std::function<void(const BuildProgress&)> progress = nullptr;  // called often
    // Polled between objects; true ends the build with kCancelled, resumable.
    std::function<bool()> cancelled = nullptr;
};

// Builds `destination` (a directory NAME.xpack) from the GGUF `source` (any shard, or a directory).
// A complete pack there is kInvalidArgument; an unfinished one of the same source and layout is
// resumed; one of another source is refused and left alone.
Result<void> build_pack(const Path& source, const Path& destination, const BuildOptions& options);

// What build_pack() would do, without writing anything.
struct BuildPreview {
    struct File {
        Path path;
        uint64_t bytes = 0;
    };
    std::vector<File> sources;
    uint64_t layers = 0;
    uint64_t objects = 0;
    uint64_t expert_bytes = 0;    // of all stripes
    uint64_t resident_bytes = 0;  // about
};
Result<BuildPreview> preview_build(const Path& source, const Path& destination,
                                   const BuildOptions& options);

}  // namespace xp
