// The list of clients, and cancelling what others of the same user asked for.
#include "tests/serve/ring_server_fixture.h"

namespace xp {
namespace {

using ::testing::HasSubstr;

const xp_client_info* find_client(const xp_client_list* list, const std::string& name) {
    for (size_t i = 0; i < list->count; ++i) {
        if (list->clients[i]->name == name) {
            return list->clients[i];
        }
    }
    return nullptr;
}

TEST_F(RingServerTest, ClientsAreListedWithTheirRequests) {
    make(gated());
    expertpack::Client worker = connect("worker");
    const uint64_t first = submit(worker, request_of(5));
    gate_.wait_for_arrival();
    expertpack::Generate score = request_of(0);
    score.task(XP_TASK_SCORE);
    const uint64_t second = submit(worker, score);
    wait_until([](const auto& json) { return json.at("queue").at("waiting") == 1; });

    expertpack::Client asker = connect("asker");
    const xp_client_list* list = nullptr;
    ASSERT_EQ(asker.clients(&list, kWaitMs), XP_OK) << asker.error();
    EXPECT_EQ(list->hidden, 0u);
    ASSERT_TRUE(find_client(list, "asker"));
    EXPECT_EQ(find_client(list, "asker")->request_count, 0u);
    const xp_client_info* info = find_client(list, "worker");
    ASSERT_TRUE(info);
    EXPECT_EQ(info->uid, ::getuid());
    EXPECT_EQ(info->pid, ::getpid());
    ASSERT_EQ(info->request_count, 2u);
    EXPECT_EQ(info->requests[0]->id, first);
    EXPECT_EQ(info->requests[0]->task, XP_TASK_GENERATE);
    EXPECT_EQ(info->requests[0]->state, XP_REQUEST_PREFILL);
    EXPECT_STREQ(info->requests[0]->model, "scripted");
    EXPECT_EQ(info->requests[1]->id, second);
    EXPECT_EQ(info->requests[1]->task, XP_TASK_SCORE);
    EXPECT_EQ(info->requests[1]->state, XP_REQUEST_QUEUED);
    EXPECT_EQ(info->requests[1]->prompt_tokens, 0u);
}

TEST_F(RingServerTest, ARequestOfAnotherConnectionCanBeCancelled) {
    make(gated());
    expertpack::Client worker = connect("worker");
    const uint64_t first = submit(worker, request_of(4000));
    submit(worker, request_of(4000));
    gate_.wait_for_arrival();
    expertpack::Client other = connect("other");
    const xp_client_list* list = nullptr;
    ASSERT_EQ(other.clients(&list, kWaitMs), XP_OK) << other.error();
    ASSERT_TRUE(find_client(list, "worker"));
    const uint64_t client = find_client(list, "worker")->id;

    EXPECT_EQ(other.cancel_request(client, first + 100, kWaitMs), XP_FAILED);
    EXPECT_THAT(other.error(), HasSubstr("there is no request " + std::to_string(client) + "." +
                                         std::to_string(first + 100)));
    EXPECT_EQ(other.cancel_request(client + 100, first, kWaitMs), XP_FAILED);
    EXPECT_EQ(other.cancel_request(client, first, kWaitMs), XP_OK) << other.error();
    EXPECT_EQ(other.cancel_request(client, 0, kWaitMs), XP_OK) << other.error();
    gate_.open();
    const xp_event* event = nullptr;
    int cancelled = 0;
    while (worker.next_event(&event, kWaitMs) == XP_OK) {
        if (event->terminal) {
            EXPECT_EQ(event->type, XP_EVENT_CANCELLED);
            EXPECT_STREQ(event->code, "client");
            ++cancelled;
        }
    }
    EXPECT_EQ(cancelled, 2);
    EXPECT_EQ(other.cancel_request(client, 0, kWaitMs), XP_FAILED);
    EXPECT_THAT(other.error(), HasSubstr(std::to_string(client) + ".*"));
}

TEST_F(RingServerTest, OtherUsersRequestsAreHiddenAndSafe) {
    if (::geteuid() != 0) {
        GTEST_SKIP() << "needs root, to become another user";
    }
    // Client 1 is root's, with request 1.
    OtherUser other([this] {
        expertpack::Client client("other");
        const xp_client_list* list = nullptr;
        if (client.connect(socket_.c_str(), kWaitMs) != XP_OK ||
            client.clients(&list, kWaitMs) != XP_OK) {
            return 1;
        }
        if (list->count != 1 || std::string(list->clients[0]->name) != "other" ||
            list->clients[0]->uid != OtherUser::kUid || list->hidden < 1) {
            return 2;
        }
        return client.cancel_request(1, 1, kWaitMs) == XP_FAILED &&
               client.cancel_request(1, 0, kWaitMs) == XP_FAILED ? 0 : 3;
    });
    make(gated());
    open_to_all();
    expertpack::Client worker = connect("worker");
    EXPECT_EQ(submit(worker, request_of(5)), 1u);
    gate_.wait_for_arrival();
    other.go();
    EXPECT_EQ(other.result(), 0);
    gate_.open();
    EXPECT_EQ(answer_of(worker).end, XP_EVENT_DONE);
}

TEST_F(RingServerTest, AListThatDoesNotFitIntoTheAskersRingSaysSo) {
    RingServerOptions options;
    options.user.clients = 1000;
    options.user.requests = 2000;
    options.requests_per_client = 200;
    SchedulerOptions scheduler_options;
    scheduler_options.queue_limit = 2000;
    make(gated(), options, scheduler_options);
    std::vector<std::unique_ptr<RawClient>> clients;
    for (int n = 0; n < 6; ++n) {
        clients.push_back(std::make_unique<RawClient>(socket_));
        for (uint64_t id = 1; id <= 200; ++id) {
            clients.back()->send(id, raw_request(5));
        }
    }
    wait_until([](const auto& json) { return json.at("accounts").at("requests") == 1200; });
    RawClient small(socket_, shm::kMinRingBytes);
    small.send(1, shm::ListClients{});
    const auto reply = small.next_reply();
    ASSERT_TRUE(reply);
    ASSERT_TRUE(std::holds_alternative<shm::Failed>(*reply));
    EXPECT_EQ(std::get<shm::Failed>(*reply).code, "limit");
    small.send(2, shm::Ping{});
    const auto pong = small.next_reply();
    EXPECT_TRUE(pong && std::holds_alternative<shm::Pong>(*pong));
}

}  // namespace
}  // namespace xp
