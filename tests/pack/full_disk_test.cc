// Drives that are full, too small, read-only or limited: the build stops with a message that names
// file and sizes, what was done is kept, and with room made it goes on to the right bytes.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/pack/pack_fixture.h"

namespace xp::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A small file system of its own, which nobody but this process sees.
class FullDisk : public testing::Test {
protected:
    void SetUp() override {
        if (::unshare(CLONE_NEWNS) != 0 ||
            ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
            ::mount("tmpfs", drive_.c_str(), "tmpfs", 0, "size=16m") != 0) {
            GTEST_SKIP() << "mounting is not allowed here: " << std::strerror(errno);
        }
        mounted_ = true;
        build_or_fail(kTinyModel, reference_);
        options_.reserve_bytes = 0;
        options_.sync_bytes = 0;
    }
    void TearDown() override {
        if (mounted_) ::umount2(drive_.c_str(), MNT_DETACH);
    }
    bool remount(unsigned long flags, const std::string& data) const {
        return ::mount(nullptr, drive_.c_str(), nullptr, MS_REMOUNT | flags, data.c_str()) == 0;
    }
    // Takes all the room that is left.
    void fill() const {
        const int fd = ::open((drive_ / "ballast").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
        for (const size_t bytes : {size_t{1} << 20, size_t{4096}}) {
            const std::vector<char> block(bytes);
            while (::write(fd, block.data(), block.size()) > 0) {
            }
        }
        ::close(fd);
    }

    const Scratch scratch_;
    const Path drive_ = scratch_.make_directory("drive");
    const Path pack_ = drive_ / "m.xpack";
    const Path reference_ = scratch_ / "reference.xpack";
    BuildOptions options_;
    bool mounted_ = false;
};

TEST_F(FullDisk, TooSmallADriveIsToldBeforeAnythingIsWritten) {
    ASSERT_TRUE(remount(0, "size=3m"));
    const auto built = build_pack(kTinyModel, pack_, options_);
    ASSERT_FALSE(built);
    EXPECT_EQ(built.error().code, ErrorCode::kNoSpace);
    EXPECT_THAT(built.error().message,
                AllOf(HasSubstr("not enough space"), HasSubstr(pack_.native()),
                      HasSubstr(" are needed"), HasSubstr("3.00 MiB (3145728 bytes) are free")));
    EXPECT_FALSE(std::filesystem::exists(pack_));
    ASSERT_TRUE(remount(0, "size=16m"));
    build_or_fail(kTinyModel, pack_, options_);
    expect_same_files(pack_, reference_);
}

// Somebody else fills the drive while the build runs, sooner or later.
TEST_F(FullDisk, ADriveThatFillsUpStopsTheBuildAndRoomLetsItGoOn) {
    const uint64_t total = std::filesystem::file_size(kTinyModel);
    int stopped = 0;
    for (const uint64_t percent : {0u, 40u, 80u, 95u}) {
        SCOPED_TRACE(fmt::format("full after {} % of the source", percent));
        std::filesystem::remove_all(pack_);
        options_.progress = [&](const BuildProgress& now) {
            if (now.done_bytes * 100 >= total * percent) fill();
        };
        const auto built = build_pack(kTinyModel, pack_, options_);
        options_.progress = nullptr;
        if (!built) {
            ++stopped;
            EXPECT_EQ(built.error().code, ErrorCode::kNoSpace) << built.error().message;
            EXPECT_THAT(built.error().message,
                        AllOf(HasSubstr(pack_.native()), HasSubstr("No space left on device"),
                              HasSubstr("run the same build again")));
            // Still full: how much is missing is known now.
            const auto again = build_pack(kTinyModel, pack_, options_);
            ASSERT_FALSE(again);
            EXPECT_EQ(again.error().code, ErrorCode::kNoSpace);
            EXPECT_THAT(again.error().message,
                        AllOf(HasSubstr("not enough space"), HasSubstr("are needed"),
                              HasSubstr("(0 bytes) are free")));
            EXPECT_TRUE(std::filesystem::exists(pack_ / "build.journal"));
        }
        std::filesystem::remove(drive_ / "ballast");
        if (!built) build_or_fail(kTinyModel, pack_, options_);
        expect_same_files(pack_, reference_);
    }
    EXPECT_THAT(faults_of(pack_, {.deep = true}), testing::IsEmpty());
    EXPECT_GE(stopped, 3);
}

TEST_F(FullDisk, AReadOnlyDriveIsNamed) {
    BuildProgress progress;
    options_.progress = [&](const BuildProgress& now) { progress = now; };
    options_.cancelled = [&] { return progress.done_bytes > 2'000'000; };
    ASSERT_FALSE(build_pack(kTinyModel, pack_, options_));
    options_.cancelled = nullptr;
    ASSERT_TRUE(remount(MS_RDONLY, "size=16m"));
    for (const Path& destination : {pack_, drive_ / "new.xpack"}) {
        const auto built = build_pack(kTinyModel, destination, options_);
        ASSERT_FALSE(built);
        EXPECT_EQ(built.error().code, ErrorCode::kIo);
        EXPECT_THAT(built.error().message,
                    AllOf(HasSubstr(destination.native()), HasSubstr("Read-only file system")));
    }
    ASSERT_TRUE(remount(0, "size=16m"));
    build_or_fail(kTinyModel, pack_, options_);
    expect_same_files(pack_, reference_);
}

// A limit on the size of files (ulimit -f) would kill a program that does not expect it.
TEST(FileSizeLimit, IsAnErrorWithTheFilesNameAndNoEndByASignal) {
    const Scratch scratch;
    const std::string pack = scratch / "m.xpack";
    const std::string err = scratch / "err";
    const pid_t child = ::fork();
    if (child == 0) {
        const rlimit limit{1 << 20, 1 << 20};
        ::setrlimit(RLIMIT_FSIZE, &limit);
        ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT, 0644), 2);
        ::execl(XP_PACK_PROGRAM, XP_PACK_PROGRAM, "build", kTinyModel.c_str(), pack.c_str(), "-q",
                nullptr);
        ::_exit(127);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), 1);
    EXPECT_THAT(read_bytes(err),
                AllOf(HasSubstr("experts.000.xpk"), HasSubstr("File too large")));
    build_or_fail(kTinyModel, pack);
    EXPECT_THAT(faults_of(pack, {.deep = true}), testing::IsEmpty());
}

}  // namespace
}  // namespace xp::test
