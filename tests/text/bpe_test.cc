#include "daemon/text/bpe.h"

#include <algorithm>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "tests/text/text_data.h"

namespace xp {
namespace {

std::array<TokenId, 256> bytes_as_tokens() {
    std::array<TokenId, 256> tokens;
    for (int i = 0; i < 256; ++i) tokens[i] = i;
    return tokens;
}

std::vector<TokenId> encode(const BpeMerges& merges, std::string_view piece) {
    std::vector<TokenId> tokens;
    merges.encode(piece, tokens);
    return tokens;
}

// The definition: merge the leftmost pair of the lowest rank until none is left.
std::vector<TokenId> encode_slowly(const std::vector<BpeMerge>& merges, std::string_view piece) {
    std::map<std::pair<TokenId, TokenId>, size_t> rank_of;
    for (size_t rank = 0; rank < merges.size(); ++rank) {
        rank_of.emplace(std::pair(merges[rank].left, merges[rank].right), rank);
    }
    std::vector<TokenId> tokens;
    for (char c : piece) tokens.push_back(static_cast<uint8_t>(c));
    for (;;) {
        size_t best = merges.size(), at = 0;
        for (size_t i = 0; i + 1 < tokens.size(); ++i) {
            const auto entry = rank_of.find({tokens[i], tokens[i + 1]});
            if (entry == rank_of.end() || entry->second >= best) continue;
            best = entry->second;
            at = i;
        }
        if (best == merges.size()) return tokens;
        tokens[at] = merges[best].merged;
        tokens.erase(tokens.begin() + static_cast<ptrdiff_t>(at) + 1);
    }
}

// Random merges over a small alphabet: each joins two known tokens.
std::vector<BpeMerge> random_merges(std::mt19937& random, size_t n_merges) {
    std::vector<TokenId> known = {'a', 'b', 'c'};
    std::vector<BpeMerge> merges;
    while (merges.size() < n_merges) {
        const TokenId merged = static_cast<TokenId>(256 + merges.size());
        merges.push_back({known[random() % known.size()], known[random() % known.size()], merged});
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
    const std::vector<BpeMerge> list = {{'b', 'c', 300}, {'a', 'b', 301}, {301, 'c', 302},
                                        {'a', 300, 303}, {'a', 'a', 304}};
    const BpeMerges merges(list, bytes_as_tokens());
    EXPECT_EQ(encode(merges, "abc"), (std::vector<TokenId>{303}));
    EXPECT_EQ(encode(merges, "abd"), (std::vector<TokenId>{301, 'd'}));
    EXPECT_EQ(encode(merges, "aaa"), (std::vector<TokenId>{304, 'a'}));
    EXPECT_EQ(encode(merges, ""), std::vector<TokenId>{});
}

TEST(Bpe, OfEqualPairsTheFirstCounts) {
    const std::vector<BpeMerge> list = {{'a', 'b', 300}, {'a', 'b', 301}};
    EXPECT_EQ(encode(BpeMerges(list, bytes_as_tokens()), "ab"), std::vector<TokenId>{300});
}

TEST(Bpe, WithoutMergesEveryByteIsAToken) {
    EXPECT_EQ(encode(BpeMerges({}, bytes_as_tokens()), "ab"), (std::vector<TokenId>{'a', 'b'}));
}

TEST(Bpe, ShortAndLongPiecesAgreeWithTheDefinition) {
    const uint32_t seed = test_seed();
    SCOPED_TRACE("XP_TEST_SEED=" + std::to_string(seed));
    std::mt19937 random(seed);
    for (int round = 0; round < 400; ++round) {
        const std::vector<BpeMerge> list = random_merges(random, random() % 60);
        const BpeMerges merges(list, bytes_as_tokens());
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
    const std::vector<BpeMerge> list = random_merges(random, 60);
    const BpeMerges merges(list, bytes_as_tokens());
    for (size_t bytes : {1000, 50000, 400000}) {
        for (const std::string& piece : {std::string(bytes, 'a'), random_piece(random, bytes)}) {
            std::vector<TokenId> tokens;
            EXPECT_LE(merges.encode(piece, tokens), 3 * bytes);
            EXPECT_LT(tokens.size(), bytes);
        }
    }
}

}  // namespace
}  // namespace xp
