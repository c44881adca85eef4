// Messages that are no messages, or mean what must not be meant. A malformed one ends in Failed
// "malformed" and with the connection.
#include <cstring>
#include <limits>

#include "messages_generated.h"
#include "tests/hostile/behaviours.h"
#include "tests/hostile/raw_client.h"

namespace xp::hostile {
namespace {

using Builder = flatbuffers::FlatBufferBuilder;
namespace wire = shm::wire;

Bytes bytes_of(const Builder& b) {
    const auto* p = reinterpret_cast<const std::byte*>(b.GetBufferPointer());
    return {p, p + b.GetSize()};
}

Bytes packet(Builder& b, wire::Request type, flatbuffers::Offset<void> body) {
    wire::FinishPacketBuffer(b, wire::CreatePacket(b, type, body));
    return bytes_of(b);
}

bool malformed(const std::string& path, const Bytes& bytes) {
    shm::Hello greeting = hello();
    greeting.req_ring_bytes = shm::kRequestRingBytes;
    RawClient client(path);
    return holds(client.greet(greeting)) && holds(client.write(7, bytes)) &&
           holds(client.fails(7, "malformed")) && holds(client.closed());
}

bool malformed(const std::string& path, const shm::Request& request) {
    return malformed(path, shm::encode_request(request));
}

bool garbage(const std::string& path) {
    Bytes bytes(1000);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 131 + 17);
    return malformed(path, bytes);
}

bool all_ones(const std::string& path) {
    return malformed(path, Bytes(4096, std::byte{0xff}));
}

bool identifier_of_another_format(const std::string& path) {
    Bytes bytes = shm::encode_request(shm::Ping());
    std::memcpy(bytes.data() + 4, "XPM9", 4);
    return malformed(path, bytes);
}

// Many seeds of random changes to a good message: each is answered or refused.
bool random_changes(const std::string& path) {
    shm::Generate request = short_request();
    request.stop = {"one", "two"};
    request.model = "demo";
    const Bytes good = shm::encode_request(request);
    uint64_t noise = 2463534242u;
    RawClient client = connected(path);
    for (uint64_t id = 1; id <= 300; ++id) {
        Bytes bytes = good;
        for (int i = 0; i < 3; ++i) {
            noise = noise * 6364136223846793005u + 1442695040888963407u;
            bytes[(noise >> 33) % bytes.size()] ^= static_cast<std::byte>(noise >> 56);
        }
        if (!holds(client.write(id, bytes))) return false;
        // Whatever it has become, do not let it run: there may be no max_tokens in it any more.
        client.write(1000 + id, shm::Request(shm::Cancel{id}));
        bool ended = false;
        while (!ended) {
            const auto answer = client.next();
            if (!answer) break;
            ended = answer->id == 1000 + id;
        }
        if (!ended) {
            if (!holds(client.closed())) return false;
            client = connected(path);
        }
    }
    return holds(client.served());
}

// A few KiB that claim to be 32 MiB of text.
bool shared_text_bomb(const std::string& path) {
    Builder b;
    const auto text = b.CreateString(std::string(8192, 'a'));
    const auto message = wire::CreateMessage(b, wire::Role::User, text);
    const std::vector<flatbuffers::Offset<wire::Message>> messages(4000, message);
    const auto chat = wire::CreateChat(b, b.CreateVector(messages));
    return malformed(path, packet(b, wire::Request::Generate,
                                  wire::CreateGenerate(b, 0, wire::Prompt::Chat, chat.Union())
                                      .Union()));
}

bool more_tables_than_allowed(const std::string& path) {
    Builder b;
    std::vector<flatbuffers::Offset<wire::Message>> messages;
    for (int i = 0; i < 10'000; ++i) {
        messages.push_back(wire::CreateMessage(b, wire::Role::User, b.CreateString("")));
    }
    const auto chat = wire::CreateChat(b, b.CreateVector(messages));
    return malformed(path, packet(b, wire::Request::Generate,
                                  wire::CreateGenerate(b, 0, wire::Prompt::Chat, chat.Union())
                                      .Union()));
}

bool more_messages_than_allowed(const std::string& path) {
    shm::Generate request;
    request.prompt = shm::Chat{std::vector<shm::Message>(shm::kMaxMessages + 1), "", false, {}};
    return malformed(path, request);
}

bool vector_of_2_gib(const std::string& path) {
    shm::Generate request = short_request();
    request.prompt = shm::RawTokens{{0x11223344, 0x55667711}};
    Bytes bytes = shm::encode_request(request);
    for (size_t at = 4; at + 4 <= bytes.size(); at += 4) {
        uint32_t word;
        std::memcpy(&word, bytes.data() + at, sizeof word);
        if (word != 0x11223344) continue;
        const uint32_t count = 0x1fffffff;
        std::memcpy(bytes.data() + at - 4, &count, sizeof count);
        return malformed(path, bytes);
    }
    return holds(false);
}

// Tables in tables in a field that this version does not know: a newer client's, and not looked at.
bool unknown_field_nested_deeply(const std::string& path) {
    Builder b;
    flatbuffers::Offset<void> inner;
    for (int depth = 0; depth < 200; ++depth) {
        const auto start = b.StartTable();
        if (!inner.IsNull()) b.AddOffset(4, inner);
        inner = b.EndTable(start);
    }
    const auto ping = wire::CreatePing(b);
    const auto start = b.StartTable();
    b.AddOffset(40, inner);
    b.AddOffset(wire::Packet::VT_REQUEST, ping);
    b.AddElement<uint8_t>(wire::Packet::VT_REQUEST_TYPE, static_cast<uint8_t>(wire::Request::Ping),
                          0);
    b.Finish(flatbuffers::Offset<wire::Packet>(b.EndTable(start)), wire::PacketIdentifier());
    RawClient client = connected(path);
    if (!holds(client.write(3, bytes_of(b)))) return false;
    const auto answer = client.next();
    return holds(answer && std::holds_alternative<shm::Pong>(answer->reply)) &&
           holds(client.served());
}

bool request_of_unknown_kind(const std::string& path) {
    Builder b;
    const auto body = wire::CreatePing(b).Union();
    return malformed(path, packet(b, static_cast<wire::Request>(200), body));
}

bool prompt_of_unknown_kind(const std::string& path) {
    Builder b;
    const auto text = wire::CreateRawText(b, b.CreateString("?")).Union();
    return malformed(path,
                     packet(b, wire::Request::Generate,
                            wire::CreateGenerate(b, 0, static_cast<wire::Prompt>(99), text)
                                .Union()));
}

bool request_without_a_body(const std::string& path) {
    Builder b;
    return malformed(path, packet(b, wire::Request::Generate, 0));
}

bool request_and_reply_at_once(const std::string& path) {
    Builder b;
    const auto ping = wire::CreatePing(b).Union();
    const auto pong = wire::CreatePong(b, b.CreateString("1"), b.CreateString("2")).Union();
    wire::FinishPacketBuffer(b, wire::CreatePacket(b, wire::Request::Ping, ping,
                                                   wire::Reply::Pong, pong));
    return malformed(path, bytes_of(b));
}

bool reply_as_a_request(const std::string& path) {
    return malformed(path, shm::encode_reply(shm::Done()));
}

template <class Change>
bool malformed_generate(const std::string& path, Change change) {
    shm::Generate request = short_request();
    change(request);
    return malformed(path, request);
}

bool text_not_utf8(const std::string& path) {
    return malformed_generate(
        path, [](auto& g) { g.prompt = shm::RawText{"half a character: \xe2\x82"}; });
}
bool temperature_not_a_number(const std::string& path) {
    return malformed_generate(path, [](auto& g) {
        g.sampling.temperature = std::numeric_limits<float>::quiet_NaN();
    });
}
bool top_p_infinite(const std::string& path) {
    return malformed_generate(
        path, [](auto& g) { g.sampling.top_p = std::numeric_limits<float>::infinity(); });
}
bool token_ids_negative(const std::string& path) {
    return malformed_generate(path, [](auto& g) { g.prompt = shm::RawTokens{{1, -1}}; });
}
bool stops_too_many(const std::string& path) {
    return malformed_generate(path, [](auto& g) { g.stop.assign(17, "x"); });
}
bool stop_too_long(const std::string& path) {
    return malformed_generate(path, [](auto& g) { g.stop = {std::string(257, 'x')}; });
}
bool stop_empty(const std::string& path) {
    return malformed_generate(path, [](auto& g) { g.stop = {""}; });
}
bool logprobs_too_many(const std::string& path) {
    return malformed_generate(path, [](auto& g) { g.top_logprobs = 4'000'000'000; });
}
bool model_name_with_nul(const std::string& path) {
    return malformed_generate(path, [](auto& g) { g.model = std::string("de\0mo", 5); });
}
bool model_name_too_long(const std::string& path) {
    return malformed_generate(path, [](auto& g) { g.model = std::string(257, 'm'); });
}

constexpr Behaviour kMessageBehaviours[] = {
    {"garbage", "1000 bytes of anything", 1, 0, garbage},
    {"all_ones", "4 KiB of offsets that lead outside", 1, 0, all_ones},
    {"identifier_of_another_format", "XPM9", 1, 0, identifier_of_another_format},
    {"random_changes", "300 good messages with three bytes changed", kAny, 0, random_changes},
    {"shared_text_bomb", "4000 messages of one text, 32 MiB when copied", 1, 0, shared_text_bomb},
    {"more_tables_than_allowed", "10,000", 1, 0, more_tables_than_allowed},
    {"more_messages_than_allowed", "4097", 1, 0, more_messages_than_allowed},
    {"vector_of_2_gib", "token ids as far as a length can say", 1, 0, vector_of_2_gib},
    {"unknown_field_nested_deeply", "200 tables in each other", 0, 0, unknown_field_nested_deeply},
    {"request_of_unknown_kind", "union member 200", 1, 0, request_of_unknown_kind},
    {"prompt_of_unknown_kind", "union member 99", 1, 0, prompt_of_unknown_kind},
    {"request_without_a_body", "a type and nothing else", 1, 0, request_without_a_body},
    {"request_and_reply_at_once", "both unions set", 1, 0, request_and_reply_at_once},
    {"reply_as_a_request", "Done", 1, 0, reply_as_a_request},
    {"text_not_utf8", "half a character", 1, 0, text_not_utf8},
    {"temperature_not_a_number", "NaN", 1, 0, temperature_not_a_number},
    {"top_p_infinite", "beyond 1", 1, 0, top_p_infinite},
    {"token_ids_negative", "-1", 1, 0, token_ids_negative},
    {"stops_too_many", "17", 1, 0, stops_too_many},
    {"stop_too_long", "257 bytes", 1, 0, stop_too_long},
    {"stop_empty", "matches everywhere", 1, 0, stop_empty},
    {"logprobs_too_many", "four billion per token", 1, 0, logprobs_too_many},
    {"model_name_with_nul", "ends early in C", 1, 0, model_name_with_nul},
    {"model_name_too_long", "257 bytes", 1, 0, model_name_too_long},
};

}  // namespace

std::span<const Behaviour> message_behaviours() {
    return kMessageBehaviours;
}

}  // namespace xp::hostile
