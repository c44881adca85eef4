#include <cfloat>
#include <cmath>
#include <type_traits>

#include "messages_generated.h"
#include "shm/codec.h"

namespace xp::shm {
namespace {

using Builder = flatbuffers::FlatBufferBuilder;
template <class T>
using Offset = flatbuffers::Offset<T>;

// Most messages are a few tokens; the buffer grows by doubling for the others.
constexpr size_t kInitialBytes = 512;

Offset<flatbuffers::String> put(Builder& b, const std::string& text) {
    return b.CreateString(text.data(), text.size());
}

// Absent instead of empty: saves the offset and the empty string.
Offset<flatbuffers::String> put_optional(Builder& b, const std::string& text) {
    return text.empty() ? Offset<flatbuffers::String>() : put(b, text);
}

std::vector<std::byte> finish(Builder& b, wire::Request type, Offset<void> body) {
    wire::PacketBuilder packet(b);
    packet.add_request_type(type);
    packet.add_request(body);
    wire::FinishPacketBuffer(b, packet.Finish());
    const auto* p = reinterpret_cast<const std::byte*>(b.GetBufferPointer());
    return {p, p + b.GetSize()};
}

std::vector<std::byte> finish(Builder& b, wire::Reply type, Offset<void> body) {
    wire::PacketBuilder packet(b);
    packet.add_reply_type(type);
    packet.add_reply(body);
    wire::FinishPacketBuffer(b, packet.Finish());
    const auto* p = reinterpret_cast<const std::byte*>(b.GetBufferPointer());
    return {p, p + b.GetSize()};
}

// ---- requests

Offset<wire::Message> put(Builder& b, const Message& message) {
    std::vector<Offset<wire::ToolCall>> calls;
    calls.reserve(message.tool_calls.size());
    for (const ToolCall& call : message.tool_calls) {
        const auto id = put(b, call.id);
        const auto name = put(b, call.name);
        const auto arguments = put(b, call.arguments_json);
        calls.push_back(wire::CreateToolCall(b, id, name, arguments));
    }
    const auto content = put(b, message.content);
    const auto reasoning = put_optional(b, message.reasoning);
    const auto tool_call_id = put_optional(b, message.tool_call_id);
    const auto call_vector = calls.empty() ? Offset<flatbuffers::Vector<Offset<wire::ToolCall>>>()
                                           : b.CreateVector(calls);
    return wire::CreateMessage(b, static_cast<wire::Role>(message.role), content, reasoning,
                               call_vector, tool_call_id);
}

struct PutPrompt {
    Builder& b;
    wire::Prompt type = wire::Prompt::NONE;

    Offset<void> operator()(const RawText& raw) {
        type = wire::Prompt::RawText;
        return wire::CreateRawText(b, put(b, raw.text)).Union();
    }
    Offset<void> operator()(const RawTokens& raw) {
        type = wire::Prompt::RawTokens;
        return wire::CreateRawTokens(b, b.CreateVector(raw.ids)).Union();
    }
    Offset<void> operator()(const Chat& chat) {
        type = wire::Prompt::Chat;
        std::vector<Offset<wire::Message>> messages;
        messages.reserve(chat.messages.size());
        for (const Message& message : chat.messages) messages.push_back(put(b, message));
        const auto vector = b.CreateVector(messages);
        const auto tools = put_optional(b, chat.tools_json);
        return wire::CreateChat(b, vector, tools, chat.thinking,
                                static_cast<wire::Effort>(chat.effort))
            .Union();
    }
};

std::vector<std::byte> encode(Builder& b, const Generate& request) {
    PutPrompt put_prompt{b};
    const Offset<void> prompt = std::visit(put_prompt, request.prompt);
    const auto model = put_optional(b, request.model);
    const auto end_user = put_optional(b, request.end_user);
    std::vector<Offset<flatbuffers::String>> stops;
    for (const std::string& stop : request.stop) stops.push_back(put(b, stop));
    const auto stop_vector = stops.empty()
                                 ? Offset<flatbuffers::Vector<Offset<flatbuffers::String>>>()
                                 : b.CreateVector(stops);

    wire::GenerateBuilder generate(b);
    generate.add_model(model);
    generate.add_prompt_type(put_prompt.type);
    generate.add_prompt(prompt);
    generate.add_temperature(request.sampling.temperature);
    generate.add_top_k(request.sampling.top_k);
    generate.add_top_p(request.sampling.top_p);
    generate.add_min_p(request.sampling.min_p);
    generate.add_seed(request.sampling.seed);
    generate.add_max_tokens(request.max_tokens);
    generate.add_stop(stop_vector);
    generate.add_ignore_eos(request.ignore_eos);
    generate.add_top_logprobs(request.top_logprobs);
    generate.add_stream(request.stream);
    generate.add_priority(request.priority);
    generate.add_deadline_ms(request.deadline_ms);
    generate.add_end_user(end_user);
    generate.add_task(static_cast<wire::Task>(request.task));
    generate.add_last_logits(request.last_logits);
    return finish(b, wire::Request::Generate, generate.Finish().Union());
}

std::vector<std::byte> encode(Builder& b, const Cancel& request) {
    return finish(b, wire::Request::Cancel,
                  wire::CreateCancel(b, request.target, request.client).Union());
}
std::vector<std::byte> encode(Builder& b, const Ping&) {
    return finish(b, wire::Request::Ping, wire::CreatePing(b).Union());
}
std::vector<std::byte> encode(Builder& b, const ListModels&) {
    return finish(b, wire::Request::ListModels, wire::CreateListModels(b).Union());
}
std::vector<std::byte> encode(Builder& b, const GetStats&) {
    return finish(b, wire::Request::GetStats, wire::CreateGetStats(b).Union());
}
std::vector<std::byte> encode(Builder& b, const ListClients&) {
    return finish(b, wire::Request::ListClients, wire::CreateListClients(b).Union());
}
std::vector<std::byte> encode(Builder& b, const Enclosed& request) {
    return finish(b, wire::Request::Enclosed, wire::CreateEnclosed(b, request.bytes).Union());
}

// ---- replies

Offset<wire::Timings> put(Builder& b, const Timings& t) {
    const wire::TimingsData data(t.queued_us, t.prefill_us, t.decode_us, t.expert_hits,
                                 t.expert_misses, t.read_bytes, t.prompt_tokens,
                                 t.generated_tokens);
    return wire::CreateTimings(b, &data);
}

// The log of a probability that underflowed to nothing is minus infinity, which neither the wire
// nor JSON carries.
float finite(float logprob) {
    return std::isfinite(logprob) ? logprob : -FLT_MAX;
}

std::vector<float> finite(std::vector<float> values) {
    for (float& value : values) value = finite(value);
    return values;
}

std::vector<std::byte> encode(Builder& b, const Accepted& reply) {
    const auto model = put(b, reply.model);
    const auto tokens = b.CreateVector(reply.prompt_tokens);
    return finish(b, wire::Reply::Accepted, wire::CreateAccepted(b, model, tokens).Union());
}
std::vector<std::byte> encode(Builder& b, const Progress& reply) {
    return finish(b, wire::Reply::Progress,
                  wire::CreateProgress(b, reply.done, reply.total).Union());
}
std::vector<std::byte> encode(Builder& b, const Tokens& reply) {
    std::vector<float> chosen;
    std::vector<uint8_t> counts;
    std::vector<wire::Logprob> top;
    for (const TokenLogprobs& token : reply.logprobs) {
        chosen.push_back(finite(token.chosen));
        counts.push_back(static_cast<uint8_t>(token.top.size()));
        for (const Logprob& entry : token.top) top.emplace_back(entry.id, finite(entry.logprob));
    }
    const auto ids = b.CreateVector(reply.ids);
    const auto text = put_optional(b, reply.text);
    if (chosen.empty()) {
        return finish(b, wire::Reply::Tokens,
                      wire::CreateTokens(b, ids, static_cast<wire::Channel>(reply.channel), text)
                          .Union());
    }
    const auto chosen_vector = b.CreateVector(chosen);
    const auto count_vector = b.CreateVector(counts);
    const auto top_vector = b.CreateVectorOfStructs(top);
    return finish(b, wire::Reply::Tokens,
                  wire::CreateTokens(b, ids, static_cast<wire::Channel>(reply.channel), text,
                                     chosen_vector, count_vector, top_vector)
                      .Union());
}
std::vector<std::byte> encode(Builder& b, const Done& reply) {
    const auto timings = put(b, reply.timings);
    return finish(
        b, wire::Reply::Done,
        wire::CreateDone(b, static_cast<wire::FinishReason>(reply.reason), timings).Union());
}
std::vector<std::byte> encode(Builder& b, const Cancelled& reply) {
    const auto why = put(b, reply.why);
    const auto timings = put(b, reply.timings);
    return finish(b, wire::Reply::Cancelled, wire::CreateCancelled(b, why, timings).Union());
}
std::vector<std::byte> encode(Builder& b, const Failed& reply) {
    const auto code = put(b, reply.code);
    const auto message = put(b, reply.message);
    return finish(b, wire::Reply::Failed, wire::CreateFailed(b, code, message).Union());
}
std::vector<std::byte> encode(Builder& b, const Pong& reply) {
    const auto version = put(b, reply.version);
    const auto backend = put(b, reply.backend);
    return finish(b, wire::Reply::Pong, wire::CreatePong(b, version, backend).Union());
}
std::vector<std::byte> encode(Builder& b, const ModelsReply& reply) {
    std::vector<Offset<wire::ModelEntry>> models;
    for (const ModelEntry& entry : reply.models) {
        const auto name = put(b, entry.name);
        const auto architecture = put(b, entry.architecture);
        const auto description = put_optional(b, entry.description);
        models.push_back(wire::CreateModelEntry(b, name, architecture, description, entry.context,
                                                entry.n_vocab));
    }
    return finish(b, wire::Reply::ModelsReply,
                  wire::CreateModelsReply(b, b.CreateVector(models)).Union());
}
std::vector<std::byte> encode(Builder& b, const StatsReply& reply) {
    return finish(b, wire::Reply::StatsReply,
                  wire::CreateStatsReply(b, put(b, reply.json)).Union());
}
std::vector<std::byte> encode(Builder& b, const Scores& reply) {
    const auto logprobs = b.CreateVector(finite(reply.logprobs));
    const auto argmax = b.CreateVector(reply.argmax);
    return finish(b, wire::Reply::Scores,
                  wire::CreateScores(b, reply.first, logprobs, argmax).Union());
}
std::vector<std::byte> encode(Builder& b, const Logits& reply) {
    const auto values = b.CreateVector(finite(reply.values));
    return finish(b, wire::Reply::Logits, wire::CreateLogits(b, reply.first, values).Union());
}
std::vector<std::byte> encode(Builder& b, const ClientsReply& reply) {
    std::vector<Offset<wire::ClientEntry>> clients;
    for (const ClientEntry& client : reply.clients) {
        std::vector<Offset<wire::RequestEntry>> requests;
        for (const RequestEntry& request : client.requests) {
            const auto model = put_optional(b, request.model);
            requests.push_back(wire::CreateRequestEntry(
                b, request.id, static_cast<wire::Task>(request.task),
                static_cast<wire::RequestState>(request.state), model, request.age_ms,
                request.prompt_tokens, request.prompt_done, request.generated_tokens));
        }
        const auto name = put_optional(b, client.name);
        const auto vector = b.CreateVector(requests);
        clients.push_back(wire::CreateClientEntry(b, client.id, name, client.pid, client.uid,
                                                  client.age_ms, vector));
    }
    const auto vector = b.CreateVector(clients);
    return finish(b, wire::Reply::ClientsReply,
                  wire::CreateClientsReply(b, vector, reply.hidden).Union());
}

}  // namespace

std::vector<std::byte> encode_request(const Request& request) {
    Builder b(kInitialBytes);
    return std::visit([&](const auto& one) { return encode(b, one); }, request);
}

std::vector<std::byte> encode_reply(const Reply& reply) {
    Builder b(kInitialBytes);
    return std::visit([&](const auto& one) { return encode(b, one); }, reply);
}

bool is_terminal(const Reply& reply) {
    return !std::holds_alternative<Accepted>(reply) && !std::holds_alternative<Progress>(reply) &&
           !std::holds_alternative<Tokens>(reply) && !std::holds_alternative<Scores>(reply) &&
           !std::holds_alternative<Logits>(reply);
}

}  // namespace xp::shm
