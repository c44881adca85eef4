#include "daemon/base/size.h"

#include <gtest/gtest.h>

namespace xp {
namespace {

TEST(Size, ParsesNumbersWithBinaryUnits) {
    EXPECT_EQ(*parse_size("0"), 0u);
    EXPECT_EQ(*parse_size("4096"), 4096u);
    EXPECT_EQ(*parse_size("17B"), 17u);
    EXPECT_EQ(*parse_size("1248KiB"), 1248u * 1024);
    EXPECT_EQ(*parse_size("64 MiB"), uint64_t{64} << 20);
    EXPECT_EQ(*parse_size("21GiB"), uint64_t{21} << 30);
    EXPECT_EQ(*parse_size("16777215TiB"), uint64_t{16777215} << 40);
}

TEST(Size, RefusesWhatIsNoSize) {
    for (const char* text : {"", "MiB", "-1MiB", "1.5GiB", "64MB", "64mib", "1 2", "1KiBx",
                             "16777216TiB", "18446744073709551616", "1 ", "010", "00", "01KiB"}) {
        EXPECT_FALSE(parse_size(text)) << text;
    }
}

TEST(Size, FormatsWithThreeDigits) {
    EXPECT_EQ(format_size(940), "940 B");
    EXPECT_EQ(format_size(13369344), "12.8 MiB");
    EXPECT_EQ(format_size(uint64_t{3449290752}), "3.21 GiB");
    EXPECT_EQ(format_size(1248 * 1024), "1.22 MiB");
}

}  // namespace
}  // namespace xp
