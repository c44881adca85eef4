// What the host's memory allows, from what the kernel says of machine, control groups and huge
// pages.
#include "daemon/tiers/host_memory.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace xp {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;

TEST(HostMemoryTest, AReserveIsKeptAndUnreadableTextMeansNoLimit) {
    EXPECT_EQ(usable_host_memory("MemTotal:       33554432 kB\nMemFree: 1 kB\n"
                                 "MemAvailable:   16777216 kB\n"), 16 * kGiB - 2 * kGiB);
    EXPECT_EQ(usable_host_memory("MemTotal: 1048576 kB\nMemAvailable: 1024 kB\n"), 0u);
    EXPECT_EQ(usable_host_memory(""), UINT64_MAX);
    EXPECT_EQ(usable_host_memory("MemTotal: many\nMemAvailable: 5 kB\n"), UINT64_MAX);
    EXPECT_GT(usable_host_memory(), 0u);
    EXPECT_GE(usable_file_memory(), usable_host_memory() / 2);
}

TEST(HostMemoryTest, HugePagesThatNobodyWasPromisedCount) {
    const std::string kind = "Hugepagesize:       2048 kB\n";
    EXPECT_EQ(free_huge_pages("HugePages_Total: 512\nHugePages_Free:    300\nHugePages_Rsvd: 44\n" +
                              kind), 512 * kMiB);
    EXPECT_EQ(free_huge_pages("HugePages_Free: 3\nHugePages_Rsvd: 4\n" + kind), 0u);
    EXPECT_EQ(free_huge_pages("HugePages_Free: 300\nHugepagesize: 1048576 kB\n"), 0u);
    EXPECT_EQ(free_huge_pages(""), 0u);
}

class GroupMemoryTest : public testing::Test {
protected:
    void SetUp() override {
        std::string name = testing::TempDir() + "groupsXXXXXX";
        ASSERT_NE(::mkdtemp(name.data()), nullptr);
        root_ = name;
    }
    void TearDown() override { std::filesystem::remove_all(root_); }
    void write(const Path& file, const std::string& text) {
        std::filesystem::create_directories((root_ / file).parent_path());
        std::ofstream(root_ / file) << text;
    }
    uint64_t usable(const std::string& groups) { return usable_group_memory(groups, root_); }
    Path root_;
};

TEST_F(GroupMemoryTest, TheLimitLessWhatIsUsedAndNotOfFilesLessTheReserve) {
    write("a/b/memory.max", std::to_string(8 * kGiB) + "\n");
    write("a/b/memory.high", "max\n");
    write("a/b/memory.current", std::to_string(3 * kGiB) + "\n");
    write("a/b/memory.stat", "anon 5\nfile 7\ninactive_file " + std::to_string(kGiB) +
                                 "\nactive_file " + std::to_string(512 * kMiB) + "\n");
    const uint64_t expected = 8 * kGiB - (3 * kGiB - kGiB - 512 * kMiB) - 512 * kMiB;
    EXPECT_EQ(usable("0::/a/b\n"), expected);
    // In the middle of other lines, and without the last one's end.
    EXPECT_EQ(usable("9:name=systemd:/x\n0::/a/b"), expected);
    write("a/b/memory.high", std::to_string(6 * kGiB) + "\n");
    EXPECT_EQ(usable("0::/a/b\n"), 6 * kGiB - 1536 * kMiB - 384 * kMiB);
}

TEST_F(GroupMemoryTest, GroupsAboveLimitTooAndMissingOnesDoNot) {
    write("a/memory.max", std::to_string(4 * kGiB));
    write("a/memory.current", "0");
    EXPECT_EQ(usable("0::/a/b/c\n"), 4 * kGiB - 256 * kMiB);
    write("memory.max", std::to_string(2 * kGiB));  // a container's own group
    write("memory.current", std::to_string(kGiB));
    EXPECT_EQ(usable("0::/a/b/c\n"), kGiB - 256 * kMiB);
    EXPECT_EQ(usable("0::/\n"), kGiB - 256 * kMiB);
    EXPECT_EQ(usable("0::/elsewhere/b\n"), kGiB - 256 * kMiB);
    EXPECT_EQ(usable("0::/../x\n"), kGiB - 256 * kMiB);  // a group outside of the namespace
    write("memory.current", std::to_string(5 * kGiB));
    EXPECT_EQ(usable("0::/\n"), 0u);
}

TEST_F(GroupMemoryTest, TheFirstVersionIsUnderstoodToo) {
    write("memory/docker/1/memory.limit_in_bytes", std::to_string(4 * kGiB) + "\n");
    write("memory/docker/1/memory.usage_in_bytes", std::to_string(2 * kGiB) + "\n");
    write("memory/docker/1/memory.stat", "inactive_file 1\ntotal_inactive_file " +
                                             std::to_string(kGiB) + "\ntotal_active_file 0\n");
    write("memory/memory.limit_in_bytes", "9223372036854771712\n");
    write("memory/memory.usage_in_bytes", std::to_string(20 * kGiB) + "\n");
    const std::string groups = "7:blkio:/\n4:memory:/docker/1\n0::/\n";
    EXPECT_EQ(usable(groups), 3 * kGiB - 256 * kMiB);
    EXPECT_EQ(usable("4:memory:/\n"), UINT64_MAX);
}

TEST_F(GroupMemoryTest, WithoutGroupsThereIsNoLimit) {
    for (const char* groups : {"", "\n", "nonsense", "0::", "4:memory", "0::/none\n"}) {
        EXPECT_EQ(usable(groups), UINT64_MAX) << groups;
    }
    write("memory.max", "a number\n");
    write("memory.current", "1\n");
    EXPECT_EQ(usable("0::/\n"), UINT64_MAX);
}

}  // namespace
}  // namespace xp
