// Messages in sealed memfds: what is not exactly that is refused before it is read.
#include "shm/enclosure.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shm/handshake.h"

namespace xp::shm {
namespace {

using ::testing::HasSubstr;

constexpr int kAllSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;

std::vector<std::byte> message_of(size_t bytes) {
    std::vector<std::byte> message(bytes);
    for (size_t i = 0; i < bytes; ++i) message[i] = static_cast<std::byte>(i * 31 >> 3);
    return message;
}

// What open_enclosure says of it; empty when it took it.
std::string error_of(const Fd& fd, uint64_t bytes) {
    std::vector<std::byte> message;
    std::string error;
    return open_enclosure(fd, bytes, &message, &error) ? "" : error;
}

TEST(Enclosure, CarriesAMessageOfMegabytes) {
    const auto message = message_of(5'000'001);
    std::string error;
    const Fd fd = enclose(message, &error);
    ASSERT_TRUE(fd) << error;
    std::vector<std::byte> read;
    ASSERT_TRUE(open_enclosure(fd, message.size(), &read, &error)) << error;
    EXPECT_TRUE(read == message);
}

TEST(Enclosure, CanNeitherChangeNorShrink) {
    const auto message = message_of(100);
    std::string error;
    const Fd fd = enclose(message, &error);
    ASSERT_TRUE(fd) << error;
    EXPECT_EQ(::fcntl(fd.get(), F_GET_SEALS) & kAllSeals, kAllSeals);
    EXPECT_EQ(::pwrite(fd.get(), "x", 1, 0), -1);
    EXPECT_NE(::ftruncate(fd.get(), 50), 0);
    EXPECT_EQ(::mmap(nullptr, 100, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0), MAP_FAILED);
}

TEST(Enclosure, IsRefusedWithoutEverySeal) {
    for (const int missing : {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE, F_SEAL_SEAL}) {
        const Fd fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
        ASSERT_EQ(::write(fd.get(), "0123456789", 10), 10);
        ASSERT_EQ(::fcntl(fd.get(), F_ADD_SEALS, kAllSeals & ~missing), 0);
        EXPECT_THAT(error_of(fd, 10), HasSubstr("not in a fully sealed memfd")) << missing;
    }
}

TEST(Enclosure, IsRefusedWhenItsLengthIsNotAsStated) {
    std::string error;
    const Fd fd = enclose(message_of(100), &error);
    ASSERT_TRUE(fd) << error;
    for (const uint64_t stated : {uint64_t{0}, uint64_t{99}, uint64_t{101}, UINT64_MAX}) {
        EXPECT_THAT(error_of(fd, stated), HasSubstr("not as long as stated")) << stated;
    }
    EXPECT_EQ(error_of(fd, 100), "");
}

TEST(Enclosure, IsRefusedWhenItIsNoMemfd) {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const Fd reads(ends[0]);
    const Fd writes(ends[1]);
    EXPECT_NE(error_of(reads, 10), "");
    EXPECT_NE(error_of(Fd(::open("/dev/zero", O_RDONLY | O_CLOEXEC)), 10), "");
    EXPECT_NE(error_of(Fd(::open("/", O_RDONLY | O_CLOEXEC)), 4096), "");
    EXPECT_NE(error_of(Fd(), 10), "");
}

class NoticePair : public ::testing::Test {
protected:
    void SetUp() override {
        int ends[2];
        ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
        a_.reset(ends[0]);
        b_.reset(ends[1]);
    }
    Fd a_;
    Fd b_;
};

TEST_F(NoticePair, AnEnclosureComesWithItsNotice) {
    const auto message = message_of(1000);
    std::string error;
    {
        const Fd fd = enclose(message, &error);
        ASSERT_TRUE(send_notice(a_.get(), NoticeKind::kEnclosed, 1000, fd.get()));
    }
    Notice notice;
    Fd received;
    ASSERT_EQ(receive_notice(b_.get(), &notice, &received, &error), ReceiveStatus::kOk) << error;
    EXPECT_EQ(notice.value, 1000u);
    std::vector<std::byte> read;
    ASSERT_TRUE(open_enclosure(received, 1000, &read, &error)) << error;
    EXPECT_TRUE(read == message);
    EXPECT_EQ(receive_notice(b_.get(), &notice, &received, &error), ReceiveStatus::kAgain);
}

TEST_F(NoticePair, AnEnclosedNoticeNeedsItsDescriptorAndOthersHaveNone) {
    std::string error;
    Notice notice;
    Fd received;
    ASSERT_TRUE(send_notice(a_.get(), NoticeKind::kEnclosed, 1000));
    EXPECT_EQ(receive_notice(b_.get(), &notice, &received, &error), ReceiveStatus::kBad);
    EXPECT_THAT(error, HasSubstr("with 0 descriptors"));
    const Fd fd = enclose(message_of(10), &error);
    ASSERT_TRUE(send_notice(a_.get(), NoticeKind::kDrain, 0, fd.get()));
    EXPECT_EQ(receive_notice(b_.get(), &notice, &received, &error), ReceiveStatus::kBad);
    // A side that takes no enclosures takes no descriptors.
    ASSERT_TRUE(send_notice(a_.get(), NoticeKind::kEnclosed, 10, fd.get()));
    EXPECT_EQ(receive_notice(b_.get(), &notice, nullptr, &error), ReceiveStatus::kBad);
    EXPECT_FALSE(received);
}

}  // namespace
}  // namespace xp::shm
