// What the files in 1.1/ hold, as values. Frozen: a later minor version that appends members leaves
// these as they are, and the files must then decode to the members' defaults.
#pragma once

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "shm/codec.h"
#include "shm/handshake.h"
#include "shm/layout.h"
#include "shm/ring.h"

namespace xp::shm::abi {

template <class T>
using Named = std::vector<std::pair<std::string, T>>;

inline Hello hello() {
    Hello hello;
    hello.abi_minor = 1;
    hello.features = 1;
    hello.req_ring_bytes = 0x00200000;
    hello.resp_ring_bytes = 0x00080000;
    std::strcpy(hello.client_name, "recorded");
    return hello;
}

inline Welcome welcome() {
    Welcome welcome;
    welcome.abi_minor = 1;
    welcome.fds = 4;
    welcome.features = 1;
    welcome.req_ring_bytes = 0x00200000;
    welcome.resp_ring_bytes = 0x00080000;
    welcome.max_record_bytes = 0x00100000;
    welcome.max_in_flight = 16;
    welcome.max_context = 4096;
    welcome.max_enclosed_bytes = 0x01000000;
    for (int i = 0; i < 16; ++i) welcome.boot_id[i] = static_cast<uint8_t>(0xa0 + i);
    return welcome;
}

inline Welcome refusal() {
    Welcome welcome;
    welcome.abi_minor = 1;
    welcome.status = 3;
    std::strcpy(welcome.text, "16 clients are connected");
    return welcome;
}

inline Notice drain() {
    return {kNoticeMagic, 1, 0};
}
inline Notice enclosed() {
    return {kNoticeMagic, 2, 0x123456};
}

inline SegmentHeader segment(uint32_t magic) {
    SegmentHeader header{};
    header.magic = magic;
    header.abi_major = 1;
    header.abi_minor = 1;
    header.total_bytes = 0x00200100;
    header.data_offset = 256;
    header.data_bytes = 0x00200000;
    return header;
}

// A segment of 256 bytes of data: three records, the last of them behind a pad.
inline constexpr uint64_t kRingBytes = 256;
inline std::string ring_body(size_t n) {
    return std::string(std::vector<size_t>{90, 60, 100}.at(n), static_cast<char>('a' + n));
}
inline constexpr uint64_t ring_id(size_t n) {
    return 0x0102030405060708u + n;
}

inline Timings timings() {
    return {11, 22, 33, 44, 55, 66, 77, 88};
}

inline Named<Request> requests() {
    Generate chat;
    chat.model = "demo";
    chat.prompt = Chat{{{Role::kSystem, "Be brief.", "", {}, ""},
                        {Role::kUser, "Grüße, 世界", "", {}, ""},
                        {Role::kAssistant, "let me", "hmm", {{"call-1", "look", "{}"}}, ""},
                        {Role::kTool, "found", "", {}, "call-1"}},
                       R"([{"name":"look"}])", true, Effort::kHigh};
    chat.sampling = {0.5f, 40, 0.9f, 0.05f, 0x8000000000000001u};
    chat.max_tokens = 100;
    chat.stop = {"\n", "END"};
    chat.ignore_eos = true;
    chat.top_logprobs = 5;
    chat.stream = false;
    chat.priority = -3;
    chat.deadline_ms = 1234;
    chat.end_user = "someone";
    Generate score;
    score.prompt = RawText{"1 + 1 ="};
    score.task = Task::kScore;
    score.last_logits = true;
    Generate tokenize;
    tokenize.prompt = RawTokens{{0, 5, 128'000, 0x7fffffff}};
    tokenize.task = Task::kTokenize;
    return {{"request_generate_chat", chat},
            {"request_score_text", score},
            {"request_tokenize_ids", tokenize},
            {"request_cancel_own", Cancel{77, 0}},
            {"request_cancel_other", Cancel{0, 9}},
            {"request_ping", Ping{}},
            {"request_list_models", ListModels{}},
            {"request_get_stats", GetStats{}},
            {"request_list_clients", ListClients{}},
            {"request_enclosed", Enclosed{0x123456}}};
}

inline Named<Reply> replies() {
    return {{"reply_accepted", Accepted{"demo", {1, 2, 3}}},
            {"reply_progress", Progress{3, 7}},
            {"reply_tokens", Tokens{{42, 43}, Channel::kReasoning, "né",
                                    {{-0.5f, {{42, -0.5f}, {4, -1.5f}}}, {-2.0f, {}}}}},
            {"reply_done", Done{FinishReason::kLength, timings()}},
            {"reply_cancelled", Cancelled{"deadline", timings()}},
            {"reply_failed", Failed{"not_found", "there is no model \"x\""}},
            {"reply_pong", Pong{"0.1.0", "cpu"}},
            {"reply_models", ModelsReply{{{"demo", "deepseek4", "first", 4096, 129'280}}}},
            {"reply_stats", StatsReply{R"({"a":1})"}},
            {"reply_scores", Scores{9, {0.0f, -1.5f}, {3, 0}}},
            {"reply_logits", Logits{4096, {-0.25f, 8.0f}}},
            {"reply_clients",
             ClientsReply{{{7, "xpctl", 4711, 1000, 12'345,
                            {{3, Task::kTokenize, RequestState::kParked, "demo", 99, 10, 5, 2}}}},
                          4}}};
}

// Segments in plain memory.
struct PlainSegment {
    alignas(64) std::byte bytes[kDataOffset + kRingBytes] = {};
    Segment own() { return {bytes, kRingBytes}; }
    ConstSegment peer() const { return {bytes, kRingBytes}; }
};

// What a client's segment holds after writing two records, having them read, and writing a third.
inline void write_ring(PlainSegment* client, PlainSegment* daemon) {
    RingWriter writer(client->own(), daemon->peer());
    RingReader reader(daemon->own(), client->peer());
    for (size_t n = 0; n < 3; ++n) {
        const std::string body = ring_body(n);
        writer.write(ring_id(n), std::as_bytes(std::span(body)));
        Record record;
        if (n < 2) reader.read(&record);
    }
}

}  // namespace xp::shm::abi
