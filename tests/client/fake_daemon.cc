#include "tests/client/fake_daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

namespace xp::test {

Session::Session(shm::Fd socket, shm::ServerChannel channel, const shm::Hello& hello, int stop)
    : socket_(std::move(socket)),
      channel_(std::move(channel)),
      hello_(hello),
      stop_(stop),
      reader_(channel_.own(), channel_.peer()),
      writer_(channel_.own(), channel_.peer()) {}

// Until the client rings. False when it hung up or the test is over.
bool Session::sleep() {
    pollfd fds[] = {{socket_.get(), POLLRDHUP, 0},  // notices are for the script
                    {channel_.req_bell.get(), POLLIN, 0},
                    {stop_, POLLIN, 0}};
    if (::poll(fds, std::size(fds), 30'000) <= 0) {
        ADD_FAILURE() << "the fake daemon was not rung for 30 s";
        return false;
    }
    if (fds[0].revents || fds[2].revents) return false;
    shm::drain_bell(channel_.req_bell.get());
    return true;
}

std::optional<std::pair<uint64_t, shm::Request>> Session::next() {
    for (;;) {
        shm::Record record;
        const shm::RingStatus status = reader_.read(&record);
        if (status == shm::RingStatus::kOk) {
            if (reader_.peer_waits_for_space()) shm::ring_bell(channel_.resp_bell.get());
            std::string why;
            auto request = shm::decode_request(record.body, &why);
            EXPECT_TRUE(request) << why;
            if (!request) return std::nullopt;
            return std::pair(record.request_id, std::move(*request));
        }
        EXPECT_EQ(status, shm::RingStatus::kEmpty);
        if (status != shm::RingStatus::kEmpty) return std::nullopt;
        if (!reader_.prepare_wait_for_data()) continue;
        const bool awake = sleep();
        reader_.cancel_wait_for_data();
        if (!awake) return std::nullopt;
    }
}

bool Session::reply(uint64_t id, const shm::Reply& reply) {
    return raw(id, shm::encode_reply(reply));
}

bool Session::raw(uint64_t id, const std::vector<std::byte>& body) {
    for (;;) {
        const shm::RingStatus status = writer_.write(id, body);
        if (status == shm::RingStatus::kOk) break;
        EXPECT_EQ(status, shm::RingStatus::kFull);
        if (status != shm::RingStatus::kFull) return false;
        if (!writer_.prepare_wait_for_space(body.size())) continue;
        const bool awake = sleep();
        writer_.cancel_wait_for_space();
        if (!awake) return false;
    }
    if (writer_.peer_waits_for_data()) shm::ring_bell(channel_.resp_bell.get());
    return true;
}

bool Session::wait_for_hang_up() {
    pollfd fds[] = {{socket_.get(), POLLRDHUP, 0}, {stop_, POLLIN, 0}};
    return ::poll(fds, std::size(fds), 30'000) > 0 && fds[0].revents != 0;
}

FakeDaemon::FakeDaemon(Script script, const shm::ServerOffer& offer)
    : script_(std::move(script)), offer_(offer) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    stop_reads_.reset(ends[0]);
    stop_writes_.reset(ends[1]);
    thread_ = std::thread([this] { run(); });
}

FakeDaemon::~FakeDaemon() {
    stop_writes_.reset();
    thread_.join();
}

void FakeDaemon::run() {
    for (;;) {
        pollfd fds[] = {{listener_.fd(), POLLIN, 0}, {stop_reads_.get(), POLLIN, 0}};
        if (::poll(fds, std::size(fds), -1) < 0 || fds[1].revents) return;
        shm::Fd socket = listener_.accept();
        if (!socket || !shm::wait_readable(socket.get())) continue;
        shm::Hello hello;
        shm::WelcomeStatus refusal;
        std::string error;
        if (shm::receive_hello(socket.get(), &hello, &refusal, &error) !=
            shm::ReceiveStatus::kOk) {
            shm::send_refusal(socket.get(), refusal, error);
            continue;
        }
        auto channel = shm::open_channel(socket.get(), hello, offer_, &error);
        EXPECT_TRUE(channel) << error;
        if (!channel) continue;
        Session session(std::move(socket), std::move(*channel), hello, stop_reads_.get());
        script_(session);
    }
}

shm::ServerOffer small_rings() {
    shm::ServerOffer offer;
    offer.max_req_ring_bytes = shm::kMinRingBytes;
    offer.max_resp_ring_bytes = shm::kMinRingBytes;
    return offer;
}

}  // namespace xp::test
