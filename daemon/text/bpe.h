// Pair merging by token id: a text starts as one symbol per byte or character, and the adjacent
// pair whose merge has the lowest rank (the leftmost on a tie) becomes one symbol, until no pair
// can be merged. Short texts, nearly all of them, are scanned for the lowest rank each time;
// longer ones use a linked list and a heap, n log n, so that a megabyte without a space is no
// attack. Immutable; usable from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "daemon/text/tokenizer.h"

namespace xp {

// Symbols are token ids, or any other numbers for what is no token. Merges may share a rank.
struct BpeMerge {
    TokenId left, right, merged;
    uint32_t rank;  // below UINT32_MAX
};

class BpeMerges {
public:
    // Of equal pairs the first counts.
    explicit BpeMerges(std::span<const BpeMerge> merges);

    // Merges the symbols from `begin` to the end, which are less than 2^32, in place. Returns how
    // many candidate pairs were taken up, the measure of the work done.
    uint64_t merge(std::vector<TokenId>& symbols, size_t begin) const;

private:
    struct Slot {
        uint64_t pair = 0;
        uint32_t rank = UINT32_MAX;
        TokenId merged = 0;
    };

    const Slot& find(TokenId left, TokenId right) const;
    uint64_t merge_short(std::vector<TokenId>& symbols, size_t begin) const;
    uint64_t merge_long(std::vector<TokenId>& symbols, size_t begin) const;

    std::vector<Slot> slots_;  // open addressing, at most half full
    int slot_shift_ = 0;
};

}  // namespace xp
