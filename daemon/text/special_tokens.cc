#include "daemon/text/special_tokens.h"

#include <algorithm>

#include "daemon/text/utf8.h"

namespace xp {

SpecialTokenMatcher::SpecialTokenMatcher(std::vector<Entry> entries)
    : entries_(std::move(entries)) {
    std::erase_if(entries_, [](const Entry& entry) {
        return entry.text.empty() || !is_valid_utf8(entry.text);
    });
    std::ranges::stable_sort(entries_, {}, &Entry::text);
    const auto duplicates = std::ranges::unique(entries_, {}, &Entry::text);
    entries_.erase(duplicates.begin(), duplicates.end());
    for (const Entry& entry : entries_) ++first_[static_cast<uint8_t>(entry.text[0]) + 1];
    for (size_t byte = 1; byte < first_.size(); ++byte) first_[byte] += first_[byte - 1];
}

std::optional<SpecialTokenMatcher::Match> SpecialTokenMatcher::find(std::string_view text,
                                                                    size_t from) const {
    for (size_t begin = from; begin < text.size(); ++begin) {
        const auto first = static_cast<uint8_t>(text[begin]);
        auto low = entries_.begin() + first_[first];
        auto high = entries_.begin() + first_[first + 1];
        std::optional<Match> longest;
        // The entries between low and high share the first `bytes` bytes with the text; the
        // shortest of them comes first.
        for (size_t bytes = 1; low != high; ++bytes) {
            if (low->text.size() == bytes) {
                longest = Match{begin, bytes, low->id};
                ++low;
            }
            if (begin + bytes == text.size()) break;
            const auto next = static_cast<uint8_t>(text[begin + bytes]);
            const auto byte_at = [&](const Entry& entry) {
                return static_cast<uint8_t>(entry.text[bytes]);
            };
            low = std::ranges::lower_bound(low, high, next, {}, byte_at);
            high = std::ranges::upper_bound(low, high, next, {}, byte_at);
        }
        if (longest) return longest;
    }
    return std::nullopt;
}

}  // namespace xp
