#include "client/xpctl/tokenize.h"

#include <unistd.h>

#include <fmt/format.h>

#include "client/xpctl/commands.h"
#include "client/xpctl/exit_codes.h"
#include "client/xpctl/interrupt.h"
#include "client/xpctl/json.h"
#include "client/xpctl/output.h"
#include "client/xpctl/request.h"
#include "client/xpctl/request_loop.h"

namespace xp::ctl {

int ask_for_tokens(expertpack::Client& client, expertpack::Generate& request, TokenList* tokens) {
    request.task(XP_TASK_TOKENIZE);
    PrefillProgress progress(terminal_of(STDERR_FILENO));
    RequestLoop loop(client, &progress);
    const RequestEnd end = loop.run(request, [&](const xp_event& event) {
        if (event.type == XP_EVENT_ACCEPTED) tokens->model = event.model;
        if (event.type != XP_EVENT_TOKENS) return;
        tokens->ids.insert(tokens->ids.end(), event.token_ids, event.token_ids + event.token_count);
    });
    if (interrupted()) return report({"interrupted", "cancelled", kExitInterrupted});
    if (loop.reader_gone()) return kExitFailed;
    return end.kind == RequestEnd::Kind::kDone ? kExitOk : report(end.failure);
}

int run_tokenize(const Options& options) {
    Failure error;
    const std::optional<std::string> prompt = read_prompt(options.request, &error);
    std::optional<expertpack::Generate> request;
    if (prompt) request = make_request(options.request, *prompt, std::nullopt, &error);
    if (!request) return report(error);
    expertpack::Client client;
    const int connected = connect_for_requests(client, options);
    if (connected != kExitOk) return connected;
    TokenList tokens;
    const int asked = ask_for_tokens(client, *request, &tokens);
    if (asked != kExitOk) return asked;
    if (options.json) {
        return print_result(json_line({{"model", tokens.model},
                                       {"tokens", tokens.ids},
                                       {"count", tokens.ids.size()}}));
    }
    return print_result(options.count ? fmt::format("{}\n", tokens.ids.size())
                                      : fmt::format("{}\n", fmt::join(tokens.ids, ",")));
}

}  // namespace xp::ctl
