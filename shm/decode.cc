#include <cmath>
#include <cstring>

#include "messages_generated.h"
#include "shm/codec.h"

namespace xp::shm {
namespace {

// Packet, Generate, Chat, Message, ToolCall are the deepest chain: five.
constexpr flatbuffers::uoffset_t kMaxDepth = 8;
// The most tables an honest message can have: messages, their tool calls, and the few around them.
constexpr flatbuffers::uoffset_t kMaxTables = kMaxMessages + kMaxToolCalls + 64;
static_assert(kMaxClients + kMaxClientRequests <= kMaxMessages + kMaxToolCalls);

// Copies fields out of a verified buffer into plain values and keeps the first fault.
//
// A verified buffer may still refer to the same bytes many times: a few kilobytes could claim to
// hold a gigabyte of text. No encoder of ours shares parts, so all copies together may be no larger
// than the buffer.
class Copier {
public:
    Copier(size_t budget, std::string* why) : budget_(budget), why_(why) {}

    bool fail(std::string why) {
        *why_ = std::move(why);
        return false;
    }

    bool text(const flatbuffers::String* from, const char* field, std::string* to) {
        if (!from) {
            to->clear();
            return true;
        }
        const std::string_view view(from->c_str(), from->size());
        if (!spend(view.size())) return false;
        if (!is_valid_utf8(view)) return fail(std::string(field) + " is not valid UTF-8");
        to->assign(view);
        return true;
    }

    // A short text that ends up in C strings, logs and tables.
    bool name(const flatbuffers::String* from, const char* field, std::string* to) {
        if (from && from->size() > kMaxNameBytes) {
            return fail(std::string(field) + " has " + std::to_string(from->size()) +
                        " bytes, at most " + std::to_string(kMaxNameBytes) + " are allowed");
        }
        if (!text(from, field, to)) return false;
        if (to->find('\0') != std::string::npos) {
            return fail(std::string(field) + " contains a NUL byte");
        }
        return true;
    }

    bool token_ids(const flatbuffers::Vector<int32_t>* from, const char* field,
                   std::vector<int32_t>* to) {
        to->clear();
        if (!from) return true;
        if (!spend(from->size() * sizeof(int32_t))) return false;
        to->assign(from->begin(), from->end());
        for (const int32_t id : *to) {
            if (id < 0) {
                return fail(std::string(field) + " contains the negative id " +
                            std::to_string(id));
            }
        }
        return true;
    }

    bool finite(const flatbuffers::Vector<float>* from, const char* field,
                std::vector<float>* to) {
        if (!spend(from->size() * sizeof(float))) return false;
        to->assign(from->begin(), from->end());
        for (const float value : *to) {
            if (!std::isfinite(value)) return fail(std::string(field) + " are not all finite");
        }
        return true;
    }

    bool spend(size_t bytes) {
        if (bytes > budget_) return fail("parts of the message are referred to more than once");
        budget_ -= bytes;
        return true;
    }

    template <class Wire, class Plain>
    bool enumerator(Wire from, Plain last, const char* field, Plain* to) {
        const auto value = static_cast<uint8_t>(from);
        if (value > static_cast<uint8_t>(last)) {
            return fail(std::string(field) + " has the unknown value " + std::to_string(value));
        }
        *to = static_cast<Plain>(value);
        return true;
    }

private:
    size_t budget_;
    std::string* why_;
};

// ---- requests

bool decode(Copier& c, const wire::Message& from, size_t* calls_left, Message* to) {
    if (!c.enumerator(from.role(), Role::kTool, "role", &to->role)) return false;
    if (!c.text(from.content(), "content", &to->content)) return false;
    if (!c.text(from.reasoning(), "reasoning", &to->reasoning)) return false;
    if (!c.name(from.tool_call_id(), "tool_call_id", &to->tool_call_id)) return false;
    if (const auto* calls = from.tool_calls()) {
        if (calls->size() > *calls_left) {
            return c.fail("more than " + std::to_string(kMaxToolCalls) + " tool calls");
        }
        *calls_left -= calls->size();
        to->tool_calls.resize(calls->size());
        for (flatbuffers::uoffset_t i = 0; i < calls->size(); ++i) {
            ToolCall& call = to->tool_calls[i];
            if (!c.name(calls->Get(i)->id(), "tool call id", &call.id)) return false;
            if (!c.name(calls->Get(i)->name(), "tool call name", &call.name)) return false;
            if (!c.text(calls->Get(i)->arguments_json(), "tool call arguments",
                        &call.arguments_json)) {
                return false;
            }
        }
    }
    const bool assistant = to->role == Role::kAssistant;
    if (!assistant && (!to->reasoning.empty() || !to->tool_calls.empty())) {
        return c.fail("reasoning and tool calls belong to assistant messages only");
    }
    if (to->role != Role::kTool && !to->tool_call_id.empty()) {
        return c.fail("tool_call_id belongs to tool messages only");
    }
    return true;
}

bool decode(Copier& c, const wire::Chat& from, Chat* to) {
    const auto* messages = from.messages();
    if (messages->size() == 0) return c.fail("a chat needs at least one message");
    if (messages->size() > kMaxMessages) {
        return c.fail(std::to_string(messages->size()) + " messages, at most " +
                      std::to_string(kMaxMessages) + " are allowed");
    }
    to->messages.resize(messages->size());
    size_t calls_left = kMaxToolCalls;
    for (flatbuffers::uoffset_t i = 0; i < messages->size(); ++i) {
        if (!decode(c, *messages->Get(i), &calls_left, &to->messages[i])) return false;
    }
    if (!c.text(from.tools_json(), "tools", &to->tools_json)) return false;
    to->thinking = from.thinking();
    return c.enumerator(from.effort(), Effort::kMax, "effort", &to->effort);
}

bool decode_prompt(Copier& c, const wire::Generate& from, Generate* to) {
    if (const auto* raw = from.prompt_as_RawText()) {
        return c.text(raw->text(), "prompt", &to->prompt.emplace<RawText>().text);
    }
    if (const auto* raw = from.prompt_as_RawTokens()) {
        return c.token_ids(raw->ids(), "prompt", &to->prompt.emplace<RawTokens>().ids);
    }
    if (const auto* chat = from.prompt_as_Chat()) {
        return decode(c, *chat, &to->prompt.emplace<Chat>());
    }
    return c.fail("the prompt is of a kind that is not known here");
}

bool decode_sampling(Copier& c, const wire::Generate& from, Sampling* to) {
    to->temperature = from.temperature();
    to->top_k = from.top_k();
    to->top_p = from.top_p();
    to->min_p = from.min_p();
    to->seed = from.seed();
    // Written so that NaN fails, too.
    if (!(to->temperature >= 0 && to->temperature <= kMaxTemperature)) {
        return c.fail("temperature is not within 0 and 100");
    }
    if (!(to->top_p > 0 && to->top_p <= 1)) return c.fail("top_p is not above 0 and at most 1");
    if (!(to->min_p >= 0 && to->min_p <= 1)) return c.fail("min_p is not within 0 and 1");
    return true;
}

bool decode_stops(Copier& c, const wire::Generate& from, std::vector<std::string>* to) {
    const auto* stops = from.stop();
    if (!stops) return true;
    if (stops->size() > kMaxStops) {
        return c.fail(std::to_string(stops->size()) + " stop texts, at most " +
                      std::to_string(kMaxStops) + " are allowed");
    }
    to->resize(stops->size());
    for (flatbuffers::uoffset_t i = 0; i < stops->size(); ++i) {
        const size_t bytes = stops->Get(i)->size();
        if (bytes == 0 || bytes > kMaxStopBytes) {
            return c.fail("a stop text has " + std::to_string(bytes) + " bytes, 1 to " +
                          std::to_string(kMaxStopBytes) + " are allowed");
        }
        if (!c.text(stops->Get(i), "stop text", &(*to)[i])) return false;
    }
    return true;
}

bool decode(Copier& c, const wire::Generate& from, Generate* to) {
    if (!c.name(from.model(), "model", &to->model)) return false;
    if (!c.name(from.end_user(), "end_user", &to->end_user)) return false;
    if (!decode_prompt(c, from, to)) return false;
    if (!decode_sampling(c, from, &to->sampling)) return false;
    if (!decode_stops(c, from, &to->stop)) return false;
    to->max_tokens = from.max_tokens();
    to->ignore_eos = from.ignore_eos();
    to->top_logprobs = from.top_logprobs();
    if (to->top_logprobs > kMaxLogprobs) {
        return c.fail("top_logprobs is " + std::to_string(to->top_logprobs) + ", at most " +
                      std::to_string(kMaxLogprobs) + " is allowed");
    }
    to->stream = from.stream();
    to->priority = from.priority();
    to->deadline_ms = from.deadline_ms();
    to->last_logits = from.last_logits();
    return c.enumerator(from.task(), Task::kTokenize, "task", &to->task);
}

bool decode(Copier& c, const wire::Cancel& from, Cancel* to) {
    to->target = from.target();
    to->client = from.client();
    if (to->target == 0 && to->client == 0) return c.fail("the request to cancel is 0");
    return true;
}
bool decode(Copier&, const wire::Ping&, Ping*) { return true; }
bool decode(Copier&, const wire::ListModels&, ListModels*) { return true; }
bool decode(Copier&, const wire::GetStats&, GetStats*) { return true; }
bool decode(Copier&, const wire::ListClients&, ListClients*) { return true; }
bool decode(Copier&, const wire::Enclosed& from, Enclosed* to) {
    to->bytes = from.bytes();
    return true;
}

// ---- replies

void decode(const wire::Timings& from, Timings* to) {
    const wire::TimingsData& data = *from.data();
    to->queued_us = data.queued_us();
    to->prefill_us = data.prefill_us();
    to->decode_us = data.decode_us();
    to->prompt_tokens = data.prompt_tokens();
    to->generated_tokens = data.generated_tokens();
    to->expert_hits = data.expert_hits();
    to->expert_misses = data.expert_misses();
    to->read_bytes = data.read_bytes();
}

bool decode(Copier& c, const wire::Accepted& from, Accepted* to) {
    return c.name(from.model(), "model", &to->model) &&
           c.token_ids(from.prompt_tokens(), "prompt_tokens", &to->prompt_tokens);
}

bool decode(Copier& c, const wire::Progress& from, Progress* to) {
    to->done = from.done();
    to->total = from.total();
    if (to->done > to->total) return c.fail("progress is beyond its total");
    return true;
}

bool decode_logprobs(Copier& c, const wire::Tokens& from, Tokens* to) {
    const auto* chosen = from.chosen();
    if (!chosen) return true;
    const auto* counts = from.top_counts();
    if (chosen->size() != to->ids.size() || !counts || counts->size() != chosen->size()) {
        return c.fail("log-probabilities do not match the token ids in number");
    }
    if (!c.spend(chosen->size() * (sizeof(float) + sizeof(uint8_t)))) return false;
    const auto* top = from.top();
    const size_t top_size = top ? top->size() : 0;
    if (!c.spend(top_size * sizeof(wire::Logprob))) return false;
    size_t next = 0;
    to->logprobs.resize(chosen->size());
    for (flatbuffers::uoffset_t i = 0; i < chosen->size(); ++i) {
        const size_t count = counts->Get(i);
        if (count > kMaxLogprobs || count > top_size - next) {
            return c.fail("log-probabilities of a token are too many");
        }
        TokenLogprobs& token = to->logprobs[i];
        token.chosen = chosen->Get(i);
        if (!std::isfinite(token.chosen)) return c.fail("a log-probability is not finite");
        for (size_t k = 0; k < count; ++k, ++next) {
            const wire::Logprob& entry = *top->Get(static_cast<flatbuffers::uoffset_t>(next));
            if (entry.id() < 0) return c.fail("a log-probability has a negative token id");
            if (!std::isfinite(entry.logprob())) return c.fail("a log-probability is not finite");
            token.top.push_back({entry.id(), entry.logprob()});
        }
    }
    if (next != top_size) return c.fail("log-probabilities are left over");
    return true;
}

bool decode(Copier& c, const wire::Tokens& from, Tokens* to) {
    return c.token_ids(from.ids(), "ids", &to->ids) &&
           c.enumerator(from.channel(), Channel::kToolCall, "channel", &to->channel) &&
           c.text(from.text(), "text", &to->text) && decode_logprobs(c, from, to);
}

bool decode(Copier& c, const wire::Done& from, Done* to) {
    decode(*from.timings(), &to->timings);
    return c.enumerator(from.reason(), FinishReason::kToolCalls, "reason", &to->reason);
}

bool decode(Copier& c, const wire::Cancelled& from, Cancelled* to) {
    decode(*from.timings(), &to->timings);
    return c.name(from.why(), "why", &to->why);
}

bool decode(Copier& c, const wire::Failed& from, Failed* to) {
    return c.name(from.code(), "code", &to->code) &&
           c.text(from.message(), "message", &to->message);
}

bool decode(Copier& c, const wire::Pong& from, Pong* to) {
    return c.name(from.version(), "version", &to->version) &&
           c.name(from.backend(), "backend", &to->backend);
}

bool decode(Copier& c, const wire::ModelsReply& from, ModelsReply* to) {
    const auto* models = from.models();
    if (models->size() > kMaxModels) {
        return c.fail(std::to_string(models->size()) + " models, at most " +
                      std::to_string(kMaxModels) + " are allowed");
    }
    to->models.resize(models->size());
    for (flatbuffers::uoffset_t i = 0; i < models->size(); ++i) {
        const wire::ModelEntry& entry = *models->Get(i);
        ModelEntry& model = to->models[i];
        if (!c.name(entry.name(), "model name", &model.name)) return false;
        if (!c.name(entry.architecture(), "architecture", &model.architecture)) return false;
        if (!c.text(entry.description(), "description", &model.description)) return false;
        model.context = entry.context();
        model.n_vocab = entry.n_vocab();
    }
    return true;
}

bool decode(Copier& c, const wire::StatsReply& from, StatsReply* to) {
    return c.text(from.json(), "stats", &to->json);
}

bool decode(Copier& c, const wire::Scores& from, Scores* to) {
    to->first = from.first();
    if (!c.finite(from.logprobs(), "log-probabilities", &to->logprobs)) return false;
    if (!c.token_ids(from.argmax(), "argmax", &to->argmax)) return false;
    if (to->logprobs.size() != to->argmax.size()) {
        return c.fail("scores have " + std::to_string(to->logprobs.size()) +
                      " log-probabilities, but " + std::to_string(to->argmax.size()) +
                      " likeliest tokens");
    }
    return true;
}

bool decode(Copier& c, const wire::Logits& from, Logits* to) {
    to->first = from.first();
    return c.finite(from.values(), "logits", &to->values);
}

bool decode(Copier& c, const wire::RequestEntry& from, RequestEntry* to) {
    to->id = from.id();
    to->age_ms = from.age_ms();
    to->prompt_tokens = from.prompt_tokens();
    to->prompt_done = from.prompt_done();
    to->generated_tokens = from.generated_tokens();
    return c.enumerator(from.task(), Task::kTokenize, "task", &to->task) &&
           c.enumerator(from.state(), RequestState::kParked, "state", &to->state) &&
           c.name(from.model(), "model", &to->model);
}

bool decode(Copier& c, const wire::ClientEntry& from, size_t* requests_left, ClientEntry* to) {
    to->id = from.id();
    to->pid = from.pid();
    to->uid = from.uid();
    to->age_ms = from.age_ms();
    if (!c.name(from.name(), "client name", &to->name)) return false;
    const auto* requests = from.requests();
    if (!requests) return true;
    if (requests->size() > *requests_left) {
        return c.fail("more than " + std::to_string(kMaxClientRequests) + " requests");
    }
    *requests_left -= requests->size();
    to->requests.resize(requests->size());
    for (flatbuffers::uoffset_t i = 0; i < requests->size(); ++i) {
        if (!decode(c, *requests->Get(i), &to->requests[i])) return false;
    }
    return true;
}

bool decode(Copier& c, const wire::ClientsReply& from, ClientsReply* to) {
    to->hidden = from.hidden();
    const auto* clients = from.clients();
    if (clients->size() > kMaxClients) {
        return c.fail(std::to_string(clients->size()) + " clients, at most " +
                      std::to_string(kMaxClients) + " are allowed");
    }
    to->clients.resize(clients->size());
    size_t requests_left = kMaxClientRequests;
    for (flatbuffers::uoffset_t i = 0; i < clients->size(); ++i) {
        if (!decode(c, *clients->Get(i), &requests_left, &to->clients[i])) return false;
    }
    return true;
}

// ---- envelope

template <class Plain, class Variant, class Wire>
std::optional<Variant> decode_as(Copier& c, const Wire* from) {
    Plain plain;
    if (!decode(c, *from, &plain)) return std::nullopt;
    return Variant(std::move(plain));
}

// The envelope of verified bytes, or nullptr. `aligned` keeps a copy where the bytes do not start
// at a multiple of eight, which the accessors need.
const wire::Packet* verify(std::span<const std::byte> bytes, std::vector<std::byte>* aligned,
                           std::string* why) {
    constexpr size_t kAlign = 8;
    if (bytes.size() >= FLATBUFFERS_MAX_BUFFER_SIZE) {
        *why = "the message is too long";
        return nullptr;
    }
    if (reinterpret_cast<uintptr_t>(bytes.data()) % kAlign != 0) {
        aligned->assign(bytes.begin(), bytes.end());
        bytes = *aligned;
    }
    const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
    flatbuffers::Verifier verifier(data, bytes.size(), kMaxDepth, kMaxTables);
    if (!wire::VerifyPacketBuffer(verifier)) {
        *why = "the message is no valid " + std::string(wire::PacketIdentifier()) +
               " buffer, or exceeds the limits on depth and number of tables";
        return nullptr;
    }
    const wire::Packet* packet = wire::GetPacket(data);
    // A union's value can be absent while its type is set; the accessors do not check that.
    if ((packet->request() == nullptr) == (packet->reply() == nullptr)) {
        *why = "a message must hold one request or one reply";
        return nullptr;
    }
    return packet;
}

}  // namespace

std::optional<Request> decode_request(std::span<const std::byte> bytes, std::string* why) {
    std::vector<std::byte> aligned;
    const wire::Packet* p = verify(bytes, &aligned, why);
    if (!p) return std::nullopt;
    Copier c(bytes.size(), why);
    if (p->request()) {
        switch (p->request_type()) {
        case wire::Request::Generate:
            return decode_as<Generate, Request>(c, p->request_as_Generate());
        case wire::Request::Cancel: return decode_as<Cancel, Request>(c, p->request_as_Cancel());
        case wire::Request::Ping: return decode_as<Ping, Request>(c, p->request_as_Ping());
        case wire::Request::ListModels:
            return decode_as<ListModels, Request>(c, p->request_as_ListModels());
        case wire::Request::GetStats:
            return decode_as<GetStats, Request>(c, p->request_as_GetStats());
        case wire::Request::ListClients:
            return decode_as<ListClients, Request>(c, p->request_as_ListClients());
        case wire::Request::Enclosed:
            return decode_as<Enclosed, Request>(c, p->request_as_Enclosed());
        case wire::Request::NONE: break;
        }
    }
    c.fail("the message is not a request that is known here");
    return std::nullopt;
}

std::optional<Reply> decode_reply(std::span<const std::byte> bytes, std::string* why) {
    std::vector<std::byte> aligned;
    const wire::Packet* p = verify(bytes, &aligned, why);
    if (!p) return std::nullopt;
    Copier c(bytes.size(), why);
    if (p->reply()) {
        switch (p->reply_type()) {
        case wire::Reply::Accepted: return decode_as<Accepted, Reply>(c, p->reply_as_Accepted());
        case wire::Reply::Progress: return decode_as<Progress, Reply>(c, p->reply_as_Progress());
        case wire::Reply::Tokens: return decode_as<Tokens, Reply>(c, p->reply_as_Tokens());
        case wire::Reply::Done: return decode_as<Done, Reply>(c, p->reply_as_Done());
        case wire::Reply::Cancelled:
            return decode_as<Cancelled, Reply>(c, p->reply_as_Cancelled());
        case wire::Reply::Failed: return decode_as<Failed, Reply>(c, p->reply_as_Failed());
        case wire::Reply::Pong: return decode_as<Pong, Reply>(c, p->reply_as_Pong());
        case wire::Reply::ModelsReply:
            return decode_as<ModelsReply, Reply>(c, p->reply_as_ModelsReply());
        case wire::Reply::StatsReply:
            return decode_as<StatsReply, Reply>(c, p->reply_as_StatsReply());
        case wire::Reply::Scores: return decode_as<Scores, Reply>(c, p->reply_as_Scores());
        case wire::Reply::Logits: return decode_as<Logits, Reply>(c, p->reply_as_Logits());
        case wire::Reply::ClientsReply:
            return decode_as<ClientsReply, Reply>(c, p->reply_as_ClientsReply());
        case wire::Reply::NONE: break;
        }
    }
    c.fail("the message is not a reply that is known here");
    return std::nullopt;
}

}  // namespace xp::shm
