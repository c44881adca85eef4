// The commands that ask one question and print the answer: stats, models, ping, version.
#include <chrono>

#include <fmt/format.h>

#include "client/expertpack.hpp"
#include "client/xpctl/commands.h"
#include "client/xpctl/connection.h"
#include "client/xpctl/exit_codes.h"
#include "client/xpctl/json.h"
#include "client/xpctl/output.h"
#include "client/xpctl/slow_note.h"
#include "client/xpctl/stats_view.h"
#include "client/xpctl/table.h"

namespace xp::ctl {
namespace {

// `version` is about this program first: it does not wait long for a daemon.
constexpr int kVersionTimeoutMs = 2'000;

Json models_object(const xp_model_list& list) {
    Json models = Json::array();
    for (size_t i = 0; i < list.count; ++i) {
        const xp_model& model = *list.models[i];
        models.push_back({{"name", model.name},
                          {"architecture", model.architecture},
                          {"description", model.description},
                          {"context", model.context},
                          {"vocabulary", model.n_vocab},
                          {"default", i == 0}});
    }
    return {{"models", std::move(models)}};
}

std::string models_table(const xp_model_list& list) {
    Table table({"model", "architecture", ">context", ">vocabulary", "description"});
    for (size_t i = 0; i < list.count; ++i) {
        const xp_model& model = *list.models[i];
        table.add_row({fmt::format("{}{}", model.name, i == 0 ? " (default)" : ""),
                       model.architecture, fmt::format("{}", model.context),
                       fmt::format("{}", model.n_vocab), model.description});
    }
    return table.text();
}

}  // namespace

int run_stats(const Options& options) {
    expertpack::Client client;
    const int connected = connect(client, options);
    if (connected != kExitOk) return connected;
    const char* json = nullptr;
    const SlowNote note(kAnswerTimeoutMs);
    const xp_status status = client.stats_json(&json, kAnswerTimeoutMs);
    if (status != XP_OK) return report_failure(client, status, "cannot get the statistics");
    // Parsed in both cases: whoever asked for JSON gets JSON, byte for byte the daemon's, or an
    // error.
    const std::optional<std::string> tables = stats_tables(json);
    if (!tables) {
        return report({"protocol", "the daemon's statistics are no JSON object", kExitFailed});
    }
    return print_result(options.json ? std::string(json) + "\n" : *tables);
}

int run_models(const Options& options) {
    expertpack::Client client;
    const int connected = connect(client, options);
    if (connected != kExitOk) return connected;
    const xp_model_list* list = nullptr;
    const SlowNote note(kAnswerTimeoutMs);
    const xp_status status = client.models(&list, kAnswerTimeoutMs);
    if (status != XP_OK) return report_failure(client, status, "cannot list the models");
    return print_result(options.json ? json_line(models_object(*list)) : models_table(*list));
}

int run_ping(const Options& options) {
    expertpack::Client client;
    const int connected = connect(client, options);
    if (connected != kExitOk) return connected;
    const xp_pong* pong = nullptr;
    const SlowNote note(kAnswerTimeoutMs);
    const auto begin = std::chrono::steady_clock::now();
    const xp_status status = client.ping(&pong, kAnswerTimeoutMs);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    if (status != XP_OK) return report_failure(client, status, "cannot ping the daemon");
    if (options.json) {
        const auto round_trip_us = static_cast<int64_t>(taken.count() * 1e6);
        return print_result(json_line({{"version", pong->version},
                                       {"backend", pong->backend},
                                       {"round_trip_us", round_trip_us}}));
    }
    return print_result(one_line(fmt::format("expertpackd {} answers in {}, backend {}",
                                             pong->version, format_duration(taken.count()),
                                             pong->backend)) + "\n");
}

int run_version(const Options& options) {
    expertpack::Client client;
    const char* socket = options.socket ? options.socket->c_str() : nullptr;
    const xp_pong* pong = nullptr;
    xp_status status = client.connect(socket, kVersionTimeoutMs);
    if (status == XP_OK) status = client.ping(&pong, kVersionTimeoutMs);
    if (options.json) {
        Json object = {{"xpctl", xp_version()}};
        object["expertpackd"] = status == XP_OK ? Json(pong->version) : Json(nullptr);
        object["backend"] = status == XP_OK ? Json(pong->backend) : Json(nullptr);
        return print_result(json_line(object));
    }
    std::string text = fmt::format("xpctl {}\n", xp_version());
    if (status == XP_OK) {
        text += one_line(fmt::format("expertpackd {}, backend {}", pong->version, pong->backend)) +
                "\n";
    }
    const int printed = print_result(text);
    // Not a failure: that no daemon runs is a fine answer to which versions there are.
    if (printed == kExitOk && status != XP_OK) {
        message(fmt::format("no daemon to ask ({})", connect_error(client, options)));
    }
    return printed;
}

}  // namespace xp::ctl
