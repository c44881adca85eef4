#include "daemon/gguf/value_parser.h"

#include <algorithm>
#include <array>
#include <bit>
#include <type_traits>
#include <utility>

namespace xp {
namespace {

// The least a stored element takes: a string is at least its length, an array its type and count.
uint64_t min_element_bytes(GgufValueType type) {
    switch (type) {
        case GgufValueType::kU8:
        case GgufValueType::kI8:
        case GgufValueType::kBool: return 1;
        case GgufValueType::kU16:
        case GgufValueType::kI16: return 2;
        case GgufValueType::kU32:
        case GgufValueType::kI32:
        case GgufValueType::kF32: return 4;
        case GgufValueType::kU64:
        case GgufValueType::kI64:
        case GgufValueType::kF64:
        case GgufValueType::kString: return 8;
        case GgufValueType::kArray: return 12;
    }
    return 1;
}

Result<GgufValueType> read_type(HeaderCursor& cursor, const char* what) {
    XP_TRY(const uint32_t id, cursor.read_value<uint32_t>());
    if (id > static_cast<uint32_t>(GgufValueType::kF64)) {
        return make_error(ErrorCode::kUnsupported, "unknown {} {} at offset {}; 0 to 12 are known",
                          what, id, cursor.position() - 4);
    }
    return static_cast<GgufValueType>(id);
}

Result<bool> read_bool(HeaderCursor& cursor) {
    XP_TRY(const uint8_t byte, cursor.read_value<uint8_t>());
    if (byte > 1) {
        return make_error(ErrorCode::kCorrupt, "bool at offset {} is {}; it must be 0 or 1",
                          cursor.position() - 1, byte);
    }
    return byte == 1;
}

template <class Stored, class Held>
Result<std::vector<Held>> read_numbers(HeaderCursor& cursor, uint64_t count) {
    std::vector<Held> held;
    std::array<Stored, 4096> piece;
    while (held.size() < count) {
        const uint64_t n = std::min<uint64_t>(piece.size(), count - held.size());
        const auto part = std::span(piece).first(n);
        XP_CHECK(cursor.read(std::as_writable_bytes(part)));
        for (const Stored stored : part) {
            if constexpr (std::is_same_v<Stored, float>) {
                held.push_back(widen_float(stored));
            } else {
                held.push_back(stored);
            }
        }
    }
    return held;
}

Result<std::vector<uint64_t>> read_bools(HeaderCursor& cursor, uint64_t count) {
    std::vector<uint64_t> held;
    for (uint64_t i = 0; i < count; ++i) {
        XP_TRY(const bool value, read_bool(cursor));
        held.push_back(value);
    }
    return held;
}

Result<std::vector<std::string>> read_strings(HeaderCursor& cursor, uint64_t count) {
    std::vector<std::string> held;
    for (uint64_t i = 0; i < count; ++i) {
        auto text = cursor.read_string(kMaxHeaderBytes, "string");
        if (!text) return std::move(text).error().with_context(fmt::format("element {}", i));
        held.push_back(*std::move(text));
    }
    return held;
}

Result<GgufArray> read_array(HeaderCursor& cursor, int depth);

Result<std::vector<GgufArray>> read_arrays(HeaderCursor& cursor, uint64_t count, int depth) {
    std::vector<GgufArray> held;
    for (uint64_t i = 0; i < count; ++i) {
        auto array = read_array(cursor, depth);
        if (!array) return std::move(array).error().with_context(fmt::format("element {}", i));
        held.push_back(*std::move(array));
    }
    return held;
}

template <class T>
Result<void> store(GgufArray& array, Result<T> elements) {
    if (!elements) return std::move(elements).error();
    array.elements = *std::move(elements);
    return {};
}

Result<void> read_elements(HeaderCursor& cursor, uint64_t count, int depth, GgufArray& array) {
    switch (array.element_type) {
        case GgufValueType::kU8:
            return store(array, read_numbers<uint8_t, uint64_t>(cursor, count));
        case GgufValueType::kI8: return store(array, read_numbers<int8_t, int64_t>(cursor, count));
        case GgufValueType::kU16:
            return store(array, read_numbers<uint16_t, uint64_t>(cursor, count));
        case GgufValueType::kI16:
            return store(array, read_numbers<int16_t, int64_t>(cursor, count));
        case GgufValueType::kU32:
            return store(array, read_numbers<uint32_t, uint64_t>(cursor, count));
        case GgufValueType::kI32:
            return store(array, read_numbers<int32_t, int64_t>(cursor, count));
        case GgufValueType::kU64:
            return store(array, read_numbers<uint64_t, uint64_t>(cursor, count));
        case GgufValueType::kI64:
            return store(array, read_numbers<int64_t, int64_t>(cursor, count));
        case GgufValueType::kF32: return store(array, read_numbers<float, double>(cursor, count));
        case GgufValueType::kF64: return store(array, read_numbers<double, double>(cursor, count));
        case GgufValueType::kBool: return store(array, read_bools(cursor, count));
        case GgufValueType::kString: return store(array, read_strings(cursor, count));
        case GgufValueType::kArray: return store(array, read_arrays(cursor, count, depth + 1));
    }
    return {};
}

// `depth` is 1 for the value of a key.
Result<GgufArray> read_array(HeaderCursor& cursor, int depth) {
    if (depth > kMaxArrayDepth) {
        return make_error(ErrorCode::kLimit, "arrays at offset {} are nested deeper than {} levels",
                          cursor.position(), kMaxArrayDepth);
    }
    GgufArray array;
    XP_TRY(array.element_type, read_type(cursor, "array element type"));
    XP_TRY(const uint64_t count, cursor.read_value<uint64_t>());
    XP_CHECK(cursor.require(count, min_element_bytes(array.element_type),
                            fmt::format("{} elements", value_type_name(array.element_type))));
    XP_CHECK(read_elements(cursor, count, depth, array));
    return array;
}

template <class Stored, class Held>
Result<void> read_scalar(HeaderCursor& cursor, GgufValue& value) {
    XP_TRY(const Stored stored, cursor.read_value<Stored>());
    value.value = static_cast<Held>(stored);
    return {};
}

Result<void> read_payload(HeaderCursor& cursor, GgufValue& value) {
    switch (value.type) {
        case GgufValueType::kU8: return read_scalar<uint8_t, uint64_t>(cursor, value);
        case GgufValueType::kI8: return read_scalar<int8_t, int64_t>(cursor, value);
        case GgufValueType::kU16: return read_scalar<uint16_t, uint64_t>(cursor, value);
        case GgufValueType::kI16: return read_scalar<int16_t, int64_t>(cursor, value);
        case GgufValueType::kU32: return read_scalar<uint32_t, uint64_t>(cursor, value);
        case GgufValueType::kI32: return read_scalar<int32_t, int64_t>(cursor, value);
        case GgufValueType::kU64: return read_scalar<uint64_t, uint64_t>(cursor, value);
        case GgufValueType::kI64: return read_scalar<int64_t, int64_t>(cursor, value);
        case GgufValueType::kF64: return read_scalar<double, double>(cursor, value);
        case GgufValueType::kF32: {
            XP_TRY(const float stored, cursor.read_value<float>());
            value.value = widen_float(stored);
            return {};
        }
        case GgufValueType::kBool: {
            XP_TRY(value.value, read_bool(cursor));
            return {};
        }
        case GgufValueType::kString: {
            XP_TRY(value.value, cursor.read_string(kMaxHeaderBytes, "string"));
            return {};
        }
        case GgufValueType::kArray: {
            XP_TRY(value.value, read_array(cursor, 1));
            return {};
        }
    }
    return {};
}

}  // namespace

const char* value_type_name(GgufValueType type) {
    constexpr const char* kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                      "bool", "string", "array", "u64", "i64", "f64"};
    return kNames[static_cast<uint32_t>(type)];
}

Result<GgufValue> parse_value(HeaderCursor& cursor) {
    GgufValue value;
    XP_TRY(value.type, read_type(cursor, "value type"));
    XP_CHECK(read_payload(cursor, value));
    return value;
}

double widen_float(float value) {
    if (value == value) return value;
    const uint64_t bits = std::bit_cast<uint32_t>(value);
    return std::bit_cast<double>((bits & 0x80000000) << 32 | 0x7ff0000000000000 |
                                 (bits & 0x007fffff) << 29);
}

float narrow_float(double value) {
    if (value == value) return static_cast<float>(value);
    const uint64_t bits = std::bit_cast<uint64_t>(value);
    uint32_t mantissa = static_cast<uint32_t>(bits >> 29) & 0x007fffff;
    if (mantissa == 0) mantissa = 0x00400000;
    return std::bit_cast<float>(static_cast<uint32_t>(bits >> 32 & 0x80000000) | 0x7f800000 |
                                mantissa);
}

}  // namespace xp
