// xpctl clients and cancel: who is connected, and ending somebody's requests.

#include <fmt/format.h>

#include "client/expertpack.hpp"
#include "client/xpctl/commands.h"
#include "client/xpctl/connection.h"
#include "client/xpctl/exit_codes.h"
#include "client/xpctl/json.h"
#include "client/xpctl/names.h"
#include "client/xpctl/output.h"
#include "client/xpctl/slow_note.h"
#include "client/xpctl/table.h"

namespace xp::ctl {
namespace {

const char* task_name(xp_task task) {
    switch (task) {
        case XP_TASK_GENERATE: return "generate";
        case XP_TASK_SCORE: return "score";
        case XP_TASK_TOKENIZE: return "tokenize";
    }
    return "unknown";  // of a newer daemon
}

const char* state_name(xp_request_state state) {
    switch (state) {
        case XP_REQUEST_QUEUED: return "queued";
        case XP_REQUEST_PREFILL: return "prefill";
        case XP_REQUEST_DECODE: return "decode";
        case XP_REQUEST_PARKED: return "parked";
    }
    return "unknown";
}

std::string request_name(const xp_client_info& client, const xp_request_info& request) {
    return fmt::format("{}.{}", client.id, request.id);
}

Json clients_object(const xp_client_list& list) {
    Json clients = Json::array();
    for (size_t i = 0; i < list.count; ++i) {
        const xp_client_info& client = *list.clients[i];
        Json requests = Json::array();
        for (size_t k = 0; k < client.request_count; ++k) {
            const xp_request_info& request = *client.requests[k];
            requests.push_back({{"id", request_name(client, request)},
                                {"task", task_name(request.task)},
                                {"state", state_name(request.state)},
                                {"model", request.model},
                                {"age_ms", request.age_ms},
                                {"prompt_tokens", request.prompt_tokens},
                                {"prompt_done", request.prompt_done},
                                {"generated_tokens", request.generated_tokens}});
        }
        clients.push_back({{"id", fmt::format("{}", client.id)},
                           {"user", user_name(client.uid)},
                           {"uid", client.uid},
                           {"pid", client.pid},
                           {"name", client.name},
                           {"age_ms", client.age_ms},
                           {"requests", std::move(requests)}});
    }
    return {{"clients", std::move(clients)}, {"hidden", list.hidden}};
}

std::string age(uint64_t ms) { return format_duration(static_cast<double>(ms) / 1e3); }

std::string clients_text(const xp_client_list& list) {
    Table clients({">ID", "user", ">pid", "name", ">connected for", ">requests"});
    Table requests({">ID", "task", "state", "model", ">age", ">prompt", ">generated"});
    size_t n_requests = 0;
    for (size_t i = 0; i < list.count; ++i) {
        const xp_client_info& client = *list.clients[i];
        clients.add_row({fmt::format("{}", client.id), user_name(client.uid),
                         fmt::format("{}", client.pid), client.name, age(client.age_ms),
                         fmt::format("{}", client.request_count)});
        n_requests += client.request_count;
        for (size_t k = 0; k < client.request_count; ++k) {
            const xp_request_info& request = *client.requests[k];
            requests.add_row({request_name(client, request), task_name(request.task),
                              state_name(request.state), request.model, age(request.age_ms),
                              request.prompt_tokens == 0
                                  ? "-" : fmt::format("{} of {}", request.prompt_done,
                                                      request.prompt_tokens),
                              fmt::format("{}", request.generated_tokens)});
        }
    }
    std::string out = clients.text();
    if (n_requests > 0) out += "\n" + requests.text();
    if (list.hidden > 0) {
        out += fmt::format("\n{} more of other users\n", list.hidden);
    }
    return out;
}

}  // namespace

int run_clients(const Options& options) {
    expertpack::Client client;
    const int connected = connect(client, options);
    if (connected != kExitOk) return connected;
    const xp_client_list* list = nullptr;
    const SlowNote note(kAnswerTimeoutMs);
    const xp_status status = client.clients(&list, kAnswerTimeoutMs);
    if (status != XP_OK) return report_failure(client, status, "cannot list the clients");
    return print_result(options.json ? json_line(clients_object(*list)) : clients_text(*list));
}

int run_cancel(const Options& options) {
    expertpack::Client client;
    const int connected = connect(client, options);
    if (connected != kExitOk) return connected;
    Json cancelled = Json::array(), failed = Json::array();
    std::string text;
    int code = kExitOk;
    for (const CancelTarget& target : options.targets) {
        const std::string name = target.request == 0
                                     ? fmt::format("{}", target.client)
                                     : fmt::format("{}.{}", target.client, target.request);
        const SlowNote note(kAnswerTimeoutMs);
        const xp_status status =
            client.cancel_request(target.client, target.request, kAnswerTimeoutMs);
        if (status == XP_OK) {
            cancelled.push_back(name);
            text += fmt::format("cancelled {}\n", name);
            continue;
        }
        const std::string what = "cannot cancel " + name;
        const Failure failure = failure_of(client, status, what.c_str());
        code = failure.exit_code;
        failed.push_back({{"id", name}, {"code", failure.code}, {"message", failure.message}});
        if (!options.json) report(failure);
    }
    const int printed = print_result(
        options.json ? json_line({{"cancelled", cancelled}, {"failed", failed}}) : text);
    return printed != kExitOk ? printed : code;
}

}  // namespace xp::ctl
