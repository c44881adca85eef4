// A connected client and short ways to use it.
#pragma once

#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/expertpack.h"
#include "tests/client/fake_daemon.h"

namespace xp::test {

// Longer than any honest wait of these tests; only a lost wake-up lasts as long.
inline constexpr int kPatienceMs = 30'000;

struct FreeClient {
    void operator()(xp_client* client) const { xp_client_free(client); }
};
struct FreeGenerate {
    void operator()(xp_generate* request) const { xp_generate_free(request); }
};
using ClientPtr = std::unique_ptr<xp_client, FreeClient>;
using GeneratePtr = std::unique_ptr<xp_generate, FreeGenerate>;

inline ClientPtr connect(const FakeDaemon& daemon) {
    ClientPtr client(xp_client_new("client_test"));
    EXPECT_EQ(xp_connect(client.get(), daemon.path().c_str(), kPatienceMs), XP_OK)
        << xp_client_error(client.get());
    return client;
}

inline GeneratePtr text_request(const std::string& text) {
    GeneratePtr request(xp_generate_new());
    EXPECT_EQ(xp_generate_set_text(request.get(), text.data(), text.size()), XP_OK);
    return request;
}

inline uint64_t submit(const ClientPtr& client, const std::string& text = "hi") {
    uint64_t id = 0;
    EXPECT_EQ(xp_submit(client.get(), text_request(text).get(), kPatienceMs, &id), XP_OK)
        << xp_client_error(client.get());
    return id;
}

// The next event, or a failure and an empty one.
inline const xp_event& next(const ClientPtr& client) {
    static const xp_event none{};
    const xp_event* event = nullptr;
    const xp_status status = xp_next_event(client.get(), kPatienceMs, &event);
    EXPECT_EQ(status, XP_OK) << xp_status_name(status) << ": " << xp_client_error(client.get());
    return event ? *event : none;
}

inline xp_status next_status(const ClientPtr& client, int timeout_ms = kPatienceMs) {
    const xp_event* event = nullptr;
    return xp_next_event(client.get(), timeout_ms, &event);
}

}  // namespace xp::test
