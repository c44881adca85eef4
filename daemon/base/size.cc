#include "daemon/base/size.h"

#include <array>
#include <charconv>

namespace xp {
namespace {

struct Unit {
    std::string_view suffix;
    int shift;
};
constexpr std::array<Unit, 5> kUnits = {
    {{"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}, {"B", 0}}};

}  // namespace

Result<uint64_t> parse_size(std::string_view text) {
    const auto fail = [&] {
        return make_error(
            ErrorCode::kInvalidArgument,
            "\"{}\" is not a size; write a whole number with B, KiB, MiB, GiB or TiB, "
            "for example \"64MiB\"",
            text);
    };
    uint64_t value = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (code != std::errc{}) return fail();
    std::string_view suffix = text.substr(static_cast<size_t>(end - text.data()));
    if (text[0] == '0' && end != text.data() + 1) return fail();  // octal to some
    if (suffix.empty()) return value;
    while (suffix.starts_with(' ')) suffix.remove_prefix(1);
    for (const Unit& unit : kUnits) {
        if (suffix != unit.suffix) continue;
        if (value > UINT64_MAX >> unit.shift) return fail();
        return value << unit.shift;
    }
    return fail();
}

std::string format_size(uint64_t bytes) {
    for (const Unit& unit : kUnits) {
        if (unit.shift == 0 || bytes < uint64_t{1} << unit.shift) continue;
        const double value =
            static_cast<double>(bytes) / static_cast<double>(uint64_t{1} << unit.shift);
        return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : value < 100 ? 1 : 0, unit.suffix);
    }
    return fmt::format("{} B", bytes);
}

}  // namespace xp
