// Finding the literal texts of special tokens in a text: leftmost first, the longest of those that
// begin at one place. Built once per model; find() is const. Its time is linear in the text, with
// the length of the longest special text as the worst factor, which is the model's to choose and
// not the user's.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "daemon/text/tokenizer.h"

namespace xp {

class SpecialTokenMatcher {
public:
    struct Entry {
        std::string_view text;  // must outlive the matcher
        TokenId id;
    };

    SpecialTokenMatcher() = default;
    // Entries that are empty or no valid UTF-8 are left out (a match could split a character); of
    // equal texts the first counts.
    explicit SpecialTokenMatcher(std::vector<Entry> entries);

    struct Match {
        size_t begin;
        size_t bytes;
        TokenId id;
    };
    std::optional<Match> find(std::string_view text, size_t from) const;

private:
    std::vector<Entry> entries_;          // sorted by text
    std::array<uint32_t, 257> first_{};   // first_[b]: the first entry whose first byte is >= b
};

}  // namespace xp
