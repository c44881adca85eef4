#include "daemon/text/special_tokens.h"

#include <gtest/gtest.h>

#include "tests/text/text_data.h"

namespace xp {
namespace {

using Entry = SpecialTokenMatcher::Entry;

// Tries every entry at every place.
std::optional<SpecialTokenMatcher::Match> find_slowly(const std::vector<Entry>& entries,
                                                      std::string_view text, size_t from) {
    for (size_t begin = from; begin < text.size(); ++begin) {
        const Entry* longest = nullptr;
        for (const Entry& entry : entries) {
            if (!text.substr(begin).starts_with(entry.text)) continue;
            if (longest == nullptr || entry.text.size() > longest->text.size()) longest = &entry;
        }
        if (longest != nullptr) {
            return SpecialTokenMatcher::Match{begin, longest->text.size(), longest->id};
        }
    }
    return std::nullopt;
}

TEST(SpecialTokens, FindsTheLeftmostAndThereTheLongest) {
    const SpecialTokenMatcher matcher({{"<a>", 1}, {"<a><b>", 2}, {"b><c", 3}, {"<", 4}});
    const auto match = matcher.find("x<a><b><c", 0);
    ASSERT_TRUE(match);
    EXPECT_EQ(match->begin, 1u);
    EXPECT_EQ(match->bytes, 6u);
    EXPECT_EQ(match->id, 2);
    EXPECT_EQ(matcher.find("x<a><b><c", 5)->id, 3);
    EXPECT_EQ(matcher.find("<a", 0)->id, 4);
    EXPECT_FALSE(matcher.find("plain", 0));
    EXPECT_FALSE(matcher.find("<", 1));
}

TEST(SpecialTokens, WithoutEntriesNothingIsFound) {
    EXPECT_FALSE(SpecialTokenMatcher().find("<a>", 0));
    EXPECT_FALSE(SpecialTokenMatcher({{"", 1}, {"\x80", 2}}).find("<a>é", 0));
}

TEST(SpecialTokens, OfEqualTextsTheFirstCounts) {
    EXPECT_EQ(SpecialTokenMatcher({{"<x>", 7}, {"<x>", 3}}).find("<x>", 0)->id, 7);
}

TEST(SpecialTokens, AgreesWithTryingAllOnRandomText) {
    const uint32_t seed = test_seed();
    SCOPED_TRACE("XP_TEST_SEED=" + std::to_string(seed));
    std::mt19937 random(seed);
    const auto word = [&](size_t max_bytes) {
        std::string text;
        for (size_t n = 1 + random() % max_bytes; n > 0; --n) text += "ab<"[random() % 3];
        return text;
    };
    size_t found = 0;
    for (int round = 0; round < 2000; ++round) {
        std::vector<std::string> texts;
        for (size_t n = random() % 8; n > 0; --n) texts.push_back(word(5));
        std::vector<Entry> entries;
        for (const std::string& text : texts) {
            entries.push_back({text, static_cast<TokenId>(entries.size())});
        }
        const SpecialTokenMatcher matcher(entries);
        const std::string text = word(30);
        for (size_t from = 0; from <= text.size(); ++from) {
            const auto expected = find_slowly(entries, text, from);
            const auto match = matcher.find(text, from);
            ASSERT_EQ(match.has_value(), expected.has_value()) << text << " from " << from;
            if (!match) continue;
            ASSERT_EQ(match->begin, expected->begin) << text;
            ASSERT_EQ(match->bytes, expected->bytes) << text;
            ASSERT_EQ(match->id, expected->id) << text;
            ++found;
        }
    }
    EXPECT_GT(found, 1000u);
}

}  // namespace
}  // namespace xp
