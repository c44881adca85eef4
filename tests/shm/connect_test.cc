// The client's side of the handshake against daemons that behave and daemons that do not.
#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "shm/handshake.h"
#include "shm/handshake_detail.h"
#include "shm/ring.h"
#include "tests/shm/listener.h"

namespace xp::shm {
namespace {

using ::testing::HasSubstr;

struct Connected {
    ConnectStatus status;
    ClientChannel channel;
    std::string error;
};

// Connects while `daemon` treats the accepted socket in another thread; its result must outlive.
Connected connect_to(const std::function<void(Fd)>& daemon, int timeout_ms = 30'000) {
    const Listener listener;
    std::thread thread([&] {
        Fd socket = listener.accept();
        if (socket) daemon(std::move(socket));
    });
    Connected result;
    result.status =
        connect_channel(listener.path(), Hello{}, timeout_ms, &result.channel, &result.error);
    thread.join();
    return result;
}

bool take_hello(const Fd& socket) {
    Hello hello;
    WelcomeStatus refusal;
    std::string error;
    return wait_readable(socket.get()) &&
           receive_hello(socket.get(), &hello, &refusal, &error) == ReceiveStatus::kOk;
}

TEST(Connect, OpensTwoRingsThatCarryRecordsBothWays) {
    Fd socket;
    std::optional<ServerChannel> daemon;
    const Connected client = connect_to([&](Fd accepted) {
        socket = std::move(accepted);
        ASSERT_TRUE(take_hello(socket));
        std::string error;
        daemon = open_channel(socket.get(), Hello{}, ServerOffer{}, &error);
    });
    ASSERT_EQ(client.status, ConnectStatus::kOk) << client.error;
    ASSERT_TRUE(daemon);

    const std::vector<std::byte> body(40, std::byte{9});
    RingWriter up(client.channel.own(), client.channel.peer());
    RingReader from_client(daemon->own(), daemon->peer());
    Record record;
    ASSERT_EQ(up.write(5, body), RingStatus::kOk);
    ASSERT_EQ(from_client.read(&record), RingStatus::kOk);
    EXPECT_EQ(record.request_id, 5u);
    RingWriter down(daemon->own(), daemon->peer());
    RingReader from_daemon(client.channel.own(), client.channel.peer());
    ASSERT_EQ(down.write(5, body), RingStatus::kOk);
    ASSERT_EQ(from_daemon.read(&record), RingStatus::kOk);
    EXPECT_EQ(record.body, body);

    ring_bell(client.channel.req_bell.get());
    EXPECT_TRUE(wait_readable(daemon->req_bell.get()));
    ring_bell(daemon->resp_bell.get());
    EXPECT_TRUE(wait_readable(client.channel.resp_bell.get()));
    // The hang-up of either is seen by the other.
    socket.reset();
    Notice notice;
    std::string error;
    EXPECT_TRUE(wait_readable(client.channel.socket.get()));
    EXPECT_EQ(receive_notice(client.channel.socket.get(), &notice, nullptr, &error),
              ReceiveStatus::kClosed);
}

TEST(Connect, ChildrenOfForkDoNotSeeTheSegments) {
    std::optional<ServerChannel> daemon;
    const Connected client = connect_to([&](Fd socket) {
        ASSERT_TRUE(take_hello(socket));
        std::string error;
        daemon = open_channel(socket.get(), Hello{}, ServerOffer{}, &error);
    });
    ASSERT_EQ(client.status, ConnectStatus::kOk) << client.error;
    const pid_t child = ::fork();
    if (child == 0) {
        unsigned char resident[(kRequestRingBytes + kDataOffset) / 4096 + 1];
        const bool gone = ::mincore(client.channel.req.base(), client.channel.req.size(),
                                    resident) != 0;
        ::_exit(gone ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
}

TEST(Connect, RefusalsArriveWithTheirReason) {
    const std::pair<WelcomeStatus, ConnectStatus> cases[] = {
        {WelcomeStatus::kBadVersion, ConnectStatus::kBadVersion},
        {WelcomeStatus::kNotAllowed, ConnectStatus::kRefused},
        {WelcomeStatus::kTooManyClients, ConnectStatus::kRefused},
        {WelcomeStatus::kShuttingDown, ConnectStatus::kRefused},
        {WelcomeStatus::kInternal, ConnectStatus::kRefused},
    };
    for (const auto& [refusal, expected] : cases) {
        const Connected client = connect_to([&](Fd socket) {
            ASSERT_TRUE(take_hello(socket));
            send_refusal(socket.get(), refusal, "because of 64 clients");
        });
        EXPECT_EQ(client.status, expected);
        EXPECT_THAT(client.error, HasSubstr("because of 64 clients"));
        EXPECT_THAT(client.error, HasSubstr(welcome_status_name(refusal)));
    }
}

// A daemon that is full says so without waiting for the hello, and closes with that unread.
TEST(Connect, RefusalsArriveThoughTheHelloWasNeverRead) {
    const Connected client = connect_to([](Fd socket) {
        ASSERT_TRUE(wait_readable(socket.get()));
        send_refusal(socket.get(), WelcomeStatus::kTooManyClients, "64 of 64");
    });
    EXPECT_EQ(client.status, ConnectStatus::kRefused);
    EXPECT_THAT(client.error, HasSubstr("64 of 64"));
}

TEST(Connect, ALongReasonIsCut) {
    const Connected client = connect_to([](Fd socket) {
        ASSERT_TRUE(take_hello(socket));
        send_refusal(socket.get(), WelcomeStatus::kNotAllowed, std::string(1000, 'r'));
    });
    EXPECT_THAT(client.error, HasSubstr(std::string(kWelcomeTextBytes - 1, 'r')));
    EXPECT_EQ(client.error.find(std::string(kWelcomeTextBytes, 'r')), std::string::npos);
}

TEST(Connect, WithoutAListenerIsUnavailable) {
    Listener listener;
    ClientChannel channel;
    std::string error;
    EXPECT_EQ(connect_channel(listener.path() + "-not", Hello{}, 1000, &channel, &error),
              ConnectStatus::kUnavailable);
    EXPECT_THAT(error, HasSubstr(listener.path() + "-not"));
    EXPECT_THAT(error, HasSubstr("is expertpackd running?"));
    listener.close();
    EXPECT_EQ(connect_channel(listener.path(), Hello{}, 1000, &channel, &error),
              ConnectStatus::kUnavailable);
}

TEST(Connect, ImpossiblePathsAreTold) {
    ClientChannel channel;
    std::string error;
    EXPECT_EQ(connect_channel("", Hello{}, 0, &channel, &error), ConnectStatus::kBadPath);
    EXPECT_EQ(connect_channel(std::string(108, 'p'), Hello{}, 0, &channel, &error),
              ConnectStatus::kBadPath);
    EXPECT_THAT(error, HasSubstr("1 to 107 bytes"));
}

TEST(Connect, ToASilentDaemonTimesOut) {
    const Listener listener;
    ClientChannel channel;
    std::string error;
    for (const int timeout_ms : {0, 20}) {
        EXPECT_EQ(connect_channel(listener.path(), Hello{}, timeout_ms, &channel, &error),
                  ConnectStatus::kTimeout);
    }
    EXPECT_THAT(error, HasSubstr("did not answer in time"));
}

TEST(Connect, ToAFullBacklogTimesOut) {
    const Listener listener(0);
    ClientChannel channel;
    std::string error;
    // Connections that nobody accepts fill the backlog of one.
    for (int i = 0; i < 4; ++i) {
        EXPECT_EQ(connect_channel(listener.path(), Hello{}, 10, &channel, &error),
                  ConnectStatus::kTimeout);
    }
}

TEST(Connect, ToADaemonThatHangsUpIsUnavailable) {
    const Connected client = connect_to([](Fd socket) { ASSERT_TRUE(take_hello(socket)); });
    EXPECT_EQ(client.status, ConnectStatus::kUnavailable);
    EXPECT_THAT(client.error, HasSubstr("without an answer"));
}

// ---- daemons that send nonsense ---------------------------------------------------------------

Fd make_memfd(uint64_t bytes, int seals, uint32_t magic, uint64_t claimed) {
    Fd fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    SegmentHeader header{magic, kAbiMajor, kAbiMinor, claimed + kDataOffset, kDataOffset, claimed,
                         {}};
    EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
    EXPECT_EQ(::pwrite(fd.get(), &header, sizeof header, 0),
              static_cast<ssize_t>(sizeof header));
    EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
    return fd;
}

struct Nonsense {
    Welcome welcome;
    Fd req;
    Fd resp;
    int fds = 4;
    size_t bytes = sizeof(Welcome);
};

constexpr uint64_t kSize = kMinRingBytes;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

Nonsense good_welcome() {
    Nonsense n;
    n.welcome.fds = 4;
    n.welcome.req_ring_bytes = n.welcome.resp_ring_bytes = kSize;
    n.req = make_memfd(kSize + kDataOffset, kSeals, kRequestMagic, kSize);
    n.resp = make_memfd(kSize + kDataOffset, kSeals, kResponseMagic, kSize);
    return n;
}

Connected connect_to_nonsense(const Nonsense& n) {
    return connect_to([&](Fd socket) {
        ASSERT_TRUE(take_hello(socket));
        std::vector<int> fds = {n.req.get(), n.resp.get(), socket.get(), socket.get()};
        fds.resize(static_cast<size_t>(n.fds));
        EXPECT_TRUE(detail::send(socket.get(), &n.welcome, n.bytes, fds));
    });
}

TEST(ConnectNonsense, TheHandMadeWelcomeIsGoodByItself) {
    const Connected client = connect_to_nonsense(good_welcome());
    EXPECT_EQ(client.status, ConnectStatus::kOk) << client.error;
}

TEST(ConnectNonsense, IsRefusedWithAReasonAndWithoutLeaks) {
    const auto count = [] {
        return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
    };
    const std::pair<std::function<void(Nonsense*)>, std::string> cases[] = {
        {[](Nonsense* n) { n->bytes = sizeof(Welcome) - 1; }, "too short"},
        {[](Nonsense* n) { n->welcome.magic = 0; }, "no expertpackd"},
        {[](Nonsense* n) { n->welcome.abi_major = 2; }, "2.1"},
        {[](Nonsense* n) { n->welcome.abi_minor = 7; }, "1.7"},
        {[](Nonsense* n) { n->fds = 3; }, "3 descriptors"},
        {[](Nonsense* n) { n->fds = 0; }, "0 descriptors"},
        {[](Nonsense* n) { n->welcome.fds = 3; }, "descriptors"},
        {[](Nonsense* n) { n->welcome.req_ring_bytes = kSize + 1; }, "impossible ring size"},
        {[](Nonsense* n) { n->welcome.resp_ring_bytes = 0; }, "impossible ring size"},
        {[](Nonsense* n) { n->welcome.resp_ring_bytes = 2 * kSize; }, "does not have the size"},
        {[](Nonsense* n) { std::swap(n->req, n->resp); }, "header"},
        {[](Nonsense* n) {
             n->req = make_memfd(kSize + kDataOffset, F_SEAL_GROW, kRequestMagic, kSize);
         },
         "not sealed"},
        {[](Nonsense* n) {
             n->resp = make_memfd(kSize, kSeals, kResponseMagic, kSize);
         },
         "does not have the size"},
        {[](Nonsense* n) {
             n->resp = make_memfd(kSize + kDataOffset, kSeals, kResponseMagic, kSize / 2);
         },
         "header"},
        {[](Nonsense* n) {
             n->resp = Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
         },
         "does not have the size"},
    };
    const auto before = count();
    for (const auto& [spoil, expected] : cases) {
        Nonsense n = good_welcome();
        spoil(&n);
        const Connected client = connect_to_nonsense(n);
        EXPECT_NE(client.status, ConnectStatus::kOk) << expected;
        EXPECT_THAT(client.error, HasSubstr(expected));
    }
    EXPECT_EQ(count(), before);
}

}  // namespace
}  // namespace xp::shm
