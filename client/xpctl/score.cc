// xpctl score: how likely each token of a text is.
#include <unistd.h>

#include <fmt/format.h>

#include "client/expertpack.hpp"
#include "client/xpctl/commands.h"
#include "client/xpctl/connection.h"
#include "client/xpctl/exit_codes.h"
#include "client/xpctl/interrupt.h"
#include "client/xpctl/json.h"
#include "client/xpctl/likelihood.h"
#include "client/xpctl/output.h"
#include "client/xpctl/request.h"
#include "client/xpctl/request_loop.h"
#include "client/xpctl/score_sheet.h"
#include "client/xpctl/table.h"

namespace xp::ctl {
namespace {

Likelihood likelihood_of(const ScoreSheet& sheet) {
    Likelihood likelihood;
    for (size_t i = 1; i < sheet.scores().size(); ++i) likelihood.add(sheet.scores()[i].logprob);
    return likelihood;
}

std::string score_json(const ScoreSheet& sheet, const std::vector<int32_t>& tokens, bool logits,
                       const xp_timings& timings) {
    Json logprobs = Json::array(), argmax = Json::array();
    for (const xp_score& score : sheet.scores()) {
        logprobs.push_back(logprobs.empty() ? Json(nullptr) : json_float(score.logprob));
        argmax.push_back(score.argmax);
    }
    const Likelihood likelihood = likelihood_of(sheet);
    Json object = {{"model", sheet.model()}};
    object["tokens"] = tokens.empty() ? Json(nullptr) : Json(tokens);
    object["logprobs"] = std::move(logprobs);
    object["argmax"] = std::move(argmax);
    object["nll"] = json_figure(likelihood.nll());
    object["perplexity"] = json_figure(likelihood.perplexity());
    if (logits) {
        Json values = Json::array();
        for (const float value : sheet.logits()) values.push_back(json_float(value));
        object["last_logits"] = std::move(values);
    }
    object["timings"] = timings_object(timings);
    return json_line(object);
}

std::string score_text(const ScoreSheet& sheet, const std::vector<int32_t>& tokens) {
    Table table({">position", ">token", ">log-probability", ">likeliest next"});
    for (size_t i = 0; i < sheet.scores().size(); ++i) {
        const xp_score& score = sheet.scores()[i];
        table.add_row({fmt::format("{}", i),
                       i < tokens.size() ? fmt::format("{}", tokens[i]) : "-",
                       i == 0 ? "-" : is_known(score.logprob)
                                          ? fmt::format("{:.4f}", score.logprob) : "not finite",
                       fmt::format("{}", score.argmax)});
    }
    const Likelihood likelihood = likelihood_of(sheet);
    std::string out = table.text() + "\n";
    if (likelihood.count() == 0) return out + "a single token: nothing predicts it\n";
    if (likelihood.unknown() > 0) return out + "no nll and perplexity: " + unknown_text(likelihood);
    return out + fmt::format("nll {:.4f}, perplexity {:.4f} ({} token{} predicted)\n",
                             *likelihood.nll(), *likelihood.perplexity(), likelihood.count(),
                             likelihood.count() == 1 ? "" : "s");
}

}  // namespace

int run_score(const Options& options) {
    Failure error;
    const std::optional<std::string> prompt = read_prompt(options.request, &error);
    std::optional<expertpack::Generate> request;
    if (prompt) request = make_request(options.request, *prompt, std::nullopt, &error);
    if (!request) return report(error);
    const bool logits = options.json && options.logits;
    request->task(XP_TASK_SCORE).last_logits(logits);
    expertpack::Client client;
    const int connected = connect_for_requests(client, options);
    if (connected != kExitOk) return connected;

    PrefillProgress progress(terminal_of(STDERR_FILENO));
    ScoreSheet sheet;
    RequestLoop loop(client, &progress);
    const RequestEnd end = loop.run(*request, [&](const xp_event& event) { sheet.add(event); });
    if (interrupted()) return report({"interrupted", "cancelled", kExitInterrupted});
    if (loop.reader_gone()) return kExitFailed;
    if (end.kind != RequestEnd::Kind::kDone) return report(end.failure);
    // Ids given are known even where the daemon does not repeat them.
    const std::vector<int32_t>& tokens =
        sheet.tokens().empty() && options.request.ids ? *options.request.ids : sheet.tokens();
    if (sheet.scores().empty() || (!tokens.empty() && tokens.size() != sheet.scores().size()) ||
        (logits && sheet.logits().empty())) {
        return report({"protocol", "the daemon's scores are incomplete", kExitFailed});
    }
    return print_result(options.json ? score_json(sheet, tokens, logits, end.timings)
                                     : score_text(sheet, tokens));
}

}  // namespace xp::ctl
