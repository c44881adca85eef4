#include "client/xpctl/numbers.h"

#include <charconv>
#include <type_traits>

#include <fmt/format.h>

#include "client/xpctl/output.h"

namespace xp::ctl {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

template <class Number>
bool read_number(std::string_view text, const NumberRange<Number>& range, Number* value) {
    if (text.empty() || !is_digit(text.front())) return false;
    if (text.size() > 1 && text[0] == '0' && is_digit(text[1])) return false;
    Number number = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (code != std::errc() || end != text.data() + text.size()) return false;
    if (number < range.lowest || number > range.highest) return false;
    if (range.without_lowest && !(number > range.lowest)) return false;
    *value = number;
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
