// The daemon's statistics for a person. The shape of the JSON is the daemon's and grows: members
// that are missing show as "-", groups of counters that this program does not know are shown as
// they are named, and members of unexpected types never do harm.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace xp::ctl {

// Nothing when `json` is no JSON object. `rates`, when given: lines below the first one.
std::optional<std::string> stats_tables(std::string_view json, std::string_view rates = {});

}  // namespace xp::ctl
