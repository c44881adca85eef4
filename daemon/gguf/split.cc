#include "daemon/gguf/split.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_map>

#include <fmt/ranges.h>

#include "daemon/base/assert.h"
#include "daemon/gguf/cursor.h"

namespace xp {
namespace {

// Every shard keeps a descriptor open and services usually may have 1024; the largest published
// sets have fewer than 200 shards.
constexpr uint64_t kMaxShards = 512;

// Enough to see the pattern in a directory with many models.
constexpr size_t kMaxListedModels = 10;

struct ShardName {
    std::string prefix;
    uint64_t number = 0;  // from 1
    uint64_t total = 0;
};

std::optional<uint64_t> parse_five_digits(std::string_view text) {
    uint64_t number = 0;
    for (const char c : text) {
        if (c < '0' || c > '9') return std::nullopt;
        number = 10 * number + static_cast<uint64_t>(c - '0');
    }
    return number;
}

std::optional<ShardName> parse_shard_name(const Path& path) {
    const std::string name = path.filename().native();
    constexpr size_t kSuffixBytes = std::string_view("-00001-of-00038.gguf").size();
    if (name.size() <= kSuffixBytes) return std::nullopt;
    const size_t start = name.size() - kSuffixBytes;
    const std::string_view suffix = std::string_view(name).substr(start);
    if (suffix[0] != '-' || suffix.substr(6, 4) != "-of-" || suffix.substr(15) != ".gguf") {
        return std::nullopt;
    }
    const auto number = parse_five_digits(suffix.substr(1, 5));
    const auto total = parse_five_digits(suffix.substr(10, 5));
    if (!number || !total || *number < 1 || *number > *total) return std::nullopt;
    return ShardName{name.substr(0, start), *number, *total};
}

// Where the files of a model are looked for, in this order.
using Directories = std::vector<Path>;

std::optional<Path> find_file(const Directories& directories, const std::string& name) {
    for (const Path& directory : directories) {
        std::error_code ignored;
        if (std::filesystem::exists(directory / name, ignored)) return directory / name;
    }
    return std::nullopt;
}

std::vector<std::string> shard_names(const ShardName& name) {
    std::vector<std::string> names;
    for (uint64_t i = 1; i <= name.total; ++i) {
        names.push_back(fmt::format("{}-{:05}-of-{:05}.gguf", name.prefix, i, name.total));
    }
    return names;
}

Result<std::vector<Path>> find_all(const Directories& directories,
                                   const std::vector<std::string>& names) {
    std::vector<Path> paths;
    std::vector<std::string> missing;
    for (const std::string& name : names) {
        if (std::optional<Path> path = find_file(directories, name)) {
            paths.push_back(*std::move(path));
        } else {
            missing.push_back(name);
        }
    }
    if (missing.empty()) return paths;
    std::vector<std::string> places;
    for (const Path& directory : directories) {
        places.push_back(directory.empty() ? "." : directory.native());
    }
    return make_error(ErrorCode::kNotFound, "{} of the model's {} shards are missing in {}: {}",
                      missing.size(), names.size(), fmt::join(places, ", "),
                      fmt::join(missing, ", "));
}

// The one model in a directory: a file of it that exists.
Result<Path> find_in_directory(const Path& directory) {
    std::error_code error;
    std::set<Path> files;
    std::filesystem::directory_iterator entry(directory, error);
    for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
        if (entry->path().extension() == ".gguf") files.insert(entry->path());
    }
    if (error) {
        return errno_error(error.value(), fmt::format("cannot list {}", directory.native()));
    }
    std::set<std::string> models;
    for (const Path& file : files) {
        const auto name = parse_shard_name(file);
        models.insert(name ? fmt::format("{} in {} shards", name->prefix, name->total)
                           : file.filename().native());
    }
    if (models.empty()) {
        return make_error(ErrorCode::kNotFound, "{} has no .gguf file", directory.native());
    }
    if (models.size() > 1) {
        const size_t n_listed = std::min(models.size(), kMaxListedModels);
        const auto last = std::next(models.begin(), static_cast<ptrdiff_t>(n_listed));
        return make_error(ErrorCode::kInvalidArgument,
                          "{} holds {} models ({}{}); name one file", directory.native(),
                          models.size(), fmt::join(models.begin(), last, ", "),
                          n_listed < models.size() ? ", ..." : "");
    }
    return *files.begin();
}

Result<void> check_split_keys(const GgufShard& shard, uint64_t index, uint64_t count) {
    XP_TRY(const uint64_t number, shard.metadata.get_uint("split.no"));
    if (number != index) {
        return make_error(ErrorCode::kCorrupt,
                          "key 'split.no' is {}, but by its name this is shard {} counted from 0; "
                          "was it renamed?", number, index);
    }
    XP_TRY(const uint64_t own_count, shard.metadata.get_uint("split.count"));
    if (own_count != count) {
        return make_error(ErrorCode::kCorrupt, "key 'split.count' is {}, but the set has {} shards",
                          own_count, count);
    }
    return {};
}

Result<void> check_tensor_total(const GgufShard& shard, uint64_t n_tensors) {
    XP_TRY(const uint64_t total, shard.metadata.get_uint("split.tensors.count"));
    if (total != n_tensors) {
        return make_error(ErrorCode::kCorrupt, "key 'split.tensors.count' is {}, but the shards "
                          "together have {} tensors", total, n_tensors);
    }
    return {};
}

Result<void> check_unique_names(const std::vector<GgufShard>& shards) {
    std::unordered_map<std::string_view, const GgufShard*> owners;
    for (const GgufShard& shard : shards) {
        for (const TensorInfo& tensor : shard.tensors) {
            const auto [owner, added] = owners.try_emplace(tensor.name, &shard);
            if (!added) {
                return make_error(ErrorCode::kCorrupt, "tensor {} is in both {} and {}",
                                  quote_name(tensor.name), owner->second->file.path.native(),
                                  shard.file.path.native());
            }
        }
    }
    return {};
}

Result<void> check_set(const std::vector<GgufShard>& shards) {
    uint64_t n_tensors = 0;
    for (size_t i = 0; i < shards.size(); ++i) {
        n_tensors += shards[i].tensors.size();
        if (auto checked = check_split_keys(shards[i], i, shards.size()); !checked) {
            return std::move(checked).error().with_context(shards[i].file.path.native());
        }
    }
    for (const GgufShard& shard : shards) {
        if (auto checked = check_tensor_total(shard, n_tensors); !checked) {
            return std::move(checked).error().with_context(shard.file.path.native());
        }
    }
    return check_unique_names(shards);
}

// The shard count a file states; 1 when it is a whole model.
Result<uint64_t> stated_count(const GgufShard& shard) {
    XP_TRY(const uint64_t count, shard.metadata.get_uint_or("split.count", 1));
    if (count > kMaxShards) {
        return make_error(ErrorCode::kLimit, "key 'split.count' is {}; at most {} shards are "
                          "supported: merge some of them", count, kMaxShards);
    }
    return std::max<uint64_t>(count, 1);
}

Result<std::vector<GgufShard>> load_set(GgufShard given, uint64_t count,
                                        const Directories& directories) {
    const Path path = given.file.path;
    const auto name = parse_shard_name(path);
    if (!name || name->total != count) {
        return make_error(ErrorCode::kCorrupt,
                          "{}: this is one of {} shards (key 'split.count'), but its name does not "
                          "end in -NNNNN-of-{:05}.gguf, so the others cannot be found: restore the "
                          "original names", path.native(), count, count);
    }
    XP_TRY(const std::vector<Path> paths, find_all(directories, shard_names(*name)));
    std::vector<GgufShard> shards(count);
    for (uint64_t i = 0; i < count; ++i) {
        if (i + 1 == name->number) {
            shards[i] = std::move(given);
        } else {
            XP_TRY(shards[i], parse_shard(paths[i]));
        }
        for (TensorInfo& tensor : shards[i].tensors) tensor.file = static_cast<uint32_t>(i);
    }
    XP_CHECK(check_set(shards));
    return shards;
}

bool is_folder(const Path& path) {
    std::error_code ignored;
    return std::filesystem::is_directory(path, ignored);
}

// The file that names the model: the first place, or what is in it.
Result<Path> find_model(std::span<const Path> places) {
    if (!is_folder(places[0])) return places[0];
    Result<Path> found = find_in_directory(places[0]);
    // All that was there may have moved to another place.
    for (const Path& place : places.subspan(1)) {
        if (found || found.error().code != ErrorCode::kNotFound) break;
        if (Result<Path> other = find_in_directory(place)) found = *std::move(other);
    }
    return found;
}

Result<void> check_places(std::span<const Path> places, const std::vector<std::string>& names) {
    for (const Path& place : places) {
        if (is_folder(place)) continue;
        if (std::ranges::find(names, place.filename().native()) != names.end()) continue;
        return make_error(ErrorCode::kInvalidArgument, "{} is not one of the {} files of the model "
                          "that {} belongs to", place.native(), names.size(), names[0]);
    }
    return {};
}

}  // namespace

Result<std::vector<GgufShard>> load_shards(std::span<const Path> places) {
    XP_ASSERT(!places.empty());
    XP_TRY(Path file, find_model(places));
    Directories directories;
    for (const Path& place : places) {
        directories.push_back(is_folder(place) ? place : place.parent_path());
    }
    const auto name = parse_shard_name(file);
    std::vector<std::string> names = {file.filename().native()};
    if (name && name->total <= kMaxShards) names = shard_names(*name);
    if (places.size() > 1) XP_CHECK(check_places(places, names));
    std::error_code ignored;
    if (!std::filesystem::exists(file, ignored)) {
        // Any file of the set will do. Of one that is there in part, all that is missing is told,
        // and not only this file.
        for (const std::string& other : names) {
            const std::optional<Path> path = find_file(directories, other);
            if (!path) continue;
            file = *path;
            if (places.size() == 1) XP_CHECK(find_all(directories, names));
            break;
        }
    }
    XP_TRY(GgufShard given, parse_shard(file));
    auto count = stated_count(given);
    if (!count) return std::move(count).error().with_context(file.native());
    if (*count > 1) return load_set(std::move(given), *count, directories);
    std::vector<GgufShard> shards;
    shards.push_back(std::move(given));
    return shards;
}

}  // namespace xp
