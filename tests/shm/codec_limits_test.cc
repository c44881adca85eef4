// Limits on meaning: the encoder writes what it is given, so that a struct out of range makes bytes
// that are well-formed and must still be refused, with the field named.
#include <cmath>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "messages_generated.h"
#include "tests/shm/messages.h"

namespace xp::shm {
namespace {

struct Case {
    std::string name;
    std::function<void(Generate*)> change;
    std::string expected;  // part of `why`; empty: accepted
};
void PrintTo(const Case& one, std::ostream* out) {
    *out << one.name;
}

Chat one_message(Message message) {
    return Chat{{std::move(message)}, "", false, Effort::kLow};
}

const Case kGenerateCases[] = {
    {"TemperatureNegative", [](Generate* g) { g->sampling.temperature = -0.1f; }, "temperature"},
    {"TemperatureNan", [](Generate* g) { g->sampling.temperature = NAN; }, "temperature"},
    {"TemperatureInfinite", [](Generate* g) { g->sampling.temperature = INFINITY; }, "temperature"},
    {"TemperatureZero", [](Generate* g) { g->sampling.temperature = 0; }, ""},
    {"TopPZero", [](Generate* g) { g->sampling.top_p = 0; }, "top_p"},
    {"TopPAboveOne", [](Generate* g) { g->sampling.top_p = 1.001f; }, "top_p"},
    {"TopPNan", [](Generate* g) { g->sampling.top_p = NAN; }, "top_p"},
    {"MinPNegative", [](Generate* g) { g->sampling.min_p = -1; }, "min_p"},
    {"MinPNan", [](Generate* g) { g->sampling.min_p = NAN; }, "min_p"},
    {"MinPOne", [](Generate* g) { g->sampling.min_p = 1; }, ""},
    {"ModelNameTooLong", [](Generate* g) { g->model.assign(257, 'm'); }, "model has 257 bytes"},
    {"ModelNameLongest", [](Generate* g) { g->model.assign(256, 'm'); }, ""},
    {"ModelNameWithNul", [](Generate* g) { g->model = std::string("a\0b", 3); }, "NUL"},
    {"ModelNameNotUtf8", [](Generate* g) { g->model = "\xff"; }, "model is not valid UTF-8"},
    {"EndUserTooLong", [](Generate* g) { g->end_user.assign(257, 'u'); }, "end_user"},
    {"StopsMost", [](Generate* g) { g->stop.assign(16, "x"); }, ""},
    {"StopsTooMany", [](Generate* g) { g->stop.assign(17, "x"); }, "17 stop texts"},
    {"StopEmpty", [](Generate* g) { g->stop = {""}; }, "a stop text has 0 bytes"},
    {"StopTooLong", [](Generate* g) { g->stop = {std::string(257, 'x')}; }, "257 bytes"},
    {"StopNotUtf8", [](Generate* g) { g->stop = {"\xc3"}; }, "stop text is not valid UTF-8"},
    {"LogprobsTooMany", [](Generate* g) { g->top_logprobs = 21; }, "top_logprobs is 21"},
    {"PromptNotUtf8", [](Generate* g) { g->prompt = RawText{"\xed\xa0\x80"}; }, "prompt is not"},
    {"PromptIdNegative", [](Generate* g) { g->prompt = RawTokens{{1, -1}}; }, "negative id -1"},
    {"ChatEmpty", [](Generate* g) { g->prompt = Chat{}; }, "at least one message"},
    {"MessagesMost",
     [](Generate* g) { g->prompt = Chat{std::vector<Message>(kMaxMessages), "", false, {}}; }, ""},
    {"MessagesTooMany",
     [](Generate* g) { g->prompt = Chat{std::vector<Message>(kMaxMessages + 1), "", false, {}}; },
     "4097 messages"},
    {"ContentNotUtf8",
     [](Generate* g) { g->prompt = one_message({Role::kUser, "\x80", "", {}, ""}); },
     "content is not"},
    {"RoleUnknown",
     [](Generate* g) { g->prompt = one_message({static_cast<Role>(5), "", "", {}, ""}); },
     "role has the unknown value 5"},
    {"EffortUnknown",
     [](Generate* g) {
         Chat chat = one_message({});
         chat.effort = static_cast<Effort>(3);
         g->prompt = chat;
     },
     "effort has the unknown value 3"},
    {"ReasoningOfUser",
     [](Generate* g) { g->prompt = one_message({Role::kUser, "", "r", {}, ""}); },
     "belong to assistant"},
    {"ToolCallOfTool",
     [](Generate* g) { g->prompt = one_message({Role::kTool, "", "", {{"", "", ""}}, ""}); },
     "belong to assistant"},
    {"ToolCallIdOfAssistant",
     [](Generate* g) { g->prompt = one_message({Role::kAssistant, "", "", {}, "id"}); },
     "belongs to tool"},
    {"ToolCallsTooMany",
     [](Generate* g) {
         g->prompt = one_message(
             {Role::kAssistant, "", "", std::vector<ToolCall>(kMaxToolCalls + 1), ""});
     },
     "more than 4096 tool calls"},
    {"ToolsNotUtf8",
     [](Generate* g) {
         Chat chat = one_message({});
         chat.tools_json = "\xfe";
         g->prompt = chat;
     },
     "tools is not"},
};

class GenerateLimits : public ::testing::TestWithParam<Case> {};

TEST_P(GenerateLimits, AreChecked) {
    Generate generate;
    generate.prompt = RawText{"x"};
    GetParam().change(&generate);
    std::string why;
    const auto decoded = decode_request(encode_request(generate), &why);
    if (GetParam().expected.empty()) {
        EXPECT_TRUE(decoded) << why;
    } else {
        EXPECT_FALSE(decoded);
        EXPECT_THAT(why, ::testing::HasSubstr(GetParam().expected));
    }
}

INSTANTIATE_TEST_SUITE_P(Codec, GenerateLimits, ::testing::ValuesIn(kGenerateCases),
                         [](const auto& info) { return info.param.name; });

TEST(CodecLimits, CancelNeedsATarget) {
    std::string why;
    EXPECT_FALSE(decode_request(encode_request(Cancel{0}), &why));
    EXPECT_EQ(why, "the request to cancel is 0");
}

TEST(CodecLimits, RepliesAreCheckedToo) {
    const std::pair<Reply, std::string> cases[] = {
        {Accepted{std::string(257, 'm'), {}}, "model has 257 bytes"},
        {Accepted{"m", {-7}}, "negative id -7"},
        {Progress{2, 1}, "progress is beyond"},
        {Tokens{{-1}, Channel::kContent, "", {}}, "negative id -1"},
        {Tokens{{1}, static_cast<Channel>(9), "", {}}, "channel has the unknown value 9"},
        {Tokens{{1}, Channel::kContent, "\xe2\x82", {}}, "text is not valid UTF-8"},
        {Tokens{{1, 2}, Channel::kContent, "", {{-1, {}}}}, "do not match"},
        {Tokens{{1}, Channel::kContent, "", {{-1, std::vector<Logprob>(21)}}}, "too many"},
        {Tokens{{1}, Channel::kContent, "", {{-1, {{-2, -1}}}}}, "negative token id"},
        {Done{static_cast<FinishReason>(3), {}}, "reason has the unknown value 3"},
        {Cancelled{"\xff", {}}, "why is not valid UTF-8"},
        {Failed{std::string("a\0", 2), ""}, "NUL"},
        {Failed{"io", "\xff"}, "message is not valid UTF-8"},
        {Pong{std::string(257, 'v'), ""}, "version"},
        {ModelsReply{std::vector<ModelEntry>(kMaxModels + 1)}, "257 models"},
        {StatsReply{"\x80"}, "stats is not"},
    };
    for (const auto& [reply, expected] : cases) {
        std::string why;
        EXPECT_FALSE(decode_reply(encode_reply(reply), &why)) << expected;
        EXPECT_THAT(why, ::testing::HasSubstr(expected));
    }
}

// ---- bytes that our encoder never makes

std::vector<std::byte> finish(flatbuffers::FlatBufferBuilder& b,
                              flatbuffers::Offset<wire::Packet> packet) {
    wire::FinishPacketBuffer(b, packet);
    const auto* p = reinterpret_cast<const std::byte*>(b.GetBufferPointer());
    return {p, p + b.GetSize()};
}

// A few kilobytes that would become 4096 copies of one large text.
TEST(CodecLimits, SharedPartsAreRefusedBeforeTheyMultiply) {
    flatbuffers::FlatBufferBuilder b;
    const auto content = b.CreateString(std::string(100'000, 'x'));
    const auto message = wire::CreateMessage(b, wire::Role::User, content);
    const auto messages = b.CreateVector(std::vector(kMaxMessages, message));
    const auto chat = wire::CreateChat(b, messages);
    wire::GenerateBuilder generate(b);
    generate.add_prompt_type(wire::Prompt::Chat);
    generate.add_prompt(chat.Union());
    const auto body = generate.Finish().Union();
    const auto bytes = finish(b, wire::CreatePacket(b, wire::Request::Generate, body));
    std::string why;
    EXPECT_FALSE(decode_request(bytes, &why));
    EXPECT_EQ(why, "parts of the message are referred to more than once");
}

TEST(CodecLimits, AnEnvelopeHoldsExactlyOneMessage) {
    std::string why;
    {
        flatbuffers::FlatBufferBuilder b;
        EXPECT_FALSE(decode_request(finish(b, wire::CreatePacket(b)), &why));
        EXPECT_EQ(why, "a message must hold one request or one reply");
    }
    {
        flatbuffers::FlatBufferBuilder b;
        const auto ping = wire::CreatePing(b).Union();
        const auto progress = wire::CreateProgress(b).Union();
        const auto both = wire::CreatePacket(b, wire::Request::Ping, ping, wire::Reply::Progress,
                                             progress);
        const auto bytes = finish(b, both);
        EXPECT_FALSE(decode_request(bytes, &why));
        EXPECT_FALSE(decode_reply(bytes, &why));
    }
    {
        // The type is set, the value is not.
        flatbuffers::FlatBufferBuilder b;
        EXPECT_FALSE(decode_request(finish(b, wire::CreatePacket(b, wire::Request::Ping)), &why));
    }
}

// What a newer minor version may send where the handshake was ignored.
TEST(CodecLimits, UnknownMembersOfUnionsAreRefusedByName) {
    std::string why;
    {
        flatbuffers::FlatBufferBuilder b;
        const auto body = wire::CreatePing(b).Union();
        const auto bytes = finish(b, wire::CreatePacket(b, static_cast<wire::Request>(99), body));
        EXPECT_FALSE(decode_request(bytes, &why));
        EXPECT_EQ(why, "the message is not a request that is known here");
    }
    {
        flatbuffers::FlatBufferBuilder b;
        const auto prompt = wire::CreatePing(b).Union();
        wire::GenerateBuilder generate(b);
        generate.add_prompt_type(static_cast<wire::Prompt>(99));
        generate.add_prompt(prompt);
        const auto body = generate.Finish().Union();
        const auto bytes = finish(b, wire::CreatePacket(b, wire::Request::Generate, body));
        EXPECT_FALSE(decode_request(bytes, &why));
        EXPECT_EQ(why, "the prompt is of a kind that is not known here");
    }
}

TEST(CodecLimits, TheFileIdentifierIsChecked) {
    auto bytes = encode_request(Ping{});
    bytes[4] ^= std::byte{1};
    std::string why;
    EXPECT_FALSE(decode_request(bytes, &why));
    EXPECT_THAT(why, ::testing::HasSubstr("XPM1"));
}

}  // namespace
}  // namespace xp::shm
