#include <cfloat>
#include <cmath>

#include "daemon/gguf/gguf.h"
#include "daemon/gguf/value_parser.h"

namespace xp {
namespace {

Error missing(std::string_view key) {
    return make_error(ErrorCode::kNotFound, "key {} is missing", quote_name(key));
}

Error wrong_kind(std::string_view key, const GgufValue& value, const char* needed) {
    std::string found = value_type_name(value.type);
    if (const auto* array = std::get_if<GgufArray>(&value.value)) {
        found = fmt::format("array of {}", value_type_name(array->element_type));
    }
    return make_error(ErrorCode::kCorrupt, "key {} has type {}; {} is needed", quote_name(key),
                      found, needed);
}

template <class T>
Error out_of_range(std::string_view key, T number, const std::string& allowed) {
    return make_error(ErrorCode::kCorrupt, "key {} is {}; {}", quote_name(key), number, allowed);
}

Result<float> to_float(std::string_view key, double number) {
    if (std::isfinite(number) && std::abs(number) > FLT_MAX) {
        return out_of_range(key, number, "it must fit into a float32");
    }
    return narrow_float(number);
}

}  // namespace

uint64_t GgufArray::size() const {
    return std::visit([](const auto& held) -> uint64_t { return held.size(); }, elements);
}

GgufValue GgufValue::u32(uint32_t v) { return {GgufValueType::kU32, uint64_t{v}}; }
GgufValue GgufValue::u64(uint64_t v) { return {GgufValueType::kU64, v}; }
GgufValue GgufValue::i32(int32_t v) { return {GgufValueType::kI32, int64_t{v}}; }
GgufValue GgufValue::f32(float v) { return {GgufValueType::kF32, widen_float(v)}; }
GgufValue GgufValue::boolean(bool v) { return {GgufValueType::kBool, v}; }
GgufValue GgufValue::string(std::string v) { return {GgufValueType::kString, std::move(v)}; }
GgufValue GgufValue::strings(std::vector<std::string> v) {
    return {GgufValueType::kArray, GgufArray{GgufValueType::kString, std::move(v)}};
}
GgufValue GgufValue::i32s(std::vector<int64_t> v) {
    return {GgufValueType::kArray, GgufArray{GgufValueType::kI32, std::move(v)}};
}
GgufValue GgufValue::f32s(std::vector<double> v) {
    return {GgufValueType::kArray, GgufArray{GgufValueType::kF32, std::move(v)}};
}

const GgufValue* GgufMetadata::find(std::string_view key) const {
    const auto found = index_.find(std::string(key));
    return found == index_.end() ? nullptr : &entries_[found->second].value;
}

Result<uint64_t> GgufMetadata::get_uint(std::string_view key, uint64_t max) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return missing(key);
    uint64_t number = 0;
    if (const auto* natural = std::get_if<uint64_t>(&value->value)) {
        number = *natural;
    } else if (const auto* integer = std::get_if<int64_t>(&value->value)) {
        if (*integer < 0) return out_of_range(key, *integer, "it must not be negative");
        number = static_cast<uint64_t>(*integer);
    } else {
        return wrong_kind(key, *value, "an integer");
    }
    if (number > max) {
        return out_of_range(key, number, fmt::format("the largest allowed is {}", max));
    }
    return number;
}

Result<uint64_t> GgufMetadata::get_uint_or(std::string_view key, uint64_t fallback,
                                           uint64_t max) const {
    if (!contains(key)) return fallback;
    return get_uint(key, max);
}

Result<float> GgufMetadata::get_float(std::string_view key) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return missing(key);
    const auto* number = std::get_if<double>(&value->value);
    if (number == nullptr) return wrong_kind(key, *value, "a float");
    return to_float(key, *number);
}

Result<float> GgufMetadata::get_float_or(std::string_view key, float fallback) const {
    if (!contains(key)) return fallback;
    return get_float(key);
}

// Some writers store a bool as an integer.
Result<bool> GgufMetadata::get_bool_or(std::string_view key, bool fallback) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return fallback;
    if (const auto* flag = std::get_if<bool>(&value->value)) return *flag;
    if (std::holds_alternative<uint64_t>(value->value) ||
        std::holds_alternative<int64_t>(value->value)) {
        XP_TRY(const uint64_t number, get_uint(key, 1));
        return number == 1;
    }
    return wrong_kind(key, *value, "a bool");
}

Result<std::string> GgufMetadata::get_string(std::string_view key) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return missing(key);
    const auto* text = std::get_if<std::string>(&value->value);
    if (text == nullptr) return wrong_kind(key, *value, "a string");
    return *text;
}

Result<std::vector<int64_t>> GgufMetadata::get_ints(std::string_view key) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return missing(key);
    std::vector<uint64_t> naturals;
    if (const auto* integer = std::get_if<int64_t>(&value->value)) {
        return std::vector<int64_t>{*integer};
    } else if (const auto* natural = std::get_if<uint64_t>(&value->value)) {
        naturals = {*natural};
    } else if (const auto* array = std::get_if<GgufArray>(&value->value)) {
        if (const auto* held = std::get_if<std::vector<int64_t>>(&array->elements)) return *held;
        const auto* held = std::get_if<std::vector<uint64_t>>(&array->elements);
        if (held == nullptr) return wrong_kind(key, *value, "a list of integers");
        naturals = *held;
    } else {
        return wrong_kind(key, *value, "a list of integers");
    }
    std::vector<int64_t> integers;
    integers.reserve(naturals.size());
    for (const uint64_t natural : naturals) {
        if (natural > INT64_MAX) {
            return out_of_range(key, natural, fmt::format("the largest allowed is {}", INT64_MAX));
        }
        integers.push_back(static_cast<int64_t>(natural));
    }
    return integers;
}

Result<std::vector<float>> GgufMetadata::get_floats(std::string_view key) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return missing(key);
    std::span<const double> numbers;
    if (const auto* number = std::get_if<double>(&value->value)) {
        numbers = {number, 1};
    } else {
        const auto* array = std::get_if<GgufArray>(&value->value);
        const auto* held =
            array == nullptr ? nullptr : std::get_if<std::vector<double>>(&array->elements);
        if (held == nullptr) return wrong_kind(key, *value, "a list of floats");
        numbers = *held;
    }
    std::vector<float> floats;
    floats.reserve(numbers.size());
    for (const double number : numbers) {
        XP_TRY(const float narrow, to_float(key, number));
        floats.push_back(narrow);
    }
    return floats;
}

Result<std::span<const std::string>> GgufMetadata::get_strings(std::string_view key) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return missing(key);
    if (const auto* text = std::get_if<std::string>(&value->value)) {
        return std::span<const std::string>(text, 1);
    }
    const auto* array = std::get_if<GgufArray>(&value->value);
    const auto* held =
        array == nullptr ? nullptr : std::get_if<std::vector<std::string>>(&array->elements);
    if (held == nullptr) return wrong_kind(key, *value, "a list of strings");
    return std::span<const std::string>(*held);
}

void GgufMetadata::set(std::string_view key, GgufValue value) {
    XP_ASSERT(!key.empty() && key.size() <= kMaxKeyBytes);
    const auto [found, added] = index_.try_emplace(std::string(key), entries_.size());
    if (added) {
        entries_.push_back({std::string(key), std::move(value)});
    } else {
        entries_[found->second].value = std::move(value);
    }
}

void GgufMetadata::erase(std::string_view key) {
    const auto found = index_.find(std::string(key));
    if (found == index_.end()) return;
    const size_t position = found->second;
    index_.erase(found);
    entries_.erase(entries_.begin() + static_cast<ptrdiff_t>(position));
    for (size_t i = position; i < entries_.size(); ++i) index_[entries_[i].key] = i;
}

}  // namespace xp
