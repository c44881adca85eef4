// What somebody who mistyped a name may have meant.
#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

namespace xp::ctl {

// Letters to insert, leave out, replace, or swap with a neighbour, to get from one to the other.
inline size_t typing_errors(std::string_view from, std::string_view to) {
    std::vector<size_t> before(to.size() + 1), last(to.size() + 1), row(to.size() + 1);
    std::iota(last.begin(), last.end(), size_t{0});
    for (size_t i = 1; i <= from.size(); ++i) {
        row[0] = i;
        for (size_t j = 1; j <= to.size(); ++j) {
            const size_t replaced = last[j - 1] + (from[i - 1] == to[j - 1] ? 0 : 1);
            row[j] = std::min({replaced, last[j] + 1, row[j - 1] + 1});
            if (i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1]) {
                row[j] = std::min(row[j], before[j - 2] + 1);
            }
        }
        before.swap(last);
        last.swap(row);
    }
    return last[to.size()];
}

// The nearest of the names, or "" when none is near: at most two errors, and fewer than half of the
// letters. A beginning that fits one name only counts as near.
inline std::string nearest_name(std::string_view typed, const std::vector<std::string>& names) {
    constexpr size_t kLongestTyped = 32;  // beyond that it is no misspelt name
    if (typed.empty() || typed.size() > kLongestTyped) return {};
    std::string best;
    size_t fewest = std::min<size_t>(2, (typed.size() - 1) / 2) + 1;
    for (const std::string& name : names) {
        const size_t errors = typing_errors(typed, name);
        if (errors >= fewest) continue;
        fewest = errors;
        best = name;
    }
    if (!best.empty()) return best;
    size_t fitting = 0;
    for (const std::string& name : names) {
        if (!name.starts_with(typed)) continue;
        ++fitting;
        best = name;
    }
    return fitting == 1 ? best : std::string();
}

}  // namespace xp::ctl
