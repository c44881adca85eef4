// The server's threads when allocations fail: clients may be lost, the server is not. A program of
// its own, as it replaces the operator new of all of it.
#include <cstdlib>
#include <new>

#include "tests/serve/ring_server_fixture.h"

namespace {

// Every how manieth allocation of all threads but those spared fails; 0: none.
std::atomic<uint32_t> fail_every{0};
std::atomic<uint32_t> allocations{0};
std::atomic<uint64_t> failures{0};
thread_local bool spared = false;

void* allocate(size_t bytes) {
    const uint32_t every = fail_every.load(std::memory_order_relaxed);
    if (every != 0 && !spared && allocations.fetch_add(1) % every == 0) {
        ++failures;
        throw std::bad_alloc();
    }
    if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) {
        return memory;
    }
    throw std::bad_alloc();
}

}  // namespace

void* operator new(size_t bytes) { return allocate(bytes); }
void* operator new[](size_t bytes) { return allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace xp {
namespace {

// What a client does that may be lost at any time.
void use(const Path& socket) {
    expertpack::Client client("test");
    uint64_t id = 0;
    if (client.connect(socket.c_str(), kWaitMs) != XP_OK) {
        return;
    }
    const xp_pong* pong = nullptr;
    const xp_event* event = nullptr;
    for (int n = 0; n < 3; ++n) {
        if (client.submit(request_of(20), &id, kWaitMs) != XP_OK ||
            client.ping(&pong, kWaitMs) != XP_OK) {
            return;
        }
    }
    expertpack::Generate unknown = request_of(1);
    unknown.model("none");
    if (client.submit(unknown, &id, kWaitMs) == XP_OK) {
        while (client.next_event(&event, kWaitMs) == XP_OK) {
        }
    }
}

TEST_F(RingServerTest, FailingAllocationsCostClientsAndNeverTheServer) {
    spared = true;
    RingServerOptions options;
    options.housekeeping = 1ms;
    make({}, options);
    for (uint32_t every : {2, 3, 5, 7, 11, 17, 29, 53, 101, 211}) {
        for (int round = 0; round < 15; ++round) {
            fail_every = every;
            use(socket_);
            fail_every = 0;
        }
    }
    EXPECT_GT(failures.load(), 50u);
    expertpack::Client client = connect();
    submit(client, request_of(5));
    EXPECT_EQ(answer_of(client).ids.size(), 5u);
    wait_until([](const auto& json) {
        return json.at("queue").at("running") == 0 && json.at("accounts").at("requests") == 0 &&
               json.at("clients").at("connected") == 2;  // with the one that asks
    });
}

}  // namespace
}  // namespace xp
