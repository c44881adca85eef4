#include "daemon/pack/compare_metadata.h"

#include <algorithm>
#include <bit>
#include <type_traits>

#include <fmt/format.h>

namespace xp {

namespace {

bool same_array(const GgufArray& a, const GgufArray& b);

// Bit by bit for floating point: a NaN is the same as itself here.
template <class T>
bool same(const T& a, const T& b) {
    if constexpr (std::is_same_v<T, double>) {
        return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
    } else if constexpr (std::is_same_v<T, GgufArray>) {
        return same_array(a, b);
    } else {
        return a == b;
    }
}

bool same_array(const GgufArray& a, const GgufArray& b) {
    if (a.element_type != b.element_type || a.elements.index() != b.elements.index()) return false;
    return std::visit(
        [&](const auto& elements) {
            using Vector = std::decay_t<decltype(elements)>;
            return std::ranges::equal(elements, std::get<Vector>(b.elements),
                                      same<typename Vector::value_type>);
        },
        a.elements);
}

bool same_value(const GgufValue& a, const GgufValue& b) {
    if (a.type != b.type || a.value.index() != b.value.index()) return false;
    return std::visit(
        [&](const auto& value) {
            return same(value, std::get<std::decay_t<decltype(value)>>(b.value));
        },
        a.value);
}

}  // namespace

std::vector<std::string> metadata_differences(const GgufMetadata& source,
                                              const GgufMetadata& resident) {
    std::vector<std::string> differences;
    for (const GgufMetadata::Entry& entry : source.entries()) {
        if (entry.key.starts_with("split.")) continue;
        const GgufValue* value = resident.find(entry.key);
        if (value == nullptr) {
            differences.push_back(fmt::format("metadata key {} is missing", entry.key));
        } else if (!same_value(entry.value, *value)) {
            differences.push_back(
                fmt::format("metadata key {} differs from the source", entry.key));
        }
    }
    for (const GgufMetadata::Entry& entry : resident.entries()) {
        if (source.contains(entry.key)) continue;
        differences.push_back(fmt::format("metadata key {} is not in the source", entry.key));
    }
    return differences;
}

}  // namespace xp
