// Values on the command line that have a form of their own.
#include <fmt/format.h>

#include "client/xpctl/numbers.h"
#include "client/xpctl/options.h"
#include "client/xpctl/output.h"

namespace xp::ctl {

std::optional<std::vector<int32_t>> parse_ids(std::string_view text, std::string* error) {
    std::vector<int32_t> ids;
    for (size_t item = 1;; ++item) {
        const size_t comma = text.find(',');
        std::string_view word = text.substr(0, comma);
        while (!word.empty() && word.front() == ' ') word.remove_prefix(1);
        while (!word.empty() && word.back() == ' ') word.remove_suffix(1);
        int32_t id = 0;
        if (!read_number(word, kTokenRange, &id)) {
            *error = fmt::format("--ids: item {} (\"{}\") is no token id, which is {}", item,
                                 echoed(word), range_text(kTokenRange));
            return std::nullopt;
        }
        ids.push_back(id);
        if (comma == std::string_view::npos) return ids;
        text.remove_prefix(comma + 1);
    }
}

std::optional<CancelTarget> parse_target(std::string_view text, std::string* error) {
    const size_t dot = text.find('.');
    CancelTarget target;
    if (read_number(text.substr(0, dot), kIdRange, &target.client) &&
        (dot == std::string_view::npos ||
         read_number(text.substr(dot + 1), kIdRange, &target.request))) {
        return target;
    }
    *error = fmt::format("\"{}\" is no request: give CLIENT.REQUEST, such as 3.17, or CLIENT for "
                         "all of its requests, as 'xpctl clients' shows them", echoed(text));
    return std::nullopt;
}

}  // namespace xp::ctl
