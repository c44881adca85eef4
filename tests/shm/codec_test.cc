#include <cmath>

#include <gtest/gtest.h>

#include "tests/shm/messages.h"

namespace xp::shm {
namespace {

TEST(Codec, EveryRequestSurvivesTheRoundTrip) {
    size_t i = 0;
    for (const Request& request : example_requests()) {
        std::string why;
        const auto decoded = decode_request(encode_request(request), &why);
        ASSERT_TRUE(decoded) << "example " << i << ": " << why;
        EXPECT_TRUE(*decoded == request) << "example " << i;
        ++i;
    }
}

TEST(Codec, EveryReplySurvivesTheRoundTrip) {
    size_t i = 0;
    for (const Reply& reply : example_replies()) {
        std::string why;
        const auto decoded = decode_reply(encode_reply(reply), &why);
        ASSERT_TRUE(decoded) << "example " << i << ": " << why;
        EXPECT_TRUE(*decoded == reply) << "example " << i;
        ++i;
    }
}

// The ring fills records to a multiple of eight bytes.
TEST(Codec, TrailingZerosAreAccepted) {
    std::string why;
    for (const Request& request : example_requests()) {
        auto bytes = encode_request(request);
        bytes.resize(bytes.size() + 7);
        const auto decoded = decode_request(bytes, &why);
        ASSERT_TRUE(decoded) << why;
        EXPECT_TRUE(*decoded == request);
    }
}

TEST(Codec, BytesAtAnyAddressAreAccepted) {
    const auto bytes = encode_request(full_generate());
    std::string why;
    for (size_t shift = 0; shift < 8; ++shift) {
        std::vector<std::byte> moved(shift);
        moved.insert(moved.end(), bytes.begin(), bytes.end());
        const auto decoded = decode_request(std::span(moved).subspan(shift), &why);
        ASSERT_TRUE(decoded) << why;
        EXPECT_TRUE(*decoded == Request(full_generate()));
    }
}

TEST(Codec, RequestsAndRepliesAreNotMistakenForEachOther) {
    std::string why;
    EXPECT_FALSE(decode_reply(encode_request(Ping{}), &why));
    EXPECT_EQ(why, "the message is not a reply that is known here");
    EXPECT_FALSE(decode_request(encode_reply(Pong{}), &why));
    EXPECT_EQ(why, "the message is not a request that is known here");
}

TEST(Codec, EveryProperPrefixIsRefused) {
    // Cut by whole words: the last few bytes of a buffer may be padding of its own.
    std::string why;
    for (const Request& request : {Request(full_generate()), Request(Ping{})}) {
        const auto bytes = encode_request(request);
        for (size_t size = 0; size + 8 <= bytes.size(); ++size) {
            const auto decoded = decode_request(std::span(bytes).first(size), &why);
            EXPECT_FALSE(decoded && *decoded == request) << size << " of " << bytes.size();
        }
    }
}

TEST(Codec, InfiniteLogprobsAreSentAsTheLowestFloat) {
    const Tokens tokens{{1}, Channel::kContent, "", {{-INFINITY, {{2, NAN}}}}};
    std::string why;
    const auto decoded = decode_reply(encode_reply(tokens), &why);
    ASSERT_TRUE(decoded) << why;
    const auto& got = std::get<Tokens>(*decoded);
    EXPECT_EQ(got.logprobs[0].chosen, -FLT_MAX);
    EXPECT_EQ(got.logprobs[0].top[0].logprob, -FLT_MAX);
}

// What one streamed token costs in the ring; the ring's size was chosen by this.
TEST(Codec, ATokenMessageIsSmall) {
    EXPECT_LE(encode_reply(Tokens{{42}, Channel::kContent, " the", {}}).size(), 96u);
}

TEST(Codec, OnlyTheLastReplyOfARequestIsTerminal) {
    EXPECT_FALSE(is_terminal(Accepted{}));
    EXPECT_FALSE(is_terminal(Progress{}));
    EXPECT_FALSE(is_terminal(Tokens{}));
    for (const Reply& reply : {Reply(Done{}), Reply(Cancelled{}), Reply(Failed{}), Reply(Pong{}),
                               Reply(ModelsReply{}), Reply(StatsReply{})}) {
        EXPECT_TRUE(is_terminal(reply));
    }
}

TEST(Utf8, AcceptsWellFormedText) {
    for (const char* text :
         {"", "a", "abcdefgh", "abcdefghi", "\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80",
          "\xed\x9f\xbf", "\xee\x80\x80", "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf",
          "abcdefg\xc3\xa9", "\xf0\x9f\x99\x82 abcdefghijklmnop"}) {
        EXPECT_TRUE(is_valid_utf8(text)) << text;
    }
    EXPECT_TRUE(is_valid_utf8(std::string_view("a\0b", 3)));
}

TEST(Utf8, RefusesMalformedTextAtAnyPlace) {
    for (const char* bad :
         {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xc2", "\xc2\x41", "\xe0\x80\x80",
          "\xe0\x9f\xbf", "\xe1\x80", "\xe1\x80\x41", "\xed\xa0\x80", "\xed\xbf\xbf",
          "\xf0\x80\x80\x80", "\xf0\x8f\xbf\xbf", "\xf0\x90\x80", "\xf4\x90\x80\x80",
          "\xf5\x80\x80\x80", "\xff", "\xfe"}) {
        for (size_t before = 0; before < 18; ++before) {
            const std::string text = std::string(before, 'x') + bad;
            EXPECT_FALSE(is_valid_utf8(text)) << before;
            EXPECT_FALSE(is_valid_utf8(text + "tail of ASCII text")) << before;
        }
    }
}

}  // namespace
}  // namespace xp::shm
