#include "daemon/gguf/split.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_map>

#include <fmt/ranges.h>

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

std::vector<Path> shard_paths(const Path& one, const ShardName& name) {
    std::vector<Path> paths;
    for (uint64_t i = 1; i <= name.total; ++i) {
        paths.push_back(one.parent_path() /
                        fmt::format("{}-{:05}-of-{:05}.gguf", name.prefix, i, name.total));
    }
    return paths;
}

Result<void> check_all_present(const std::vector<Path>& paths) {
    std::vector<std::string> missing;
    for (const Path& path : paths) {
        std::error_code ignored;
        if (!std::filesystem::exists(path, ignored)) missing.push_back(path.filename().native());
    }
    if (missing.empty()) return {};
    const Path directory = paths[0].parent_path();
    return make_error(ErrorCode::kNotFound, "{} of the model's {} shards are missing in {}: {}",
                      missing.size(), paths.size(), directory.empty() ? "." : directory.native(),
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

Result<std::vector<GgufShard>> load_set(GgufShard given, uint64_t count) {
    const Path path = given.file.path;
    const auto name = parse_shard_name(path);
    if (!name || name->total != count) {
        return make_error(ErrorCode::kCorrupt,
                          "{}: this is one of {} shards (key 'split.count'), but its name does not "
                          "end in -NNNNN-of-{:05}.gguf, so the others cannot be found: restore the "
                          "original names", path.native(), count, count);
    }
    const std::vector<Path> paths = shard_paths(path, *name);
    XP_CHECK(check_all_present(paths));
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

}  // namespace

Result<std::vector<GgufShard>> load_shards(const Path& path) {
    std::error_code ignored;
    Path file = path;
    if (std::filesystem::is_directory(path, ignored)) {
        XP_TRY(file, find_in_directory(path));
    }
    if (!std::filesystem::exists(file, ignored)) {
        // Of a set that is there in part, say everything that is missing and not only this one.
        const auto name = parse_shard_name(file);
        if (name && name->total <= kMaxShards) {
            const std::vector<Path> paths = shard_paths(file, *name);
            const bool some = std::any_of(paths.begin(), paths.end(), [](const Path& one) {
                std::error_code unused;
                return std::filesystem::exists(one, unused);
            });
            if (some) XP_CHECK(check_all_present(paths));
        }
    }
    XP_TRY(GgufShard given, parse_shard(file));
    auto count = stated_count(given);
    if (!count) return std::move(count).error().with_context(file.native());
    if (*count > 1) return load_set(std::move(given), *count);
    std::vector<GgufShard> shards;
    shards.push_back(std::move(given));
    return shards;
}

}  // namespace xp
