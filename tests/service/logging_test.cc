#include "daemon/service/logging.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

namespace xp {
namespace {

class Pipe {
public:
    Pipe() { ok_ = ::pipe(fds_) == 0; }
    ~Pipe() {
        ::close(fds_[0]);
        ::close(fds_[1]);
    }
    int in() const { return fds_[1]; }
    std::string read() const {
        char buffer[4096];
        const ssize_t n = ::read(fds_[0], buffer, sizeof buffer);
        return n > 0 ? std::string(buffer, static_cast<size_t>(n)) : "";
    }

private:
    int fds_[2] = {-1, -1};
    bool ok_ = false;
};

TEST(Logging, LinesForTheJournalBeginWithTheirPriority) {
    const Pipe pipe;
    spdlog::logger logger("test", make_log_sink(pipe.in(), true));
    logger.warn("closing client {}", 3);
    EXPECT_EQ(pipe.read(), "<4>closing client 3\n");
    logger.error("two\nlines\x01");
    EXPECT_EQ(pipe.read(), "<3>two; lines\\x01\n");
    logger.info("x");
    EXPECT_EQ(pipe.read(), "<6>x\n");
}

TEST(Logging, OtherLinesBeginWithDateAndLevel) {
    const Pipe pipe;
    spdlog::logger logger("test", make_log_sink(pipe.in(), false));
    logger.warn("closing client 3");
    EXPECT_THAT(pipe.read(), ::testing::MatchesRegex(
        "[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3} warning: "
        "closing client 3\n"));
}

TEST(Logging, TheJournalIsRecognisedByDeviceAndInode) {
    const Pipe pipe;
    struct stat info {};
    ASSERT_EQ(::fstat(pipe.in(), &info), 0);
    const std::string right = std::to_string(info.st_dev) + ":" + std::to_string(info.st_ino);
    EXPECT_TRUE(is_journal_stream(right.c_str(), pipe.in()));
    EXPECT_FALSE(is_journal_stream(nullptr, pipe.in()));
    EXPECT_FALSE(is_journal_stream("1:2", pipe.in()));
    EXPECT_FALSE(is_journal_stream((right + "x").c_str(), pipe.in()));
    EXPECT_FALSE(is_journal_stream("", pipe.in()));
}

}  // namespace
}  // namespace xp
