#include "daemon/text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace xp {

namespace {

constexpr uint32_t kNoRank = UINT32_MAX;
constexpr uint32_t kNone = UINT32_MAX;

// Up to here scanning all pairs for each merge is cheaper than building list and heap.
constexpr size_t kShortBytes = 32;

uint64_t pair_key(TokenId left, TokenId right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

uint64_t mix(uint64_t key) { return key * 0x9E3779B97F4A7C15u; }

}  // namespace

BpeMerges::BpeMerges(std::span<const BpeMerge> merges,
                     const std::array<TokenId, 256>& byte_tokens)
    : byte_tokens_(byte_tokens) {
    XP_ASSERT(merges.size() < kNoRank);
    slots_.resize(std::bit_ceil(2 * merges.size() + 2));
    slot_shift_ = 64 - std::countr_zero(slots_.size());
    merged_.reserve(merges.size());
    for (const BpeMerge& merge : merges) {
        const auto rank = static_cast<uint32_t>(merged_.size());
        merged_.push_back(merge.merged);
        const uint64_t key = pair_key(merge.left, merge.right);
        size_t at = mix(key) >> slot_shift_;
        while (slots_[at].rank != kNoRank && slots_[at].pair != key) {
            at = (at + 1) & (slots_.size() - 1);
        }
        if (slots_[at].rank == kNoRank) slots_[at] = {key, rank};
    }
}

uint64_t BpeMerges::encode(std::string_view piece, std::vector<TokenId>& tokens) const {
    XP_ASSERT(piece.size() < UINT32_MAX);
    return piece.size() <= kShortBytes ? encode_short(piece, tokens) : encode_long(piece, tokens);
}

uint32_t BpeMerges::rank_of(TokenId left, TokenId right) const {
    const uint64_t key = pair_key(left, right);
    size_t at = mix(key) >> slot_shift_;
    while (slots_[at].rank != kNoRank) {
        if (slots_[at].pair == key) return slots_[at].rank;
        at = (at + 1) & (slots_.size() - 1);
    }
    return kNoRank;
}

uint64_t BpeMerges::encode_short(std::string_view piece, std::vector<TokenId>& tokens) const {
    std::array<TokenId, kShortBytes> symbols;
    std::array<uint32_t, kShortBytes> ranks;  // ranks[i]: of the pair (i, i + 1)
    size_t n = piece.size();
    for (size_t i = 0; i < n; ++i) symbols[i] = byte_tokens_[static_cast<uint8_t>(piece[i])];
    for (size_t i = 0; i + 1 < n; ++i) ranks[i] = rank_of(symbols[i], symbols[i + 1]);

    uint64_t taken = 0;
    while (n > 1) {
        const auto lowest = std::min_element(ranks.begin(), ranks.begin() + (n - 1));
        if (*lowest == kNoRank) break;
        const size_t i = lowest - ranks.begin();
        symbols[i] = merged_[*lowest];
        std::copy(symbols.begin() + i + 2, symbols.begin() + n, symbols.begin() + i + 1);
        std::copy(ranks.begin() + i + 1, ranks.begin() + (n - 1), ranks.begin() + i);
        --n;
        if (i > 0) ranks[i - 1] = rank_of(symbols[i - 1], symbols[i]);
        if (i + 1 < n) ranks[i] = rank_of(symbols[i], symbols[i + 1]);
        ++taken;
    }
    tokens.insert(tokens.end(), symbols.begin(), symbols.begin() + n);
    return taken;
}

uint64_t BpeMerges::encode_long(std::string_view piece, std::vector<TokenId>& tokens) const {
    struct Symbol {
        TokenId token;
        uint32_t previous, next;
        uint32_t rank;  // of the pair with `next`
    };
    const auto n = static_cast<uint32_t>(piece.size());
    std::vector<Symbol> symbols(n);
    for (uint32_t i = 0; i < n; ++i) {
        symbols[i] = {byte_tokens_[static_cast<uint8_t>(piece[i])], i == 0 ? kNone : i - 1,
                      i + 1 == n ? kNone : i + 1, kNoRank};
    }

    // Candidates are (rank, left index) in one number, so that order is rank, then leftmost. A
    // candidate is stale when the symbol's pair no longer has that rank.
    std::vector<uint64_t> heap;
    heap.reserve(n);
    const auto update = [&](uint32_t left) {
        Symbol& symbol = symbols[left];
        symbol.rank = symbol.next == kNone ? kNoRank
                                           : rank_of(symbol.token, symbols[symbol.next].token);
        if (symbol.rank != kNoRank) heap.push_back(static_cast<uint64_t>(symbol.rank) << 32 | left);
        return symbol.rank != kNoRank;
    };
    for (uint32_t i = 0; i < n; ++i) update(i);
    std::make_heap(heap.begin(), heap.end(), std::greater<>{});

    uint64_t taken = 0;
    while (!heap.empty()) {
        std::pop_heap(heap.begin(), heap.end(), std::greater<>{});
        const auto rank = static_cast<uint32_t>(heap.back() >> 32);
        const auto left = static_cast<uint32_t>(heap.back());
        heap.pop_back();
        ++taken;
        Symbol& symbol = symbols[left];
        if (symbol.rank != rank) continue;
        Symbol& right = symbols[symbol.next];
        symbol.token = merged_[rank];
        symbol.next = right.next;
        right.rank = kNoRank;
        if (right.next != kNone) symbols[right.next].previous = left;
        if (update(left)) std::push_heap(heap.begin(), heap.end(), std::greater<>{});
        if (symbol.previous != kNone && update(symbol.previous)) {
            std::push_heap(heap.begin(), heap.end(), std::greater<>{});
        }
    }
    for (uint32_t i = 0; i != kNone; i = symbols[i].next) tokens.push_back(symbols[i].token);
    return taken;
}

}  // namespace xp
