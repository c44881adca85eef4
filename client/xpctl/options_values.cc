// Values on the command line that have a form of their own.
#include <charconv>
#include <limits>

#include <fmt/format.h>

#include "client/xpctl/options.h"

namespace xp::ctl {
namespace {

// All of `text` as a number: digits only.
template <class Number>
std::optional<Number> whole_number(std::string_view text) {
    Number value = 0;
    if (text.empty() || text.front() < '0' || text.front() > '9') return std::nullopt;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (code != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
}

}  // namespace

std::optional<std::vector<int32_t>> parse_ids(std::string_view text, std::string* error) {
    std::vector<int32_t> ids;
    for (size_t item = 1;; ++item) {
        const size_t comma = text.find(',');
        std::string_view word = text.substr(0, comma);
        while (!word.empty() && word.front() == ' ') word.remove_prefix(1);
        while (!word.empty() && word.back() == ' ') word.remove_suffix(1);
        const std::optional<int32_t> id = whole_number<int32_t>(word);
        if (!id) {
            *error = fmt::format("--ids: item {} (\"{}\") is no token id, which is a whole number "
                                 "from 0 to {}", item, word, std::numeric_limits<int32_t>::max());
            return std::nullopt;
        }
        ids.push_back(*id);
        if (comma == std::string_view::npos) return ids;
        text.remove_prefix(comma + 1);
    }
}

std::optional<CancelTarget> parse_target(std::string_view text, std::string* error) {
    const size_t dot = text.find('.');
    const std::optional<uint64_t> client = whole_number<uint64_t>(text.substr(0, dot));
    const std::optional<uint64_t> request =
        dot == std::string_view::npos ? std::optional<uint64_t>(0)
                                      : whole_number<uint64_t>(text.substr(dot + 1));
    if (client && *client != 0 && request && (*request != 0 || dot == std::string_view::npos)) {
        return CancelTarget{*client, *request};
    }
    *error = fmt::format("\"{}\" is no request: give CLIENT.REQUEST, such as 3.17, or CLIENT for "
                         "all of its requests, as 'xpctl clients' shows them", text);
    return std::nullopt;
}

}  // namespace xp::ctl
