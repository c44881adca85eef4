#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "shm/handshake.h"
#include "shm/handshake_detail.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace xp::shm {
namespace {

// A size that both sides accept: a power of two within the limits, no larger than the offer.
uint32_t negotiate(uint32_t wished, uint32_t offered) {
    const uint32_t size = std::min(std::bit_floor(wished), std::bit_floor(offered));
    return std::clamp(size, kMinRingBytes, kMaxRingBytes);
}

// A segment of the right size with its header, not yet sealed or mapped. The memory is allocated
// now: running out later would be a SIGBUS in the middle of serving somebody.
Fd create_segment(const char* name, uint32_t magic, uint64_t data_bytes, std::string* error) {
    const auto total = static_cast<off_t>(kDataOffset + data_bytes);
    Fd fd = detail::create_memfd(name);
    if (!fd) {
        *error = detail::errno_text("cannot create shared memory for a client");
        return {};
    }
    SegmentHeader header{};
    header.magic = magic;
    header.abi_major = kAbiMajor;
    header.abi_minor = kAbiMinor;
    header.total_bytes = static_cast<uint64_t>(total);
    header.data_offset = kDataOffset;
    header.data_bytes = data_bytes;
    if (::ftruncate(fd.get(), total) != 0 || ::fallocate(fd.get(), 0, 0, total) != 0 ||
        ::pwrite(fd.get(), &header, sizeof header, 0) != static_cast<ssize_t>(sizeof header)) {
        *error = detail::errno_text("cannot allocate " + std::to_string(total) +
                                    " bytes of shared memory for a client");
        return {};
    }
    return fd;
}

bool map_and_seal(const Fd& fd, uint64_t data_bytes, int protection, int seals, Mapping* mapping,
                  std::string* error) {
    const size_t total = kDataOffset + data_bytes;
    void* base = ::mmap(nullptr, total, protection, MAP_SHARED, fd.get(), 0);
    if (base == MAP_FAILED) {
        *error = detail::errno_text("cannot map shared memory of a client");
        return false;
    }
    *mapping = Mapping(base, total);
    // After mapping: FUTURE_WRITE forbids every writable mapping but those that exist.
    if (::fcntl(fd.get(), F_ADD_SEALS, seals) != 0) {
        *error = detail::errno_text("cannot seal shared memory of a client");
        return false;
    }
    return true;
}

// A bell: the first end listens, the second rings.
bool create_bell(Fd* listens, Fd* rings, std::string* error) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
        *error = detail::errno_text("cannot create a bell for a client");
        return false;
    }
    listens->reset(ends[0]);
    rings->reset(ends[1]);
    return true;
}

void put_text(std::string_view text, Welcome* welcome) {
    const size_t bytes = std::min(text.size(), sizeof welcome->text - 1);
    std::memcpy(welcome->text, text.data(), bytes);
}

}  // namespace

std::optional<PeerCredentials> peer_credentials(int socket) {
    ucred credentials{};
    socklen_t bytes = sizeof credentials;
    if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) {
        return std::nullopt;
    }
    return PeerCredentials{credentials.pid, credentials.uid, credentials.gid};
}

ReceiveStatus receive_hello(int socket, Hello* hello, WelcomeStatus* refusal, std::string* error) {
    *refusal = WelcomeStatus::kBadHello;
    std::byte buffer[kMaxHelloBytes];
    detail::Datagram datagram;
    const ReceiveStatus status = detail::receive(socket, buffer, &datagram, error);
    if (status != ReceiveStatus::kOk) return status;
    if (datagram.bytes < sizeof *hello) {
        *error = "a hello of " + std::to_string(datagram.bytes) + " bytes is too short, " +
                 std::to_string(sizeof *hello) + " are needed";
        return ReceiveStatus::kBad;
    }
    std::memcpy(hello, buffer, sizeof *hello);
    if (hello->magic != kHelloMagic) {
        *error = "the first message is no hello of an expertpack client";
        return ReceiveStatus::kBad;
    }
    if (!datagram.fds.empty()) {
        *error = "a hello came with descriptors";
        return ReceiveStatus::kBad;
    }
    if (hello->abi_major != kAbiMajor) {
        *refusal = WelcomeStatus::kBadVersion;
        *error = "the client speaks protocol version " + std::to_string(hello->abi_major) + "." +
                 std::to_string(hello->abi_minor) + ", the daemon " + std::to_string(kAbiMajor) +
                 "." + std::to_string(kAbiMinor) +
                 ": use client library and daemon of the same release";
        return ReceiveStatus::kBad;
    }
    const std::string name = detail::printable(hello->client_name);
    std::memset(hello->client_name, 0, sizeof hello->client_name);
    name.copy(hello->client_name, sizeof hello->client_name - 1);
    return ReceiveStatus::kOk;
}

void send_refusal(int socket, WelcomeStatus status, std::string_view text) {
    Welcome welcome;
    welcome.status = static_cast<uint32_t>(status);
    put_text(text, &welcome);
    detail::send(socket, &welcome, sizeof welcome, {});
}

std::optional<ServerChannel> open_channel(int socket, const Hello& hello, const ServerOffer& offer,
                                          std::string* error) {
    ServerChannel channel;
    channel.req_data_bytes = negotiate(hello.req_ring_bytes, offer.max_req_ring_bytes);
    channel.resp_data_bytes = negotiate(hello.resp_ring_bytes, offer.max_resp_ring_bytes);

    // The client may write into `req` for ever, so we map it read-only; `resp` is ours alone.
    constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    const Fd req =
        create_segment("expertpack-req", kRequestMagic, channel.req_data_bytes, error);
    if (!req || !map_and_seal(req, channel.req_data_bytes, PROT_READ, kSizeSeals, &channel.req,
                              error)) {
        return std::nullopt;
    }
    const Fd resp =
        create_segment("expertpack-resp", kResponseMagic, channel.resp_data_bytes, error);
    if (!resp || !map_and_seal(resp, channel.resp_data_bytes, PROT_READ | PROT_WRITE,
                               kSizeSeals | F_SEAL_FUTURE_WRITE, &channel.resp, error)) {
        return std::nullopt;
    }
    Fd client_resp_bell;
    if (!create_bell(&channel.req_bell, &channel.req_bell_ringer, error) ||
        !create_bell(&client_resp_bell, &channel.resp_bell, error)) {
        return std::nullopt;
    }

    Welcome welcome;
    welcome.abi_minor = std::min(kAbiMinor, hello.abi_minor);
    welcome.fds = kWelcomeFds;
    channel.features = kFeatures & hello.features;
    if (offer.max_enclosed_bytes == 0) channel.features &= ~kFeatureEnclosures;
    welcome.features = channel.features;
    welcome.req_ring_bytes = static_cast<uint32_t>(channel.req_data_bytes);
    welcome.resp_ring_bytes = static_cast<uint32_t>(channel.resp_data_bytes);
    welcome.max_record_bytes = welcome.req_ring_bytes / 2;
    welcome.max_in_flight = offer.max_in_flight;
    welcome.max_context = offer.max_context;
    if ((channel.features & kFeatureEnclosures) != 0) {
        welcome.max_enclosed_bytes = offer.max_enclosed_bytes;
    }
    std::copy(offer.boot_id.begin(), offer.boot_id.end(), welcome.boot_id);
    const int fds[kWelcomeFds] = {req.get(), resp.get(), channel.req_bell_ringer.get(),
                                  client_resp_bell.get()};
    if (!detail::send(socket, &welcome, sizeof welcome, fds)) {
        *error = detail::errno_text("cannot send the welcome");
        return std::nullopt;
    }
    return channel;
}

}  // namespace xp::shm
