#include "daemon/pack/destination.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>
#include <utility>

#include "daemon/base/size.h"
#include "daemon/pack/consume.h"
#include "daemon/pack/format.h"

namespace xp {

namespace {

// Manifest, journal header and directory blocks.
constexpr uint64_t kSmallFilesBytes = uint64_t{2} << 20;

// A path that stays right when the working directory changes. What ends in ".." goes where the
// kernel goes, which behind a symbolic link is not where the text seems to; the rest stays as it
// was written.
Path absolute_path(const Path& path) {
    std::error_code error;
    const Path absolute = std::filesystem::absolute(path, error);
    Path above;  // up to the last ".."
    Path below;
    for (const Path& part : absolute) {
        below /= part;
        if (part == "..") above /= std::exchange(below, Path());
    }
    if (!above.empty()) {
        above = std::filesystem::canonical(above, error);
        if (error) return absolute;  // opening it says why
    }
    Path normal = (above / below).lexically_normal();
    if (!normal.has_filename()) normal = normal.parent_path();  // "pack/" and "pack"
    return normal;
}

bool is_there(const Path& path) {
    struct stat info;
    return ::lstat(path.c_str(), &info) == 0;
}

// Bytes the file already has on its drive, at most `limit`.
uint64_t allocated_bytes(const Path& path, uint64_t limit) {
    struct stat info;
    if (::stat(path.c_str(), &info) != 0) return 0;
    return std::min(static_cast<uint64_t>(info.st_blocks) * 512, limit);
}

uint64_t journal_bytes_of(const BuildPlan& plan) {
    // Per object 3 entries of 40 bytes in hexadecimal; per record the hash state and file digests.
    const uint64_t records = plan.manifest.layers.size() * kExpertRoles;
    return plan.manifest.n_objects * kExpertRoles * 80 +
           records * (512 + 64 * plan.manifest.sources.size());
}

Result<void> allocate(int fd, uint64_t bytes, const Path& path) {
    int rc;
    do {
        rc = ::fallocate(fd, 0, 0, static_cast<off_t>(bytes));
    } while (rc != 0 && errno == EINTR);
    if (rc == 0) return {};
    if (errno != EOPNOTSUPP && errno != ENOSYS) {
        return errno_error(errno, fmt::format("cannot allocate {} bytes for {}", bytes,
                                              path.native()));
    }
    // Without preallocation the file only gets its size, and a full drive shows later.
    if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
        return errno_error(errno, fmt::format("cannot set the size of {}", path.native()));
    }
    return {};
}

}  // namespace

Result<void> check_free_space(const Path& directory, uint64_t bytes, uint64_t reserve_bytes) {
    struct statvfs info;
    if (::statvfs(directory.c_str(), &info) != 0) {
        return errno_error(errno,
                           fmt::format("cannot ask for free space at {}", directory.native()));
    }
    const uint64_t free_bytes = uint64_t{info.f_bavail} * info.f_frsize;
    if (free_bytes >= bytes && free_bytes - bytes >= reserve_bytes) return {};
    return make_error(ErrorCode::kNoSpace,
                      "not enough space on the file system of {}: {} ({} bytes) are needed and "
                      "{} are to stay free, but {} ({} bytes) are free; make room, or put "
                      "stripes on other drives", directory.native(), format_size(bytes), bytes,
                      format_size(reserve_bytes), format_size(free_bytes), free_bytes);
}

Result<Destination> Destination::open(const Path& directory,
                                      const std::vector<Path>& stripe_directories,
                                      Existing existing) {
    Destination destination;
    destination.directory_ = absolute_path(directory);
    if (stripe_directories.size() + 1 > kMaxStripes) {
        return make_error(ErrorCode::kInvalidArgument, "{} stripes; at most {} are supported",
                          stripe_directories.size() + 1, kMaxStripes);
    }
    const std::string pack_name = destination.directory_.filename().native();
    destination.stripe_names_.push_back("experts.000.xpk");
    destination.stripe_paths_.push_back(destination.directory_ / "experts.000.xpk");
    for (size_t s = 1; s <= stripe_directories.size(); ++s) {
        // A directory for stripes may serve several packs, so the name says which.
        const Path path = absolute_path(stripe_directories[s - 1]) /
                          fmt::format("{}.experts.{:03}.xpk", pack_name, s);
        std::error_code ignored;
        if (!std::filesystem::is_directory(path.parent_path(), ignored)) {
            return make_error(ErrorCode::kInvalidArgument,
                              "{}, named for a stripe, is not a directory",
                              path.parent_path().native());
        }
        if (std::filesystem::equivalent(destination.directory_, path.parent_path(), ignored)) {
            return make_error(ErrorCode::kInvalidArgument,
                              "{}, named for a stripe, is the directory of the pack, which has one "
                              "already; stripes are for different drives",
                              stripe_directories[s - 1].native());
        }
        for (size_t other = 0; other + 1 < s; ++other) {
            if (!std::filesystem::equivalent(stripe_directories[other], path.parent_path(),
                                             ignored)) {
                continue;
            }
            return make_error(ErrorCode::kInvalidArgument,
                              "{} and {}, named for two stripes, are the same directory; stripes "
                              "are for different drives, name each once",
                              stripe_directories[other].native(),
                              stripe_directories[s - 1].native());
        }
        if (!is_utf8(path.native())) {
            return make_error(ErrorCode::kInvalidArgument,
                              "{} is not UTF-8 and cannot be named in a manifest",
                              path.parent_path().native());
        }
        destination.stripe_names_.push_back(path.native());
        destination.stripe_paths_.push_back(path);
    }
    XP_CHECK(destination.lock());
    if (existing == Existing::kReplace) XP_CHECK(destination.remove_pack());
    XP_CHECK(destination.refuse_strangers());
    return destination;
}

Destination::~Destination() {
    if (created_ && lock_) ::rmdir(directory_.c_str());  // fails, as it should, when not empty
}

Result<void> Destination::lock() {
    if (::mkdir(directory_.c_str(), 0755) == 0) {
        created_ = true;
    } else if (errno != EEXIST) {
        return errno_error(errno, fmt::format("cannot create {}", directory_.native()));
    }
    struct stat info;
    if (::stat(directory_.c_str(), &info) == 0 && !S_ISDIR(info.st_mode)) {
        return make_error(ErrorCode::kInvalidArgument,
                          "{} is a file; the destination of a pack is a directory",
                          directory_.native());
    }
    XP_TRY(UniqueFd fd, open_file(directory_, O_RDONLY | O_DIRECTORY));
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK) {
            return make_error(ErrorCode::kBusy, "another builder is at work on {}",
                              directory_.native());
        }
        return errno_error(errno, fmt::format("cannot lock {}", directory_.native()));
    }
    lock_ = std::move(fd);
    return {};
}

// Writing through a link would overwrite a file that is no part of the pack. Every file is opened
// with O_NOFOLLOW besides; here it is told before anything is written, and in plain words.
Result<void> Destination::refuse_links() const {
    std::vector<Path> paths = stripe_paths_;
    for (const std::string& name : own_names()) paths.push_back(directory_ / name);
    for (const Path& path : paths) {
        struct stat info;
        if (::lstat(path.c_str(), &info) != 0) continue;
        const char* what = S_ISLNK(info.st_mode)    ? "a symbolic link"
                           : !S_ISREG(info.st_mode) ? "not a regular file"
                           : info.st_nlink > 1      ? "one of several names of a file"
                                                    : nullptr;
        if (what == nullptr) continue;
        return make_error(ErrorCode::kInvalidArgument,
                          "{} is {}, where a build writes a file of its own; remove it, or choose "
                          "another destination", path.native(), what);
    }
    return {};
}

std::vector<std::string> Destination::own_names() const {
    return {kManifestName, kJournalName, kIndexName, kResidentName, stripe_names_[0],
            fmt::format("{}.tmp", kManifestName), fmt::format("{}.tmp", kIndexName)};
}

Result<void> Destination::refuse_strangers() const {
    if (is_there(directory_ / kManifestName)) {
        // A crash right after the manifest appeared leaves these behind.
        (void)remove_kept(directory_);
        ::unlink((directory_ / kJournalName).c_str());
        return make_error(ErrorCode::kInvalidArgument,
                          "{} already holds a complete pack; choose another destination, or remove "
                          "it first", directory_.native());
    }
    XP_CHECK(refuse_links());
    if (is_there(directory_ / kJournalName)) return {};
    std::error_code error;
    const bool empty = std::filesystem::is_empty(directory_, error);
    if (error) {
        return make_error(ErrorCode::kIo, "cannot list {}: {}", directory_.native(),
                          error.message());
    }
    if (!empty) {
        return make_error(ErrorCode::kInvalidArgument,
                          "{} is not empty and holds no unfinished pack; choose another "
                          "destination", directory_.native());
    }
    return {};
}

Result<void> Destination::remove_pack() const {
    // The manifest first: without it, what a crash leaves is no pack.
    const std::vector<std::string> names = own_names();
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(directory_, error)) {
        if (std::ranges::find(names, entry.path().filename().native()) != names.end()) continue;
        return make_error(ErrorCode::kInvalidArgument,
                          "{} holds {}, which is no part of a pack; choose another destination",
                          directory_.native(), entry.path().filename().native());
    }
    if (is_there(directory_ / kManifestName)) {
        XP_TRY(const Manifest manifest, read_manifest(directory_));
        for (const PackStripe& stripe : manifest.stripes) {
            if (!Path(stripe.path).is_absolute()) continue;
            return make_error(ErrorCode::kInvalidArgument,
                              "the pack in {} has a stripe elsewhere, {}; remove it by hand",
                              directory_.native(), stripe.path);
        }
    }
    for (const std::string& name : names) {
        const Path path = directory_ / name;
        if (::unlink(path.c_str()) == 0 || errno == ENOENT) continue;
        return errno_error(errno, fmt::format("cannot remove {}", path.native()));
    }
    return {};
}

void Destination::discard() {
    if (!owns_files_) return;
    (void)remove_pack();
    for (const Path& path : stripe_paths_) ::unlink(path.c_str());
    stripe_fds_.clear();
}

Result<Journal> Destination::prepare(
    const GgufFile& source, const BuildPlan& plan, const BuildOptions& options,
    const std::function<Result<void>(const BuildState&)>& check, BuildState& state) {
    XP_TRY(std::optional<Journal> resumed, Journal::resume(directory_, plan, state));
    XP_CHECK(check(state));
    const bool fresh = !resumed;
    if (fresh) XP_CHECK(refuse_stripes());
    // One that was begun so has stripes that are not allocated.
    const bool lean = options.consume || is_there(directory_ / kKeptName);
    if (lean) {
        XP_CHECK(check_room(source, plan, state, options.reserve_bytes));
    } else {
        XP_CHECK(check_space(plan.manifest, plan.resident_bytes, journal_bytes_of(plan),
                             options.reserve_bytes));
    }
    if (fresh) {
        XP_TRY(Journal created, Journal::create(directory_, plan));
        resumed.emplace(std::move(created));
    }
    XP_CHECK(open_stripes(plan.manifest, fresh, state.next_step > 0, !lean));
    return std::move(*resumed);
}

// Goes through the files as the build will, adding what each takes and then what its end gives, and
// remembers for each file system the most there is at a time.
Result<void> Destination::check_room(const GgufFile& source, const BuildPlan& plan,
                                     const BuildState& state, uint64_t reserve_bytes) const {
    struct Room {
        Path directory;
        int64_t taken = 0;
        int64_t most = 0;
    };
    std::map<dev_t, Room> rooms;
    std::vector<dev_t> stripe_devices;
    for (const Path& path : stripe_paths_) {
        struct stat info;
        if (::stat(path.parent_path().c_str(), &info) != 0) {
            return errno_error(errno,
                               fmt::format("cannot stat {}", path.parent_path().native()));
        }
        stripe_devices.push_back(info.st_dev);
        rooms.try_emplace(info.st_dev, Room{path.parent_path()});
    }
    const auto take = [&](dev_t device, uint64_t bytes) {
        Room& room = rooms[device];
        room.taken += static_cast<int64_t>(bytes);
        room.most = std::max(room.most, room.taken);
    };
    const Path resident = directory_ / kResidentName;
    const dev_t own = stripe_devices[0];
    take(own, index_bytes(plan.manifest) + journal_bytes_of(plan) + kSmallFilesBytes);
    take(own, plan.resident_bytes - allocated_bytes(resident, plan.resident_bytes));
    size_t index = 0;
    for (uint32_t file = 0; file < source.files().size(); ++file) {
        for (; index < plan.steps.size() && plan.steps[index].file == file; ++index) {
            const BuildStep& step = plan.steps[index];
            if (step.kind != BuildStep::Kind::kExperts) {
                if (!state.consumed[file]) take(own, step.bytes);  // its copy in source.kept
            } else if (index >= state.next_step) {
                const PackLayer& layer = plan.manifest.layers[step.layer];
                const uint64_t segment =
                    segment_end(layer, step.role) - layer.roles[step.role].offset;
                const size_t n = stripe_devices.size();
                for (size_t s = 0; s < n; ++s) {
                    take(stripe_devices[s], objects_in_stripe(layer.n_experts, n, s) * segment);
                }
            }
        }
        struct stat info;
        if (state.consumed[file] || ::fstat(source.files()[file].fd.get(), &info) != 0) continue;
        if (const auto room = rooms.find(info.st_dev); room != rooms.end()) {
            room->second.taken -= static_cast<int64_t>(info.st_blocks) * 512;
        }
    }
    for (const auto& [device, room] : rooms) {
        XP_CHECK(check_free_space(room.directory, static_cast<uint64_t>(room.most),
                                  reserve_bytes));
    }
    return {};
}

Result<void> Destination::prepare_without_journal(const Manifest& manifest,
                                                  uint64_t resident_bytes,
                                                  uint64_t reserve_bytes) {
    if (is_there(directory_ / kJournalName)) {
        return make_error(ErrorCode::kInvalidArgument,
                          "{} holds an unfinished pack that another builder can go on with; choose "
                          "another destination, or remove it first", directory_.native());
    }
    XP_CHECK(refuse_stripes());
    XP_CHECK(check_space(manifest, resident_bytes, 0, reserve_bytes));
    owns_files_ = true;
    return open_stripes(manifest, /*fresh=*/true, /*has_bytes=*/false);
}

Result<void> Destination::refuse_stripes() const {
    for (const Path& path : stripe_paths_) {
        if (!is_there(path)) continue;
        return make_error(ErrorCode::kInvalidArgument,
                          "{} exists and belongs to no build known here; remove it, or choose "
                          "another place", path.native());
    }
    return {};
}

Result<void> Destination::check_space(const Manifest& manifest, uint64_t resident_bytes,
                                      uint64_t journal_bytes, uint64_t reserve_bytes) const {
    struct Need {
        Path directory;
        uint64_t bytes = 0;
    };
    std::map<dev_t, Need> needs;
    const auto add = [&](const Path& file, uint64_t bytes) -> Result<void> {
        struct stat info;
        if (::stat(file.parent_path().c_str(), &info) != 0) {
            return errno_error(errno,
                               fmt::format("cannot stat {}", file.parent_path().native()));
        }
        Need& need = needs[info.st_dev];
        if (need.directory.empty()) need.directory = file.parent_path();
        need.bytes += bytes - allocated_bytes(file, bytes);
        return {};
    };
    for (size_t s = 0; s < stripe_paths_.size(); ++s) {
        XP_CHECK(add(stripe_paths_[s], manifest.stripes[s].bytes));
    }
    XP_CHECK(add(directory_ / kResidentName, resident_bytes));
    XP_CHECK(add(directory_ / kIndexName, index_bytes(manifest)));
    XP_CHECK(add(directory_ / kJournalName, journal_bytes));
    XP_CHECK(add(directory_ / kManifestName, kSmallFilesBytes));
    for (const auto& [device, need] : needs) {
        XP_CHECK(check_free_space(need.directory, need.bytes, reserve_bytes));
    }
    return {};
}

Result<void> Destination::open_stripes(const Manifest& manifest, bool fresh, bool has_bytes,
                                       bool allocated) {
    for (size_t s = 0; s < stripe_paths_.size(); ++s) {
        const Path& path = stripe_paths_[s];
        const int create = has_bytes ? 0 : O_CREAT | (fresh ? O_EXCL : 0);
        XP_TRY(UniqueFd fd, open_file(path, O_RDWR | O_NOFOLLOW | create));
        const uint64_t bytes = manifest.stripes[s].bytes;
        XP_TRY(const uint64_t found, file_size(fd.get(), path));
        if (has_bytes && found != bytes) {
            return make_error(ErrorCode::kCorrupt,
                              "{} of the unfinished build has {} bytes, not {}; remove {} to start "
                              "again", path.native(), found, bytes, directory_.native());
        }
        if (allocated) {
            XP_CHECK(allocate(fd.get(), bytes, path));
        } else if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
            return errno_error(errno, fmt::format("cannot set the size of {}", path.native()));
        }
        XP_CHECK(sync_file(fd.get(), path));
        XP_CHECK(sync_directory(path.parent_path()));
        stripe_fds_.push_back(std::move(fd));
    }
    return {};
}

}  // namespace xp
