#include "daemon/text/bpe.h"

#include <algorithm>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "tests/text/text_data.h"

namespace xp {
namespace {

std::vector<TokenId> bytes_of(std::string_view piece) {
    std::vector<TokenId> symbols;
    for (char c : piece) symbols.push_back(static_cast<uint8_t>(c));
    return symbols;
}

std::vector<TokenId> encode(const BpeMerges& merges, std::string_view piece) {
    std::vector<TokenId> symbols = bytes_of(piece);
    merges.merge(symbols, 0);
    return symbols;
}

// The definition: merge the leftmost pair of the lowest rank until none is left.
std::vector<TokenId> encode_slowly(const std::vector<BpeMerge>& merges, std::string_view piece) {
    std::map<std::pair<TokenId, TokenId>, const BpeMerge*> merge_of;
    for (const BpeMerge& merge : merges) {
        merge_of.emplace(std::pair(merge.left, merge.right), &merge);
    }
    std::vector<TokenId> symbols = bytes_of(piece);
    for (;;) {
        const BpeMerge* best = nullptr;
        size_t at = 0;
        for (size_t i = 0; i + 1 < symbols.size(); ++i) {
            const auto entry = merge_of.find({symbols[i], symbols[i + 1]});
            if (entry == merge_of.end()) continue;
            if (best != nullptr && entry->second->rank >= best->rank) continue;
            best = entry->second;
            at = i;
        }
        if (best == nullptr) return symbols;
        symbols[at] = best->merged;
        symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(at) + 1);
    }
}

// Random merges over a small alphabet: each joins two known tokens. Some share a rank.
std::vector<BpeMerge> random_merges(std::mt19937& random, size_t n_merges) {
    const uint32_t per_rank = 1 + random() % 3;
    std::vector<TokenId> known = {'a', 'b', 'c'};
    std::vector<BpeMerge> merges;
    while (merges.size() < n_merges) {
        const TokenId merged = static_cast<TokenId>(256 + merges.size());
        merges.push_back({known[random() % known.size()], known[random() % known.size()], merged,
                          static_cast<uint32_t>(merges.size()) / per_rank});
        known.push_back(merged);
    }
    return merges;
}

std::string random_piece(std::mt19937& random, size_t bytes) {
    std::string piece;
    for (size_t i = 0; i < bytes; ++i) piece += "abcd"[random() % 13 / 4];
    return piece;
}

TEST(Bpe, MergesByRankThenLeftmost) {
    const std::vector<BpeMerge> list = {{'b', 'c', 300, 0}, {'a', 'b', 301, 1},
                                        {301, 'c', 302, 2}, {'a', 300, 303, 3},
                                        {'a', 'a', 304, 4}};
    const BpeMerges merges(list);
    EXPECT_EQ(encode(merges, "abc"), (std::vector<TokenId>{303}));
    EXPECT_EQ(encode(merges, "abd"), (std::vector<TokenId>{301, 'd'}));
    EXPECT_EQ(encode(merges, "aaa"), (std::vector<TokenId>{304, 'a'}));
    EXPECT_EQ(encode(merges, ""), std::vector<TokenId>{});
}

TEST(Bpe, OfEqualPairsTheFirstCounts) {
    const std::vector<BpeMerge> list = {{'a', 'b', 300, 1}, {'a', 'b', 301, 0}};
    EXPECT_EQ(encode(BpeMerges(list), "ab"), std::vector<TokenId>{300});
}

TEST(Bpe, PairsOfOneRankMergeFromTheLeft) {
    const std::vector<BpeMerge> list = {{'b', 'a', 300, 0}, {'a', 'b', 301, 0}};
    const BpeMerges merges(list);
    EXPECT_EQ(encode(merges, "aba"), (std::vector<TokenId>{301, 'a'}));
    EXPECT_EQ(encode(merges, "bab"), (std::vector<TokenId>{300, 'b'}));
}

TEST(Bpe, LeavesWhatStandsBeforeTheBeginning) {
    const std::vector<BpeMerge> list = {{'a', 'a', 300, 0}};
    for (size_t n : {2, 40}) {
        std::vector<TokenId> symbols = bytes_of("aa" + std::string(n, 'a'));
        BpeMerges(list).merge(symbols, 2);
        std::vector<TokenId> expected = {'a', 'a'};
        expected.insert(expected.end(), n / 2, 300);
        EXPECT_EQ(symbols, expected);
    }
}

TEST(Bpe, WithoutMergesEveryByteIsAToken) {
    EXPECT_EQ(encode(BpeMerges({}), "ab"), (std::vector<TokenId>{'a', 'b'}));
    EXPECT_EQ(encode(BpeMerges({}), std::string(40, 'a')), std::vector<TokenId>(40, 'a'));
}

TEST(Bpe, ShortAndLongPiecesAgreeWithTheDefinition) {
    const uint32_t seed = test_seed();
    SCOPED_TRACE("XP_TEST_SEED=" + std::to_string(seed));
    std::mt19937 random(seed);
    for (int round = 0; round < 400; ++round) {
        const std::vector<BpeMerge> list = random_merges(random, random() % 60);
        const BpeMerges merges(list);
        for (size_t bytes : {1, 2, 7, 31, 32, 33, 34, 100, 200}) {
            const std::string piece = random_piece(random, bytes);
            ASSERT_EQ(encode(merges, piece), encode_slowly(list, piece)) << piece;
        }
    }
}

// The work is bounded by 3 candidates per byte: one each at the start, two per merge. A quadratic
// algorithm would need thousands of times as many.
TEST(Bpe, WorkIsLinearInThePiece) {
    std::mt19937 random(1);
    std::vector<BpeMerge> list = random_merges(random, 60);
    list.insert(list.begin(), {'a', 'a', 1000, 0});
    const BpeMerges merges(list);
    for (size_t bytes : {1000, 50000, 400000}) {
        for (const std::string& piece : {std::string(bytes, 'a'), random_piece(random, bytes)}) {
            std::vector<TokenId> symbols = bytes_of(piece);
            EXPECT_LE(merges.merge(symbols, 0), 3 * bytes);
            EXPECT_LT(symbols.size(), bytes);
        }
    }
}

}  // namespace
}  // namespace xp
