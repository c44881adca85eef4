// JSON rewritten as Python's json module writes what it has read, which is what chat formats show
// to models: non-ASCII characters as they are, numbers in the shortest form that reads back as the
// same, integers of any size digit by digit, of equal keys the last value in the first one's place.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/result.h"

namespace xp {

enum class JsonStyle : uint8_t {
    kSortedCompact,  // "," and ":", the keys of all objects sorted
    kSpaced,         // ", " and ": ", keys in their order
};

// Deeper than any schema in use; what is written is copied once per level.
inline constexpr size_t kMaxJsonDepth = 100;

struct JsonMember {
    std::string key;
    std::string_view type;  // string, number, boolean, null, object, array
    std::string text;       // as JSON
    std::string plain;      // of a string: what it holds; otherwise the text
};

struct JsonText {
    std::string_view type;
    std::string text;
    std::vector<JsonMember> members;  // where it is an object
};

// kInvalidArgument, with the place, where it is no JSON or nested deeper than kMaxJsonDepth.
Result<JsonText> rewrite_json(std::string_view json, JsonStyle style);

// A text as a JSON string. Must be valid UTF-8.
std::string json_string(std::string_view text);

}  // namespace xp
