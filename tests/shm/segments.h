// Two segments in shared anonymous memory, without descriptors and seals: what the ring tests need.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "shm/fd.h"
#include "shm/ring.h"

namespace xp::shm {

class Segments {
public:
    explicit Segments(uint64_t data_bytes) : data_bytes_(data_bytes) {
        for (Mapping* mapping : {&req_, &resp_}) {
            void* base = ::mmap(nullptr, kDataOffset + data_bytes, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
            EXPECT_NE(base, MAP_FAILED);
            *mapping = Mapping(base, kDataOffset + data_bytes);
        }
    }

    Segment req() const { return {req_.base(), data_bytes_}; }
    Segment resp() const { return {resp_.base(), data_bytes_}; }
    ConstSegment const_req() const { return {req_.base(), data_bytes_}; }
    ConstSegment const_resp() const { return {resp_.base(), data_bytes_}; }

    RingWriter client_writer() const { return RingWriter(req(), const_resp()); }
    RingReader client_reader() const { return RingReader(req(), const_resp()); }
    RingWriter daemon_writer() const { return RingWriter(resp(), const_req()); }
    RingReader daemon_reader() const { return RingReader(resp(), const_req()); }

    // What a hostile client does: any bytes anywhere in its segment.
    template <class T>
    void poke(uint64_t offset, T value) const {
        std::memcpy(req_.base() + offset, &value, sizeof value);
    }
    void poke_record(uint64_t at, RecordHeader header) const {
        std::memcpy(req_.base() + kDataOffset + at, &header, sizeof header);
    }

private:
    uint64_t data_bytes_;
    Mapping req_;
    Mapping resp_;
};

// The body of the n-th record of a stream: its size and bytes follow from seed and n alone, so that
// a reader in another thread or process can check them. Seeding a Mersenne twister for each record
// would cost more than the ring.
inline std::vector<std::byte> make_body(uint64_t seed, uint64_t n, size_t max_bytes) {
    uint64_t state = seed ^ n * 0x9e3779b97f4a7c15u;
    const auto random = [&state] {
        state += 0x9e3779b97f4a7c15u;
        const uint64_t mixed = (state ^ state >> 31) * 0xbf58476d1ce4e5b9u;
        return mixed ^ mixed >> 29;
    };
    // Small, large and in between, as a uniform size would hardly ever be small.
    const size_t bound = 1 + random() % max_bytes;
    const size_t size = 1 + random() % bound;
    std::vector<std::byte> body(size);
    for (size_t i = 0; i < size; i += 8) {
        const uint64_t word = random();
        std::memcpy(body.data() + i, &word, std::min<size_t>(8, size - i));
    }
    return body;
}

// The body as it was written, followed by nothing but the zeros that fill a record.
inline ::testing::AssertionResult is_body(const std::vector<std::byte>& got,
                                          const std::vector<std::byte>& expected) {
    if (got.size() != (expected.size() + 7) / 8 * 8) {
        return ::testing::AssertionFailure()
               << got.size() << " bytes for a body of " << expected.size();
    }
    for (size_t i = 0; i < got.size(); ++i) {
        const std::byte want = i < expected.size() ? expected[i] : std::byte{0};
        if (got[i] != want) return ::testing::AssertionFailure() << "byte " << i << " differs";
    }
    return ::testing::AssertionSuccess();
}

}  // namespace xp::shm
