#include "daemon/base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

namespace xp {
namespace {

class FileTest : public testing::Test {
protected:
    void SetUp() override {
        std::string pattern = testing::TempDir() + "xp-file-XXXXXX";
        directory_ = mkdtemp(pattern.data());
    }
    void TearDown() override { std::filesystem::remove_all(directory_); }
    Path directory_;
};

TEST_F(FileTest, AtomicWriteReplacesTheWholeContents) {
    const Path path = directory_ / "a";
    ASSERT_TRUE(write_file_atomic(path, "a long first version"));
    ASSERT_TRUE(write_file_atomic(path, "short"));
    EXPECT_EQ(*read_text_file(path, 100), "short");
    EXPECT_FALSE(std::filesystem::exists(directory_ / "a.tmp"));
}

TEST_F(FileTest, ReadPastTheEndIsCorruptAndNamesFileAndOffset) {
    const Path path = directory_ / "short";
    ASSERT_TRUE(write_file_atomic(path, "12345"));
    auto fd = open_file(path, O_RDONLY);
    ASSERT_TRUE(fd);
    std::byte bytes[8];
    const auto result = read_exact(fd->get(), 2, bytes, path);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(result.error().message.find(path.native()), std::string::npos);
    EXPECT_NE(result.error().message.find("offset 5"), std::string::npos);
}

TEST_F(FileTest, MissingFileIsNotFoundAndTooLargeIsLimit) {
    EXPECT_EQ(read_text_file(directory_ / "none", 10).error().code, ErrorCode::kNotFound);
    ASSERT_TRUE(write_file_atomic(directory_ / "big", "12345678901"));
    EXPECT_EQ(read_text_file(directory_ / "big", 10).error().code, ErrorCode::kLimit);
}

// Their stated size is 0.
TEST_F(FileTest, FilesOfProcAreReadToTheirEnd) {
    const auto text = read_text_file("/proc/meminfo", 1 << 20);
    ASSERT_TRUE(text) << text.error().message;
    EXPECT_NE(text->find("MemAvailable:"), std::string::npos);
}

TEST_F(FileTest, FifosAreRefusedWithoutWaiting) {
    const Path path = directory_ / "fifo";
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    const auto text = read_text_file(path, 100);
    ASSERT_FALSE(text);
    EXPECT_NE(text.error().message.find("not a regular file"), std::string::npos);
}

TEST_F(FileTest, FullDeviceIsNoSpace) {
    auto fd = open_file("/dev/full", O_WRONLY);
    ASSERT_TRUE(fd);
    const std::byte byte{1};
    const auto result = write_exact(fd->get(), 0, {&byte, 1}, "/dev/full");
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, ErrorCode::kNoSpace);
}

}  // namespace
}  // namespace xp
