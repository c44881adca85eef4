// One direction of a client's connection: a byte ring of records in a sealed memfd, with one writer
// and one reader. Layout and orders: shm/layout.h, docs/protocol.md.
//
// Each side keeps the indices it owns in private memory and only publishes them; of the peer it
// reads single words, once, and checks them. Records are copied out before anything looks at them.
// A peer that breaks the rules makes calls fail with kViolation; nothing it writes can make this
// side read or write outside the ring, loop without end, or crash.
//
// Wake-ups: after write() the writer rings the peer's doorbell if the peer said that it sleeps;
// wait flags are set with a full fence and a second look on both sides (Dekker), so none is lost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "shm/layout.h"

namespace xp::shm {

struct Record {
    uint64_t request_id = 0;
    std::vector<std::byte> body;
};

enum class RingStatus : uint8_t {
    kOk,
    kEmpty,      // nothing to read
    kFull,       // no room now
    kTooLarge,   // can never fit: larger than max_record_bytes
    kViolation,  // the peer broke the protocol
};

// `own` is the segment this side writes (mapped read-write), `peer` the one it only reads.
// Both point to whole mapped segments of the given layouts; they stay mapped while in use.
class RingWriter {
public:
    RingWriter(Segment own, ConstSegment peer);

    // `request_id` is not 0. kTooLarge also for an empty body, which is no record.
    RingStatus write(uint64_t request_id, std::span<const std::byte> body);
    uint64_t free_bytes();  // 0 after a violation
    uint64_t max_record_bytes() const;  // with the header: bodies are up to 16 bytes less
    // True when the peer sleeps for data (it must be rung after a successful write).
    bool peer_waits_for_data() const;
    // Declares that this side waits for room for a body of `bytes`; false when there is room after
    // all, or the peer broke the protocol: call write() then.
    bool prepare_wait_for_space(uint64_t bytes);
    void cancel_wait_for_space();

private:
    bool refresh_head();
    uint64_t bytes_with_pad(uint64_t length) const;

    Segment own_;
    ConstSegment peer_;
    uint64_t tail_ = 0;
    uint64_t peer_head_ = 0;  // last value seen
    bool broken_ = false;
};

class RingReader {
public:
    RingReader(Segment own, ConstSegment peer);

    // kOk with a record, kEmpty, or kViolation. The body keeps the zero bytes, up to seven, that
    // fill the record to a multiple of eight; messages carry their own length.
    RingStatus read(Record* record);
    // True when the peer sleeps for room (it must be rung after records were consumed).
    bool peer_waits_for_space() const;
    // Declares that this side sleeps; false when there is something to read after all, be it a
    // violation: call read() then.
    bool prepare_wait_for_data();
    void cancel_wait_for_data();

private:
    bool refresh_tail();
    void consume(uint64_t bytes);

    Segment own_;
    ConstSegment peer_;
    uint64_t head_ = 0;
    uint64_t peer_tail_ = 0;
    bool broken_ = false;
};

}  // namespace xp::shm
