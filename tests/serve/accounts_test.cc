// Charges are counted by user, bounded, and always given back.
#include "daemon/serve/accounts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace xp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Accounts, ChargesEndWithTheirObjects) {
    UserAccounts accounts({.requests = 1});
    {
        const auto charge = accounts.charge_request(7, 100);
        ASSERT_TRUE(charge);
        EXPECT_EQ(accounts.totals().users, 1u);
        EXPECT_EQ(accounts.totals().request_bytes, 100u);
        EXPECT_FALSE(accounts.charge_request(7, 1));
    }
    EXPECT_EQ(accounts.totals().users, 0u);
    EXPECT_EQ(accounts.totals().request_bytes, 0u);
    auto again = accounts.charge_request(7, 1);
    ASSERT_TRUE(again);
    again->release();
    again->release();
    EXPECT_TRUE(accounts.charge_request(7, 1));
}

TEST(Accounts, MovingAChargeMovesWhatItHolds) {
    UserAccounts accounts({});
    Charge held;
    {
        auto charge = accounts.charge_request(7, 100);
        ASSERT_TRUE(charge);
        held = *std::move(charge);
    }
    EXPECT_EQ(accounts.totals().requests, 1u);
    held = *accounts.charge_request(8, 5);  // gives the first one back
    EXPECT_EQ(accounts.totals().requests, 1u);
    EXPECT_EQ(accounts.totals().request_bytes, 5u);
}

TEST(Accounts, LimitsAreThoseOfTheUserAndNameTheirKeys) {
    UserAccounts accounts({.clients = 1, .requests = 2, .request_bytes = 1000});
    const auto client = accounts.charge_client(7);
    ASSERT_TRUE(client);
    const auto second = accounts.charge_client(7);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, ErrorCode::kBusy);
    EXPECT_THAT(second.error().message, AllOf(HasSubstr("1 clients of user 7"),
                                              HasSubstr("clients_per_user"),
                                              HasSubstr("try again")));
    EXPECT_TRUE(accounts.charge_client(8));

    const auto request = accounts.charge_request(7, 600);
    ASSERT_TRUE(request);
    const auto large = accounts.charge_request(7, 401);
    ASSERT_FALSE(large);
    EXPECT_THAT(large.error().message, AllOf(HasSubstr("request_bytes_per_user"),
                                             HasSubstr("try again")));
    const auto fits = accounts.charge_request(7, 400);
    ASSERT_TRUE(fits);
    const auto third = accounts.charge_request(7, 0);
    ASSERT_FALSE(third);
    EXPECT_THAT(third.error().message, AllOf(HasSubstr("2 requests of user 7"),
                                             HasSubstr("requests_per_user")));
    EXPECT_TRUE(accounts.charge_request(8, 1000));
}

TEST(Accounts, AnyNumberOfBytesIsComparedWithoutOverflow) {
    UserAccounts accounts({.request_bytes = 1000});
    EXPECT_FALSE(accounts.charge_request(7, UINT64_MAX));
    const auto some = accounts.charge_request(7, 1);
    ASSERT_TRUE(some);
    EXPECT_FALSE(accounts.charge_request(7, UINT64_MAX));
}

TEST(Accounts, WhatIsSpentComesBackWithTicks) {
    UserAccounts accounts({.units_per_tick = 3});
    EXPECT_TRUE(accounts.may_spend(7));
    accounts.spend(7, 0);
    accounts.spend(7, 100);
    EXPECT_TRUE(accounts.may_spend(7));
    accounts.spend(7, kBytesPerUnit * 4);  // five units: overdrawn by four
    EXPECT_FALSE(accounts.may_spend(7));
    EXPECT_TRUE(accounts.may_spend(8));
    accounts.tick();
    EXPECT_FALSE(accounts.may_spend(7));
    accounts.tick();
    EXPECT_TRUE(accounts.may_spend(7));
}

TEST(Accounts, ConnectingAnewBuysNoUnits) {
    UserAccounts accounts({.units_per_tick = 2});
    {
        const auto client = accounts.charge_client(7);
        accounts.spend(7, 0);
        accounts.spend(7, 0);
    }
    const auto client = accounts.charge_client(7);
    EXPECT_FALSE(accounts.may_spend(7));
}

TEST(Accounts, ChargesMayOutliveTheirAccounts) {
    Charge charge;
    {
        UserAccounts accounts({});
        charge = *accounts.charge_client(7);
    }
    charge.release();
}

TEST(Accounts, OwnClientsAndAllForRootAndTheDaemonsUser) {
    EXPECT_TRUE(may_manage(1000, 1000, 998));
    EXPECT_FALSE(may_manage(1000, 1001, 998));
    EXPECT_FALSE(may_manage(1000, 0, 998));
    EXPECT_FALSE(may_manage(1000, 998, 998));
    EXPECT_TRUE(may_manage(0, 1000, 998));
    EXPECT_TRUE(may_manage(998, 1000, 998));
    EXPECT_TRUE(may_manage(998, 0, 998));
}

}  // namespace
}  // namespace xp
