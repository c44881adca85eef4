#include "client/xpctl/numbers.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string>
#include <type_traits>

#include <fmt/format.h>

#include "client/xpctl/output.h"

namespace xp::ctl {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// All of `text`. Fractions are read as doubles, so that the range is checked before anything is
// rounded; what is too small for one becomes 0.
template <class Number>
bool convert(std::string_view text, Number* number) {
    const char* begin = text.data();
    if constexpr (std::is_floating_point_v<Number>) {
        if (*begin == '.') ++begin;
    }
    if (begin == text.data() + text.size() || !is_digit(*begin)) return false;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), *number);
    if (end != text.data() + text.size()) return false;
    if constexpr (std::is_floating_point_v<Number>) {
        // from_chars() does not say at which end of its range a number lies.
        if (code == std::errc::result_out_of_range) {
            *number = std::strtod(std::string(text).c_str(), nullptr);
            return std::isfinite(*number);
        }
    }
    return code == std::errc();
}

}  // namespace

template <class Number>
bool read_number(std::string_view text, const NumberRange<Number>& range, Number* value) {
    if (text.empty()) return false;
    if (text.size() > 1 && text[0] == '0' && is_digit(text[1])) return false;
    std::conditional_t<std::is_floating_point_v<Number>, double, Number> number = 0;
    if (!convert(text, &number)) return false;
    if (number < range.lowest || number > range.highest) return false;
    if (range.without_lowest && !(number > range.lowest)) return false;
    *value = static_cast<Number>(number);
    if constexpr (std::is_floating_point_v<Number>) {
        // Not rounded out of the range either.
        if (range.without_lowest && !(*value > range.lowest)) {
            *value = std::nextafter(range.lowest, range.highest);
        }
    }
    return true;
}

template <class Number>
std::string range_text(const NumberRange<Number>& range) {
    const char* kind = std::is_integral_v<Number> ? "a whole number" : "a number";
    return range.without_lowest
               ? fmt::format("{} above {}, at most {}", kind, range.lowest, range.highest)
               : fmt::format("{} from {} to {}", kind, range.lowest, range.highest);
}

template <class Number>
std::string take_number(std::string_view text, const NumberRange<Number>& range, Number* value) {
    if (read_number(text, range, value)) return {};
    return fmt::format("\"{}\" is not {}", echoed(text), range_text(range));
}

template bool read_number(std::string_view, const NumberRange<int32_t>&, int32_t*);
template bool read_number(std::string_view, const NumberRange<uint64_t>&, uint64_t*);
template std::string range_text(const NumberRange<int32_t>&);
template std::string take_number(std::string_view, const NumberRange<uint32_t>&, uint32_t*);
template std::string take_number(std::string_view, const NumberRange<uint64_t>&, uint64_t*);
template std::string take_number(std::string_view, const NumberRange<float>&, float*);
template std::string take_number(std::string_view, const NumberRange<double>&, double*);

}  // namespace xp::ctl
