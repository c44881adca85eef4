// Reading GGUF files: metadata and tensor directory of one model, which may lie in several shards.
//
// The reader trusts nothing: counts and lengths are checked against the file size before anything
// is allocated, all arithmetic is checked, tensors must lie inside the file, aligned and without
// overlap. Errors name the file, the key or tensor, and the offset. Weights are never mapped; they
// are read with read_tensor() or, from packs, through daemon/io.
//
// A GgufFile is immutable after open(), but for replace_file(), and may be used by several threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "daemon/base/file.h"
#include "daemon/base/result.h"
#include "daemon/gguf/types.h"

namespace xp {

enum class GgufValueType : uint32_t {
    kU8 = 0, kI8 = 1, kU16 = 2, kI16 = 3, kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kString = 8,
    kArray = 9, kU64 = 10, kI64 = 11, kF64 = 12,
};

struct GgufValue;

// Array elements are held in the widest form of their kind; element_type keeps the stored width so
// that a copy writes the same bytes.
struct GgufArray {
    GgufValueType element_type = GgufValueType::kU8;
    std::variant<std::vector<uint64_t>,     // unsigned widths and bool
                 std::vector<int64_t>,      // signed widths
                 std::vector<double>,       // f32 and f64
                 std::vector<std::string>,
                 std::vector<GgufArray>>    // nested, up to depth 4; carried, never needed
        elements;
    uint64_t size() const;
};

struct GgufValue {
    GgufValueType type = GgufValueType::kU8;
    std::variant<uint64_t, int64_t, double, bool, std::string, GgufArray> value;

    static GgufValue u32(uint32_t v);
    static GgufValue u64(uint64_t v);
    static GgufValue i32(int32_t v);
    static GgufValue f32(float v);
    static GgufValue boolean(bool v);
    static GgufValue string(std::string v);
    static GgufValue strings(std::vector<std::string> v);
    static GgufValue i32s(std::vector<int64_t> v);
    static GgufValue f32s(std::vector<double> v);
};

// Key-value pairs in file order. Getters convert between integer widths when the value fits and
// between f32 and f64, and take a scalar as a one-element list. A missing key is kNotFound, a
// value of another kind or out of range kCorrupt; both name the key.
class GgufMetadata {
public:
    bool contains(std::string_view key) const { return find(key) != nullptr; }
    const GgufValue* find(std::string_view key) const;

    Result<uint64_t> get_uint(std::string_view key, uint64_t max = UINT32_MAX) const;
    Result<uint64_t> get_uint_or(std::string_view key, uint64_t fallback,
                                 uint64_t max = UINT32_MAX) const;
    Result<float> get_float(std::string_view key) const;
    Result<float> get_float_or(std::string_view key, float fallback) const;
    Result<bool> get_bool_or(std::string_view key, bool fallback) const;
    Result<std::string> get_string(std::string_view key) const;
    Result<std::vector<int64_t>> get_ints(std::string_view key) const;
    Result<std::vector<float>> get_floats(std::string_view key) const;
    // Without a copy: vocabularies are large. Valid as long as this object is unchanged.
    Result<std::span<const std::string>> get_strings(std::string_view key) const;

    // Replaces in place or appends.
    void set(std::string_view key, GgufValue value);
    void erase(std::string_view key);

    struct Entry {
        std::string key;
        GgufValue value;
    };
    std::span<const Entry> entries() const { return entries_; }

private:
    std::vector<Entry> entries_;
    std::unordered_map<std::string, size_t> index_;
};

struct TensorInfo {
    std::string name;
    GgmlType type = GgmlType::kF32;
    uint32_t n_dims = 0;
    std::array<uint64_t, 4> ne = {1, 1, 1, 1};  // ne[0] is the contiguous (row) dimension
    uint32_t file = 0;                          // index into GgufFile::files()
    uint64_t offset = 0;                        // absolute, in that file
    uint64_t bytes = 0;

    uint64_t n_elements() const { return ne[0] * ne[1] * ne[2] * ne[3]; }
    // "[4096, 2048, 256]", for messages.
    std::string shape() const;
};

class GgufFile {
public:
    // Opens a GGUF from any of its shards, or from a directory that holds exactly one model.
    // Missing shards are listed all at once. The split.* keys of a sharded model describe its
    // files, not the model, and are left out of metadata().
    static Result<GgufFile> open(const Path& path) { return open({&path, 1}); }
    // The same from several places, files and directories, that hold shards of one model. A shard
    // that is in several of them is taken from the first.
    static Result<GgufFile> open(std::span<const Path> places);

    // From now on the file's bytes are read from another file of the same size. Not while another
    // thread uses this.
    Result<void> replace_file(size_t index, const Path& path);

    const GgufMetadata& metadata() const { return metadata_; }
    std::span<const TensorInfo> tensors() const { return tensors_; }
    // Null when there is none of that name.
    const TensorInfo* find_tensor(std::string_view name) const;

    struct File {
        Path path;
        UniqueFd fd;
        uint64_t bytes = 0;
        uint64_t data_start = 0;
    };
    std::span<const File> files() const { return files_; }

    // Reads `bytes.size()` bytes of the tensor's data from `offset` within it.
    Result<void> read_tensor(const TensorInfo& tensor, uint64_t offset,
                             std::span<std::byte> bytes) const;

private:
    GgufMetadata metadata_;
    std::vector<TensorInfo> tensors_;
    std::unordered_map<std::string, size_t> tensor_index_;
    std::vector<File> files_;
};

}  // namespace xp
