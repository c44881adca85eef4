// What happens where a sandbox forbids io_uring: a child process gets a seccomp filter that refuses
// its system calls, as container runtimes do, and reports what the backend did.
#include <gmock/gmock.h>

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "daemon/io/read_backend.h"
#include "tests/fault/seccomp.h"
#include "tests/io/test_file.h"

namespace xp {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// In the child: which backend it got and why, and whether it reads; or the error.
std::string outcome(IoBackendKind kind, const TestFile& file) {
    IoOptions options;
    options.backend = kind;
    options.direct = false;
    Result<std::unique_ptr<ReadBackend>> backend = make_read_backend(options);
    if (!backend) return "error|" + backend.error().message;
    Result<UniqueFd> fd = open_file(file.path(), O_RDONLY);
    PageBuffer buffer = test_buffer(file.contents().size());
    CompletionQueue done;
    const ReadRequest request{fd->get(), 0, buffer.data(), file.contents().size(), &done, 0};
    (*backend)->submit({&request, 1});
    const bool read = done.take(true).at(0).result.ok() &&
                      std::equal(file.contents().begin(), file.contents().end(), buffer.data());
    const IoStats stats = (*backend)->stats();
    return fmt::format("{}|{}|{}", stats.backend, read ? "right" : "wrong", stats.fallback_reason);
}

std::string outcome_without(uint32_t system_call, uint32_t error, IoBackendKind kind) {
    const TestFile file(3 << 20, 9);
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
        const bool denied = deny_system_call(system_call, error);
        const std::string text = denied ? outcome(kind, file) : "no seccomp";
        [[maybe_unused]] const ssize_t written = ::write(ends[1], text.data(), text.size());
        ::_exit(0);
    }
    ::close(ends[1]);
    std::string text;
    char bytes[512];
    for (ssize_t n; (n = ::read(ends[0], bytes, sizeof bytes)) > 0;) {
        text.append(bytes, static_cast<size_t>(n));
    }
    ::close(ends[0]);
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    return text;
}

TEST(FallbackTest, AutoTakesThePreadPoolWhereSetupIsForbiddenAndSaysWhy) {
    const std::string text = outcome_without(SYS_io_uring_setup, EPERM, IoBackendKind::kAuto);
    EXPECT_THAT(text, StartsWith("pread|right|io_uring_setup"));
    EXPECT_THAT(text, HasSubstr("Operation not permitted"));
    EXPECT_THAT(text, HasSubstr("kernel.io_uring_disabled"));
}

TEST(FallbackTest, AutoTakesThePreadPoolWhereSetupDoesNotExistAndSaysWhy) {
    const std::string text = outcome_without(SYS_io_uring_setup, ENOSYS, IoBackendKind::kAuto);
    EXPECT_THAT(text, StartsWith("pread|right|io_uring_setup"));
    EXPECT_THAT(text, HasSubstr("not implemented"));
}

TEST(FallbackTest, AutoTakesThePreadPoolWhereLockedMemoryIsTooSmall) {
    const std::string text = outcome_without(SYS_io_uring_setup, ENOMEM, IoBackendKind::kAuto);
    EXPECT_THAT(text, StartsWith("pread|right|io_uring_setup"));
    EXPECT_THAT(text, HasSubstr("RLIMIT_MEMLOCK"));
}

TEST(FallbackTest, AutoTakesThePreadPoolWhereOnlyEnteringIsForbidden) {
    if (!io_uring_allowed()) GTEST_SKIP() << "io_uring is forbidden here";
    EXPECT_THAT(outcome_without(SYS_io_uring_enter, EPERM, IoBackendKind::kAuto),
                StartsWith("pread|right|io_uring_enter"));
}

TEST(FallbackTest, AutoTakesThePreadPoolWhereRegisteringIsForbidden) {
    if (!io_uring_allowed()) GTEST_SKIP() << "io_uring is forbidden here";
    EXPECT_THAT(outcome_without(SYS_io_uring_register, EPERM, IoBackendKind::kAuto),
                StartsWith("pread|right|io_uring"));
}

TEST(FallbackTest, AskingForUringByNameFailsInstead) {
    EXPECT_THAT(outcome_without(SYS_io_uring_setup, EPERM, IoBackendKind::kUring),
                StartsWith("error|io_uring_setup"));
}

TEST(FallbackTest, AutoTakesUringWhereNothingForbidsIt) {
    if (!io_uring_allowed()) GTEST_SKIP() << "io_uring is forbidden here";
    EXPECT_THAT(outcome_without(SYS_acct, EPERM, IoBackendKind::kAuto),
                StartsWith("io_uring|right|"));
}

}  // namespace
}  // namespace xp
