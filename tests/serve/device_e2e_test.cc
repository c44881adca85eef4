// The daemon with a device, as its clients and its manager see it, up to the loss of the device.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/service/fake_manager.h"
#include "tests/support/demo_daemon.h"

namespace xp {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
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
    EXPECT_THAT(*ready, HasSubstr(std::string("STATUS=1 model on ") + kDevice));
    EXPECT_EQ(stats_of(client).at("backend"), kDevice);
    const xp_pong* pong = nullptr;
    ASSERT_EQ(client.ping(&pong, kWaitMs), XP_OK);
    EXPECT_STREQ(pong->backend, kDevice);

    auto request = greedy({0, 5, 7}, 4);
    request.ignore_eos(true);
    EXPECT_EQ(ask(client, request).end, "length");
    const auto decode = stats_of(client).at("decode");
    EXPECT_GT(decode.at("launches").get<uint64_t>(), 0u);
    EXPECT_GT(decode.at("waits_per_token").get<double>(), 0);
    EXPECT_GT(decode.at("host_us").get<uint64_t>(), 0u);
}

TEST(DeviceEndToEnd, ThePlanIsPrintedAndComparedWithTheDeviceAfterTheFirstPrompt) {
    Daemon daemon("", {"XP_TAKEN_LATER=3000000000"}, demo_pack(), XP_DEVICE_DAEMON);
    expertpack::Client client("e2e");
    daemon.connect(client);
    const std::string start = daemon.process().output();
    EXPECT_THAT(start, HasSubstr(std::string("memory plan: ") + kDevice + ", 4.00 GiB"));
    for (const char* part : {"weights", "workspace", "sequence state", "expert slots"}) {
        EXPECT_THAT(start, HasSubstr(std::string("  ") + part + " "));
    }
    EXPECT_THAT(start, Not(HasSubstr("were taken since the start")));
    EXPECT_EQ(stats_of(client).at("memory").at("measured_bytes"), nullptr);
    ask(client, greedy({0, 5, 7}, 4));
    nlohmann::json memory;
    for (int n = 0; n < 1000 && (memory.is_null() || memory.at("measured_bytes").is_null()); ++n) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        memory = stats_of(client).at("memory");
    }
    const auto measured = memory.at("measured_bytes").get<uint64_t>();
    const auto planned = memory.at("planned_bytes").get<uint64_t>();
    EXPECT_GT(measured, 3000000000u);
    EXPECT_GT(measured, planned);
    EXPECT_EQ(memory.at("slots_bytes"),
              stats_of(client).at("models").at(0).at("cache").at("slot_bytes"));
    // The line is written a moment after the figure is there.
    daemon.process().signal(SIGTERM);
    EXPECT_EQ(daemon.process().wait(), 0);
    EXPECT_THAT(daemon.process().output(), HasSubstr(fmt::format("{} bytes", measured)));
    EXPECT_THAT(daemon.process().output(),
                HasSubstr(fmt::format("more than the {} bytes", planned)));
}

TEST(DeviceEndToEnd, ALimitThatIsTooSmallIsAWrongConfiguration) {
    Daemon daemon("[cache]\nvram_limit = \"1MiB\"", {}, demo_pack(), XP_DEVICE_DAEMON);
    EXPECT_EQ(daemon.process().wait(), 78) << daemon.process().output();
    EXPECT_THAT(daemon.process().output(), HasSubstr("but [cache] vram_limit is 1.00 MiB"));
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
