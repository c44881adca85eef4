#include "daemon/base/hash.h"

#include <gtest/gtest.h>

namespace xp {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
    return std::as_bytes(std::span(text));
}

// FIPS 180-2, appendix B.1.
TEST(Hash, Sha256OfAbcIsTheStandardsValue) {
    const char* expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    EXPECT_EQ(to_hex(sha256(bytes_of("abc"))), expected);
    Sha256 in_pieces;
    in_pieces.update(bytes_of("a"));
    in_pieces.update(bytes_of("bc"));
    EXPECT_EQ(to_hex(in_pieces.finish()), expected);
    in_pieces.update(bytes_of("abc"));
    EXPECT_EQ(to_hex(in_pieces.finish()), expected) << "finish starts afresh";
}

TEST(Hash, HexRoundTripsAndRefusesOtherText) {
    const Sha256Digest digest = sha256(bytes_of("x"));
    EXPECT_EQ(digest_from_hex(to_hex(digest)), digest);
    EXPECT_FALSE(digest_from_hex("abc"));
    EXPECT_FALSE(digest_from_hex(std::string(64, 'g')));
    EXPECT_FALSE(digest_from_hex(std::string(63, '0')));
}

// The published value for the empty input with seed 0.
TEST(Hash, Xxh3OfNothingIsThePublishedValue) {
    EXPECT_EQ(xxh3_64({}), 0x2d06800538d394c2u);
}

}  // namespace
}  // namespace xp
