// Where a build writes: the pack directory, locked, and one file per stripe, with their space
// checked and allocated before the first byte of the model is written.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "daemon/base/file.h"
#include "daemon/base/result.h"
#include "daemon/pack/build_plan.h"
#include "daemon/pack/journal.h"

namespace xp {

// kNoSpace, with all figures, unless the file system of `directory` has room for `bytes` and keeps
// `reserve_bytes` free.
Result<void> check_free_space(const Path& directory, uint64_t bytes, uint64_t reserve_bytes);

class Destination {
public:
    enum class Existing : uint8_t {
        kKeep,
        kReplace,  // a pack, finished or not, that lies wholly in the directory is removed
    };
    // Creates the directory if need be and locks it; a second builder gets kBusy. A complete pack
    // there, or anything that is not an unfinished pack, is kInvalidArgument and left alone.
    static Result<Destination> open(const Path& directory,
                                    const std::vector<Path>& stripe_directories,
                                    Existing existing = Existing::kKeep);
    Destination(Destination&&) = default;
    Destination& operator=(Destination&&) = default;
    // Takes away the directory if open() made it and nothing was put there.
    ~Destination();

    const Path& directory() const { return directory_; }
    // As they stand in the manifest: a plain name for the first, absolute for the others.
    const std::vector<std::string>& stripe_names() const { return stripe_names_; }

    // Goes on with the build whose journal is there (filling `state`), or starts one. `check` looks
    // at the state before anything is written. A build that consumes its source needs at no time
    // more room than check_room() says, and takes it as it goes.
    Result<Journal> prepare(const GgufFile& source, const BuildPlan& plan,
                            const BuildOptions& options,
                            const std::function<Result<void>(const BuildState&)>& check,
                            BuildState& state);

    // For a writer that starts afresh every time: after an error, it calls discard().
    Result<void> prepare_without_journal(const Manifest& manifest, uint64_t resident_bytes,
                                         uint64_t reserve_bytes);
    // Removes everything that was written since prepare_without_journal(); nothing before it.
    void discard();

    std::span<const UniqueFd> stripe_fds() const { return stripe_fds_; }
    std::span<const Path> stripe_paths() const { return stripe_paths_; }

private:
    Destination() = default;
    Result<void> lock();
    std::vector<std::string> own_names() const;  // of files in the directory
    Result<void> refuse_strangers() const;
    Result<void> refuse_links() const;
    Result<void> remove_pack() const;
    Result<void> refuse_stripes() const;
    Result<void> check_space(const Manifest& manifest, uint64_t resident_bytes,
                             uint64_t journal_bytes, uint64_t reserve_bytes) const;
    // The same for a build that deletes each source file when it is done with it.
    Result<void> check_room(const GgufFile& source, const BuildPlan& plan, const BuildState& state,
                            uint64_t reserve_bytes) const;
    Result<void> open_stripes(const Manifest& manifest, bool fresh, bool has_bytes,
                              bool allocated = true);

    Path directory_;
    bool created_ = false;
    bool owns_files_ = false;  // whatever is in the directory, this object's user wrote
    UniqueFd lock_;
    std::vector<std::string> stripe_names_;
    std::vector<Path> stripe_paths_;
    std::vector<UniqueFd> stripe_fds_;
};

}  // namespace xp
