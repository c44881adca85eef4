// The journal of an unfinished build, DIRECTORY/build.journal: one line per finished expert tensor
// (one role of one layer), appended and synced after the tensor's bytes are on the drive. A kill at
// any moment loses what was written since the last sync and nothing else: a torn line fails its
// checksum and is cut off.
//
// A line holds what cannot be had again without reading the source: the objects' sums and digests,
// and the running SHA-256 of the source file up to the tensor's end. A build that deletes its
// source adds a line per file before it does so (consume.h).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/file.h"
#include "daemon/base/result.h"
#include "daemon/pack/build_plan.h"
#include "daemon/pack/resumable_sha256.h"

namespace xp {

// How far a build is.
struct BuildState {
    // Steps before this one need no more hashing, and their experts are stored.
    size_t next_step = 0;
    ResumableSha256 file_hash;  // of the file in work, up to the end of the last hashed chunk
    std::vector<Sha256Digest> finished_files;
    std::vector<SegmentSums> sums;  // per object
    std::vector<std::array<Sha256Digest, kExpertRoles>> slices;
    // Source files that may be gone: all their bytes are in the destination, verified there.
    std::vector<bool> consumed;

    explicit BuildState(const BuildPlan& plan)
        : sums(plan.manifest.n_objects), slices(plan.manifest.n_objects),
          consumed(plan.manifest.sources.size()) {}
};

class Journal {
public:
    // Starts an empty journal, synced, in an existing directory.
    static Result<Journal> create(const Path& directory, const BuildPlan& plan);

    // Reads the journal there into `state` and makes ready to append. Nothing when there is none,
    // or when a crash left it without a whole first line. A journal of another source or layout is
    // kInvalidArgument.
    static Result<std::optional<Journal>> resume(const Path& directory, const BuildPlan& plan,
                                                 BuildState& state);

    // Keeps a record that the step before state.next_step, an expert tensor, is stored.
    void record(const BuildPlan& plan, const BuildState& state);
    // Keeps a record that a source file, which is hashed to its end, may be deleted.
    void record_consumed(const BuildState& state, uint32_t file);
    // Appends what was recorded since. The tensors' bytes must be durable before.
    Result<void> flush();

private:
    Journal(Path path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
    void add_line(std::string_view payload);

    Path path_;
    UniqueFd fd_;
    uint64_t end_ = 0;
    std::string pending_;
};

}  // namespace xp
