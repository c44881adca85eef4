// How fast the daemon's counters grew between two looks at its statistics.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "client/xpctl/json.h"

namespace xp::ctl {

struct StatsRates {
    double seconds = 0;                // between the looks, by the daemon's clock
    double prompt_tokens = 0;          // per second
    double generated_tokens = 0;
    double read_bytes = 0;
    std::optional<double> hit_rate;    // of the experts asked for meanwhile; none were: none
};

// Nothing when they cannot be compared: the daemon was restarted in between, or no time passed.
std::optional<StatsRates> stats_rates(const Json& before, const Json& now);

// "prompt 120.0 tokens/s, generated 8.5 tokens/s" and "read 312.0 MB/s, hit rate 93.4 %": two,
// as one line would be too long for terminals of 80 columns.
std::string rates_text(const StatsRates& rates);
Json rates_object(const StatsRates& rates);

}  // namespace xp::ctl
