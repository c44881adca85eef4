// The part of the ring server that takes requests: what each of them does, and what refuses it.
#include <spdlog/spdlog.h>

#include "daemon/serve/ring_server.h"
#include "daemon/serve/stats.h"
#include "shm/enclosure.h"

namespace xp {

static_assert(kMaxRequestBytes == shm::kMaxEnclosedBytes);
namespace {

std::chrono::milliseconds milliseconds(RingServerOptions::Clock::duration duration) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(duration);
}

}  // namespace

bool RingServer::handle_record(Connection& connection, const shm::Record& record) {
    ++stats_.requests;
    accounts_.spend(connection.peer().uid, record.body.size());
    const uint64_t id = record.request_id;
    std::string why;
    auto request = shm::decode_request(record.body, &why);
    if (!request) {
        return malformed(connection, id, why);
    }
    if (connection.in_flight().contains(id)) {
        violation(connection, fmt::format("request id {} is used twice", id));
        return false;
    }
    if (const auto* enclosed = std::get_if<shm::Enclosed>(&*request)) {
        return handle_enclosed(connection, id, enclosed->bytes);
    }
    Charge charge;
    if (std::holds_alternative<shm::Generate>(*request)) {
        auto admitted = admit(connection, record.body.size());
        if (!admitted) {
            return reply(connection, id, failed(admitted.error()));
        }
        charge = *std::move(admitted);
    }
    return handle_request(connection, id, *std::move(request), std::move(charge));
}

// Limits come before the memfd is looked into: reading and checking it is the work.
bool RingServer::handle_enclosed(Connection& connection, uint64_t id, uint64_t bytes) {
    ++stats_.enclosures;
    shm::Fd enclosed;
    std::string why;
    if (!connection.take_enclosure(bytes, &enclosed, &why)) {
        return malformed(connection, id, why);
    }
    accounts_.spend(connection.peer().uid, bytes);
    auto charge = admit(connection, bytes);
    if (!charge) {
        return reply(connection, id, failed(charge.error()));
    }
    std::vector<std::byte> message;
    if (!shm::open_enclosure(enclosed, bytes, &message, &why)) {
        return malformed(connection, id, why);
    }
    auto request = shm::decode_request(message, &why);
    if (!request) {
        return malformed(connection, id, why);
    }
    if (std::holds_alternative<shm::Enclosed>(*request)) {
        return malformed(connection, id, "an enclosed request says that it is enclosed");
    }
    return handle_request(connection, id, *std::move(request), *std::move(charge));
}

// The charge of a request that may come in now, or kBusy.
Result<Charge> RingServer::admit(Connection& connection, uint64_t bytes) {
    Result<Charge> charge = connection.in_flight().size() < options_.requests_per_client
        ? accounts_.charge_request(connection.peer().uid, bytes)
        : make_error(ErrorCode::kBusy,
                     "this connection has {} requests in flight, which is the limit ([limits] "
                     "requests_per_client): try again when one has ended",
                     options_.requests_per_client);
    stats_.busy += !charge;
    return charge;
}

bool RingServer::handle_request(Connection& connection, uint64_t id, shm::Request request,
                                Charge charge) {
    if (auto* generate = std::get_if<shm::Generate>(&request)) {
        connection.in_flight().insert(id);
        scheduler_.submit({connection.id(), id}, std::move(*generate), std::move(charge));
        return true;
    }
    if (const auto* cancel = std::get_if<shm::Cancel>(&request)) {
        return handle_cancel(connection, id, *cancel);
    }
    if (std::holds_alternative<shm::Ping>(request)) {
        return reply(connection, id, shm::Pong{XP_VERSION, host_.backend()});
    }
    if (std::holds_alternative<shm::ListModels>(request)) {
        return reply(connection, id, list_models());
    }
    if (std::holds_alternative<shm::ListClients>(request)) {
        return reply(connection, id, list_clients(connection.peer().uid));
    }
    XP_ASSERT(std::holds_alternative<shm::GetStats>(request));
    const auto uptime = milliseconds(options_.now() - started_);
    return reply(connection, id, shm::StatsReply{format_stats(host_, scheduler_.stats(), stats(),
                                                              options_, uptime)});
}

bool RingServer::handle_cancel(Connection& connection, uint64_t id, const shm::Cancel& cancel) {
    if (cancel.client == 0) {
        scheduler_.cancel({connection.id(), cancel.target}, "client");
        return reply(connection, id, shm::Done{});
    }
    const auto other = connections_.find(cancel.client);
    size_t cancelled = 0;
    if (other != connections_.end() &&
        may_manage(connection.peer().uid, other->second.peer().uid, options_.daemon_user)) {
        cancelled = cancel.target == 0
                        ? scheduler_.cancel_client(cancel.client, "client")
                        : scheduler_.cancel({cancel.client, cancel.target}, "client");
    }
    if (cancelled == 0) {
        // One text for what is not there and what is none of the asker's business.
        return reply(connection, id, failed(make_error(
            ErrorCode::kNotFound, "there is no request {}.{}, or it belongs to another user",
            cancel.client, cancel.target == 0 ? "*" : std::to_string(cancel.target))));
    }
    spdlog::info("{} cancelled {} of {}", connection.describe(),
                 cancelled == 1 ? "a request" : fmt::format("{} requests", cancelled),
                 other->second.describe());
    return reply(connection, id, shm::Done{});
}

shm::ModelsReply RingServer::list_models() const {
    shm::ModelsReply models;
    for (const auto& served : host_.models()) {
        const ModelInfo& info = served->model->info();
        models.models.push_back({served->name, reply_text(info.architecture),
                                 reply_text(info.name), info.context, info.n_vocab});
    }
    return models;
}

shm::ClientsReply RingServer::list_clients(uid_t asking) const {
    std::map<uint64_t, std::vector<shm::RequestEntry>> requests;
    for (JobInfo& job : scheduler_.jobs()) {
        requests[job.key.client].push_back(
            {job.key.request, job.task, job.state, std::move(job.model),
             static_cast<uint64_t>(job.age.count()), job.prompt_tokens, job.prompt_done,
             job.generated_tokens});
    }
    shm::ClientsReply reply;
    const auto now = options_.now();
    for (const auto& [id, connection] : connections_) {
        if (!connection.open()) {
            continue;
        }
        const shm::PeerCredentials& peer = connection.peer();
        if (!may_manage(asking, peer.uid, options_.daemon_user)) {
            ++reply.hidden;
            continue;
        }
        const auto age = milliseconds(now - connection.accepted()).count();
        reply.clients.push_back({id, connection.name(), peer.pid, peer.uid,
                                 static_cast<uint64_t>(age), std::move(requests[id])});
    }
    return reply;
}

// It may still read this, as its mapping outlives the connection.
bool RingServer::malformed(Connection& connection, uint64_t id, const std::string& why) {
    if (reply(connection, id, shm::Failed{"malformed", why})) {
        violation(connection, fmt::format("request {}: {}", id, why));
    }
    return false;
}

bool RingServer::reply(Connection& connection, uint64_t request, const shm::Reply& reply) {
    std::vector<std::byte> bytes = shm::encode_reply(reply);
    if (bytes.size() > connection.max_reply_bytes()) {
        bytes = shm::encode_reply(failed(make_error(
            ErrorCode::kLimit, "the answer has {} bytes, and this connection's response ring holds "
            "{} at most: connect with a larger one", bytes.size(), connection.max_reply_bytes())));
    }
    return deliver(connection, {{connection.id(), request}, true, std::move(bytes), {}});
}

}  // namespace xp
