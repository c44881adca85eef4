#include "daemon/gguf/shard.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "daemon/base/memory.h"
#include "daemon/gguf/cursor.h"
#include "daemon/gguf/value_parser.h"

namespace xp {
namespace {

// The least that follows for each: an empty key is refused later, but a key's length, one byte of
// name, type and a one-byte value are certain; of a tensor, length, one byte, n_dims, type, offset.
constexpr uint64_t kMinKeyBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 4 + 8;

constexpr const char* kBigEndian =
    "big-endian GGUF is not supported: convert the model again for this byte order";

struct Counts {
    uint64_t n_tensors = 0;
    uint64_t n_keys = 0;
};

Result<void> check_version(uint32_t version) {
    if (version == 2 || version == 3) return {};
    if (version == 0) return make_error(ErrorCode::kCorrupt, "version 0 at offset 4 is not valid");
    if ((version & 0xffff) == 0) {
        return make_error(ErrorCode::kUnsupported, "{}", kBigEndian);
    }
    if (version == 1) {
        return make_error(ErrorCode::kUnsupported,
                          "version 1 of the format is no longer supported: convert the model "
                          "again");
    }
    return make_error(ErrorCode::kUnsupported,
                      "version {} of the format is not known; 2 and 3 are supported", version);
}

Result<uint64_t> read_count(HeaderCursor& cursor, const char* what) {
    XP_TRY(const int64_t count, cursor.read_value<int64_t>());
    if (count < 0) {
        return make_error(ErrorCode::kCorrupt, "{} at offset {} is negative: {}", what,
                          cursor.position() - 8, count);
    }
    return static_cast<uint64_t>(count);
}

Result<Counts> parse_counts(HeaderCursor& cursor) {
    if (cursor.file_bytes() < kGgufHeaderBytes) {
        return make_error(ErrorCode::kCorrupt, "{} bytes are too few for a GGUF file; its header "
                          "alone has {}", cursor.file_bytes(), kGgufHeaderBytes);
    }
    char magic[4];
    XP_CHECK(cursor.read(std::as_writable_bytes(std::span(magic))));
    if (std::memcmp(magic, "FUGG", sizeof(magic)) == 0) {
        return make_error(ErrorCode::kUnsupported, "the magic is reversed, 'FUGG'; {}", kBigEndian);
    }
    if (std::memcmp(magic, kGgufMagic, sizeof(magic)) != 0) {
        return make_error(ErrorCode::kCorrupt, "not a GGUF file: it starts with {}, not 'GGUF'",
                          quote_name({magic, sizeof(magic)}));
    }
    XP_TRY(const uint32_t version, cursor.read_value<uint32_t>());
    XP_CHECK(check_version(version));
    Counts counts;
    XP_TRY(counts.n_tensors, read_count(cursor, "tensor count"));
    XP_TRY(counts.n_keys, read_count(cursor, "key count"));
    XP_CHECK(cursor.require(counts.n_keys, kMinKeyBytes, "keys"));
    XP_CHECK(cursor.require(counts.n_tensors, kMinTensorBytes, "tensor infos"));
    return counts;
}

// Overlong forms and surrogates are not looked for: keys are compared as bytes.
bool is_utf8(std::string_view text) {
    size_t continuation = 0;
    for (const char c : text) {
        const unsigned char byte = static_cast<unsigned char>(c);
        if (continuation > 0) {
            if (byte >> 6 != 2) return false;
            --continuation;
        } else if (byte >= 0x80) {
            if (byte < 0xc2 || byte > 0xf4) return false;
            continuation = byte >= 0xf0 ? 3 : byte >= 0xe0 ? 2 : 1;
        }
    }
    return continuation == 0;
}

Result<std::string> parse_key(HeaderCursor& cursor, const GgufMetadata& known) {
    XP_TRY(std::string key, cursor.read_string(kMaxKeyBytes, "key name"));
    if (key.empty()) return make_error(ErrorCode::kCorrupt, "the key name is empty");
    const bool control = std::any_of(key.begin(), key.end(), [](char c) {
        return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    });
    if (control || !is_utf8(key)) {
        return make_error(ErrorCode::kCorrupt, "the key name {} has control characters or is not "
                          "UTF-8", quote_name(key));
    }
    if (known.contains(key)) {
        return make_error(ErrorCode::kCorrupt, "key {} occurs twice", quote_name(key));
    }
    return key;
}

Result<void> parse_metadata(HeaderCursor& cursor, uint64_t n_keys, GgufMetadata& metadata) {
    for (uint64_t i = 0; i < n_keys; ++i) {
        const uint64_t start = cursor.position();
        auto key = parse_key(cursor, metadata);
        if (!key) {
            return std::move(key).error().with_context(
                fmt::format("key {} of {} at offset {}", i + 1, n_keys, start));
        }
        auto value = parse_value(cursor);
        if (!value) {
            return std::move(value).error().with_context(
                fmt::format("key {} at offset {}", quote_name(*key), start));
        }
        metadata.set(*key, *std::move(value));
    }
    return {};
}

Result<uint64_t> alignment_of(const GgufMetadata& metadata) {
    const GgufValue* value = metadata.find(kAlignmentKey);
    if (value == nullptr) return kDefaultAlignment;
    if (value->type != GgufValueType::kU32) {
        return make_error(ErrorCode::kCorrupt, "key '{}' has type {}; it must be u32",
                          kAlignmentKey, value_type_name(value->type));
    }
    const uint64_t alignment = std::get<uint64_t>(value->value);
    if (alignment == 0 || (alignment & (alignment - 1)) != 0 || alignment > kMaxAlignment) {
        return make_error(ErrorCode::kCorrupt,
                          "key '{}' is {}; it must be a power of two of at most {}", kAlignmentKey,
                          alignment, kMaxAlignment);
    }
    return alignment;
}

Result<std::string> parse_tensor_name(HeaderCursor& cursor,
                                      const std::unordered_set<std::string>& known) {
    XP_TRY(std::string name, cursor.read_string(kMaxTensorNameBytes, "tensor name"));
    if (name.empty()) return make_error(ErrorCode::kCorrupt, "the tensor name is empty");
    if (name.find('\0') != std::string::npos) {
        return make_error(ErrorCode::kCorrupt, "the tensor name {} has a NUL byte",
                          quote_name(name));
    }
    if (known.contains(name)) {
        return make_error(ErrorCode::kCorrupt, "tensor {} occurs twice", quote_name(name));
    }
    return name;
}

Result<void> parse_shape(HeaderCursor& cursor, TensorInfo& tensor) {
    XP_TRY(tensor.n_dims, cursor.read_value<uint32_t>());
    if (tensor.n_dims > kMaxDims) {
        return make_error(ErrorCode::kCorrupt, "{} dimensions; at most {} are allowed",
                          tensor.n_dims, kMaxDims);
    }
    // Empty dimensions count as 1 here, so that products of the others cannot overflow either.
    uint64_t n_elements = 1;
    for (uint32_t i = 0; i < tensor.n_dims; ++i) {
        XP_TRY(const int64_t size, cursor.read_value<int64_t>());
        if (size < 0) {
            return make_error(ErrorCode::kCorrupt, "dimension {} at offset {} is negative: {}", i,
                              cursor.position() - 8, size);
        }
        tensor.ne[i] = static_cast<uint64_t>(size);
        const uint64_t factor = std::max<uint64_t>(tensor.ne[i], 1);
        if (__builtin_mul_overflow(n_elements, factor, &n_elements) || n_elements > INT64_MAX) {
            return make_error(ErrorCode::kCorrupt, "shape {} has too many elements for 63 bits",
                              tensor.shape());
        }
    }
    return {};
}

Result<void> parse_type(HeaderCursor& cursor, TensorInfo& tensor) {
    XP_TRY(const uint32_t id, cursor.read_value<uint32_t>());
    const auto type = type_from_id(id);
    if (!type) {
        return make_error(ErrorCode::kUnsupported, "tensor type {} at offset {} cannot be used: {}",
                          id, cursor.position() - 4, unknown_type_reason(id));
    }
    tensor.type = *type;
    const TypeTraits& traits = traits_of(*type);
    if (tensor.ne[0] % traits.block_elements != 0) {
        return make_error(ErrorCode::kCorrupt,
                          "rows of {} elements are not whole blocks of {} elements of type {}",
                          tensor.ne[0], traits.block_elements, traits.name);
    }
    const uint64_t n_blocks = tensor.n_elements() / traits.block_elements;
    if (__builtin_mul_overflow(n_blocks, uint64_t{traits.block_bytes}, &tensor.bytes)) {
        return make_error(ErrorCode::kCorrupt, "shape {} of type {} has too many bytes for 64 bits",
                          tensor.shape(), traits.name);
    }
    return {};
}

// Leaves the offset relative to the start of the data, which is not known yet.
Result<void> parse_tensor(HeaderCursor& cursor, uint64_t alignment, TensorInfo& tensor) {
    XP_CHECK(parse_shape(cursor, tensor));
    XP_CHECK(parse_type(cursor, tensor));
    XP_TRY(tensor.offset, cursor.read_value<uint64_t>());
    if (tensor.offset % alignment != 0) {
        return make_error(ErrorCode::kCorrupt, "its data offset {} is not a multiple of the "
                          "alignment {}", tensor.offset, alignment);
    }
    return {};
}

Result<std::vector<TensorInfo>> parse_tensors(HeaderCursor& cursor, uint64_t n_tensors,
                                              uint64_t alignment) {
    std::vector<TensorInfo> tensors;
    std::unordered_set<std::string> names;
    for (uint64_t i = 0; i < n_tensors; ++i) {
        const uint64_t start = cursor.position();
        auto name = parse_tensor_name(cursor, names);
        if (!name) {
            return std::move(name).error().with_context(
                fmt::format("tensor {} of {} at offset {}", i + 1, n_tensors, start));
        }
        TensorInfo tensor;
        tensor.name = *name;
        if (auto parsed = parse_tensor(cursor, alignment, tensor); !parsed) {
            return std::move(parsed).error().with_context(
                fmt::format("tensor {} at offset {}", quote_name(*name), start));
        }
        names.insert(*std::move(name));
        tensors.push_back(std::move(tensor));
    }
    return tensors;
}

// Makes the offsets absolute and checks that all data is in the file.
Result<void> place_tensors(std::vector<TensorInfo>& tensors, const GgufFile::File& file) {
    const uint64_t data_bytes = file.bytes > file.data_start ? file.bytes - file.data_start : 0;
    for (TensorInfo& tensor : tensors) {
        // Also an empty tensor must not start behind the end, which the data's start may be.
        if (file.data_start > file.bytes || tensor.offset > data_bytes ||
            tensor.bytes > data_bytes - tensor.offset) {
            return make_error(ErrorCode::kCorrupt,
                              "tensor {} needs {} bytes at offset {} of the data, which starts at "
                              "{}, but the file ends at {}; it is cut short or damaged",
                              quote_name(tensor.name), tensor.bytes, tensor.offset,
                              file.data_start, file.bytes);
        }
        tensor.offset += file.data_start;
    }
    return {};
}

// An empty tensor may lie between others, but in none.
Result<void> check_no_overlap(const std::vector<TensorInfo>& tensors) {
    std::vector<const TensorInfo*> order;
    for (const TensorInfo& tensor : tensors) order.push_back(&tensor);
    std::ranges::sort(order, [](const TensorInfo* a, const TensorInfo* b) {
        return std::pair(a->offset, a->bytes) < std::pair(b->offset, b->bytes);
    });
    for (size_t i = 1; i < order.size(); ++i) {
        const TensorInfo& before = *order[i - 1];
        if (before.offset + before.bytes > order[i]->offset) {
            return make_error(ErrorCode::kCorrupt,
                              "tensors {} ({} bytes at offset {}) and {} (at offset {}) overlap",
                              quote_name(before.name), before.bytes, before.offset,
                              quote_name(order[i]->name), order[i]->offset);
        }
    }
    return {};
}

Result<void> parse_header(GgufShard& shard) {
    HeaderCursor cursor(shard.file.fd.get(), shard.file.path, shard.file.bytes);
    XP_TRY(const Counts counts, parse_counts(cursor));
    XP_CHECK(parse_metadata(cursor, counts.n_keys, shard.metadata));
    XP_TRY(const uint64_t alignment, alignment_of(shard.metadata));
    XP_TRY(shard.tensors, parse_tensors(cursor, counts.n_tensors, alignment));
    shard.file.data_start = align_up(cursor.position(), alignment);
    XP_CHECK(place_tensors(shard.tensors, shard.file));
    return check_no_overlap(shard.tensors);
}

}  // namespace

Result<GgufShard> parse_shard(const Path& path) {
    GgufShard shard;
    shard.file.path = path;
    XP_TRY(shard.file.fd, open_file(path, O_RDONLY));
    XP_TRY(shard.file.bytes, file_size(shard.file.fd.get(), path));
    if (auto parsed = parse_header(shard); !parsed) {
        return std::move(parsed).error().with_context(path.native());
    }
    return shard;
}

}  // namespace xp
