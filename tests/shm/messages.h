// Equality and examples of messages for the codec tests. Structured bindings name every member, so
// that a member added to a message and forgotten here does not compile.
#pragma once

#include <cfloat>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "shm/codec.h"

namespace xp::shm {

inline bool operator==(const ToolCall& a, const ToolCall& b) {
    const auto tie = [](const ToolCall& m) {
        const auto& [id, name, arguments] = m;
        return std::tie(id, name, arguments);
    };
    return tie(a) == tie(b);
}
inline bool operator==(const Message& a, const Message& b) {
    const auto tie = [](const Message& m) {
        const auto& [role, content, reasoning, calls, call_id] = m;
        return std::tie(role, content, reasoning, calls, call_id);
    };
    return tie(a) == tie(b);
}
inline bool operator==(const Chat& a, const Chat& b) {
    const auto tie = [](const Chat& m) {
        const auto& [messages, tools, thinking, effort] = m;
        return std::tie(messages, tools, thinking, effort);
    };
    return tie(a) == tie(b);
}
inline bool operator==(const RawText& a, const RawText& b) { return a.text == b.text; }
inline bool operator==(const RawTokens& a, const RawTokens& b) { return a.ids == b.ids; }
inline bool operator==(const Sampling& a, const Sampling& b) {
    const auto tie = [](const Sampling& m) {
        const auto& [temperature, top_k, top_p, min_p, seed] = m;
        return std::tie(temperature, top_k, top_p, min_p, seed);
    };
    return tie(a) == tie(b);
}
inline bool operator==(const Generate& a, const Generate& b) {
    const auto tie = [](const Generate& m) {
        const auto& [model, prompt, sampling, max_tokens, stop, ignore_eos, top_logprobs, stream,
                     priority, deadline_ms, end_user, task, last_logits] = m;
        return std::tie(model, prompt, sampling, max_tokens, stop, ignore_eos, top_logprobs, stream,
                        priority, deadline_ms, end_user, task, last_logits);
    };
    return tie(a) == tie(b);
}
inline bool operator==(const Cancel& a, const Cancel& b) {
    return a.target == b.target && a.client == b.client;
}
inline bool operator==(const Ping&, const Ping&) { return true; }
inline bool operator==(const ListModels&, const ListModels&) { return true; }
inline bool operator==(const GetStats&, const GetStats&) { return true; }
inline bool operator==(const ListClients&, const ListClients&) { return true; }
inline bool operator==(const Enclosed& a, const Enclosed& b) { return a.bytes == b.bytes; }

inline bool operator==(const Accepted& a, const Accepted& b) {
    const auto tie = [](const Accepted& m) {
        const auto& [model, tokens] = m;
        return std::tie(model, tokens);
    };
    return tie(a) == tie(b);
}
inline bool operator==(const Progress& a, const Progress& b) {
    const auto tie = [](const Progress& m) {
        const auto& [done, total] = m;
        return std::tie(done, total);
    };
    return tie(a) == tie(b);
}
inline bool operator==(const Logprob& a, const Logprob& b) {
    return a.id == b.id && a.logprob == b.logprob;
}
inline bool operator==(const TokenLogprobs& a, const TokenLogprobs& b) {
    return a.chosen == b.chosen && a.top == b.top;
}
inline bool operator==(const Tokens& a, const Tokens& b) {
    const auto tie = [](const Tokens& m) {
        const auto& [ids, channel, text, logprobs] = m;
        return std::tie(ids, channel, text, logprobs);
    };
    return tie(a) == tie(b);
}
inline bool operator==(const Timings& a, const Timings& b) {
    const auto tie = [](const Timings& m) {
        const auto& [queued, prefill, decode, prompt, generated, hits, misses, read] = m;
        return std::tie(queued, prefill, decode, prompt, generated, hits, misses, read);
    };
    return tie(a) == tie(b);
}
inline bool operator==(const Done& a, const Done& b) {
    return a.reason == b.reason && a.timings == b.timings;
}
inline bool operator==(const Cancelled& a, const Cancelled& b) {
    return a.why == b.why && a.timings == b.timings;
}
inline bool operator==(const Failed& a, const Failed& b) {
    return a.code == b.code && a.message == b.message;
}
inline bool operator==(const Pong& a, const Pong& b) {
    return a.version == b.version && a.backend == b.backend;
}
inline bool operator==(const ModelEntry& a, const ModelEntry& b) {
    const auto tie = [](const ModelEntry& m) {
        const auto& [name, architecture, description, context, n_vocab] = m;
        return std::tie(name, architecture, description, context, n_vocab);
    };
    return tie(a) == tie(b);
}
inline bool operator==(const ModelsReply& a, const ModelsReply& b) { return a.models == b.models; }
inline bool operator==(const StatsReply& a, const StatsReply& b) { return a.json == b.json; }
inline bool operator==(const Scores& a, const Scores& b) {
    const auto tie = [](const Scores& m) {
        const auto& [first, logprobs, argmax] = m;
        return std::tie(first, logprobs, argmax);
    };
    return tie(a) == tie(b);
}
inline bool operator==(const Logits& a, const Logits& b) {
    return a.first == b.first && a.values == b.values;
}
inline bool operator==(const RequestEntry& a, const RequestEntry& b) {
    const auto tie = [](const RequestEntry& m) {
        const auto& [id, task, state, model, age, prompt, done, generated] = m;
        return std::tie(id, task, state, model, age, prompt, done, generated);
    };
    return tie(a) == tie(b);
}
inline bool operator==(const ClientEntry& a, const ClientEntry& b) {
    const auto tie = [](const ClientEntry& m) {
        const auto& [id, name, pid, uid, age, requests] = m;
        return std::tie(id, name, pid, uid, age, requests);
    };
    return tie(a) == tie(b);
}
inline bool operator==(const ClientsReply& a, const ClientsReply& b) {
    return a.clients == b.clients && a.hidden == b.hidden;
}

// A chat with every member different from its default.
inline Chat full_chat() {
    Chat chat;
    chat.messages = {
        {Role::kSystem, "Be brief.", "", {}, ""},
        {Role::kDeveloper, "", "", {}, ""},
        {Role::kUser, "Grüße, 世界 🙂", "", {}, ""},
        {Role::kAssistant, "let me", "hmm", {{"call-1", "look", R"({"q":1})"}, {"", "", ""}}, ""},
        {Role::kTool, std::string("with\0NUL", 8), "", {}, "call-1"},
    };
    chat.tools_json = R"([{"name":"look"}])";
    chat.thinking = true;
    chat.effort = Effort::kMax;
    return chat;
}

inline Generate full_generate() {
    Generate g;
    g.model = "demo";
    g.prompt = full_chat();
    g.sampling = {0.5f, 40, 0.9f, 0.05f, std::numeric_limits<uint64_t>::max()};
    g.max_tokens = std::numeric_limits<uint32_t>::max();
    g.stop = {"\n", std::string(kMaxStopBytes, 's')};
    g.ignore_eos = true;
    g.top_logprobs = kMaxLogprobs;
    g.stream = false;
    g.priority = std::numeric_limits<int32_t>::min();
    g.deadline_ms = 1234;
    g.end_user = "someone";
    g.task = Task::kScore;
    g.last_logits = true;
    return g;
}

inline Timings full_timings() {
    return {1, 2, 3, 4, 5, 6, 7, std::numeric_limits<uint64_t>::max()};
}

inline Tokens full_tokens() {
    return {{0, 1, std::numeric_limits<int32_t>::max()},
            Channel::kToolCall,
            "né",
            {{-0.5f, {{3, -0.5f}, {4, -1.5f}}}, {0.0f, {}}, {-FLT_MAX, {{0, -2.0f}}}}};
}

inline std::vector<Request> example_requests() {
    Generate raw;
    raw.prompt = RawText{"<|begin|>1 + 1 ="};
    Generate tokens;
    tokens.prompt = RawTokens{{0, 5, 128'000, std::numeric_limits<int32_t>::max()}};
    Generate empty;
    empty.prompt = RawText{};
    Generate no_ids;
    no_ids.prompt = RawTokens{};
    Generate defaults;
    defaults.prompt = Chat{{Message{}}, "", false, Effort::kLow};
    return {full_generate(), raw,    tokens,       empty,     no_ids, defaults,
            Cancel{~uint64_t{0}, 0}, Cancel{0, 7}, Cancel{5, ~uint64_t{0}},
            Ping{}, ListModels{}, GetStats{}, ListClients{}, Enclosed{uint64_t{1} << 40}};
}

inline std::vector<Reply> example_replies() {
    return {Accepted{"demo", {1, 2, 3}},
            Accepted{"", {}},
            Progress{3, 7},
            Progress{},
            Tokens{{42}, Channel::kContent, "x", {}},
            Tokens{},
            full_tokens(),
            Done{FinishReason::kToolCalls, full_timings()},
            Done{},
            Cancelled{"deadline", full_timings()},
            Failed{"not_found", "no model of the name 'x' is loaded"},
            Pong{"0.1.0", "cpu"},
            ModelsReply{{{"a", "deepseek4", "first", 4096, 129'280}, {"b", "kimi-k3", "", 1, 2}}},
            ModelsReply{},
            StatsReply{R"({"a":1})"},
            Scores{9, {0.0f, -1.5f, -FLT_MAX}, {3, 0, std::numeric_limits<int32_t>::max()}},
            Scores{},
            Logits{4096, {-0.25f, 1e30f}},
            ClientsReply{{{7, "xpctl", 4711, 1000, 12'345,
                           {{3, Task::kTokenize, RequestState::kParked, "demo", 99, 10, 5, 2}}},
                          {8, "", -1, 0, 0, {}}},
                         4},
            ClientsReply{}};
}

}  // namespace xp::shm
