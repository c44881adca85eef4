// What the service manager hears, on a socket that stands in for it.
#include "daemon/service/notify.h"

#include <cstdlib>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/serve/temp_dir.h"
#include "tests/service/fake_manager.h"

namespace xp {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;

class NotifyTest : public ::testing::Test {
protected:
    NotifyTest() { ::setenv("NOTIFY_SOCKET", manager_.path().c_str(), 1); }
    ~NotifyTest() override {
        ::unsetenv("NOTIFY_SOCKET");
        ::unsetenv("WATCHDOG_USEC");
        ::unsetenv("WATCHDOG_PID");
    }
    service_test::FakeManager manager_;
};

TEST_F(NotifyTest, TheSequenceOfALife) {
    Notifier notifier;
    const Notifier::Clock::time_point start{};
    notifier.extend_timeout(30s);
    notifier.status("loading", start);
    notifier.ready("1 models");
    notifier.stopping("finishing requests");
    EXPECT_THAT(manager_.messages(4),
                ElementsAre("EXTEND_TIMEOUT_USEC=30000000", "STATUS=loading",
                            "READY=1\nSTATUS=1 models",
                            "STOPPING=1\nSTATUS=finishing requests"));
}

TEST_F(NotifyTest, StatusIsSentAtMostOnceASecondAndInOneLine) {
    Notifier notifier;
    const Notifier::Clock::time_point start{};
    notifier.status("one", start);
    notifier.status("two", start + 999ms);
    notifier.status("th\nREADY=1", start + 1000ms);
    EXPECT_THAT(manager_.messages(2), ElementsAre("STATUS=one", "STATUS=th READY=1"));
}

TEST_F(NotifyTest, TheHeartbeatComesAtHalfTheWatchdogsInterval) {
    EXPECT_FALSE(Notifier().heartbeat_interval());
    ::setenv("WATCHDOG_USEC", "30000000", 1);
    ::setenv("WATCHDOG_PID", std::to_string(::getpid()).c_str(), 1);
    Notifier notifier;
    EXPECT_EQ(notifier.heartbeat_interval(), Notifier::Clock::duration(15s));
    notifier.heartbeat();
    EXPECT_THAT(manager_.messages(1), ElementsAre("WATCHDOG=1"));
}

TEST(Notify, WithoutAManagerNothingHappens) {
    ::unsetenv("NOTIFY_SOCKET");
    Notifier notifier;
    notifier.ready("x");
    notifier.heartbeat();
    std::vector<std::string> unknown;
    EXPECT_FALSE(take_passed_socket(&unknown));
    EXPECT_TRUE(unknown.empty());
}

}  // namespace
}  // namespace xp
