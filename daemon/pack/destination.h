// Where a build writes: the pack directory, locked, and one file per stripe, with their space
// checked and allocated before the first byte of the model is written.
#pragma once

#include <string>
#include <vector>

#include "daemon/base/file.h"
#include "daemon/base/result.h"
#include "daemon/pack/build_plan.h"
#include "daemon/pack/journal.h"

namespace xp {

class Destination {
public:
    // Creates the directory if need be and locks it; a second builder gets kBusy. A complete pack
    // there, or anything that is not an unfinished pack, is kInvalidArgument and left alone.
    static Result<Destination> open(const Path& directory,
                                    const std::vector<Path>& stripe_directories);
    Destination(Destination&&) = default;
    Destination& operator=(Destination&&) = default;
    // Takes away the directory if open() made it and nothing was put there.
    ~Destination();

    const Path& directory() const { return directory_; }
    // As they stand in the manifest: a plain name for the first, absolute for the others.
    const std::vector<std::string>& stripe_names() const { return stripe_names_; }

    // Goes on with the build whose journal is there (filling `state`), or starts one.
    Result<Journal> prepare(const BuildPlan& plan, uint64_t reserve_bytes, BuildState& state);

    std::span<const UniqueFd> stripe_fds() const { return stripe_fds_; }
    std::span<const Path> stripe_paths() const { return stripe_paths_; }

private:
    Destination() = default;
    Result<void> lock();
    Result<void> refuse_strangers() const;
    Result<void> check_space(const BuildPlan& plan, uint64_t reserve_bytes) const;
    Result<void> open_stripes(const BuildPlan& plan, bool fresh, bool has_bytes);

    Path directory_;
    bool created_ = false;
    UniqueFd lock_;
    std::vector<std::string> stripe_names_;
    std::vector<Path> stripe_paths_;
    std::vector<UniqueFd> stripe_fds_;
};

}  // namespace xp
