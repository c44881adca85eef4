#include "daemon/text/bpe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <utility>

namespace xp {

namespace {

constexpr uint32_t kNoRank = UINT32_MAX;
constexpr uint32_t kNone = UINT32_MAX;

// Up to here scanning all pairs for each merge is cheaper than building list and heap.
constexpr size_t kShortSymbols = 32;

uint64_t pair_key(TokenId left, TokenId right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

uint64_t mix(uint64_t key) { return key * 0x9E3779B97F4A7C15u; }

}  // namespace

BpeMerges::BpeMerges(std::span<const BpeMerge> merges) {
    slots_.resize(std::bit_ceil(2 * merges.size() + 2));
    slot_shift_ = 64 - std::countr_zero(slots_.size());
    for (const BpeMerge& merge : merges) {
        XP_ASSERT(merge.rank < kNoRank);
        const uint64_t key = pair_key(merge.left, merge.right);
        size_t at = mix(key) >> slot_shift_;
        while (slots_[at].rank != kNoRank && slots_[at].pair != key) {
            at = (at + 1) & (slots_.size() - 1);
        }
        if (slots_[at].rank == kNoRank) slots_[at] = {key, merge.rank, merge.merged};
    }
}

uint64_t BpeMerges::merge(std::vector<TokenId>& symbols, size_t begin) const {
    const size_t n = symbols.size() - begin;
    XP_ASSERT(n < UINT32_MAX);
    return n <= kShortSymbols ? merge_short(symbols, begin) : merge_long(symbols, begin);
}

// The pair's slot, or an empty one, whose rank is kNoRank.
const BpeMerges::Slot& BpeMerges::find(TokenId left, TokenId right) const {
    const uint64_t key = pair_key(left, right);
    size_t at = mix(key) >> slot_shift_;
    while (slots_[at].rank != kNoRank && slots_[at].pair != key) {
        at = (at + 1) & (slots_.size() - 1);
    }
    return slots_[at];
}

uint64_t BpeMerges::merge_short(std::vector<TokenId>& all, size_t begin) const {
    TokenId* const symbols = all.data() + begin;
    size_t n = all.size() - begin;
    std::array<uint32_t, kShortSymbols> ranks;   // [i]: of the pair (i, i + 1)
    std::array<TokenId, kShortSymbols> merged;
    const auto look_up = [&](size_t i) {
        const Slot& slot = find(symbols[i], symbols[i + 1]);
        ranks[i] = slot.rank;
        merged[i] = slot.merged;
    };
    for (size_t i = 0; i + 1 < n; ++i) look_up(i);

    uint64_t taken = 0;
    while (n > 1) {
        const auto lowest = std::min_element(ranks.begin(), ranks.begin() + (n - 1));
        if (*lowest == kNoRank) break;
        const size_t i = lowest - ranks.begin();
        symbols[i] = merged[i];
        std::copy(symbols + i + 2, symbols + n, symbols + i + 1);
        std::copy(ranks.begin() + i + 1, ranks.begin() + (n - 1), ranks.begin() + i);
        std::copy(merged.begin() + i + 1, merged.begin() + (n - 1), merged.begin() + i);
        --n;
        if (i > 0) look_up(i - 1);
        if (i + 1 < n) look_up(i);
        ++taken;
    }
    all.resize(begin + n);
    return taken;
}

uint64_t BpeMerges::merge_long(std::vector<TokenId>& symbols, size_t begin) const {
    // A few bytes more would be tens of megabytes for the longest texts: ranks are looked up again.
    struct Link {
        uint32_t previous, next;
    };
    TokenId* const ids = symbols.data() + begin;
    const auto n = static_cast<uint32_t>(symbols.size() - begin);
    std::vector<Link> links(n);
    for (uint32_t i = 0; i < n; ++i) {
        links[i] = {i == 0 ? kNone : i - 1, i + 1 == n ? kNone : i + 1};
    }

    // Candidates are (rank, left index) in one number, so that order is rank, then leftmost. A
    // candidate is stale when the symbol's pair no longer has that rank.
    std::vector<uint64_t> heap;
    heap.reserve(n);
    const auto add_pair = [&](uint32_t left) {
        if (links[left].next == kNone) return false;
        const uint32_t rank = find(ids[left], ids[links[left].next]).rank;
        if (rank != kNoRank) heap.push_back(static_cast<uint64_t>(rank) << 32 | left);
        return rank != kNoRank;
    };
    for (uint32_t i = 0; i < n; ++i) add_pair(i);
    std::make_heap(heap.begin(), heap.end(), std::greater<>{});

    uint64_t taken = 0;
    while (!heap.empty()) {
        std::pop_heap(heap.begin(), heap.end(), std::greater<>{});
        const auto rank = static_cast<uint32_t>(heap.back() >> 32);
        const auto left = static_cast<uint32_t>(heap.back());
        heap.pop_back();
        ++taken;
        Link& link = links[left];
        if (link.next == kNone) continue;
        const Slot& slot = find(ids[left], ids[link.next]);
        if (slot.rank != rank) continue;
        Link& right = links[link.next];
        ids[left] = slot.merged;
        link.next = std::exchange(right.next, kNone);  // the right symbol has no pair any more
        if (link.next != kNone) links[link.next].previous = left;
        if (add_pair(left)) std::push_heap(heap.begin(), heap.end(), std::greater<>{});
        if (link.previous != kNone && add_pair(link.previous)) {
            std::push_heap(heap.begin(), heap.end(), std::greater<>{});
        }
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i != kNone && n > 0; i = links[i].next) ids[kept++] = ids[i];
    symbols.resize(begin + kept);
    return taken;
}

}  // namespace xp
