// Memory with a descriptor: it is all there, keeps its size, and is the same for whoever holds the
// descriptor, also after its first owner is gone.
#include "daemon/base/memory_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

namespace xp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kMiB = uint64_t{1} << 20;

MemoryFile make(uint64_t bytes) {
    auto file = MemoryFile::create(bytes, "a test");
    EXPECT_TRUE(file.ok()) << file.error().message;
    return file ? *std::move(file) : MemoryFile();
}

UniqueFd copy_of(int fd) { return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

uint64_t size_of(int fd) {
    struct stat status {};
    EXPECT_EQ(::fstat(fd, &status), 0);
    return static_cast<uint64_t>(status.st_size);
}

TEST(MemoryFile, IsZeroFilledAndWritableToItsEnd) {
    const MemoryFile file = make(3 * kMiB + 5);
    ASSERT_NE(file.data(), nullptr);
    EXPECT_GE(file.bytes(), 3 * kMiB + 5);
    EXPECT_EQ(file.bytes() % 4096, 0u);
    EXPECT_EQ(size_of(file.fd()), file.bytes());
    EXPECT_EQ(file.data()[0], std::byte{0});
    EXPECT_EQ(file.data()[file.bytes() - 1], std::byte{0});
    std::memset(file.data(), 0xa5, file.bytes());
    EXPECT_EQ(file.data()[file.bytes() - 1], std::byte{0xa5});
}

// mincore says which pages are in memory.
TEST(MemoryFile, HasAllItsPagesFromTheStart) {
    const MemoryFile file = make(kMiB);
    ASSERT_NE(file.data(), nullptr);
    std::vector<unsigned char> resident(file.bytes() / 4096);
    ASSERT_EQ(::mincore(file.data(), file.bytes(), resident.data()), 0);
    for (size_t page = 0; page < resident.size(); ++page) {
        ASSERT_EQ(resident[page] & 1, 1) << "page " << page;
    }
}

TEST(MemoryFile, CannotChangeItsSize) {
    const MemoryFile file = make(kMiB);
    for (const off_t size : {off_t{0}, off_t{4 << 20}}) {
        EXPECT_NE(::ftruncate(file.fd(), size), 0) << size;
        EXPECT_EQ(errno, EPERM) << size;
    }
    EXPECT_NE(::fcntl(file.fd(), F_ADD_SEALS, F_SEAL_WRITE), 0);  // nor be made useless
    EXPECT_EQ(size_of(file.fd()), kMiB);
    EXPECT_NE(::fcntl(file.fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(MemoryFile, IsTheSameForWhoeverHoldsTheDescriptorWhenItsOwnerIsGone) {
    UniqueFd kept;
    {
        const MemoryFile first = make(5 * kMiB);
        kept = copy_of(first.fd());
        std::memset(first.data(), 0x11, first.bytes());
        first.data()[5 * kMiB - 1] = std::byte{0x22};
    }
    auto second = MemoryFile::adopt(copy_of(kept.get()), "a test");
    ASSERT_TRUE(second.ok()) << second.error().message;
    EXPECT_GE(second->bytes(), 5 * kMiB);
    EXPECT_EQ(second->data()[0], std::byte{0x11});
    EXPECT_EQ(second->data()[5 * kMiB - 1], std::byte{0x22});
    auto third = MemoryFile::adopt(std::move(kept), "a test");
    ASSERT_TRUE(third.ok()) << third.error().message;
    second->data()[0] = std::byte{0x33};
    EXPECT_EQ(third->data()[0], std::byte{0x33});
}

TEST(MemoryFile, WhatCouldBecomeShorterIsNotAdopted) {
    UniqueFd open_end(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(::ftruncate(open_end.get(), kMiB), 0);
    UniqueFd empty(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(::fcntl(empty.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    for (UniqueFd* fd : {&open_end, &empty}) {
        const auto adopted = MemoryFile::adopt(std::move(*fd), "the pool");
        ASSERT_FALSE(adopted);
        EXPECT_EQ(adopted.error().code, ErrorCode::kInvalidArgument);
        EXPECT_THAT(adopted.error().message,
                    AllOf(HasSubstr("memory for the pool"), HasSubstr("not a memfd with sealed")));
    }
    const auto other = MemoryFile::adopt(UniqueFd(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC)),
                                         "the pool");
    ASSERT_FALSE(other);
    EXPECT_THAT(other.error().message, HasSubstr("the pool"));
    EXPECT_FALSE(MemoryFile::adopt(UniqueFd(), "the pool"));
}

TEST(MemoryFile, WhatThereIsNoMemoryForIsRefusedWithTheSizeAndThePurpose) {
    for (const uint64_t bytes : {uint64_t{1} << 50, UINT64_MAX}) {
        const auto file = MemoryFile::create(bytes, "the RAM tier");
        ASSERT_FALSE(file) << bytes;
        EXPECT_THAT(file.error().message, HasSubstr("of host memory for the RAM tier")) << bytes;
    }
}

TEST(MemoryFile, TakesWholeHugePagesOrOrdinaryOnes) {
    EXPECT_FALSE(make(4096).huge_pages());
    EXPECT_EQ(make(5000).bytes(), 8192u);
    const MemoryFile large = make(MemoryFile::kHugePageBytes + 4096);
    EXPECT_EQ(large.bytes(),
              large.huge_pages() ? 2 * MemoryFile::kHugePageBytes : 2 * kMiB + 4096);
    const auto adopted = MemoryFile::adopt(copy_of(large.fd()), "a test");
    ASSERT_TRUE(adopted.ok()) << adopted.error().message;
    EXPECT_EQ(adopted->huge_pages(), large.huge_pages());
    EXPECT_EQ(make(0).data(), nullptr);
}

TEST(MemoryFile, AdviceNamesTheLimitOnlyWhereItIsTooLow) {
    EXPECT_EQ(memlock_advice(8 * kMiB, 8 * kMiB), "");
    EXPECT_EQ(memlock_advice(8 * kMiB + 1, 8 * kMiB),
              "; RLIMIT_MEMLOCK allows 8.00 MiB to be locked: raise it (LimitMEMLOCK= of a systemd "
              "unit, ulimit -l of a shell)");
    EXPECT_EQ(memlock_advice(0), "");
}

}  // namespace
}  // namespace xp
