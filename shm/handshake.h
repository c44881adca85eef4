// How a connection begins, and what its socket carries afterwards.
//
// The client connects to the daemon's SOCK_SEQPACKET socket and sends one Hello. The daemon answers
// with one Welcome: either a refusal (status and text, then it closes), or status kOk with four
// descriptors in fixed order {req memfd, resp memfd, req bell, resp bell}. Hello and Welcome have a
// fixed form in every version, so that any daemon can refuse any client politely. From then on all
// messages go through the rings (shm/ring.h); the socket carries small notices, and its hang-up is
// the death of the peer. The socket is the lease: nothing outlives it.
//
// The client rings `req bell` after it wrote to the req ring or freed room in the resp ring while
// the daemon's wait flags say that it sleeps; the daemon rings `resp bell` in the same way. A stray
// ring is harmless. Bells are pairs of datagram sockets and not eventfds, because both holders of
// an eventfd share its O_NONBLOCK flag: a client that clears the flag and fills the counter blocks
// the daemon in its next write (tried, it does). Datagram sockets do not see the peer close or shut
// down its end, so that a bell cannot be made readable for ever; the socket tells of deaths.
//
// All functions are free of state, do not log, and may be called from any thread. The server side
// never blocks: its sockets must be non-blocking. Failures come back with a text for a person.
// Nothing here trusts the peer: sizes, counts and seals are checked before anything is mapped.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <sys/types.h>

#include "shm/fd.h"
#include "shm/layout.h"

namespace xp::shm {

inline constexpr char kDefaultSocketPath[] = "/run/expertpackd/expertpackd.sock";

inline constexpr uint32_t kHelloMagic = 0x48505058;    // "XPPH"
inline constexpr uint32_t kWelcomeMagic = 0x57505058;  // "XPPW"
inline constexpr uint32_t kNoticeMagic = 0x4e505058;   // "XPPN"

// A Hello may be longer than this version knows (a newer minor appends); the rest is ignored.
inline constexpr size_t kMaxHelloBytes = 4096;
inline constexpr size_t kClientNameBytes = 32;
inline constexpr size_t kWelcomeTextBytes = 152;
inline constexpr int kWelcomeFds = 4;

// The ring sizes that can be negotiated. The lower end holds a few small messages; the upper one
// bounds what one client can make the daemon allocate.
inline constexpr uint32_t kMinRingBytes = uint32_t{64} << 10;
inline constexpr uint32_t kMaxRingBytes = uint32_t{64} << 20;

using BootId = std::array<uint8_t, 16>;

// Feature bits; what counts is the AND of both sides.
inline constexpr uint64_t kFeatureEnclosures = 1;  // shm/enclosure.h
inline constexpr uint64_t kFeatures = kFeatureEnclosures;

struct Hello {
    uint32_t magic = kHelloMagic;
    uint16_t abi_major = kAbiMajor;
    uint16_t abi_minor = kAbiMinor;
    uint64_t features = kFeatures;
    uint32_t req_ring_bytes = kRequestRingBytes;   // wished; a power of two
    uint32_t resp_ring_bytes = kResponseRingBytes;
    uint8_t reserved[8] = {};
    char client_name[kClientNameBytes] = {};       // UTF-8, for logs; ends with a NUL
};
static_assert(sizeof(Hello) == 64);

enum class WelcomeStatus : uint32_t {
    kOk = 0,
    kBadVersion = 1,      // other major version; the text names both
    kNotAllowed = 2,
    kTooManyClients = 3,
    kShuttingDown = 4,
    kBadHello = 5,        // not a Hello at all
    kInternal = 6,        // the daemon could not make the channel
};
const char* welcome_status_name(WelcomeStatus status);

struct Welcome {
    uint32_t magic = kWelcomeMagic;
    uint16_t abi_major = kAbiMajor;
    uint16_t abi_minor = kAbiMinor;       // the lower one of both sides
    uint32_t status = 0;                  // WelcomeStatus
    uint32_t fds = 0;                     // kWelcomeFds, or 0 in a refusal
    uint64_t features = 0;                // of both sides
    uint32_t req_ring_bytes = 0;
    uint32_t resp_ring_bytes = 0;
    uint32_t max_record_bytes = 0;        // of the req ring, with the record header
    uint32_t max_in_flight = 0;           // Generate requests of this connection at a time
    uint32_t max_context = 0;             // the largest context of the models; 0: unknown
    uint32_t max_enclosed_bytes = 0;      // of a request in a sealed memfd; 0: not taken
    uint8_t boot_id[16] = {};             // changes when the daemon started with empty caches
    uint8_t reserved[40] = {};
    char text[kWelcomeTextBytes] = {};    // why a client is refused; ends with a NUL
};
static_assert(sizeof(Welcome) == 256);

// ---- notices ----------------------------------------------------------------------------------

enum class NoticeKind : uint32_t {
    kDrain = 1,     // daemon to client: shutting down, new Generate requests will be refused
    kEnclosed = 2,  // client to daemon, one descriptor: a request, see shm/enclosure.h
};

struct Notice {
    uint32_t magic = kNoticeMagic;
    uint32_t kind = 0;
    uint64_t value = 0;                   // kEnclosed: bytes of the message; kDrain: 0
};
static_assert(sizeof(Notice) == 16);

enum class ReceiveStatus : uint8_t {
    kOk,
    kAgain,   // nothing there now
    kClosed,  // the peer hung up
    kBad,     // what came breaks the protocol; `error` says how
};

// Without blocking; false when the peer is gone or does not read, errno says which. `enclosed` is
// the descriptor of kEnclosed.
bool send_notice(int socket, NoticeKind kind, uint64_t value = 0, int enclosed = -1);
// Without blocking. A kEnclosed notice has exactly one descriptor, which comes in *enclosed; with
// any other, or where `enclosed` is null, descriptors are closed and make it kBad. A kind that is
// not known is handed out all the same: newer minors may add some, to be ignored.
ReceiveStatus receive_notice(int socket, Notice* notice, Fd* enclosed, std::string* error);

// ---- bells ------------------------------------------------------------------------------------

// Both never block, and take an eventfd or timerfd of one's own as well, so that a server has one
// way to wake and be woken.

// Never raises SIGPIPE. A full bell means that the peer has been rung already.
void ring_bell(int bell);
// Takes what was rung; call it before looking at the rings, never after. Bounded: a peer that rings
// without end leaves the bell readable.
void drain_bell(int bell);

// ---- daemon side ------------------------------------------------------------------------------

struct PeerCredentials {
    pid_t pid = 0;  // for logs only: it may be reused
    uid_t uid = 0;
    gid_t gid = 0;
};
std::optional<PeerCredentials> peer_credentials(int socket);

// What the daemon offers; `text` members of Welcome are filled by the functions below.
struct ServerOffer {
    uint32_t max_req_ring_bytes = kRequestRingBytes;    // powers of two
    uint32_t max_resp_ring_bytes = kResponseRingBytes;
    uint32_t max_in_flight = 0;
    uint32_t max_context = 0;
    uint32_t max_enclosed_bytes = 0;    // 0: enclosures are not taken, whatever the client can do
    BootId boot_id{};
};

// Reads the Hello of a freshly accepted socket. kBad: send the refusal that `refusal` names with
// the text in `error`, and close. The version is checked here. The name is made safe to log
// (printable ASCII, others become '?').
ReceiveStatus receive_hello(int socket, Hello* hello, WelcomeStatus* refusal, std::string* error);

// Sends a refusal; best effort, as the connection is closed in any case. Long texts are cut.
void send_refusal(int socket, WelcomeStatus status, std::string_view text);

// The daemon's end of an open connection. The peer's segment is mapped read-only. Lives as long as
// the socket; destroying it unmaps, so readers and writers of its segments must be gone before.
struct ServerChannel {
    Mapping req;        // read-only
    Mapping resp;       // read-write, the only writable mapping there can ever be
    Fd req_bell;        // readable when the client rang
    Fd req_bell_ringer; // rings req_bell from here, to come back to this client in another turn
    Fd resp_bell;       // to be rung for the client
    uint64_t req_data_bytes = 0;
    uint64_t resp_data_bytes = 0;
    uint64_t features = 0;  // of both sides

    Segment own() const { return {resp.base(), resp_data_bytes}; }
    ConstSegment peer() const { return {req.base(), req_data_bytes}; }
};

// Creates segments and bells for a Hello and sends the Welcome with their descriptors. Ring sizes
// are the client's wish, cut to the offer. Nothing, and `error`, when that fails: memory or
// descriptors are short, or the client went away.
std::optional<ServerChannel> open_channel(int socket, const Hello& hello, const ServerOffer& offer,
                                          std::string* error);

// ---- client side ------------------------------------------------------------------------------

enum class ConnectStatus : uint8_t {
    kOk,
    kUnavailable,  // nobody listens, or no permission
    kTimeout,
    kRefused,      // see welcome.status
    kBadVersion,
    kProtocol,     // what came was no valid Welcome
    kSystem,
    kBadPath,      // empty, or too long for a socket address
    kNoMemory,     // of this process, or of the system for a socket
};

// The client's end. The peer's segment is mapped read-only; mappings are MADV_DONTFORK.
struct ClientChannel {
    Fd socket;          // non-blocking
    Mapping req;        // read-write
    Mapping resp;       // read-only
    Fd req_bell;        // to be rung for the daemon
    Fd resp_bell;       // readable when the daemon rang
    Welcome welcome;

    Segment own() const { return {req.base(), welcome.req_ring_bytes}; }
    ConstSegment peer() const { return {resp.base(), welcome.resp_ring_bytes}; }
};

// Connects to the socket at `path`, sends `hello`, and waits up to timeout_ms (negative: without
// limit) for the Welcome. On kOk the channel is mapped and checked; on kRefused only its welcome is
// set.
ConnectStatus connect_channel(std::string_view path, const Hello& hello, int timeout_ms,
                              ClientChannel* channel, std::string* error);

}  // namespace xp::shm
