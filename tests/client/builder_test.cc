// The request builder: what is set arrives, what is out of range is refused and changes nothing.
#include <cmath>

#include "tests/client/client_fixture.h"
#include "tests/shm/messages.h"

namespace xp::test {
namespace {

using ::testing::HasSubstr;

// What the daemon receives for a request.
shm::Generate received(const GeneratePtr& request) {
    shm::Generate generate;
    FakeDaemon daemon([&](Session& session) {
        const auto got = session.next();
        ASSERT_TRUE(got);
        generate = std::get<shm::Generate>(got->second);
        session.reply(got->first, shm::Done{});
        session.wait_for_hang_up();
    });
    const ClientPtr client = connect(daemon);
    uint64_t id = 0;
    EXPECT_EQ(xp_submit(client.get(), request.get(), kPatienceMs, &id), XP_OK)
        << xp_client_error(client.get());
    EXPECT_EQ(next(client).type, XP_EVENT_DONE);
    return generate;
}

TEST(Builder, EveryFieldArrives) {
    const shm::Generate full = shm::full_generate();
    const auto& chat = std::get<shm::Chat>(full.prompt);
    const GeneratePtr request(xp_generate_new());
    xp_generate* g = request.get();
    // Settings of chats may come before the first message.
    EXPECT_EQ(xp_generate_set_tools(g, chat.tools_json.c_str(), XP_NUL_TERMINATED), XP_OK);
    for (const shm::Message& message : chat.messages) {
        EXPECT_EQ(xp_generate_add_message(g, static_cast<xp_role>(message.role),
                                          message.content.data(), message.content.size()),
                  XP_OK);
        if (!message.reasoning.empty()) {
            EXPECT_EQ(xp_generate_set_reasoning(g, message.reasoning.c_str(), XP_NUL_TERMINATED),
                      XP_OK);
        }
        for (const shm::ToolCall& call : message.tool_calls) {
            EXPECT_EQ(xp_generate_add_tool_call(g, call.id.c_str(), call.name.c_str(),
                                                call.arguments_json.c_str()),
                      XP_OK);
        }
        if (!message.tool_call_id.empty()) {
            EXPECT_EQ(xp_generate_set_tool_call_id(g, message.tool_call_id.c_str()), XP_OK);
        }
    }
    // Or after it.
    EXPECT_EQ(xp_generate_set_thinking(g, 1, XP_EFFORT_MAX), XP_OK);
    EXPECT_EQ(xp_generate_set_model(g, full.model.c_str()), XP_OK);
    EXPECT_EQ(xp_generate_set_temperature(g, full.sampling.temperature), XP_OK);
    EXPECT_EQ(xp_generate_set_top_k(g, full.sampling.top_k), XP_OK);
    EXPECT_EQ(xp_generate_set_top_p(g, full.sampling.top_p), XP_OK);
    EXPECT_EQ(xp_generate_set_min_p(g, full.sampling.min_p), XP_OK);
    EXPECT_EQ(xp_generate_set_seed(g, full.sampling.seed), XP_OK);
    EXPECT_EQ(xp_generate_set_max_tokens(g, full.max_tokens), XP_OK);
    for (const std::string& stop : full.stop) {
        EXPECT_EQ(xp_generate_add_stop(g, stop.data(), stop.size()), XP_OK);
    }
    EXPECT_EQ(xp_generate_set_ignore_eos(g, 1), XP_OK);
    EXPECT_EQ(xp_generate_set_top_logprobs(g, full.top_logprobs), XP_OK);
    EXPECT_EQ(xp_generate_set_stream(g, 0), XP_OK);
    EXPECT_EQ(xp_generate_set_priority(g, full.priority), XP_OK);
    EXPECT_EQ(xp_generate_set_deadline_ms(g, full.deadline_ms), XP_OK);
    EXPECT_EQ(xp_generate_set_end_user(g, full.end_user.c_str()), XP_OK);
    EXPECT_EQ(xp_generate_set_task(g, static_cast<xp_task>(full.task)), XP_OK);
    EXPECT_EQ(xp_generate_set_last_logits(g, 1), XP_OK);
    EXPECT_TRUE(received(request) == full);
}

TEST(Builder, DefaultsAreThoseOfTheProtocol) {
    shm::Generate expected;
    expected.prompt = shm::RawText{"x"};
    EXPECT_TRUE(received(text_request("x")) == expected);
}

TEST(Builder, TheLastKindOfPromptCounts) {
    const GeneratePtr request = text_request("raw");
    const int32_t ids[] = {4, 5};
    EXPECT_EQ(xp_generate_set_tokens(request.get(), ids, 2), XP_OK);
    EXPECT_EQ(std::get<shm::RawTokens>(received(request).prompt).ids, (std::vector<int32_t>{4, 5}));
    EXPECT_EQ(xp_generate_add_message(request.get(), XP_ROLE_USER, "hi", XP_NUL_TERMINATED), XP_OK);
    EXPECT_EQ(std::get<shm::Chat>(received(request).prompt).messages.size(), 1u);
    EXPECT_EQ(xp_generate_set_text(request.get(), "again", XP_NUL_TERMINATED), XP_OK);
    EXPECT_EQ(std::get<shm::RawText>(received(request).prompt).text, "again");
}

TEST(Builder, RefusesWhatTheProtocolForbidsAndSaysWhy) {
    const GeneratePtr request = text_request("x");
    xp_generate* g = request.get();
    const auto refused = [&](xp_status status, const char* why) {
        EXPECT_EQ(status, XP_INVALID) << why;
        EXPECT_THAT(xp_generate_error(g), HasSubstr(why));
    };
    const std::string long_name(257, 'n');
    const int32_t ids[] = {1, -3};
    refused(xp_generate_set_model(g, long_name.c_str()), "257 bytes");
    refused(xp_generate_set_model(g, "\xff"), "UTF-8");
    refused(xp_generate_set_end_user(g, long_name.c_str()), "257 bytes");
    refused(xp_generate_set_text(g, "\xc3", 1), "UTF-8");
    refused(xp_generate_set_text(g, nullptr, 1), "NULL");
    refused(xp_generate_set_tokens(g, ids, 2), "token id -3 at position 1");
    refused(xp_generate_set_tokens(g, nullptr, 2), "NULL");
    refused(xp_generate_add_message(g, static_cast<xp_role>(5), "x", 1), "role 5");
    refused(xp_generate_add_message(g, XP_ROLE_USER, "\x80", 1), "UTF-8");
    refused(xp_generate_set_reasoning(g, "r", 1), "role");
    refused(xp_generate_add_tool_call(g, "i", "n", "{}"), "role");
    refused(xp_generate_set_tool_call_id(g, "i"), "role");
    refused(xp_generate_set_tools(g, "\xfe", 1), "UTF-8");
    refused(xp_generate_set_thinking(g, 1, static_cast<xp_effort>(3)), "effort 3");
    refused(xp_generate_set_temperature(g, NAN), "temperature");
    refused(xp_generate_set_temperature(g, -1), "temperature");
    refused(xp_generate_set_top_p(g, 0), "top_p");
    refused(xp_generate_set_min_p(g, 2), "min_p");
    refused(xp_generate_add_stop(g, "", 0), "0 bytes");
    refused(xp_generate_add_stop(g, long_name.data(), 257), "257 bytes");
    refused(xp_generate_set_top_logprobs(g, 21), "20");
    for (int i = 0; i < 16; ++i) EXPECT_EQ(xp_generate_add_stop(g, "s", 1), XP_OK);
    refused(xp_generate_add_stop(g, "s", 1), "at most 16");

    // Nothing of all this left a mark.
    shm::Generate expected;
    expected.prompt = shm::RawText{"x"};
    expected.stop.assign(16, "s");
    EXPECT_TRUE(received(request) == expected);
}

TEST(Builder, RolesGuardWhatBelongsToThem) {
    const GeneratePtr request(xp_generate_new());
    xp_generate* g = request.get();
    EXPECT_EQ(xp_generate_add_message(g, XP_ROLE_USER, "u", 1), XP_OK);
    EXPECT_EQ(xp_generate_set_reasoning(g, "r", 1), XP_INVALID);
    EXPECT_EQ(xp_generate_add_message(g, XP_ROLE_TOOL, "t", 1), XP_OK);
    EXPECT_EQ(xp_generate_add_tool_call(g, "i", "n", "{}"), XP_INVALID);
    EXPECT_EQ(xp_generate_set_tool_call_id(g, "i"), XP_OK);
    EXPECT_EQ(xp_generate_add_message(g, XP_ROLE_ASSISTANT, "a", 1), XP_OK);
    EXPECT_EQ(xp_generate_set_tool_call_id(g, "i"), XP_INVALID);
    EXPECT_EQ(xp_generate_add_tool_call(g, "i", "n", nullptr), XP_OK);
}

TEST(Builder, BoundsTheNumberOfMessages) {
    const GeneratePtr request(xp_generate_new());
    for (size_t i = 0; i < shm::kMaxMessages; ++i) {
        ASSERT_EQ(xp_generate_add_message(request.get(), XP_ROLE_USER, "", 0), XP_OK);
    }
    EXPECT_EQ(xp_generate_add_message(request.get(), XP_ROLE_USER, "", 0), XP_INVALID);
    EXPECT_THAT(xp_generate_error(request.get()), HasSubstr("4096 messages"));
    EXPECT_EQ(std::get<shm::Chat>(received(request).prompt).messages.size(), shm::kMaxMessages);
}

TEST(Builder, NullIsAnErrorAndNeverACrash) {
    xp_generate_free(nullptr);
    EXPECT_EQ(xp_generate_set_text(nullptr, "x", 1), XP_INVALID);
    EXPECT_EQ(xp_generate_set_seed(nullptr, 1), XP_INVALID);
    EXPECT_STREQ(xp_generate_error(nullptr), "the request is NULL");
    const GeneratePtr request(xp_generate_new());
    EXPECT_EQ(xp_generate_set_model(request.get(), nullptr), XP_OK);
    EXPECT_EQ(xp_generate_set_tools(request.get(), nullptr, 5), XP_OK);
    EXPECT_EQ(xp_generate_set_text(request.get(), nullptr, 0), XP_OK);
    EXPECT_EQ(xp_generate_set_text(request.get(), nullptr, XP_NUL_TERMINATED), XP_INVALID);
}

}  // namespace
}  // namespace xp::test
