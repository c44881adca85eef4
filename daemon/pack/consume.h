// Deleting the files of a source one after the other, each once its bytes are in the destination,
// for those who have no room for both. What a later run needs of a deleted file is all of it but
// the experts; a copy of that, with a hole where experts were, stays in DIRECTORY/source.kept until
// the pack is complete, has the file's name, size and time, and is read in its place.
//
// The order, for each file:
//   1. its experts are in the stripes and durable, and so is the journal's word on them
//   2. its copy in source.kept is durable (kKept)
//   3. both are read back from the drive, and are what was read from the source: experts by the
//      SHA-256 of their slices, the rest by XXH3 (kVerified)
//   4. the journal says that the file may be gone (kJournalled)
//   5. the file is deleted, if it is still the one that was read (kDeleted)
// A kill between any two leaves a build that can be gone on with, by the same command: what is in
// the journal is not read again, and a file that is still there is deleted then.
#pragma once

#include <span>
#include <vector>

#include "daemon/base/memory.h"
#include "daemon/pack/build_plan.h"
#include "daemon/pack/journal.h"

namespace xp {

inline constexpr const char* kKeptName = "source.kept";

// Refuses, before anything is written, when a file cannot or should not be deleted: a symbolic
// link, one of several names of a file, no regular file, or in a directory that cannot be written
// to. Files of `state` that were consumed are not looked at.
Result<void> check_consumable(const GgufFile& source, const Path& destination,
                              const BuildState& state);

// Refuses when a file is only in source.kept, and the journal does not say that it was consumed.
Result<void> check_kept(const GgufFile& source, const Path& destination, const BuildState& state);

// Removes source.kept.
Result<void> remove_kept(const Path& destination);

class SourceConsumer {
public:
    // All arguments outlive it.
    SourceConsumer(GgufFile& source, const BuildPlan& plan, const Path& destination,
                   std::span<const UniqueFd> stripes, std::span<const Path> stripe_paths,
                   const BuildOptions& options, Journal& journal, BuildState& state);

    // Deletes what the journal says may be gone and an earlier run did not get to.
    Result<void> start();
    // A piece of a resident tensor, as it was read from the source.
    Result<void> keep(uint32_t file, uint64_t offset, std::span<const std::byte> bytes);
    // Steps 2 to 5, for all files before this one that are not consumed. The stripes and the
    // journal have been synced.
    Result<void> consume_before(uint32_t file);
    // Whether that would do anything.
    bool is_due(uint32_t file) const;

private:
    struct Piece {
        uint64_t offset = 0;
        uint64_t bytes = 0;
        uint64_t sum = 0;
    };
    Result<void> consume(uint32_t file);
    Result<void> open_copy(uint32_t file);
    Result<void> keep_headers(uint32_t file);
    Result<void> verify_copy(const Path& path);
    Result<void> verify_experts(uint32_t file);
    Result<void> delete_file(uint32_t file);
    void tell(ConsumeStep step, uint32_t file) const;
    Path kept_path(uint32_t file) const;

    GgufFile& source_;
    const BuildPlan& plan_;
    const Path destination_;
    std::span<const UniqueFd> stripes_;
    std::span<const Path> stripe_paths_;
    const BuildOptions& options_;
    Journal& journal_;
    BuildState& state_;
    const std::vector<Path> paths_;          // of the files before any was replaced
    std::vector<SourceStamp> stamps_;        // when they were opened
    uint32_t copied_ = UINT32_MAX;           // the file whose copy is open
    UniqueFd copy_;
    std::vector<Piece> pieces_;
    PageBuffer buffer_;
    std::vector<std::byte> matrix_;
};

// Reads resident.gguf back from the drive and compares its tensors with those of consumed files,
// which are in source.kept: after that nothing is there but in the pack.
Result<void> verify_resident(const GgufFile& source, const BuildPlan& plan, const Path& destination,
                             const BuildState& state);

}  // namespace xp
