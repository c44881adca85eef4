// Two sides at work at once, as threads and as processes, asleep on bells as in a connection. A
// lost wake-up shows as a sleep that outlasts the watchdog.
#include <optional>
#include <thread>

#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/handshake.h"
#include "tests/shm/segments.h"

namespace xp::shm {
namespace {

// Far longer than any wait of these tests: only a lost wake-up lasts as long.
constexpr int kWatchdogMs = 30'000;

struct Bell {
    Fd listens;
    Fd rings;
    Bell() {
        int ends[2];
        EXPECT_EQ(::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
        listens.reset(ends[0]);
        rings.reset(ends[1]);
    }
};

// False when the watchdog ended the sleep.
bool sleep_on(const Bell& bell) {
    pollfd wait{bell.listens.get(), POLLIN, 0};
    if (::poll(&wait, 1, kWatchdogMs) != 1) return false;
    drain_bell(bell.listens.get());
    return true;
}

struct Counts {
    uint64_t sleeps = 0;
    uint64_t rings = 0;
};

// Writes `count` records; nothing, or what went wrong.
std::optional<std::string> produce(RingWriter writer, const Bell& own, const Bell& peer,
                                   uint64_t seed, uint64_t count, size_t max_bytes,
                                   Counts* counts) {
    for (uint64_t n = 0; n < count; ++n) {
        const auto body = make_body(seed, n, max_bytes);
        for (;;) {
            const RingStatus status = writer.write(n + 1, body);
            if (status == RingStatus::kOk) break;
            if (status != RingStatus::kFull) return "write failed at " + std::to_string(n);
            if (!writer.prepare_wait_for_space(body.size())) continue;
            ++counts->sleeps;
            if (!sleep_on(own)) return "the writer's wake-up was lost at " + std::to_string(n);
            writer.cancel_wait_for_space();
        }
        if (writer.peer_waits_for_data()) {
            ++counts->rings;
            ring_bell(peer.rings.get());
        }
    }
    return std::nullopt;
}

std::optional<std::string> consume(RingReader reader, const Bell& own, const Bell& peer,
                                   uint64_t seed, uint64_t count, size_t max_bytes,
                                   Counts* counts) {
    Record record;
    for (uint64_t n = 0; n < count;) {
        const RingStatus status = reader.read(&record);
        if (status == RingStatus::kEmpty) {
            if (!reader.prepare_wait_for_data()) continue;
            ++counts->sleeps;
            if (!sleep_on(own)) return "the reader's wake-up was lost at " + std::to_string(n);
            reader.cancel_wait_for_data();
            continue;
        }
        if (status != RingStatus::kOk) return "violation at " + std::to_string(n);
        if (record.request_id != n + 1) return "wrong order at " + std::to_string(n);
        if (!is_body(record.body, make_body(seed, n, max_bytes))) {
            return "wrong bytes at " + std::to_string(n);
        }
        if (reader.peer_waits_for_space()) {
            ++counts->rings;
            ring_bell(peer.rings.get());
        }
        ++n;
    }
    return std::nullopt;
}

void run_threads(uint64_t ring, uint64_t count, size_t max_bytes) {
    const uint64_t seed = std::random_device{}();
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Segments segments(ring);
    const Bell client;
    const Bell daemon;
    Counts produced;
    Counts consumed;
    std::optional<std::string> write_error;
    std::thread writer([&] {
        write_error = produce(segments.client_writer(), client, daemon, seed, count, max_bytes,
                              &produced);
    });
    const std::optional<std::string> read_error = consume(
        segments.daemon_reader(), daemon, client, seed, count, max_bytes, &consumed);
    writer.join();
    EXPECT_EQ(write_error.value_or(""), "");
    EXPECT_EQ(read_error.value_or(""), "");
    ::testing::Test::RecordProperty("sleeps",
                                    std::to_string(produced.sleeps + consumed.sleeps));
    // Otherwise this has tested nothing.
    EXPECT_GT(produced.sleeps + consumed.sleeps, 0u);
}

// The smallest rings make both sides sleep all the time.
TEST(RingConcurrent, NoWakeUpIsLostBetweenThreadsThatBothSleep) {
    run_threads(256, 100'000, 100);
}

TEST(RingConcurrent, LargeRecordsArriveWholeBetweenThreads) {
    run_threads(65536, 3'000, 65536 / 2 - sizeof(RecordHeader));
}

TEST(RingConcurrent, NoWakeUpIsLostBetweenProcesses) {
    constexpr uint64_t kCount = 30'000;
    const uint64_t seed = std::random_device{}();
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Segments segments(1024);
    const Bell client;
    const Bell daemon;
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        Counts counts;
        const auto error = produce(segments.client_writer(), client, daemon, seed, kCount, 400,
                                   &counts);
        ::_exit(error ? 1 : 0);
    }
    Counts counts;
    const auto error =
        consume(segments.daemon_reader(), daemon, client, seed, kCount, 400, &counts);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(error.value_or(""), "");
    EXPECT_EQ(status, 0);
}

// A question and its answer at a time: every record meets a sleeping peer, in both directions.
TEST(RingConcurrent, PingPongWakesASleepingPeerEveryTime) {
    constexpr uint64_t kCount = 20'000;
    const Segments segments(4096);
    const Bell client;
    const Bell daemon;
    std::optional<std::string> daemon_error;
    std::thread thread([&] {
        RingReader reader = segments.daemon_reader();
        RingWriter writer = segments.daemon_writer();
        Record record;
        for (uint64_t n = 0; n < kCount;) {
            const RingStatus status = reader.read(&record);
            if (status == RingStatus::kEmpty) {
                if (!reader.prepare_wait_for_data()) continue;
                if (!sleep_on(daemon)) {
                    daemon_error = "lost at " + std::to_string(n);
                    return;
                }
                reader.cancel_wait_for_data();
                continue;
            }
            if (status != RingStatus::kOk ||
                writer.write(record.request_id, record.body) != RingStatus::kOk) {
                daemon_error = "failed at " + std::to_string(n);
                return;
            }
            if (writer.peer_waits_for_data()) ring_bell(client.rings.get());
            ++n;
        }
    });
    RingReader reader = segments.client_reader();
    RingWriter writer = segments.client_writer();
    Record record;
    std::string error;
    for (uint64_t n = 1; n <= kCount && error.empty(); ++n) {
        const std::vector<std::byte> body(n % 200 + 1, std::byte{7});
        if (writer.write(n, body) != RingStatus::kOk) error = "write failed";
        if (writer.peer_waits_for_data()) ring_bell(daemon.rings.get());
        while (error.empty()) {
            const RingStatus status = reader.read(&record);
            if (status == RingStatus::kOk) break;
            if (status != RingStatus::kEmpty) error = "read failed";
            if (!reader.prepare_wait_for_data()) continue;
            if (!sleep_on(client)) error = "lost at " + std::to_string(n);
            reader.cancel_wait_for_data();
        }
        if (error.empty() && record.request_id != n) error = "wrong answer";
    }
    thread.join();
    EXPECT_EQ(error, "");
    EXPECT_EQ(daemon_error.value_or(""), "");
}

}  // namespace
}  // namespace xp::shm
