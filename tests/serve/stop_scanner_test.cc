#include "daemon/serve/stop_scanner.h"

#include <random>

#include <gtest/gtest.h>

namespace xp {
namespace {

TEST(StopScanner, PassesEverythingOnWithoutStopStrings) {
    StopScanner scanner({""});
    EXPECT_EQ(scanner.push("abc").text, "abc");
    EXPECT_EQ(scanner.finish(), "");
}

TEST(StopScanner, HoldsBackWhatCouldBeginAStopString) {
    StopScanner scanner({"\nUser:"});
    EXPECT_EQ(scanner.push("Hello\nUs").text, "Hello");
    const auto more = scanner.push("age");
    EXPECT_EQ(more.text, "\nUsage");
    EXPECT_FALSE(more.stopped);
}

TEST(StopScanner, NeverGivesOutTheStopString) {
    StopScanner scanner({"STOP"});
    EXPECT_EQ(scanner.push("xS").text, "x");
    EXPECT_EQ(scanner.push("TO").text, "");
    const auto last = scanner.push("P and more");
    EXPECT_EQ(last.text, "");
    EXPECT_TRUE(last.stopped);
}

TEST(StopScanner, ReleasesWhatWasHeldAtTheEnd) {
    StopScanner scanner({"STOP"});
    EXPECT_EQ(scanner.push("xSTO").text, "x");
    EXPECT_EQ(scanner.finish(), "STO");
    EXPECT_EQ(scanner.finish(), "");
}

TEST(StopScanner, TheMatchCompletedFirstWins) {
    StopScanner whole({"abcd", "bc"});
    const auto output = whole.push("xabcd");
    EXPECT_EQ(output.text, "xa");
    EXPECT_TRUE(output.stopped);
}

// The reference looks at every prefix of the text for a stop string that ends there.
TEST(StopScanner, ResultDoesNotDependOnTheCuts) {
    const uint32_t seed = std::random_device{}();
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto random_text = [&](size_t least, size_t most) {
        std::string text(least + random() % (most - least + 1), ' ');
        for (char& c : text) {
            c = static_cast<char>('a' + random() % 2);
        }
        return text;
    };
    for (int round = 0; round < 2000; ++round) {
        std::vector<std::string> stops;
        for (size_t n = 1 + random() % 3; n > 0; --n) {
            stops.push_back(random_text(1, 5));
        }
        const std::string text = random_text(0, 20);
        std::string expected = text;
        bool stops_expected = false;
        for (size_t end = 1; end <= text.size() && !stops_expected; ++end) {
            for (const std::string& stop : stops) {
                const std::string_view head = std::string_view(text).substr(0, end);
                if (head.ends_with(stop) &&
                    (!stops_expected || end - stop.size() < expected.size())) {
                    expected = text.substr(0, end - stop.size());
                    stops_expected = true;
                }
            }
        }
        StopScanner scanner(stops);
        std::string got;
        bool stopped = false;
        for (size_t at = 0; at < text.size() && !stopped;) {
            const size_t n = 1 + random() % 4;
            const auto output = scanner.push(std::string_view(text).substr(at, n));
            got += output.text;
            stopped = output.stopped;
            at += n;
        }
        if (!stopped) {
            got += scanner.finish();
        }
        ASSERT_EQ(got, expected) << text;
        ASSERT_EQ(stopped, stops_expected) << text;
    }
}

}  // namespace
}  // namespace xp
