// Misbehaviour in the shared memory: indices, records, wait words, the memfds themselves.
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/hostile/behaviours.h"
#include "tests/hostile/raw_client.h"

namespace xp::hostile {
namespace {

constexpr uint16_t kPad = 1;
constexpr uint16_t kMessage = 2;

// Publishes this tail after one honest exchange.
bool tail_costs_the_connection(const std::string& path, uint64_t (*tail)(const RawClient&)) {
    RawClient client = connected(path);
    if (!holds(client.served())) return false;
    client.publish(tail(client));
    return holds(client.closed());
}

bool tail_beyond_capacity(const std::string& path) {
    return tail_costs_the_connection(
        path, [](const RawClient& c) { return c.tail() + c.ring_bytes() + 8; });
}
bool tail_at_the_top(const std::string& path) {
    return tail_costs_the_connection(path, [](const RawClient&) { return ~uint64_t{7}; });
}
bool tail_backward(const std::string& path) {
    return tail_costs_the_connection(path, [](const RawClient& c) { return c.tail() - 8; });
}
bool tail_unaligned(const std::string& path) {
    return tail_costs_the_connection(path, [](const RawClient& c) { return c.tail() + 43; });
}

// Publishes 256 bytes that start with this header.
bool header_costs_the_connection(const std::string& path, shm::RecordHeader header) {
    RawClient client = connected(path);
    client.put_header(0, header);
    client.publish(256);
    return holds(client.closed());
}

bool length_zero(const std::string& path) {
    return header_costs_the_connection(path, {0, kMessage, 0, 1});
}
bool length_of_a_header(const std::string& path) {
    return header_costs_the_connection(path, {16, kMessage, 0, 1});
}
bool length_unaligned(const std::string& path) {
    return header_costs_the_connection(path, {44, kMessage, 0, 1});
}
bool length_beyond_tail(const std::string& path) {
    return header_costs_the_connection(path, {264, kMessage, 0, 1});
}
bool length_of_4_gib(const std::string& path) {
    return header_costs_the_connection(path, {0xfffffff8u, kMessage, 0, 1});
}
bool kind_unknown(const std::string& path) {
    return header_costs_the_connection(path, {256, 3, 0, 1});
}
bool flags_unknown(const std::string& path) {
    return header_costs_the_connection(path, {256, kMessage, 0x8000, 1});
}
bool request_id_zero(const std::string& path) {
    return header_costs_the_connection(path, {256, kMessage, 0, 0});
}
bool pad_at_the_start(const std::string& path) {
    return header_costs_the_connection(path, {256, kPad, 0, 0});
}

bool length_above_half(const std::string& path) {
    RawClient client = connected(path);
    const auto length = static_cast<uint32_t>(client.ring_bytes() / 2 + 8);
    client.put_header(0, {length, kMessage, 0, 1});
    client.publish(length);
    return holds(client.closed());
}

// An honest request of exactly this length: a ping with zeros behind it.
bool fill(RawClient& client, uint64_t length) {
    Bytes body = shm::encode_request(shm::Ping());
    body.resize(length - sizeof(shm::RecordHeader));
    return holds(client.write(client.tail() + 1, body)) && holds(client.next().has_value());
}

// Leaves `rest` bytes before the end of the ring.
bool fill_up_to(RawClient& client, uint64_t rest) {
    const uint64_t half = client.ring_bytes() / 2;
    return fill(client, half) && fill(client, half - rest);
}

bool record_over_the_end(const std::string& path) {
    RawClient client = connected(path);
    if (!fill_up_to(client, 64)) return false;
    client.put_header(client.tail() % client.ring_bytes(), {128, kMessage, 0, 1});
    client.publish(client.tail() + 128);
    return holds(client.closed());
}

bool pad_too_short(const std::string& path) {
    RawClient client = connected(path);
    if (!fill_up_to(client, 64)) return false;
    client.put_header(client.tail() % client.ring_bytes(), {32, kPad, 0, 0});
    client.publish(client.tail() + 128);
    return holds(client.closed());
}

bool pad_of_eight_bytes_that_says_more(const std::string& path) {
    RawClient client = connected(path);
    if (!fill_up_to(client, 8)) return false;
    const shm::RecordHeader header{24, kPad, 0, 0};
    client.put(client.tail() % client.ring_bytes(),
               std::as_bytes(std::span(&header, 1)).first(8));
    client.publish(client.tail() + 128);
    return holds(client.closed());
}

// Pads all around the ring, the next one always behind the one before.
bool pads_without_end(const std::string& path) {
    RawClient client = connected(path);
    if (!fill_up_to(client, 64)) return false;
    client.put_header(client.tail() % client.ring_bytes(), {64, kPad, 0, 0});
    client.put_header(0, {static_cast<uint32_t>(client.ring_bytes() - 64), kPad, 0, 0});
    client.publish(client.tail() + client.ring_bytes());
    return holds(client.closed());
}

// Another thread writes other headers and bodies over the records that the daemon reads. Whoever is
// faster: the daemon sees a record as it once was or a violation, and lives.
bool records_rewritten_while_read(const std::string& path) {
    uint64_t noise = 88172645463325252u;
    for (int round = 0; round < 12; ++round) {
        RawClient client = connected(path);
        std::atomic<bool> over{false};
        std::thread spoiler([&] {
            while (!over.load()) {
                noise ^= noise << 13;
                noise ^= noise >> 7;
                noise ^= noise << 17;
                // Within the first records: header words and bodies.
                std::atomic_ref<uint64_t>(
                    *reinterpret_cast<uint64_t*>(client.ring_base() + noise % 64 * 8))
                    .store(noise >> (noise % 61));
                if (noise % 64 == 0) std::this_thread::yield();
            }
        });
        for (uint64_t id = 1; id < 200 && !client.closed(0); ++id) {
            client.write(id, shm::Request(shm::Ping()));
        }
        over.store(true);
        spoiler.join();
    }
    return holds(connected(path).served());
}

bool hole_over_everything(const std::string& path) {
    RawClient client = connected(path);
    if (!holds(client.served())) return false;
    checked(::fallocate(client.req().get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                        static_cast<off_t>(shm::kDataOffset + client.ring_bytes())),
            "fallocate");
    client.ring();  // the tail is 0 again
    return holds(client.closed());
}

bool hole_as_a_record(const std::string& path) {
    RawClient client = connected(path);
    checked(::fallocate(client.req().get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096,
                        static_cast<off_t>(client.ring_bytes() - 4096)),
            "fallocate");
    if (!fill(client, 8192)) return false;  // what is written fills the hole again
    client.publish(client.tail() + 4096);
    return holds(client.closed());
}

// None of it is possible; the daemon keeps serving.
bool segments_resized_and_opened(const std::string& path) {
    RawClient client = connected(path);
    for (shm::Fd* segment : {&client.req(), &client.resp()}) {
        const int fd = segment->get();
        if (!holds(::ftruncate(fd, 0) < 0 && errno == EPERM) ||
            !holds(::ftruncate(fd, 1 << 30) < 0 && errno == EPERM) ||
            !holds(::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) < 0 && errno == EPERM)) {
            return false;
        }
    }
    const int resp = client.resp().get();
    const std::string link = "/proc/self/fd/" + std::to_string(resp);
    const shm::Fd again(::open(link.c_str(), O_RDWR | O_CLOEXEC));
    for (const int fd : {resp, again.get()}) {
        if (fd < 0) continue;
        void* base = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (!holds(base == MAP_FAILED) || !holds(::pwrite(fd, "x", 1, 64) < 0) ||
            !holds(::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) < 0)) {
            return false;
        }
    }
    return holds(client.served());
}

bool segment_header_overwritten(const std::string& path) {
    RawClient client = connected(path);
    std::memset(client.ring_base() - shm::kDataOffset, 0xff, shm::kLineBytes);
    return holds(client.served());
}

bool wait_words_of_garbage(const std::string& path) {
    RawClient client = connected(path);
    for (const uint32_t word : {0xffffffffu, 0u, 0xdeadbeefu, 4u, 3u}) {
        client.store_wait(word);
        if (!holds(client.served())) return false;
    }
    return true;
}

// Fills the response ring with replies that are not read, so that the daemon has to look at this
// client's head.
bool fill_replies(RawClient& client) {
    for (uint64_t id = 1; id <= 200; ++id) {
        if (!holds(client.write(id, shm::Request(shm::GetStats())))) return false;
    }
    return true;
}

bool head_costs_the_connection(const std::string& path, uint64_t head) {
    RawClient client = connected(path);
    if (!fill_replies(client)) return false;
    client.store(shm::kHeadOffset, head);
    client.ring();
    return holds(client.closed());
}

bool head_beyond_tail(const std::string& path) {
    return head_costs_the_connection(path, uint64_t{1} << 40);
}
bool head_unaligned(const std::string& path) {
    return head_costs_the_connection(path, 9);
}
bool head_backward(const std::string& path) {
    RawClient client = connected(path);
    if (!fill_replies(client)) return false;
    // Now the daemon has seen a head that is not 0: more than fits was read.
    for (int i = 0; i < 100; ++i) {
        if (!holds(client.next().has_value())) return false;
    }
    if (!fill_replies(client)) return false;
    client.store(shm::kHeadOffset, 0);
    client.ring();
    return holds(client.closed());
}

constexpr Behaviour kRingBehaviours[] = {
    {"tail_beyond_capacity", "more bytes than the ring has", 1, 0, tail_beyond_capacity},
    {"tail_at_the_top", "2^64 - 8", 1, 0, tail_at_the_top},
    {"tail_backward", "takes bytes back", 1, 0, tail_backward},
    {"tail_unaligned", "no multiple of 8", 1, 0, tail_unaligned},
    {"length_zero", "a record of length 0", 1, 0, length_zero},
    {"length_of_a_header", "a record without a body", 1, 0, length_of_a_header},
    {"length_unaligned", "no multiple of 8", 1, 0, length_unaligned},
    {"length_beyond_tail", "longer than what was published", 1, 0, length_beyond_tail},
    {"length_of_4_gib", "a length that overflows", 1, 0, length_of_4_gib},
    {"length_above_half", "longer than half the ring", 1, 0, length_above_half},
    {"kind_unknown", "a record of kind 3", 1, 0, kind_unknown},
    {"flags_unknown", "a record with flags", 1, 0, flags_unknown},
    {"request_id_zero", "a message that answers cannot name", 1, 0, request_id_zero},
    {"pad_at_the_start", "a pad where none may be", 1, 0, pad_at_the_start},
    {"record_over_the_end", "a record that wraps", 1, 0, record_over_the_end},
    {"pad_too_short", "a pad that ends before the ring", 1, 0, pad_too_short},
    {"pad_of_eight_bytes_that_says_more", "half a header at the very end", 1, 0,
     pad_of_eight_bytes_that_says_more},
    {"pads_without_end", "pad after pad", 1, 0, pads_without_end},
    {"records_rewritten_while_read", "a thread that writes over records", kAny, 0,
     records_rewritten_while_read},
    {"hole_over_everything", "punches the whole request segment", 1, 0, hole_over_everything},
    {"hole_as_a_record", "publishes a hole", 1, 0, hole_as_a_record},
    {"segments_resized_and_opened", "tries to resize, reseal, map and write the memfds", 0, 0,
     segments_resized_and_opened},
    {"segment_header_overwritten", "fills line 0 with ones", 0, 0, segment_header_overwritten},
    {"wait_words_of_garbage", "all bits, unknown bits", 0, 0, wait_words_of_garbage},
    {"head_beyond_tail", "read more than was written", 1, 0, head_beyond_tail},
    {"head_unaligned", "no multiple of 8", 1, 0, head_unaligned},
    {"head_backward", "did not read after all", 1, 0, head_backward},
};

}  // namespace

std::span<const Behaviour> ring_behaviours() {
    return kRingBehaviours;
}

}  // namespace xp::hostile
