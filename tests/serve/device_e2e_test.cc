// The daemon with a device, as its clients and its manager see it, up to the loss of the device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/service/fake_manager.h"
#include "tests/support/demo_daemon.h"

namespace xp {
namespace {

using ::testing::HasSubstr;
using support::ask;
using support::Daemon;
using support::demo_pack;
using support::greedy;
using support::kWaitMs;
using support::stats_of;

constexpr char kDevice[] = "cuda (Fake Device 3000)";

TEST(DeviceEndToEnd, TheDeviceIsNamedWhenReadyAndInStats) {
    service_test::FakeManager manager;
    ASSERT_TRUE(manager.ok());
    Daemon daemon("", {"NOTIFY_SOCKET=" + manager.path()}, demo_pack(), XP_DEVICE_DAEMON);
    expertpack::Client client("e2e");
    daemon.connect(client);
    std::optional<std::string> ready;
    do {
        ready = manager.next(kWaitMs);
        ASSERT_TRUE(ready);
    } while (!ready->starts_with("READY=1"));
    EXPECT_THAT(*ready, HasSubstr(std::string("STATUS=1 models on ") + kDevice));
    EXPECT_EQ(stats_of(client).at("backend"), kDevice);
    const xp_pong* pong = nullptr;
    ASSERT_EQ(client.ping(&pong, kWaitMs), XP_OK);
    EXPECT_STREQ(pong->backend, kDevice);

    EXPECT_THAT(ask(client, greedy({0, 5, 7}, 4)).end, "length");
    const auto decode = stats_of(client).at("decode");
    EXPECT_GT(decode.at("launches").get<uint64_t>(), 0u);
    EXPECT_GT(decode.at("waits_per_token").get<double>(), 0);
    EXPECT_GT(decode.at("host_us").get<uint64_t>(), 0u);
}

TEST(DeviceEndToEnd, ALostDeviceEndsRequestsAndTheProcessSoThatItIsRestarted) {
    Daemon daemon("", {"XP_LOST_AFTER=20000"}, demo_pack(), XP_DEVICE_DAEMON);
    expertpack::Client client("e2e"), other("e2e");
    daemon.connect(client);
    daemon.connect(other);
    auto endless = greedy({0, 5, 7}, 3000);
    endless.ignore_eos(true);
    uint64_t id = 0;
    ASSERT_EQ(other.submit(endless, &id, kWaitMs), XP_OK);
    ASSERT_EQ(client.submit(endless, &id, kWaitMs), XP_OK);
    for (expertpack::Client* each : {&client, &other}) {
        const xp_event* event = nullptr;
        do {
            ASSERT_EQ(each->next_event(&event, kWaitMs), XP_OK) << each->error();
        } while (!event->terminal);
        EXPECT_EQ(event->type, XP_EVENT_FAILED);
        EXPECT_STREQ(event->code, "device_lost");
        EXPECT_THAT(event->message, HasSubstr("fakeErrorFellOffTheBus"));
    }
    EXPECT_EQ(daemon.process().wait(), 71) << daemon.process().output();
    EXPECT_THAT(daemon.process().output(), HasSubstr("fakeErrorFellOffTheBus"));
}

}  // namespace
}  // namespace xp
