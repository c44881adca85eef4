#include <cerrno>
#include <cstdlib>
#include <exception>
#include <new>

#include "client/connection.h"
#include "client/expertpack.h"
#include "client/generate.h"

namespace xp::client {

// What backs the pointers of an event or answer until the next call.
struct Handed {
    Event event;
    xp_event view{};
    std::vector<xp_token_logprobs> logprobs;
    std::vector<xp_logprob> top;

    shm::Reply answer;
    xp_pong pong{};
    std::vector<xp_model> models;
    std::vector<const xp_model*> model_pointers;
    xp_model_list list{};
    std::vector<xp_score> scores;
    std::vector<xp_request_info> requests;
    std::vector<const xp_request_info*> request_pointers;
    std::vector<xp_client_info> clients;
    std::vector<const xp_client_info*> client_pointers;
    xp_client_list client_list{};
};

}  // namespace xp::client

struct xp_client {
    explicit xp_client(const char* name) : connection(name) {}

    xp::client::Connection connection;
    xp::client::Handed handed;
};

namespace {

using xp::client::Handed;

// Runs a call: nothing escapes into C, and a NULL client is an error like any other.
template <class Function>
xp_status call(xp_client* client, Function function) noexcept {
    if (!client) return XP_INVALID;
    try {
        return function();
    } catch (const std::exception&) {
        // bad_alloc, or length_error for a size that no memory holds.
        return client->connection.fail(XP_NO_MEMORY, "out of memory");
    }
}

xp_timings view_of(const xp::shm::Timings& t) {
    xp_timings view{};
    view.queued_us = t.queued_us;
    view.prefill_us = t.prefill_us;
    view.decode_us = t.decode_us;
    view.prompt_tokens = t.prompt_tokens;
    view.generated_tokens = t.generated_tokens;
    view.expert_hits = t.expert_hits;
    view.expert_misses = t.expert_misses;
    view.read_bytes = t.read_bytes;
    return view;
}

// Fills the view of an event, one overload per reply; the texts stay where they are.
struct Viewer {
    Handed& handed;
    xp_event& view;

    void operator()(const xp::shm::Accepted& reply) {
        view.type = XP_EVENT_ACCEPTED;
        view.model = reply.model.c_str();
        view.prompt_tokens = reply.prompt_tokens.data();
        view.prompt_token_count = reply.prompt_tokens.size();
    }
    void operator()(const xp::shm::Progress& reply) {
        view.type = XP_EVENT_PROGRESS;
        view.prefill_done = reply.done;
        view.prefill_total = reply.total;
    }
    void operator()(const xp::shm::Tokens& reply) {
        view.type = XP_EVENT_TOKENS;
        view.channel = static_cast<xp_channel>(reply.channel);
        view.text = reply.text.c_str();
        view.text_length = reply.text.size();
        view.token_ids = reply.ids.data();
        view.token_count = reply.ids.size();
        if (reply.logprobs.empty()) return;
        handed.top.clear();
        for (const auto& token : reply.logprobs) {
            for (const auto& entry : token.top) handed.top.push_back({entry.id, entry.logprob});
        }
        // Only now: growing moves the entries.
        handed.logprobs.clear();
        const xp_logprob* next = handed.top.data();
        for (const auto& token : reply.logprobs) {
            const auto count = static_cast<uint32_t>(token.top.size());
            handed.logprobs.push_back({token.chosen, count, next});
            next += count;
        }
        view.logprobs = handed.logprobs.data();
    }
    void operator()(const xp::shm::Done& reply) {
        view.type = XP_EVENT_DONE;
        view.finish_reason = static_cast<xp_finish_reason>(reply.reason);
        view.timings = view_of(reply.timings);
    }
    void operator()(const xp::shm::Cancelled& reply) {
        view.type = XP_EVENT_CANCELLED;
        view.code = reply.why.c_str();
        view.timings = view_of(reply.timings);
    }
    void operator()(const xp::shm::Failed& reply) {
        view.type = XP_EVENT_FAILED;
        view.code = reply.code.c_str();
        view.message = reply.message.c_str();
    }
    void operator()(const xp::shm::Scores& reply) {
        view.type = XP_EVENT_SCORES;
        view.first = reply.first;
        handed.scores.clear();
        for (size_t i = 0; i < reply.logprobs.size(); ++i) {
            handed.scores.push_back({reply.logprobs[i], reply.argmax[i]});
        }
        view.scores = handed.scores.data();
        view.score_count = handed.scores.size();
    }
    void operator()(const xp::shm::Logits& reply) {
        view.type = XP_EVENT_LOGITS;
        view.first = reply.first;
        view.logits = reply.values.data();
        view.logit_count = reply.values.size();
    }
    // Answers of synchronous calls: the connection makes no events of them.
    void operator()(const xp::shm::Pong&) {}
    void operator()(const xp::shm::ModelsReply&) {}
    void operator()(const xp::shm::StatsReply&) {}
    void operator()(const xp::shm::ClientsReply&) {}
};

const xp_event* view_of(Handed& handed) {
    handed.view = {};
    handed.view.request_id = handed.event.request_id;
    handed.view.terminal = xp::shm::is_terminal(handed.event.reply) ? 1 : 0;
    handed.view.model = handed.view.text = handed.view.code = handed.view.message = "";
    std::visit(Viewer{handed, handed.view}, handed.event.reply);
    return &handed.view;
}

void fill_list(const xp::shm::ClientsReply& reply, Handed* handed) {
    handed->requests.clear();
    handed->clients.clear();
    for (const auto& client : reply.clients) {
        for (const auto& r : client.requests) {
            handed->requests.push_back({r.id, static_cast<xp_task>(r.task),
                                        static_cast<xp_request_state>(r.state), r.model.c_str(),
                                        r.age_ms, r.prompt_tokens, r.prompt_done,
                                        r.generated_tokens});
        }
        handed->clients.push_back({client.id, client.name.c_str(), client.pid, client.uid,
                                   client.age_ms, client.requests.size(), nullptr});
    }
    // Only now: growing moves the entries.
    handed->request_pointers.clear();
    for (const auto& request : handed->requests) handed->request_pointers.push_back(&request);
    handed->client_pointers.clear();
    const xp_request_info* const* next = handed->request_pointers.data();
    for (auto& client : handed->clients) {
        client.requests = next;
        next += client.request_count;
        handed->client_pointers.push_back(&client);
    }
    handed->client_list = {handed->clients.size(), handed->client_pointers.data(), reply.hidden};
}

// Asks and checks that the answer is of the kind that the question has.
template <class Answer>
xp_status ask(xp_client* client, const xp::shm::Request& request, int timeout_ms,
              const Answer** answer) {
    Handed& handed = client->handed;
    const xp_status status = client->connection.ask(request, timeout_ms, &handed.answer);
    if (status != XP_OK) return status;
    *answer = std::get_if<Answer>(&handed.answer);
    if (*answer) return XP_OK;
    if (const auto* failed = std::get_if<xp::shm::Failed>(&handed.answer)) {
        return client->connection.fail(XP_FAILED, failed->message + " (" + failed->code + ")",
                                       failed->code);
    }
    return client->connection.fail(XP_FAILED, "the daemon gave no answer to the question");
}

}  // namespace

extern "C" {

const char* xp_status_name(xp_status status) {
    switch (status) {
    case XP_OK: return "ok";
    case XP_TIMEOUT: return "timeout";
    case XP_IDLE: return "idle";
    case XP_INVALID: return "invalid";
    case XP_UNAVAILABLE: return "unavailable";
    case XP_REFUSED: return "refused";
    case XP_BAD_VERSION: return "bad_version";
    case XP_GONE: return "gone";
    case XP_BUSY: return "busy";
    case XP_TOO_LARGE: return "too_large";
    case XP_PROTOCOL: return "protocol";
    case XP_FAILED: return "failed";
    case XP_NO_MEMORY: return "no_memory";
    case XP_SYSTEM: return "system";
    }
    return "unknown";
}

const char* xp_version(void) {
    return XP_VERSION;
}

xp_client* xp_client_new(const char* name) {
    try {
        return new xp_client(name ? name : program_invocation_short_name);
    } catch (const std::exception&) {
        return nullptr;
    }
}

void xp_client_free(xp_client* client) {
    delete client;
}

xp_status xp_connect(xp_client* client, const char* socket_path, int timeout_ms) {
    return call(client, [&] {
        if (!socket_path) {
            const char* from_environment = std::getenv("EXPERTPACK_SOCKET");
            socket_path = from_environment && *from_environment ? from_environment
                                                                : xp::shm::kDefaultSocketPath;
        }
        return client->connection.connect(socket_path, timeout_ms);
    });
}

void xp_disconnect(xp_client* client) {
    if (client) client->connection.disconnect();
}

const char* xp_client_error(const xp_client* client) {
    return client ? client->connection.error().c_str() : "the client is NULL";
}

const char* xp_error_code(const xp_client* client) {
    return client ? client->connection.error_code().c_str() : xp_status_name(XP_INVALID);
}

int xp_client_fd(const xp_client* client) {
    return client ? client->connection.fd() : -1;
}

const xp_connection_info* xp_connection(const xp_client* client) {
    return client ? client->connection.info() : nullptr;
}

xp_status xp_submit(xp_client* client, const xp_generate* request, int timeout_ms,
                    uint64_t* request_id) {
    return call(client, [&] {
        if (!request || !request_id) {
            return client->connection.fail(XP_INVALID, "request or request_id is NULL");
        }
        if (!request->has_prompt) {
            return client->connection.fail(XP_INVALID, "the request has no prompt: set a text, "
                                                       "token ids, or add a message");
        }
        return client->connection.submit(request->value, timeout_ms, request_id);
    });
}

xp_status xp_cancel(xp_client* client, uint64_t request_id) {
    return call(client, [&] { return client->connection.cancel(request_id); });
}

xp_status xp_next_event(xp_client* client, int timeout_ms, const xp_event** event) {
    return call(client, [&] {
        if (!event) return client->connection.fail(XP_INVALID, "event is NULL");
        *event = nullptr;
        const xp_status status = client->connection.next_event(timeout_ms, &client->handed.event);
        if (status == XP_OK) *event = view_of(client->handed);
        return status;
    });
}

xp_status xp_ping(xp_client* client, int timeout_ms, const xp_pong** pong) {
    return call(client, [&] {
        const xp::shm::Pong* answer = nullptr;
        const xp_status status = ask(client, xp::shm::Ping{}, timeout_ms, &answer);
        if (status != XP_OK) return status;
        client->handed.pong = {answer->version.c_str(), answer->backend.c_str()};
        if (pong) *pong = &client->handed.pong;
        return XP_OK;
    });
}

xp_status xp_models(xp_client* client, int timeout_ms, const xp_model_list** list) {
    return call(client, [&] {
        const xp::shm::ModelsReply* answer = nullptr;
        const xp_status status = ask(client, xp::shm::ListModels{}, timeout_ms, &answer);
        if (status != XP_OK) return status;
        Handed& handed = client->handed;
        handed.models.clear();
        handed.model_pointers.clear();
        for (const auto& model : answer->models) {
            handed.models.push_back({model.name.c_str(), model.architecture.c_str(),
                                     model.description.c_str(), model.context, model.n_vocab});
        }
        for (const xp_model& model : handed.models) handed.model_pointers.push_back(&model);
        handed.list = {handed.model_pointers.size(), handed.model_pointers.data()};
        if (list) *list = &handed.list;
        return XP_OK;
    });
}

xp_status xp_stats_json(xp_client* client, int timeout_ms, const char** json) {
    return call(client, [&] {
        const xp::shm::StatsReply* answer = nullptr;
        const xp_status status = ask(client, xp::shm::GetStats{}, timeout_ms, &answer);
        if (status != XP_OK) return status;
        if (json) *json = answer->json.c_str();
        return XP_OK;
    });
}

xp_status xp_clients(xp_client* client, int timeout_ms, const xp_client_list** list) {
    return call(client, [&] {
        const xp::shm::ClientsReply* answer = nullptr;
        const xp_status status = ask(client, xp::shm::ListClients{}, timeout_ms, &answer);
        if (status != XP_OK) return status;
        fill_list(*answer, &client->handed);
        if (list) *list = &client->handed.client_list;
        return XP_OK;
    });
}

xp_status xp_cancel_request(xp_client* client, uint64_t client_id, uint64_t request_id,
                            int timeout_ms) {
    return call(client, [&] {
        if (client_id == 0) return client->connection.fail(XP_INVALID, "client_id is 0");
        const xp::shm::Done* answer = nullptr;
        return ask(client, xp::shm::Cancel{request_id, client_id}, timeout_ms, &answer);
    });
}

}  // extern "C"
