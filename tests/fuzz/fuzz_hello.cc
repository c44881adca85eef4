// The first byte says which side of the handshake the input speaks to, the second how many
// descriptors come along and the third of which kind; the rest are datagrams, each after its
// length. The daemon's side gets a hello and then notices, the client's side a welcome.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <string>
#include <thread>
#include <vector>

#include "shm/handshake.h"
#include "shm/ring.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using xp::fuzz::Input;
using namespace xp::shm;

constexpr int kMaxFds = 10;
constexpr int kMaxNotices = 4;
constexpr int kTimeoutMs = 1000;

struct Letter {
    std::vector<uint8_t> bytes;
    std::vector<Fd> fds;
};

// As a daemon makes it, or not quite: `kind` has a bit for each thing that can be wrong.
Fd make_segment(unsigned kind, uint32_t magic, uint32_t ring_bytes) {
    if (kind & 8) return Fd(::open("/dev/null", O_RDWR | O_CLOEXEC));
    Fd fd(::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    const uint64_t total = kDataOffset + ring_bytes;
    SegmentHeader header{};
    header.magic = magic;
    header.abi_major = kAbiMajor;
    header.total_bytes = total;
    header.data_offset = kDataOffset;
    header.data_bytes = kind & 4 ? total : ring_bytes;
    FUZZ_EXPECT(fd && ::ftruncate(fd.get(), static_cast<off_t>(total - (kind & 1))) == 0);
    FUZZ_EXPECT(::pwrite(fd.get(), &header, sizeof header, 0) == sizeof header);
    if (!(kind & 2)) ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
    return fd;
}

void send_letter(int socket, const Letter& letter) {
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kMaxFds * sizeof(int))> control{};
    iovec part{const_cast<uint8_t*>(letter.bytes.data()), letter.bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (!letter.fds.empty()) {
        const size_t bytes = letter.fds.size() * sizeof(int);
        message.msg_control = control.data();
        message.msg_controllen = CMSG_SPACE(bytes);
        cmsghdr* c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(bytes);
        for (size_t i = 0; i < letter.fds.size(); ++i) {
            const int fd = letter.fds[i].get();
            std::memcpy(CMSG_DATA(c) + i * sizeof fd, &fd, sizeof fd);
        }
    }
    ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

Letter next_letter(Input& input) {
    const auto bytes = input.take(input.number<uint16_t>());
    return {{bytes.begin(), bytes.end()}, {}};
}

void to_daemon(Input& input, int n_fds, unsigned kind) {
    int ends[2];
    FUZZ_EXPECT(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    const Fd daemon(ends[0]), client(ends[1]);
    std::vector<Fd> fds;
    for (int i = 0; i < n_fds; ++i) fds.push_back(make_segment(kind, kRequestMagic, kMinRingBytes));
    Letter first = next_letter(input);
    // The others send the descriptors with the first notice.
    if (kind & 16) first.fds = std::exchange(fds, {});
    send_letter(client.get(), first);
    Hello hello;
    WelcomeStatus refusal{};
    std::string error;
    const ReceiveStatus status = receive_hello(daemon.get(), &hello, &refusal, &error);
    if (status != ReceiveStatus::kOk) {
        FUZZ_EXPECT(status == ReceiveStatus::kAgain || !error.empty());
        send_refusal(daemon.get(), refusal, error);
        return;
    }
    for (const char c : hello.client_name) FUZZ_EXPECT(c == 0 || (c >= ' ' && c <= '~'));
    FUZZ_EXPECT(hello.client_name[kClientNameBytes - 1] == 0);
    ServerOffer offer;
    offer.max_req_ring_bytes = offer.max_resp_ring_bytes = kMinRingBytes;
    const auto channel = open_channel(daemon.get(), hello, offer, &error);
    FUZZ_EXPECT(channel.has_value());
    FUZZ_EXPECT(channel->req_data_bytes == kMinRingBytes);
    for (int i = 0; i < kMaxNotices && input.left() > 0; ++i) {
        Letter letter = next_letter(input);
        letter.fds = std::exchange(fds, {});
        send_letter(client.get(), letter);
        Notice notice;
        Fd enclosed;
        (void)receive_notice(daemon.get(), &notice, &enclosed, &error);
    }
}

// Answers each connection with one letter.
class Listener {
public:
    Listener() : path_("/tmp/xp-fuzz-" + std::to_string(::getpid()) + ".sock") {
        socket_ = Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        path_.copy(address.sun_path, sizeof address.sun_path - 1);
        ::unlink(path_.c_str());
        FUZZ_EXPECT(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) ==
                    0);
        FUZZ_EXPECT(::listen(socket_.get(), 4) == 0);
    }
    ~Listener() { ::unlink(path_.c_str()); }
    const std::string& path() const { return path_; }
    void answer(const Letter& letter) const {
        const Fd peer(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        std::byte hello[kMaxHelloBytes];
        FUZZ_EXPECT(::recv(peer.get(), hello, sizeof hello, 0) == sizeof(Hello));
        send_letter(peer.get(), letter);
    }

private:
    std::string path_;
    Fd socket_;
};

void to_client(Input& input, int n_fds, unsigned kind) {
    static const Listener listener;
    Letter letter = next_letter(input);
    Welcome welcome;
    letter.bytes.resize(std::max(letter.bytes.size(), sizeof welcome));
    std::memcpy(&welcome, letter.bytes.data(), sizeof welcome);
    // The pages are never touched, so large ones cost nothing.
    for (int i = 0; i < n_fds; ++i) {
        const bool request = i == 0;
        const uint32_t bytes = request ? welcome.req_ring_bytes : welcome.resp_ring_bytes;
        letter.fds.push_back(make_segment(i < 2 ? kind : 0,
                                          request ? kRequestMagic : kResponseMagic, bytes));
    }
    ClientChannel channel;
    std::string error;
    std::thread daemon([&] { listener.answer(letter); });
    const ConnectStatus status =
        connect_channel(listener.path(), Hello(), kTimeoutMs, &channel, &error);
    daemon.join();
    if (status != ConnectStatus::kOk) {
        FUZZ_EXPECT(!error.empty());
        return;
    }
    FUZZ_EXPECT(channel.req.size() == kDataOffset + channel.welcome.req_ring_bytes);
    FUZZ_EXPECT(channel.resp.size() == kDataOffset + channel.welcome.resp_ring_bytes);
    RingReader reader(channel.own(), channel.peer());
    Record record;
    FUZZ_EXPECT(reader.read(&record) == RingStatus::kEmpty);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
    Input input(data, bytes);
    const bool daemon = input.number<uint8_t>() % 2 == 0;
    const int n_fds = input.number<uint8_t>() % (kMaxFds + 1);
    const unsigned kind = input.number<uint8_t>();
    if (daemon) {
        to_daemon(input, n_fds, kind);
    } else {
        to_client(input, n_fds, kind);
    }
    return 0;
}
