// Byte-pair merging by token id: a pre-token starts as one token per byte, and the adjacent pair
// whose merge has the lowest rank (the leftmost on a tie) becomes one token, until no pair can be
// merged. Short pre-tokens, nearly all of them, are scanned for the lowest rank each time; longer
// ones use a linked list and a heap, n log n, so that a megabyte without a space is no attack.
// Immutable; usable from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "daemon/text/tokenizer.h"

namespace xp {

struct BpeMerge {
    TokenId left, right, merged;
};

class BpeMerges {
public:
    // `merges` in order of rank; of equal pairs the first counts.
    BpeMerges(std::span<const BpeMerge> merges, const std::array<TokenId, 256>& byte_tokens);

    // Appends the tokens of one pre-token of less than 4 GiB. Returns how many candidate pairs
    // were taken up, the measure of the work done.
    uint64_t encode(std::string_view piece, std::vector<TokenId>& tokens) const;

private:
    struct Slot {
        uint64_t pair = 0;
        uint32_t rank = UINT32_MAX;
    };

    uint32_t rank_of(TokenId left, TokenId right) const;
    uint64_t encode_short(std::string_view piece, std::vector<TokenId>& tokens) const;
    uint64_t encode_long(std::string_view piece, std::vector<TokenId>& tokens) const;

    std::array<TokenId, 256> byte_tokens_;
    std::vector<TokenId> merged_;  // by rank
    std::vector<Slot> slots_;      // open addressing, at most half full
    int slot_shift_ = 0;
};

}  // namespace xp
