// What protocol 1.1 brought: large requests in memfds, scores and logits, the list of clients.
#include "shm/enclosure.h"
#include "tests/client/client_fixture.h"

namespace xp::test {
namespace {

using ::testing::HasSubstr;

shm::ServerOffer enclosures() {
    shm::ServerOffer offer = small_rings();
    offer.max_enclosed_bytes = 1 << 20;
    return offer;
}

// The request that the next notice and the record `enclosed` speak of.
std::optional<shm::Request> open(Session& session, const shm::Enclosed& enclosed) {
    shm::Notice notice;
    shm::Fd fd;
    std::string error;
    EXPECT_EQ(shm::receive_notice(session.socket(), &notice, &fd, &error),
              shm::ReceiveStatus::kOk) << error;
    EXPECT_EQ(notice.value, enclosed.bytes);
    std::vector<std::byte> message;
    EXPECT_TRUE(shm::open_enclosure(fd, enclosed.bytes, &message, &error)) << error;
    return shm::decode_request(message, &error);
}

TEST(ClientEnclosures, ARequestLargerThanARecordGoesInAMemfdAndOthersDoNot) {
    const std::string large(500'000, 'x');
    FakeDaemon daemon(
        [&](Session& session) {
            for (const std::string& expected : {large, std::string("small"), large}) {
                auto request = session.next();
                ASSERT_TRUE(request);
                const auto* enclosed = std::get_if<shm::Enclosed>(&request->second);
                EXPECT_EQ(enclosed != nullptr, expected == large);
                auto inner = enclosed ? open(session, *enclosed) : std::move(request->second);
                ASSERT_TRUE(inner);
                const auto& generate = std::get<shm::Generate>(*inner);
                EXPECT_TRUE(std::get<shm::RawText>(generate.prompt).text == expected);
                session.reply(request->first, shm::Done{});
            }
            session.wait_for_hang_up();
        },
        enclosures());
    const ClientPtr client = connect(daemon);
    EXPECT_EQ(xp_connection(client.get())->max_request_bytes, 1u << 20);
    const uint64_t ids[] = {submit(client, large), submit(client, "small"), submit(client, large)};
    for (const uint64_t id : ids) {
        const xp_event& event = next(client);
        EXPECT_EQ(event.request_id, id);
        EXPECT_EQ(event.type, XP_EVENT_DONE);
    }
}

TEST(ClientEnclosures, WhatIsTooLargeSaysHowLargeItMayBe) {
    const auto status_of = [](const shm::ServerOffer& offer, size_t bytes, std::string* error) {
        FakeDaemon daemon([](Session& session) { session.wait_for_hang_up(); }, offer);
        const ClientPtr client = connect(daemon);
        uint64_t id = 0;
        const xp_status status = xp_submit(
            client.get(), text_request(std::string(bytes, 'x')).get(), kPatienceMs, &id);
        *error = xp_client_error(client.get());
        return status;
    };
    std::string error;
    EXPECT_EQ(status_of(enclosures(), 1 << 20, &error), XP_TOO_LARGE);
    EXPECT_THAT(error, HasSubstr(std::to_string(1 << 20)));
    // A daemon that takes no enclosures.
    EXPECT_EQ(status_of(small_rings(), 100'000, &error), XP_TOO_LARGE);
    EXPECT_THAT(error, HasSubstr(std::to_string(shm::kMinRingBytes / 2 - 16)));
}

TEST(ClientTasks, TaskAndLogitsAreAskedForAndTheirAnswersHandedOut) {
    FakeDaemon daemon([](Session& session) {
        auto request = session.next();
        ASSERT_TRUE(request);
        const auto& generate = std::get<shm::Generate>(request->second);
        EXPECT_EQ(generate.task, shm::Task::kScore);
        EXPECT_TRUE(generate.last_logits);
        session.reply(request->first, shm::Scores{5, {-0.5f, -1.25f}, {7, 9}});
        session.reply(request->first, shm::Logits{4096, {1.5f, -2, 3}});
        session.reply(request->first, shm::Done{});
        session.wait_for_hang_up();
    });
    const ClientPtr client = connect(daemon);
    const GeneratePtr request = text_request("text");
    ASSERT_EQ(xp_generate_set_task(request.get(), XP_TASK_SCORE), XP_OK);
    ASSERT_EQ(xp_generate_set_last_logits(request.get(), 1), XP_OK);
    uint64_t id = 0;
    ASSERT_EQ(xp_submit(client.get(), request.get(), kPatienceMs, &id), XP_OK);
    const xp_event* event = &next(client);
    ASSERT_EQ(event->type, XP_EVENT_SCORES);
    EXPECT_EQ(event->terminal, 0);
    EXPECT_EQ(event->first, 5u);
    ASSERT_EQ(event->score_count, 2u);
    EXPECT_EQ(event->scores[0].logprob, -0.5f);
    EXPECT_EQ(event->scores[1].logprob, -1.25f);
    EXPECT_EQ(event->scores[1].argmax, 9);
    event = &next(client);
    ASSERT_EQ(event->type, XP_EVENT_LOGITS);
    EXPECT_EQ(event->first, 4096u);
    ASSERT_EQ(event->logit_count, 3u);
    EXPECT_EQ(event->logits[2], 3.0f);
    EXPECT_EQ(event->score_count, 0u);
    EXPECT_EQ(next(client).type, XP_EVENT_DONE);
    EXPECT_EQ(xp_generate_set_task(request.get(), static_cast<xp_task>(3)), XP_INVALID);
}

TEST(ClientList, ClientsAndTheirRequestsAreListed) {
    FakeDaemon daemon([](Session& session) {
        auto request = session.next();
        ASSERT_TRUE(request);
        EXPECT_TRUE(std::holds_alternative<shm::ListClients>(request->second));
        shm::ClientsReply reply;
        reply.hidden = 4;
        reply.clients.push_back({3, "xpctl", 4711, 1000, 5000, {}});
        reply.clients.push_back({8, "shim", 12, 1000, 6000,
                                 {{17, shm::Task::kScore, shm::RequestState::kParked, "demo", 250,
                                   100, 60, 0},
                                  {18, shm::Task::kGenerate, shm::RequestState::kQueued, "demo", 2,
                                   0, 0, 0}}});
        session.reply(request->first, reply);
        session.wait_for_hang_up();
    });
    const ClientPtr client = connect(daemon);
    const xp_client_list* list = nullptr;
    ASSERT_EQ(xp_clients(client.get(), kPatienceMs, &list), XP_OK)
        << xp_client_error(client.get());
    ASSERT_EQ(list->count, 2u);
    EXPECT_EQ(list->hidden, 4u);
    EXPECT_EQ(list->clients[0]->id, 3u);
    EXPECT_STREQ(list->clients[0]->name, "xpctl");
    EXPECT_EQ(list->clients[0]->pid, 4711);
    EXPECT_EQ(list->clients[0]->request_count, 0u);
    EXPECT_EQ(list->clients[1]->uid, 1000u);
    EXPECT_EQ(list->clients[1]->age_ms, 6000u);
    ASSERT_EQ(list->clients[1]->request_count, 2u);
    const xp_request_info& score = *list->clients[1]->requests[0];
    EXPECT_EQ(score.id, 17u);
    EXPECT_EQ(score.task, XP_TASK_SCORE);
    EXPECT_EQ(score.state, XP_REQUEST_PARKED);
    EXPECT_STREQ(score.model, "demo");
    EXPECT_EQ(score.prompt_tokens, 100u);
    EXPECT_EQ(score.prompt_done, 60u);
    EXPECT_EQ(list->clients[1]->requests[1]->id, 18u);
    EXPECT_EQ(list->clients[1]->requests[1]->state, XP_REQUEST_QUEUED);
}

TEST(ClientList, RequestsOfOtherClientsAreCancelledByBothNumbers) {
    FakeDaemon daemon([](Session& session) {
        for (const bool found : {true, false}) {
            auto request = session.next();
            ASSERT_TRUE(request);
            const auto& cancel = std::get<shm::Cancel>(request->second);
            EXPECT_EQ(cancel.client, 3u);
            EXPECT_EQ(cancel.target, found ? 17u : 0u);
            if (found) {
                session.reply(request->first, shm::Done{});
            } else {
                session.reply(request->first, shm::Failed{"not_found", "there is none"});
            }
        }
        session.wait_for_hang_up();
    });
    const ClientPtr client = connect(daemon);
    EXPECT_EQ(xp_cancel_request(client.get(), 3, 17, kPatienceMs), XP_OK);
    EXPECT_EQ(xp_cancel_request(client.get(), 3, 0, kPatienceMs), XP_FAILED);
    EXPECT_THAT(xp_client_error(client.get()), HasSubstr("there is none"));
    EXPECT_EQ(xp_cancel_request(client.get(), 0, 17, kPatienceMs), XP_INVALID);
}

}  // namespace
}  // namespace xp::test
