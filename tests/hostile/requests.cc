// Well-formed requests with bad intentions: floods, endless work, other people's requests, replies
// that nobody reads.
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <vector>

#include <unistd.h>

#include "tests/hostile/behaviours.h"
#include "tests/hostile/raw_client.h"

namespace xp::hostile {
namespace {

// The terminal reply to `id`; others are skipped.
std::optional<shm::Reply> end_of(RawClient& client, uint64_t id) {
    while (auto answer = client.next()) {
        if (answer->id == id && shm::is_terminal(answer->reply)) return std::move(answer->reply);
    }
    return std::nullopt;
}

bool id_used_twice(const std::string& path) {
    RawClient client = connected(path);
    return holds(client.write(5, shm::Request(endless_request()))) &&
           holds(client.write(5, shm::Request(endless_request()))) && holds(client.closed());
}

bool cancel_of_id_zero(const std::string& path) {
    RawClient client = connected(path);
    return holds(client.write(5, shm::Request(shm::Cancel{0}))) &&
           holds(client.fails(5, "malformed")) && holds(client.closed());
}

// The ids that other clients are likely to use, and no request of its own.
bool cancel_of_every_id(const std::string& path) {
    RawClient client = connected(path);
    for (uint64_t target = 1; target <= 2000; ++target) {
        if (!holds(client.write(10'000 + target, shm::Request(shm::Cancel{target})))) return false;
        const auto end = end_of(client, 10'000 + target);
        if (!holds(end && std::holds_alternative<shm::Done>(*end))) return false;
    }
    return true;
}

// Guesses the numbers of clients. Those of other users do not exist for this one.
bool cancel_of_other_users_clients(const std::string& path) {
    RawClient client = connected(path);
    for (uint64_t other = 1; other <= 200; ++other) {
        for (const uint64_t target : {0, 1, 2}) {
            const uint64_t id = other * 10 + target + 1;
            if (!holds(client.write(id, shm::Request(shm::Cancel{target, other})))) return false;
            const auto end = end_of(client, id);
            if (!holds(end.has_value())) return false;
            // Its own number is among them, and it has nothing to cancel.
            const auto* failed = std::get_if<shm::Failed>(&*end);
            if (!holds(!failed || failed->code == "not_found")) return false;
        }
    }
    return holds(client.served());
}

bool list_of_other_users_clients(const std::string& path) {
    RawClient client = connected(path);
    if (!holds(client.write(1, shm::Request(shm::ListClients())))) return false;
    const auto end = end_of(client, 1);
    const auto* list = end ? std::get_if<shm::ClientsReply>(&*end) : nullptr;
    if (!holds(list && list->clients.size() == 1 && list->hidden >= 2)) return false;
    return holds(list->clients[0].name == "hostile" && list->clients[0].uid == ::getuid());
}

// Hundreds of cancels for one request: it ends once.
bool cancel_storm(const std::string& path) {
    RawClient client = connected(path);
    if (!holds(client.write(1, shm::Request(endless_request())))) return false;
    for (uint64_t id = 2; id <= 400; ++id) {
        if (!holds(client.write(id, shm::Request(shm::Cancel{1})))) return false;
    }
    std::multiset<uint64_t> ended;
    while (ended.size() < 400) {
        const auto answer = client.next();
        if (!holds(answer.has_value())) return false;
        if (shm::is_terminal(answer->reply)) ended.insert(answer->id);
    }
    for (uint64_t id = 1; id <= 400; ++id) {
        if (!holds(ended.count(id) == 1)) return false;
    }
    return holds(client.served());
}

bool more_in_flight_than_allowed(const std::string& path) {
    RawClient client = connected(path);
    const uint32_t limit = client.welcome().max_in_flight;
    for (uint64_t id = 1; id <= limit + 10; ++id) {
        if (!holds(client.write(id, shm::Request(endless_request())))) return false;
    }
    for (uint64_t id = limit + 1; id <= limit + 10; ++id) {
        if (!holds(client.fails(id, "busy"))) return false;
    }
    return holds(client.still_open());
}

// Four connections ask for more than their user may have in flight.
bool more_than_a_user_may_have(const std::string& path) {
    std::vector<RawClient> clients;
    size_t busy = 0;
    for (int n = 0; n < 4; ++n) {
        clients.push_back(connected(path));
        for (uint64_t id = 1; id <= clients.back().welcome().max_in_flight; ++id) {
            if (!holds(clients.back().write(id, shm::Request(endless_request())))) return false;
        }
        // What is refused is refused before a later request is answered.
        if (!holds(clients.back().write(1000, shm::Request(shm::Ping())))) return false;
        while (const auto answer = clients.back().next()) {
            if (answer->id == 1000) break;
            const auto* failed = std::get_if<shm::Failed>(&answer->reply);
            if (!failed) continue;
            if (!holds(failed->code == "busy")) return false;
            ++busy;
        }
    }
    return holds(busy > 0) && holds(clients.back().still_open());
}

bool ping_flood(const std::string& path) {
    RawClient client = connected(path);
    uint64_t answered = 0;
    for (uint64_t id = 1; id <= 30'000; ++id) {
        if (!holds(client.write(id, shm::Request(shm::Ping())))) return false;
        while (id - answered >= 200) {
            if (!holds(client.next().has_value())) return false;
            ++answered;
        }
    }
    return true;
}

bool prompt_beyond_the_context(const std::string& path) {
    RawClient client = connected(path);
    shm::Generate request = short_request();
    request.prompt = shm::RawTokens{std::vector<int32_t>(5000, 3)};
    if (!holds(client.write(1, shm::Request(request)))) return false;
    const auto end = end_of(client, 1);
    return holds(end && std::holds_alternative<shm::Failed>(*end)) && holds(client.served());
}

bool token_ids_beyond_the_vocabulary(const std::string& path) {
    RawClient client = connected(path);
    shm::Generate request = short_request();
    request.prompt = shm::RawTokens{{1, std::numeric_limits<int32_t>::max()}};
    if (!holds(client.write(1, shm::Request(request)))) return false;
    const auto end = end_of(client, 1);
    return holds(end && std::holds_alternative<shm::Failed>(*end)) && holds(client.served());
}

bool model_that_does_not_exist(const std::string& path) {
    RawClient client = connected(path);
    shm::Generate request = short_request();
    request.model = "../../etc/passwd";
    return holds(client.write(1, shm::Request(request))) && holds(client.fails(1, "not_found")) &&
           holds(client.served());
}

bool numbers_at_their_ends(const std::string& path) {
    RawClient client = connected(path);
    shm::Generate request = short_request();
    request.sampling = {100.0f, 0xffffffffu, 1e-38f, 0.999999f, ~uint64_t{0}};
    request.priority = std::numeric_limits<int32_t>::min();
    request.deadline_ms = 0xffffffffu;
    request.end_user = std::string(256, '\n');
    if (!holds(client.write(~uint64_t{0}, shm::Request(request)))) return false;
    const auto end = end_of(client, ~uint64_t{0});
    return holds(end && std::holds_alternative<shm::Done>(*end)) && holds(client.served());
}

bool leaves_with_everything_in_flight(const std::string& path) {
    for (int round = 0; round < 5; ++round) {
        RawClient client = connected(path);
        for (uint64_t id = 1; id <= client.welcome().max_in_flight; ++id) {
            if (!holds(client.write(id, shm::Request(endless_request())))) return false;
        }
    }
    return holds(connected(path).served());
}

// Asks and asks, and reads nothing: the daemon stops taking requests, which this ring shows.
bool asks_and_never_reads(const std::string& path) {
    RawClient client = connected(path);
    for (uint64_t id = 1; id <= 1000; ++id) {
        if (!holds(client.write(id, shm::Request(shm::GetStats())))) return false;
    }
    stand_still();
    return holds(client.still_open());
}

// As many answers as it may have, without reading one word of them: its ring and what the daemon
// keeps for it run full, and everybody else is served all the same.
bool generates_and_never_reads(const std::string& path) {
    RawClient client = connected(path);
    for (uint64_t id = 1; id <= client.welcome().max_in_flight; ++id) {
        if (!holds(client.write(id, shm::Request(endless_request())))) return false;
    }
    ::usleep(2'000'000);
    stand_still();
    return holds(client.still_open());
}

bool reads_one_reply_at_a_time(const std::string& path) {
    RawClient client = connected(path);
    for (uint64_t id = 1; id <= 4; ++id) {
        if (!holds(client.write(id, shm::Request(endless_request())))) return false;
    }
    for (int i = 0; i < 10; ++i) {
        if (!holds(client.next().has_value())) return false;
        ::usleep(200'000);
    }
    return holds(client.still_open());
}

constexpr Behaviour kRequestBehaviours[] = {
    {"id_used_twice", "two requests of one id in flight", 1, 0, id_used_twice},
    {"cancel_of_id_zero", "which no request has", 1, 0, cancel_of_id_zero},
    {"cancel_of_every_id", "that others may use", 0, 0, cancel_of_every_id},
    {"cancel_of_other_users_clients", "by their numbers", 0, 0, cancel_of_other_users_clients,
     true},
    {"list_of_other_users_clients", "sees its own", 0, 0, list_of_other_users_clients, true},
    {"more_than_a_user_may_have", "64 requests over four connections", 0, 0,
     more_than_a_user_may_have, true},
    {"ping_flood", "30,000, as fast as they are answered", 0, 0, ping_flood},
    {"cancel_storm", "399 cancels of one request", 0, 0, cancel_storm},
    {"more_in_flight_than_allowed", "gets \"busy\" for those above", 0, 0,
     more_in_flight_than_allowed},
    {"prompt_beyond_the_context", "5000 tokens", 0, 0, prompt_beyond_the_context},
    {"token_ids_beyond_the_vocabulary", "2^31 - 1", 0, 0, token_ids_beyond_the_vocabulary},
    {"model_that_does_not_exist", "a path as a name", 0, 0, model_that_does_not_exist},
    {"numbers_at_their_ends", "the largest of everything", 0, 0, numbers_at_their_ends},
    {"leaves_with_everything_in_flight", "five times", 0, 0, leaves_with_everything_in_flight,
     true},
    {"asks_and_never_reads", "a thousand statistics", 0, 0, asks_and_never_reads},
    {"generates_and_never_reads", "16 endless requests", 0, 0, generates_and_never_reads},
    {"reads_one_reply_at_a_time", "five a second", 0, 0, reads_one_reply_at_a_time},
};

}  // namespace

std::span<const Behaviour> request_behaviours() {
    return kRequestBehaviours;
}

}  // namespace xp::hostile
