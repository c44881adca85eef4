#include "daemon/serve/listener.h"

#include <fstream>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/serve/temp_dir.h"

namespace xp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using scripted::TempDir;

Result<Listener> listen_at(const Path& path) {
    XP_TRY(UniqueFd lock, lock_socket_path(path));
    return Listener::bind(path, std::move(lock));
}

bool can_connect(const Path& path) {
    const UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.string().copy(address.sun_path, sizeof address.sun_path - 1);
    return ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
}

TEST(Listener, BindsWithModeForTheGroupAndRemovesTheSocketAtTheEnd) {
    const TempDir dir;
    const Path path = dir / "d.sock";
    {
        auto listener = listen_at(path);
        ASSERT_TRUE(listener) << listener.error().message;
        struct stat info {};
        ASSERT_EQ(::stat(path.c_str(), &info), 0);
        EXPECT_EQ(info.st_mode & 07777, 0660u);
        EXPECT_TRUE(can_connect(path));
    }
    EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Listener, ASecondOneForThePathIsRefused) {
    const TempDir dir;
    const auto first = listen_at(dir / "d.sock");
    ASSERT_TRUE(first);
    const auto second = listen_at(dir / "d.sock");
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, ErrorCode::kBusy);
    EXPECT_THAT(second.error().message, HasSubstr("another expertpackd serves"));
    EXPECT_TRUE(can_connect(dir / "d.sock"));
    EXPECT_TRUE(listen_at(dir / "e.sock"));
}

TEST(Listener, ReplacesTheSocketOfADaemonThatDied) {
    const TempDir dir;
    const Path path = dir / "d.sock";
    {
        // Closing a bound socket leaves its name, as a killed process does.
        const UniqueFd dead(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        path.string().copy(address.sun_path, sizeof address.sun_path - 1);
        ASSERT_EQ(::bind(dead.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    }
    ASSERT_TRUE(std::filesystem::exists(path));
    const auto listener = listen_at(path);
    ASSERT_TRUE(listener) << listener.error().message;
    EXPECT_TRUE(can_connect(path));
}

TEST(Listener, RefusesASymbolicLinkAndOtherFilesAndLeavesThemAlone) {
    const TempDir dir;
    std::ofstream(dir / "file") << "precious";
    std::filesystem::create_symlink(dir / "file", dir / "link");
    for (const char* name : {"file", "link"}) {
        const auto listener = listen_at(dir / name);
        ASSERT_FALSE(listener);
        EXPECT_THAT(listener.error().message, HasSubstr((dir / name).string()));
        EXPECT_THAT(listener.error().message, HasSubstr("not a socket"));
    }
    EXPECT_EQ(std::filesystem::file_size(dir / "file"), 8u);
    EXPECT_TRUE(std::filesystem::is_symlink(dir / "link"));
}

TEST(Listener, ALockFileThatIsASymbolicLinkIsNotFollowed) {
    const TempDir dir;
    std::filesystem::create_symlink(dir / "target", dir / "d.sock.lock");
    EXPECT_FALSE(lock_socket_path(dir / "d.sock"));
    EXPECT_FALSE(std::filesystem::exists(dir / "target"));
}

TEST(Listener, APathTooLongForASocketNamesTheLimit) {
    const TempDir dir;
    const auto listener = Listener::bind(dir / std::string(120, 'x'), UniqueFd());
    ASSERT_FALSE(listener);
    EXPECT_THAT(listener.error().message, HasSubstr("1 to 107"));
}

TEST(Listener, ThePathIsCheckedWithoutBinding) {
    const TempDir dir;
    EXPECT_TRUE(check_socket_path(dir / "d.sock"));
    EXPECT_FALSE(std::filesystem::exists(dir / "d.sock"));
    std::ofstream(dir / "file") << "precious";
    const auto message = [](const Path& path) {
        const auto checked = check_socket_path(path);
        return checked ? "no error" : checked.error().message;
    };
    EXPECT_THAT(message(dir / "file"), HasSubstr("another kind of file, not a socket"));
    EXPECT_THAT(message(dir / std::string(120, 'x')), HasSubstr("1 to 107"));
    EXPECT_THAT(message(dir / "none" / "d.sock"),
                AllOf(HasSubstr((dir / "none").string()), HasSubstr("No such file"),
                      HasSubstr("[daemon] socket")));
    EXPECT_THAT(message(dir / "file" / "d.sock"), HasSubstr("Not a directory"));
    const auto listener = listen_at(dir / "d.sock");
    ASSERT_TRUE(listener);
    EXPECT_TRUE(check_socket_path(dir / "d.sock"));  // as one that a dead daemon left
}

TEST(Listener, ADirectoryThatIsNotForUsToWriteIsNamed) {
    const TempDir dir;
    const Path closed = dir / "closed";
    ASSERT_TRUE(std::filesystem::create_directory(closed));
    ASSERT_EQ(::chmod(closed.c_str(), 0555), 0);
    ASSERT_EQ(::chmod(closed.parent_path().c_str(), 0755), 0);
    // Root may write everywhere, so that a child asks as somebody else.
    const pid_t child = ::fork();
    if (child == 0) {
        if (::geteuid() == 0 && ::setuid(65534) != 0) ::_exit(125);
        const auto checked = check_socket_path(closed / "d.sock");
        const std::string message = checked ? "" : checked.error().message;
        ::_exit(message.find(closed.string()) != message.npos &&
                message.find("Permission denied") != message.npos ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Listener, NoticesThatItsFileIsGoneOrReplacedAndLeavesTheOtherAlone) {
    const TempDir dir;
    {
        auto listener = listen_at(dir / "d.sock");
        ASSERT_TRUE(listener);
        EXPECT_TRUE(listener->reachable());
        std::filesystem::rename(dir / "d.sock", dir / "moved");
        EXPECT_FALSE(listener->reachable());
        std::ofstream(dir / "d.sock") << "precious";
        EXPECT_FALSE(listener->reachable());
    }
    EXPECT_EQ(std::filesystem::file_size(dir / "d.sock"), 8u);
}

TEST(Listener, AdoptsAListeningSeqpacketSocketOnly) {
    const TempDir dir;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    (dir / "p.sock").string().copy(address.sun_path, sizeof address.sun_path - 1);
    UniqueFd passed(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::bind(passed.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(::listen(passed.get(), 1), 0);
    {
        const auto listener = Listener::adopt(std::move(passed));
        ASSERT_TRUE(listener) << listener.error().message;
        EXPECT_TRUE(can_connect(dir / "p.sock"));
    }
    EXPECT_TRUE(std::filesystem::exists(dir / "p.sock"));  // whoever made it removes it

    const auto stream = Listener::adopt(UniqueFd(::socket(AF_UNIX, SOCK_STREAM, 0)));
    ASSERT_FALSE(stream);
    EXPECT_THAT(stream.error().message, HasSubstr("ListenSequentialPacket="));
}

}  // namespace
}  // namespace xp
