#include "daemon/pack/consume.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "daemon/pack/format.h"
#include "daemon/pack/pack_files.h"
#include "daemon/pack/page_cache.h"

namespace xp {
namespace {

constexpr uint64_t kPieceBytes = uint64_t{8} << 20;

// Why the name cannot be deleted without harm to others; empty when it can. What is looked at is
// the name itself and not what it leads to.
std::string deletion_fault(const Path& path) {
    struct stat info;
    if (::lstat(path.c_str(), &info) != 0) return fmt::format("cannot be looked at: {}",
                                                              std::strerror(errno));
    if (S_ISLNK(info.st_mode)) {
        return "is a symbolic link: the file that it leads to may belong to another program's "
               "store; name that file's directory, or build without --consume";
    }
    if (!S_ISREG(info.st_mode)) return "is no regular file";
    if (info.st_nlink > 1) {
        return fmt::format("has {} names (hard links): deleting one of them gives no room; remove "
                           "the others first, or build without --consume", info.st_nlink);
    }
    const Path parent = path.has_parent_path() ? path.parent_path() : Path(".");
    struct statvfs system;
    if (::statvfs(parent.c_str(), &system) == 0 && (system.f_flag & ST_RDONLY) != 0) {
        return "is on a file system that is mounted read-only";
    }
    if (::access(parent.c_str(), W_OK | X_OK) != 0) {
        return fmt::format("is in a directory that this user may not write to ({})",
                           std::strerror(errno));
    }
    return "";
}

SourceStamp stamp_of(const struct stat& info) {
    return {static_cast<uint64_t>(info.st_size),
            info.st_mtim.tv_sec * int64_t{1'000'000'000} + info.st_mtim.tv_nsec};
}

bool is_kept(const GgufFile::File& file, const Path& destination) {
    return file.path.parent_path() == destination / kKeptName;
}

std::vector<Path> paths_of(const GgufFile& source) {
    std::vector<Path> paths;
    for (const GgufFile::File& file : source.files()) paths.push_back(file.path);
    return paths;
}

}  // namespace

Result<void> check_consumable(const GgufFile& source, const Path& destination,
                              const BuildState& state) {
    for (size_t i = 0; i < source.files().size(); ++i) {
        const GgufFile::File& file = source.files()[i];
        if (state.consumed[i] && is_kept(file, destination)) continue;
        const std::string fault = deletion_fault(file.path);
        if (fault.empty()) continue;
        return make_error(ErrorCode::kInvalidArgument,
                          "{} is not to be consumed: it {}; nothing was deleted now",
                          file.path.native(), fault);
    }
    return {};
}

Result<void> check_kept(const GgufFile& source, const Path& destination, const BuildState& state) {
    for (size_t i = 0; i < source.files().size(); ++i) {
        const GgufFile::File& file = source.files()[i];
        if (state.consumed[i] || !is_kept(file, destination)) continue;
        return make_error(ErrorCode::kNotFound,
                          "{} is missing, and the unfinished pack in {} does not hold all of it; "
                          "put it back where it was", file.path.filename().native(),
                          destination.native());
    }
    return {};
}

Result<void> remove_kept(const Path& destination) {
    std::error_code error;
    std::filesystem::remove_all(destination / kKeptName, error);
    if (!error) return {};
    return make_error(ErrorCode::kIo, "cannot remove {}: {}", (destination / kKeptName).native(),
                      error.message());
}

SourceConsumer::SourceConsumer(GgufFile& source, const BuildPlan& plan, const Path& destination,
                               std::span<const UniqueFd> stripes,
                               std::span<const Path> stripe_paths, const BuildOptions& options,
                               Journal& journal, BuildState& state)
    : source_(source), plan_(plan), destination_(destination), stripes_(stripes),
      stripe_paths_(stripe_paths), options_(options), journal_(journal), state_(state),
      paths_(paths_of(source)) {}

Path SourceConsumer::kept_path(uint32_t file) const {
    return destination_ / kKeptName / plan_.manifest.sources[file].name;
}

void SourceConsumer::tell(ConsumeStep step, uint32_t file) const {
    if (options_.consumed) options_.consumed(step, paths_[file]);
}

Result<void> SourceConsumer::start() {
    XP_TRY(stamps_, stamp_source(source_));
    XP_TRY(buffer_, PageBuffer::allocate(kPieceBytes, "verifying what was written"));
    const Path kept = destination_ / kKeptName;
    if (::mkdir(kept.c_str(), 0755) != 0 && errno != EEXIST) {
        return errno_error(errno, fmt::format("cannot create {}", kept.native()));
    }
    XP_CHECK(sync_directory(destination_));
    for (uint32_t file = 0; file < state_.consumed.size(); ++file) {
        if (!state_.consumed[file] || is_kept(source_.files()[file], destination_)) continue;
        XP_CHECK(delete_file(file));
    }
    return {};
}

// ---- the copy of all but the experts

Result<void> SourceConsumer::open_copy(uint32_t file) {
    if (copied_ == file) return {};
    pieces_.clear();
    const Path path = kept_path(file).native() + ".tmp";
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
        return errno_error(errno, fmt::format("cannot remove {}", path.native()));
    }
    XP_TRY(copy_, open_file(path, O_RDWR | O_CREAT | O_EXCL));
    if (::ftruncate(copy_.get(), static_cast<off_t>(source_.files()[file].bytes)) != 0) {
        return errno_error(errno, fmt::format("cannot set the size of {}", path.native()));
    }
    copied_ = file;
    return {};
}

Result<void> SourceConsumer::keep(uint32_t file, uint64_t offset,
                                  std::span<const std::byte> bytes) {
    if (state_.consumed[file]) return {};
    XP_CHECK(open_copy(file));
    XP_CHECK(write_exact(copy_.get(), offset, bytes, kept_path(file)));
    pieces_.push_back({offset, bytes.size(), xxh3_64(bytes)});
    return {};
}

// Header and padding. They are small and are read once more, as a run that goes on behind them does
// not read them otherwise.
Result<void> SourceConsumer::keep_headers(uint32_t file) {
    for (const BuildStep& step : plan_.steps) {
        if (step.file != file || step.kind != BuildStep::Kind::kSkip) continue;
        for (uint64_t done = 0; done < step.bytes;) {
            const std::span bytes(buffer_.data(), std::min(kPieceBytes, step.bytes - done));
            const GgufFile::File& from = source_.files()[file];
            XP_CHECK(read_exact(from.fd.get(), step.offset + done, bytes, from.path));
            XP_CHECK(keep(file, step.offset + done, bytes));
            done += bytes.size();
        }
    }
    return {};
}

Result<void> SourceConsumer::verify_copy(const Path& path) {
    ::posix_fadvise(copy_.get(), 0, 0, POSIX_FADV_DONTNEED);
    for (const Piece& piece : pieces_) {
        const std::span bytes(buffer_.data(), piece.bytes);
        XP_CHECK(read_exact(copy_.get(), piece.offset, bytes, path));
        if (xxh3_64(bytes) == piece.sum) continue;
        return make_error(ErrorCode::kCorrupt,
                          "{}: {} bytes from {} on are not what was written; the drive is faulty. "
                          "No source file was deleted for it", path.native(), piece.bytes,
                          piece.offset);
    }
    ::posix_fadvise(copy_.get(), 0, 0, POSIX_FADV_DONTNEED);
    return {};
}

// ---- experts

Result<void> SourceConsumer::verify_experts(uint32_t file) {
    for (const UniqueFd& stripe : stripes_) {
        ::posix_fadvise(stripe.get(), 0, 0, POSIX_FADV_DONTNEED);
    }
    for (const BuildStep& step : plan_.steps) {
        if (step.file != file || step.kind != BuildStep::Kind::kExperts) continue;
        const PackLayer& layer = plan_.manifest.layers[step.layer];
        const RoleLayout& role = layer.roles[step.role];
        if (buffer_.bytes() < role.bytes) {
            XP_TRY(buffer_, PageBuffer::allocate(role.bytes, "verifying what was written"));
        }
        matrix_.resize(role.bytes);
        const uint64_t row = row_bytes(role.type, role.cols);
        for (uint32_t e = 0; e < layer.n_experts; ++e) {
            if (options_.cancelled && options_.cancelled()) {
                return make_error(ErrorCode::kCancelled, "the build was cancelled");
            }
            const StripeSpot spot = locate(plan_.manifest, layer, e);
            const uint64_t offset = spot.offset + role.offset;
            const int fd = stripes_[spot.stripe].get();
            XP_CHECK(read_exact(fd, offset, {buffer_.data(), role.bytes},
                                stripe_paths_[spot.stripe]));
            drop_cached(fd, offset, role.bytes);
            for (uint64_t r = 0; r < role.rows; ++r) {
                row_from_layout(role.type, role.layout, buffer_.data() + r * row,
                                matrix_.data() + r * row, role.cols);
            }
            if (sha256(matrix_) == state_.slices[layer.first_object + e][step.role]) continue;
            return make_error(ErrorCode::kCorrupt,
                              "{}: {} of {} is not what was read from {}; the drive is faulty. {} "
                              "was not deleted", stripe_paths_[spot.stripe].native(),
                              role_name(static_cast<ExpertRole>(step.role)),
                              describe_object(plan_.manifest, layer, e), paths_[file].native(),
                              paths_[file].native());
        }
    }
    return {};
}

// ---- the file

bool SourceConsumer::is_due(uint32_t file) const {
    return std::find(state_.consumed.begin(), state_.consumed.begin() + file, false) !=
           state_.consumed.begin() + file;
}

Result<void> SourceConsumer::consume_before(uint32_t file) {
    for (uint32_t i = 0; i < file; ++i) {
        if (!state_.consumed[i]) XP_CHECK(consume(i));
    }
    return {};
}

Result<void> SourceConsumer::consume(uint32_t file) {
    XP_ASSERT(state_.finished_files.size() > file);
    const Path path = kept_path(file);
    const Path partial = path.native() + ".tmp";
    XP_CHECK(open_copy(file));
    XP_CHECK(keep_headers(file));
    const timespec times[2] = {
        {.tv_sec = 0, .tv_nsec = UTIME_OMIT},
        {.tv_sec = stamps_[file].modified_ns / 1'000'000'000,
         .tv_nsec = stamps_[file].modified_ns % 1'000'000'000}};
    struct stat info;
    if (::futimens(copy_.get(), times) != 0 || ::fstat(copy_.get(), &info) != 0) {
        return errno_error(errno, fmt::format("cannot set the time of {}", partial.native()));
    }
    if (stamp_of(info) != stamps_[file]) {
        return make_error(ErrorCode::kUnsupported,
                          "the file system of {} does not keep times exactly; build without "
                          "--consume", destination_.native());
    }
    XP_CHECK(sync_file(copy_.get(), partial));
    if (::rename(partial.c_str(), path.c_str()) != 0) {
        return errno_error(errno, fmt::format("cannot rename {}", partial.native()));
    }
    XP_CHECK(sync_directory(path.parent_path()));
    tell(ConsumeStep::kKept, file);
    XP_CHECK(verify_copy(path));
    XP_CHECK(verify_experts(file));
    copied_ = UINT32_MAX;
    copy_.reset();
    tell(ConsumeStep::kVerified, file);
    state_.consumed[file] = true;
    journal_.record_consumed(state_, file);
    XP_CHECK(journal_.flush());
    tell(ConsumeStep::kJournalled, file);
    return delete_file(file);
}

// Only the file that was read: the name may mean another one by now.
Result<void> SourceConsumer::delete_file(uint32_t file) {
    const Path& path = paths_[file];
    struct stat named, opened;
    if (::lstat(path.c_str(), &named) != 0 ||
        ::fstat(source_.files()[file].fd.get(), &opened) != 0) {
        return errno_error(errno, fmt::format("cannot look at {}", path.native()));
    }
    if (named.st_dev != opened.st_dev || named.st_ino != opened.st_ino ||
        stamp_of(opened) != stamps_[file]) {
        return make_error(ErrorCode::kCorrupt,
                          "{} was changed while it was read, and was not deleted; remove {} and "
                          "build again", path.native(), destination_.native());
    }
    if (const std::string fault = deletion_fault(path); !fault.empty()) {
        return make_error(ErrorCode::kInvalidArgument, "{} was not deleted: it {}", path.native(),
                          fault);
    }
    // First, so that nothing is read from a file without a name, whose room is only given back when
    // it is closed.
    XP_CHECK(source_.replace_file(file, kept_path(file)));
    if (::unlink(path.c_str()) != 0) {
        return errno_error(errno, fmt::format("cannot delete {}", path.native()));
    }
    XP_CHECK(sync_directory(path.has_parent_path() ? path.parent_path() : Path(".")));
    tell(ConsumeStep::kDeleted, file);
    return {};
}

Result<void> verify_resident(const GgufFile& source, const BuildPlan& plan, const Path& destination,
                             const BuildState& state) {
    const Path path = destination / kResidentName;
    XP_TRY(const GgufFile resident, GgufFile::open(path));
    ::posix_fadvise(resident.files()[0].fd.get(), 0, 0, POSIX_FADV_DONTNEED);
    std::vector<std::byte> kept(kPieceBytes), found(kPieceBytes);
    for (const size_t index : plan.resident_steps) {
        const BuildStep& step = plan.steps[index];
        if (!state.consumed[step.file]) continue;
        const TensorInfo* tensor = resident.find_tensor(step.tensor->name);
        bool same = tensor != nullptr && tensor->bytes == step.bytes;
        for (uint64_t done = 0; same && done < step.bytes; done += kPieceBytes) {
            const uint64_t n = std::min(kPieceBytes, step.bytes - done);
            XP_CHECK(source.read_tensor(*step.tensor, done, {kept.data(), n}));
            XP_CHECK(resident.read_tensor(*tensor, done, {found.data(), n}));
            same = std::equal(kept.begin(), kept.begin() + static_cast<ptrdiff_t>(n),
                              found.begin());
        }
        if (same) continue;
        return make_error(ErrorCode::kCorrupt,
                          "{}: tensor {} is not what was written; the drive is faulty. It is still "
                          "in {}", path.native(), step.tensor->name,
                          source.files()[step.file].path.native());
    }
    return {};
}

}  // namespace xp
