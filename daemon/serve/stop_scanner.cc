#include "daemon/serve/stop_scanner.h"

#include <algorithm>
#include <utility>

namespace xp {

StopScanner::StopScanner(std::vector<std::string> stops) : stops_(std::move(stops)) {
    std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
}

StopScanner::Output StopScanner::push(std::string_view piece) {
    if (stops_.empty()) {
        return {std::string(piece), false};
    }
    held_ += piece;
    size_t first_end = std::string::npos;
    size_t first_begin = std::string::npos;
    for (const std::string& stop : stops_) {
        const size_t begin = held_.find(stop);
        if (begin == std::string::npos) {
            continue;
        }
        const size_t end = begin + stop.size();
        if (first_end == std::string::npos || end < first_end ||
            (end == first_end && begin < first_begin)) {
            first_end = end;
            first_begin = begin;
        }
    }
    if (first_end != std::string::npos) {
        held_.resize(first_begin);
        return {std::exchange(held_, {}), true};
    }
    // Keep the longest tail that is the beginning of a stop string.
    size_t keep = 0;
    for (const std::string& stop : stops_) {
        const size_t longest = std::min(stop.size() - 1, held_.size());
        for (size_t n = longest; n > keep; --n) {
            if (std::string_view(held_).ends_with(std::string_view(stop).substr(0, n))) {
                keep = n;
                break;
            }
        }
    }
    Output output{held_.substr(0, held_.size() - keep), false};
    held_.erase(0, held_.size() - keep);
    return output;
}

std::string StopScanner::finish() { return std::exchange(held_, {}); }

}  // namespace xp
