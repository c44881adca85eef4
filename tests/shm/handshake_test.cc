#include "shm/handshake.h"

#include <array>
#include <cstring>
#include <filesystem>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "shm/handshake_detail.h"
#include "shm/ring.h"
#include "tests/shm/listener.h"

namespace xp::shm {
namespace {

using ::testing::HasSubstr;

size_t open_descriptors() {
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        (void)entry;
        ++count;
    }
    return count;
}

struct Pair {
    Fd client;
    Fd daemon;
    Pair() {
        int ends[2];
        EXPECT_EQ(
            ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
        client.reset(ends[0]);
        daemon.reset(ends[1]);
    }
};

// ---- hello ------------------------------------------------------------------------------------

struct HelloResult {
    ReceiveStatus status;
    WelcomeStatus refusal;
    std::string error;
    Hello hello;
};

HelloResult receive(const Fd& socket) {
    HelloResult result;
    result.status = receive_hello(socket.get(), &result.hello, &result.refusal, &result.error);
    return result;
}

HelloResult exchange(const void* data, size_t bytes, std::vector<int> fds = {}) {
    const Pair pair;
    EXPECT_TRUE(detail::send(pair.client.get(), data, bytes, fds));
    return receive(pair.daemon);
}

TEST(Hello, ArrivesWithItsNameMadePrintable) {
    Hello hello;
    std::memcpy(hello.client_name, "evil\x1b[31m\xc3\xa9\n", 13);
    const HelloResult got = exchange(&hello, sizeof hello);
    ASSERT_EQ(got.status, ReceiveStatus::kOk) << got.error;
    EXPECT_STREQ(got.hello.client_name, "evil?[31m???");
    EXPECT_EQ(got.hello.req_ring_bytes, kRequestRingBytes);
}

TEST(Hello, AnUnterminatedNameIsCut) {
    Hello hello;
    std::memset(hello.client_name, 'n', sizeof hello.client_name);
    const HelloResult got = exchange(&hello, sizeof hello);
    ASSERT_EQ(got.status, ReceiveStatus::kOk);
    EXPECT_EQ(std::string(got.hello.client_name), std::string(31, 'n'));
}

TEST(Hello, OfANewerMinorVersionMayBeLonger) {
    std::vector<std::byte> bytes(sizeof(Hello) + 100, std::byte{0xee});
    Hello hello;
    hello.abi_minor = kAbiMinor + 3;
    std::memcpy(bytes.data(), &hello, sizeof hello);
    EXPECT_EQ(exchange(bytes.data(), bytes.size()).status, ReceiveStatus::kOk);
}

TEST(Hello, OfAnotherMajorVersionIsRefusedWithBothVersions) {
    Hello hello;
    hello.abi_major = kAbiMajor + 1;
    const HelloResult got = exchange(&hello, sizeof hello);
    EXPECT_EQ(got.status, ReceiveStatus::kBad);
    EXPECT_EQ(got.refusal, WelcomeStatus::kBadVersion);
    EXPECT_THAT(got.error, HasSubstr("2.1"));
    EXPECT_THAT(got.error, HasSubstr("1.1"));
}

TEST(Hello, ThatIsNoneIsRefused) {
    Hello hello;
    HelloResult got = exchange(&hello, sizeof hello - 1);
    EXPECT_EQ(got.status, ReceiveStatus::kBad);
    EXPECT_EQ(got.refusal, WelcomeStatus::kBadHello);
    EXPECT_THAT(got.error, HasSubstr("63 bytes is too short"));

    hello.magic ^= 1;
    got = exchange(&hello, sizeof hello);
    EXPECT_EQ(got.status, ReceiveStatus::kBad);
    EXPECT_THAT(got.error, HasSubstr("no hello"));

    const std::vector<std::byte> huge(kMaxHelloBytes + 1);
    got = exchange(huge.data(), huge.size());
    EXPECT_EQ(got.status, ReceiveStatus::kBad);
    EXPECT_THAT(got.error, HasSubstr("longer than any message"));
}

TEST(Hello, WithDescriptorsIsRefusedAndTheyAreClosed) {
    const Hello hello;
    const size_t before = open_descriptors();
    for (const size_t count : {1, 4}) {
        const HelloResult got = exchange(&hello, sizeof hello, std::vector<int>(count, 0));
        EXPECT_EQ(got.status, ReceiveStatus::kBad);
    }
    EXPECT_EQ(open_descriptors(), before);
}

TEST(Hello, ThatIsNotThereYetCanBeWaitedFor) {
    Pair pair;
    EXPECT_EQ(receive(pair.daemon).status, ReceiveStatus::kAgain);
    pair.client.reset();
    EXPECT_EQ(receive(pair.daemon).status, ReceiveStatus::kClosed);
}

TEST(Hello, NoiseNeverCrashesAndIsRefused) {
    const uint64_t seed = std::random_device{}();
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    for (int round = 0; round < 2'000; ++round) {
        std::vector<uint8_t> bytes(1 + random() % 200);
        for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
        EXPECT_EQ(exchange(bytes.data(), bytes.size()).status, ReceiveStatus::kBad);
    }
}

// ---- channel ----------------------------------------------------------------------------------

// The raw client's end: the Welcome and its four descriptors, not yet mapped.
struct RawClient {
    Welcome welcome;
    std::vector<Fd> fds;
};

RawClient receive_raw(const Fd& socket) {
    std::array<std::byte, kMaxHelloBytes> buffer;
    detail::Datagram datagram;
    std::string error;
    EXPECT_EQ(detail::receive(socket.get(), buffer, &datagram, &error), ReceiveStatus::kOk);
    RawClient raw;
    EXPECT_EQ(datagram.bytes, sizeof raw.welcome);
    std::memcpy(&raw.welcome, buffer.data(), sizeof raw.welcome);
    raw.fds = std::move(datagram.fds);
    return raw;
}

struct Channels {
    Pair pair;
    std::optional<ServerChannel> daemon;
    RawClient client;

    explicit Channels(const Hello& hello = {}, const ServerOffer& offer = {}) {
        std::string error;
        daemon = open_channel(pair.daemon.get(), hello, offer, &error);
        EXPECT_TRUE(daemon) << error;
        client = receive_raw(pair.client);
    }
};

TEST(Channel, RingSizesAreTheWishCutToTheOffer) {
    struct {
        uint32_t wish, offer, expected;
    } const cases[] = {
        {kRequestRingBytes, kRequestRingBytes, kRequestRingBytes},
        {kMaxRingBytes, 1 << 20, 1 << 20},
        {1 << 18, 1 << 20, 1 << 18},
        {(1 << 18) + 5, 1 << 20, 1 << 18},
        {0, 1 << 20, kMinRingBytes},
        {1, 1 << 20, kMinRingBytes},
        {~0u, ~0u, kMaxRingBytes},
    };
    for (const auto& one : cases) {
        Hello hello;
        hello.req_ring_bytes = hello.resp_ring_bytes = one.wish;
        ServerOffer offer;
        offer.max_req_ring_bytes = offer.max_resp_ring_bytes = one.offer;
        const Channels channels(hello, offer);
        EXPECT_EQ(channels.client.welcome.req_ring_bytes, one.expected);
        EXPECT_EQ(channels.client.welcome.resp_ring_bytes, one.expected);
        EXPECT_EQ(channels.client.welcome.max_record_bytes, one.expected / 2);
        EXPECT_EQ(channels.daemon->req.size(), one.expected + kDataOffset);
        EXPECT_EQ(channels.daemon->resp.size(), one.expected + kDataOffset);
    }
}

TEST(Channel, WelcomeCarriesTheOfferAndTheLowerMinor) {
    Hello hello;
    hello.abi_minor = 9;
    hello.features = ~uint64_t{0};
    ServerOffer offer;
    offer.max_in_flight = 5;
    offer.max_context = 77;
    offer.max_enclosed_bytes = 1000;
    offer.boot_id.fill(0xab);
    const Channels channels(hello, offer);
    const Welcome& welcome = channels.client.welcome;
    EXPECT_EQ(welcome.magic, kWelcomeMagic);
    EXPECT_EQ(welcome.status, 0u);
    EXPECT_EQ(welcome.abi_minor, kAbiMinor);
    EXPECT_EQ(welcome.features, kFeatures);
    EXPECT_EQ(welcome.max_in_flight, 5u);
    EXPECT_EQ(welcome.max_context, 77u);
    EXPECT_EQ(welcome.max_enclosed_bytes, 1000u);
    EXPECT_EQ(welcome.boot_id[15], 0xab);
    EXPECT_EQ(channels.client.fds.size(), 4u);
}

TEST(Channel, EnclosuresAreAgreedUponWhenBothSidesTakeThem) {
    Hello hello;
    const Channels none(hello, ServerOffer{});  // the daemon takes none
    EXPECT_EQ(none.client.welcome.features, 0u);
    EXPECT_EQ(none.client.welcome.max_enclosed_bytes, 0u);
    hello.features = 0;
    ServerOffer offer;
    offer.max_enclosed_bytes = 1000;
    const Channels old(hello, offer);
    EXPECT_EQ(old.client.welcome.features, 0u);
    EXPECT_EQ(old.client.welcome.max_enclosed_bytes, 0u);
}

// The promise of one writer for each segment, tried in every way that Linux offers.
TEST(Channel, TheClientCannotWriteIntoTheResponseSegment) {
    const Channels channels;
    const int resp = channels.client.fds[1].get();
    const size_t total = kResponseRingBytes + kDataOffset;
    EXPECT_EQ(::mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_SHARED, resp, 0), MAP_FAILED);

    const Mapping view(::mmap(nullptr, total, PROT_READ, MAP_SHARED, resp, 0), total);
    ASSERT_NE(view.base(), MAP_FAILED);
    EXPECT_NE(::mprotect(view.base(), total, PROT_READ | PROT_WRITE), 0);
    EXPECT_EQ(::pwrite(resp, "x", 1, 0), -1);
    EXPECT_NE(::ftruncate(resp, 4096), 0);
    EXPECT_NE(::fallocate(resp, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
    EXPECT_NE(::fcntl(resp, F_ADD_SEALS, F_SEAL_WRITE), 0);

    const Fd again(::open(("/proc/self/fd/" + std::to_string(resp)).c_str(), O_RDWR | O_CLOEXEC));
    if (again) {
        EXPECT_EQ(::mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_SHARED, again.get(), 0),
                  MAP_FAILED);
    }
    // The daemon still writes, and the client sees it.
    channels.daemon->resp.base()[kDataOffset] = std::byte{0x77};
    EXPECT_EQ(view.base()[kDataOffset], std::byte{0x77});
}

TEST(Channel, NobodyCanResizeTheRequestSegment) {
    const Channels channels;
    const int req = channels.client.fds[0].get();
    EXPECT_NE(::ftruncate(req, 0), 0);
    EXPECT_NE(::ftruncate(req, 2 * kRequestRingBytes), 0);
    EXPECT_NE(::fcntl(req, F_ADD_SEALS, F_SEAL_WRITE), 0);
    // The daemon's view of it is read-only.
    EXPECT_EXIT(
        {
            channels.daemon->req.base()[kDataOffset] = std::byte{1};
            ::_exit(0);
        },
        [](int status) { return !WIFEXITED(status) || WEXITSTATUS(status) != 0; }, "");
}

// Holes read as zeros, and zeros are no record.
TEST(Channel, HolesPunchedIntoTheRequestSegmentAreAViolation) {
    const Channels channels;
    const int req = channels.client.fds[0].get();
    const uint64_t tail = 4096;
    ASSERT_EQ(::pwrite(req, &tail, sizeof tail, kTailOffset),
              static_cast<ssize_t>(sizeof tail));
    ASSERT_EQ(::fallocate(req, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096,
                          kRequestRingBytes - 4096),
              0);
    RingReader reader(channels.daemon->own(), channels.daemon->peer());
    Record record;
    EXPECT_EQ(reader.read(&record), RingStatus::kViolation);
}

TEST(Channel, AllDescriptorsAreCloseOnExec) {
    const Channels channels;
    for (const Fd& fd : channels.client.fds) {
        EXPECT_TRUE(::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC);
    }
    EXPECT_TRUE(::fcntl(channels.daemon->req_bell.get(), F_GETFD) & FD_CLOEXEC);
    EXPECT_TRUE(::fcntl(channels.daemon->resp_bell.get(), F_GETFD) & FD_CLOEXEC);
}

TEST(Channel, ClosingItReleasesEveryDescriptor) {
    const size_t before = open_descriptors();
    for (int i = 0; i < 10; ++i) const Channels channels;
    EXPECT_EQ(open_descriptors(), before);
}

TEST(Channel, IsNotOpenedForAClientThatHasGone) {
    Pair pair;
    pair.client.reset();
    const size_t before = open_descriptors();
    std::string error;
    EXPECT_FALSE(open_channel(pair.daemon.get(), {}, {}, &error));
    EXPECT_THAT(error, HasSubstr("cannot send the welcome"));
    EXPECT_EQ(open_descriptors(), before);
}

// ---- bells and notices ------------------------------------------------------------------------

// What would hang the daemon if bells were eventfds: the flag is per end here.
TEST(Bell, NeverBlocksTheDaemonWhateverTheClientDoes) {
    const Channels channels;
    const int client_end = channels.client.fds[3].get();
    ASSERT_EQ(::fcntl(client_end, F_SETFL, 0), 0);
    for (int i = 0; i < 20'000; ++i) ring_bell(channels.daemon->resp_bell.get());
    // The other bell, made blocking, full, and drained when empty.
    ASSERT_EQ(::fcntl(channels.client.fds[2].get(), F_SETFL, 0), 0);
    while (::send(channels.client.fds[2].get(), "x", 1, MSG_DONTWAIT) == 1) {}
    ring_bell(channels.daemon->req_bell_ringer.get());
    while (wait_readable(channels.daemon->req_bell.get(), 0)) {
        drain_bell(channels.daemon->req_bell.get());
    }
    drain_bell(channels.daemon->req_bell.get());
}

TEST(Bell, WakesAndIsSilentOnceDrained) {
    const Channels channels;
    const int listens = channels.daemon->req_bell.get();
    EXPECT_FALSE(wait_readable(listens, 0));
    for (const int ringer :
         {channels.client.fds[2].get(), channels.daemon->req_bell_ringer.get()}) {
        ring_bell(ringer);
        ring_bell(ringer);
        EXPECT_TRUE(wait_readable(listens));
        drain_bell(listens);
        EXPECT_FALSE(wait_readable(listens, 0));
    }
}

// A readable bell that no drain silences would keep the daemon's loop awake for ever.
TEST(Bell, CannotBeMadeReadableForEver) {
    const std::function<void(Channels*)> tricks[] = {
        [](Channels* c) { c->client.fds.clear(); },
        [](Channels* c) { ::shutdown(c->client.fds[2].get(), SHUT_RDWR); },
        [](Channels* c) { ::shutdown(c->client.fds[3].get(), SHUT_RDWR); },
        [](Channels* c) { ::send(c->client.fds[2].get(), "", 0, MSG_DONTWAIT); },
        [](Channels* c) {
            ring_bell(c->daemon->resp_bell.get());
            sockaddr nobody{};
            nobody.sa_family = AF_UNSPEC;
            for (const Fd& fd : c->client.fds) ::connect(fd.get(), &nobody, sizeof nobody);
        },
    };
    for (const auto& trick : tricks) {
        Channels channels;
        trick(&channels);
        ring_bell(channels.daemon->resp_bell.get());
        drain_bell(channels.daemon->req_bell.get());
        EXPECT_FALSE(wait_readable(channels.daemon->req_bell.get(), 0));
    }
}

TEST(Bell, OnesOwnEventfdWorksAlike) {
    const Fd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    ring_bell(event.get());
    EXPECT_TRUE(wait_readable(event.get()));
    drain_bell(event.get());
    EXPECT_FALSE(wait_readable(event.get(), 0));
}

TEST(NoticeTest, DrainArrives) {
    const Pair pair;
    Notice notice;
    std::string error;
    EXPECT_EQ(receive_notice(pair.client.get(), &notice, nullptr, &error), ReceiveStatus::kAgain);
    ASSERT_TRUE(send_notice(pair.daemon.get(), NoticeKind::kDrain));
    ASSERT_EQ(receive_notice(pair.client.get(), &notice, nullptr, &error), ReceiveStatus::kOk);
    EXPECT_EQ(notice.kind, static_cast<uint32_t>(NoticeKind::kDrain));
}

TEST(NoticeTest, BadOnesAreToldApart) {
    const size_t before = open_descriptors();
    {
        const Pair pair;
        Notice notice;
        std::string error;
        const auto receive_bad = [&] {
            EXPECT_EQ(receive_notice(pair.client.get(), &notice, nullptr, &error),
                      ReceiveStatus::kBad);
            return error;
        };
        const Notice good{kNoticeMagic, 1, 0};
        detail::send(pair.daemon.get(), &good, sizeof good - 1, {});
        EXPECT_THAT(receive_bad(), HasSubstr("too short"));
        const Notice wrong{kNoticeMagic + 1, 1, 0};
        detail::send(pair.daemon.get(), &wrong, sizeof wrong, {});
        EXPECT_THAT(receive_bad(), HasSubstr("no notice"));
        const int fds[] = {0, 1};
        detail::send(pair.daemon.get(), &good, sizeof good, fds);
        EXPECT_THAT(receive_bad(), HasSubstr("descriptors"));
    }
    EXPECT_EQ(open_descriptors(), before);
}

TEST(NoticeTest, SendingToAPeerThatNeverReadsFailsInsteadOfBlocking) {
    const Pair pair;
    int sent = 0;
    while (send_notice(pair.daemon.get(), NoticeKind::kDrain)) ASSERT_LT(++sent, 1'000'000);
}

TEST(Credentials, AreThoseOfThePeer) {
    const Pair pair;
    const auto credentials = peer_credentials(pair.daemon.get());
    ASSERT_TRUE(credentials);
    EXPECT_EQ(credentials->uid, ::getuid());
    EXPECT_EQ(credentials->pid, ::getpid());
}

}  // namespace
}  // namespace xp::shm
