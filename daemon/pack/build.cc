#include "daemon/pack/build.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <optional>
#include <system_error>

#include "daemon/base/memory.h"
#include "daemon/pack/assemble.h"
#include "daemon/pack/build_plan.h"
#include "daemon/pack/build_stream.h"
#include "daemon/pack/consume.h"
#include "daemon/pack/destination.h"
#include "daemon/pack/file_digest.h"
#include "daemon/pack/format.h"
#include "daemon/pack/journal.h"

namespace xp {

namespace {

// Sends resident.gguf on its way to the drive while the writer, which owns the descriptor, goes on.
class ResidentCacheCleaner {
public:
    explicit ResidentCacheCleaner(Path path) : path_(std::move(path)) {}

    void wrote(uint64_t bytes) {
        pending_bytes_ += bytes;
        if (pending_bytes_ < WriteBehind::kWindowBytes) return;
        pending_bytes_ = 0;
        if (!fd_) {
            auto fd = open_file(path_, O_RDONLY);
            if (!fd) return;  // only the cache is at stake
            fd_ = std::move(*fd);
        }
        ::sync_file_range(fd_.get(), 0, 0, SYNC_FILE_RANGE_WRITE);
        ::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED);
    }

private:
    Path path_;
    UniqueFd fd_;
    uint64_t pending_bytes_ = 0;
};

std::vector<uint64_t> dimensions(const TensorInfo& tensor) {
    return {tensor.ne.begin(), tensor.ne.begin() + std::max<uint32_t>(tensor.n_dims, 1)};
}

// The pass over the source, led by the writer of resident.gguf: it asks for its tensors one after
// the other, and what lies between them in the source is handled on the way.
Result<void> copy_everything(const BuildPlan& plan, const Destination& destination,
                             BuildStream& stream) {
    const Path path = destination.directory() / kResidentName;
    ResidentCacheCleaner cleaner(path);
    std::vector<TensorToWrite> tensors;
    for (const size_t index : plan.resident_steps) {
        const TensorInfo& tensor = *plan.steps[index].tensor;
        tensors.push_back({tensor.name, tensor.type, dimensions(tensor),
                           [&, index](const TensorToWrite::Sink& sink) {
                               return stream.run_through(index, [&](auto bytes) -> Result<void> {
                                   XP_CHECK(sink(bytes));
                                   cleaner.wrote(bytes.size());
                                   return {};
                               });
                           }});
    }
    XP_TRY(const uint64_t bytes, write_gguf(path, plan.resident_metadata, tensors));
    (void)bytes;
    const TensorToWrite::Sink nothing_left = [](auto) -> Result<void> {
        return make_error(ErrorCode::kInternal, "a resident tensor was left behind");
    };
    return stream.run_through(plan.steps.size() - 1, nothing_left);
}

std::vector<ObjectDigest> combine_digests(const BuildState& state) {
    std::vector<ObjectDigest> digests(state.sums.size());
    for (size_t i = 0; i < digests.size(); ++i) {
        digests[i].segments = state.sums[i];
        digests[i].stored_xxh3 = combine_sums(state.sums[i]);
        digests[i].source = combine_source_digests(state.slices[i]);
    }
    return digests;
}

// Everything that depends on the source's digests, the manifest last.
Result<void> finish(const GgufFile& source, const BuildPlan& plan, const BuildState& state,
                    const Destination& destination) {
    Manifest manifest = plan.manifest;
    XP_ASSERT(state.finished_files.size() == manifest.sources.size());
    for (size_t i = 0; i < manifest.sources.size(); ++i) {
        manifest.sources[i].digest = state.finished_files[i];
    }
    const Path& directory = destination.directory();
    if (std::ranges::find(state.consumed, true) != state.consumed.end()) {
        XP_CHECK(verify_resident(source, plan, directory, state));
    }
    XP_TRY(manifest.resident_digest, digest_file(directory / kResidentName, nullptr));
    XP_CHECK(seal_pack(directory, std::move(manifest), combine_digests(state),
                       destination.stripe_fds(), destination.stripe_paths()));
    XP_CHECK(remove_kept(directory));
    const Path journal = directory / kJournalName;
    if (::unlink(journal.c_str()) != 0 && errno != ENOENT) {
        return errno_error(errno, fmt::format("the pack is complete, but {} cannot be removed",
                                              journal.native()));
    }
    return sync_directory(directory);
}

Result<void> run_build(GgufFile& source, const BuildPlan& plan, Destination& destination,
                       const BuildOptions& options) {
    XP_TRY(const std::vector<SourceStamp> before, stamp_source(source));
    BuildState state(plan);
    const auto check_source = [&](const BuildState& resumed) -> Result<void> {
        XP_CHECK(check_kept(source, destination.directory(), resumed));
        if (!options.consume) return {};
        return check_consumable(source, destination.directory(), resumed);
    };
    XP_TRY(Journal journal, destination.prepare(source, plan, options, check_source, state));
    std::optional<SourceConsumer> consumer;
    if (options.consume) {
        consumer.emplace(source, plan, destination.directory(), destination.stripe_fds(),
                         destination.stripe_paths(), options, journal, state);
        XP_CHECK(consumer->start());
    }
    BuildStream stream(source, plan, destination.stripe_fds(), destination.stripe_paths(), options,
                       journal, state, consumer ? &*consumer : nullptr);
    XP_CHECK(stream.start());
    if (auto copied = copy_everything(plan, destination, stream); !copied) {
        (void)stream.save_progress();  // the first error is the one to tell
        return copied;
    }
    XP_TRY(const std::vector<SourceStamp> after, stamp_source(source));
    if (before != after) {
        return make_error(ErrorCode::kCorrupt,
                          "{} was changed while it was read; remove {} and build again",
                          source.files()[0].path.native(), destination.directory().native());
    }
    return finish(source, plan, state, destination);
}

// What the last flush of the journal names stays; unflushed records may be cut off in the middle.
Result<void> run_build_guarded(GgufFile& source, const BuildPlan& plan,
                               Destination& destination, const BuildOptions& options) {
    try {
        return run_build(source, plan, destination, options);
    } catch (const std::bad_alloc&) {
        return Error{ErrorCode::kNoMemory, "out of memory"};
    } catch (const std::system_error& error) {
        return errno_error(error.code().value(), "cannot start the threads of a build; it needs "
                                                 "more memory, or a higher limit on threads");
    }
}

// What an earlier run has consumed is in the destination.
Result<GgufFile> open_source(const Path& source, const Path& destination,
                             const BuildOptions& options) {
    std::vector<Path> places = {source};
    places.insert(places.end(), options.more_sources.begin(), options.more_sources.end());
    std::error_code ignored;
    if (std::filesystem::is_directory(destination / kKeptName, ignored)) {
        places.push_back(destination / kKeptName);
    }
    return GgufFile::open(places);
}

}  // namespace

Result<BuildPreview> preview_build(const Path& source_path, const Path& destination,
                                   const BuildOptions& options) {
    XP_TRY(const GgufFile source, open_source(source_path, destination, options));
    std::vector<std::string> stripes(1 + options.stripe_directories.size());
    for (size_t s = 0; s < stripes.size(); ++s) stripes[s] = fmt::format("experts.{:03}.xpk", s);
    XP_TRY(const BuildPlan plan, plan_build(source, stripes, options.mxfp4_layout));
    if (options.consume) XP_CHECK(check_consumable(source, destination, BuildState(plan)));
    BuildPreview preview{.sources = {}, .layers = plan.manifest.layers.size(),
                         .objects = plan.manifest.n_objects, .expert_bytes = 0,
                         .resident_bytes = plan.resident_bytes};
    for (const PackStripe& stripe : plan.manifest.stripes) preview.expert_bytes += stripe.bytes;
    for (const GgufFile::File& file : source.files()) {
        preview.sources.push_back({file.path, file.bytes});
    }
    return preview;
}

Result<void> build_pack(const Path& source_path, const Path& destination_path,
                        const BuildOptions& options) {
    XP_TRY(Destination destination,
           Destination::open(destination_path, options.stripe_directories));
    XP_TRY(GgufFile source, open_source(source_path, destination.directory(), options));
    XP_TRY(const BuildPlan plan,
           plan_build(source, destination.stripe_names(), options.mxfp4_layout));
    auto built = run_build_guarded(source, plan, destination, options);
    if (built) return {};
    Error error = std::move(built).error();
    std::error_code ignored;
    const bool resumable = std::filesystem::exists(destination.directory() / kJournalName, ignored);
    if (resumable && (error.code == ErrorCode::kCancelled || error.code == ErrorCode::kNoSpace ||
                      error.code == ErrorCode::kNoMemory || error.code == ErrorCode::kBusy ||
                      error.code == ErrorCode::kIo)) {
        error.message += "; finished layers are kept: run the same build again to go on";
    }
    return error;
}

}  // namespace xp
