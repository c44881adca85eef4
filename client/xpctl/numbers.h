// Numbers on the command line and in /set of a chat: one way of reading them, and what each may be.
//
// A number is written in decimal digits; where fractions are allowed also as ".5" and with an
// exponent. Signs, blanks, leading zeros (octal to some), other bases, "inf" and "nan" are errors,
// and so is what the range or the type does not hold: nothing is rounded into it. The ranges are
// the client library's, repeated here so that an error can name them.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace xp::ctl {

template <class Number>
struct NumberRange {
    Number lowest = 0;
    Number highest = std::numeric_limits<Number>::max();
    bool without_lowest = false;
};

inline constexpr NumberRange<float> kTemperatureRange{0, 100};
inline constexpr NumberRange<float> kTopPRange{0, 1, true};
inline constexpr NumberRange<float> kMinPRange{0, 1};
inline constexpr NumberRange<uint32_t> kCountRange{};            // --top-k, --max-tokens
inline constexpr NumberRange<uint64_t> kSeedRange{};
inline constexpr NumberRange<uint32_t> kLogprobsRange{0, 20};
inline constexpr NumberRange<uint32_t> kWindowRange{2};
inline constexpr NumberRange<uint32_t> kStrideRange{1};
inline constexpr NumberRange<double> kWatchRange{0.1, 86400};    // seconds
inline constexpr NumberRange<int32_t> kTokenRange{};
inline constexpr NumberRange<uint64_t> kIdRange{1};              // of clients and requests

// All of `text` as a number; false, and *value as it was, when it is none or not in the range.
template <class Number>
bool read_number(std::string_view text, const NumberRange<Number>& range, Number* value);

// The same; an error's text, which names what was given and the range, or "".
template <class Number>
std::string take_number(std::string_view text, const NumberRange<Number>& range, Number* value);

// "a whole number from 2 to 4294967295", "a number above 0, at most 1".
template <class Number>
std::string range_text(const NumberRange<Number>& range);

}  // namespace xp::ctl
