#include "shm/ring.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

namespace xp::shm {
namespace {

static_assert(std::endian::native == std::endian::little, "the layout is little-endian");

constexpr uint64_t kAlign = 8;
constexpr uint64_t kHeaderBytes = sizeof(RecordHeader);

uint64_t align_up(uint64_t bytes) {
    return (bytes + kAlign - 1) & ~(kAlign - 1);
}

std::atomic_ref<uint64_t> word(const Segment& own, uint64_t offset) {
    return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(own.base + offset));
}
std::atomic_ref<uint32_t> wait_word(const Segment& own) {
    return std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(own.base + kWaitOffset));
}

// The peer's words are only ever loaded: its segment is mapped read-only, and C++20 has no
// atomic_ref of const. Lock-free loads of these sizes never write.
uint64_t load_peer_word(const ConstSegment& peer, uint64_t offset, std::memory_order order) {
    auto* p = reinterpret_cast<uint64_t*>(const_cast<std::byte*>(peer.base + offset));
    return std::atomic_ref<uint64_t>(*p).load(order);
}
bool peer_waits(const ConstSegment& peer, uint32_t bit) {
    auto* p = reinterpret_cast<uint32_t*>(const_cast<std::byte*>(peer.base + kWaitOffset));
    // Relaxed: the full fence before it orders this load after our own published index.
    return (std::atomic_ref<uint32_t>(*p).load(std::memory_order_relaxed) & bit) != 0;
}

// A full fence between a store of ours and a load of the peer's word, on both sides of the ring:
// either we see its wait flag, or it sees our index (Dekker). Release and acquire do not order a
// store before a later load.
void full_fence() {
#if defined(__SANITIZE_THREAD__)
    // The thread sanitizer does not know fences; a sequentially consistent exchange is one as well.
    static std::atomic<uint32_t> dummy{0};
    dummy.exchange(0, std::memory_order_seq_cst);
#else
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

// Relaxed: the flag carries no data, and full_fence() follows where order matters. A read-modify-
// write, as reader and writer of one side share the word.
void set_wait(const Segment& own, uint32_t bit) {
    wait_word(own).fetch_or(bit, std::memory_order_relaxed);
}
void clear_wait(const Segment& own, uint32_t bit) {
    wait_word(own).fetch_and(~bit, std::memory_order_relaxed);
}

// The first bytes of a record header as two atomic words, so that the compiler cannot look at the
// peer's memory a second time. At the very end of the ring only eight bytes may be left: a pad that
// short has no request_id.
RecordHeader load_header(const ConstSegment& peer, uint64_t offset, uint64_t to_end) {
    uint64_t words[2] = {0, 0};
    words[0] = load_peer_word(peer, kDataOffset + offset, std::memory_order_relaxed);
    if (to_end >= kHeaderBytes) {
        words[1] = load_peer_word(peer, kDataOffset + offset + 8, std::memory_order_relaxed);
    }
    return std::bit_cast<RecordHeader>(words);
}

}  // namespace

// ---- writer -----------------------------------------------------------------------------------

RingWriter::RingWriter(Segment own, ConstSegment peer) : own_(own), peer_(peer) {}

uint64_t RingWriter::max_record_bytes() const {
    return own_.data_bytes / 2;
}

// Loads the peer's head once; false when it is none that an honest reader can have.
bool RingWriter::refresh_head() {
    if (broken_) return false;
    // Acquire: the reader's copying out of a record happens before we overwrite it.
    const uint64_t head = load_peer_word(peer_, kHeadOffset, std::memory_order_acquire);
    if (head < peer_head_ || head > tail_ || head % kAlign != 0) {
        broken_ = true;
        return false;
    }
    peer_head_ = head;
    return true;
}

// Bytes to publish for a record of `length`, with the pad that it needs before it.
uint64_t RingWriter::bytes_with_pad(uint64_t length) const {
    const uint64_t to_end = own_.data_bytes - (tail_ & (own_.data_bytes - 1));
    return to_end < length ? to_end + length : length;
}

RingStatus RingWriter::write(uint64_t request_id, std::span<const std::byte> body) {
    if (broken_) return RingStatus::kViolation;
    // Checked before the sum, which could overflow. An empty body is no record either.
    if (body.empty() || body.size() > max_record_bytes()) return RingStatus::kTooLarge;
    const uint64_t length = align_up(kHeaderBytes + body.size());
    if (length > max_record_bytes()) return RingStatus::kTooLarge;

    // No more than the whole ring: a pad is shorter than its record, and that at most half.
    const uint64_t needed = bytes_with_pad(length);
    if (own_.data_bytes - (tail_ - peer_head_) < needed) {
        if (!refresh_head()) return RingStatus::kViolation;
        if (own_.data_bytes - (tail_ - peer_head_) < needed) return RingStatus::kFull;
    }

    std::byte* data = own_.base + kDataOffset;
    uint64_t offset = tail_ & (own_.data_bytes - 1);
    if (needed != length) {
        const uint64_t pad = needed - length;
        const RecordHeader header{static_cast<uint32_t>(pad),
                                  static_cast<uint16_t>(RecordKind::kPad), 0, 0};
        std::memcpy(data + offset, &header, std::min(pad, kHeaderBytes));
        offset = 0;
    }
    const RecordHeader header{static_cast<uint32_t>(length),
                              static_cast<uint16_t>(RecordKind::kMessage), 0, request_id};
    std::memcpy(data + offset, &header, kHeaderBytes);
    std::memcpy(data + offset + kHeaderBytes, body.data(), body.size());
    // The padding is zeroed: bytes of older records are none of the next one's business.
    std::memset(data + offset + kHeaderBytes + body.size(), 0,
                length - kHeaderBytes - body.size());

    tail_ += needed;
    // Release: the record is complete before the tail that announces it.
    word(own_, kTailOffset).store(tail_, std::memory_order_release);
    return RingStatus::kOk;
}

uint64_t RingWriter::free_bytes() {
    if (!refresh_head()) return 0;
    return own_.data_bytes - (tail_ - peer_head_);
}

bool RingWriter::peer_waits_for_data() const {
    full_fence();
    return peer_waits(peer_, kWaitData);
}

bool RingWriter::prepare_wait_for_space(uint64_t bytes) {
    const uint64_t length = align_up(kHeaderBytes + std::min(bytes, max_record_bytes()));
    const uint64_t needed = bytes_with_pad(std::min(length, max_record_bytes()));
    set_wait(own_, kWaitSpace);
    full_fence();
    if (free_bytes() < needed && !broken_) return true;
    cancel_wait_for_space();
    return false;
}

void RingWriter::cancel_wait_for_space() {
    clear_wait(own_, kWaitSpace);
}

// ---- reader -----------------------------------------------------------------------------------

RingReader::RingReader(Segment own, ConstSegment peer) : own_(own), peer_(peer) {}

// Loads the peer's tail once; false when it is none that an honest writer can have.
bool RingReader::refresh_tail() {
    if (broken_) return false;
    // Acquire: the records that this tail announces are complete.
    const uint64_t tail = load_peer_word(peer_, kTailOffset, std::memory_order_acquire);
    if (tail < peer_tail_ || tail - head_ > peer_.data_bytes || tail % kAlign != 0) {
        broken_ = true;
        return false;
    }
    peer_tail_ = tail;
    return true;
}

void RingReader::consume(uint64_t bytes) {
    head_ += bytes;
    // Release: what was copied out was read before the writer may reuse its room.
    word(own_, kHeadOffset).store(head_, std::memory_order_release);
}

RingStatus RingReader::read(Record* record) {
    // Twice at most: a pad is followed by a record at the start of the ring, where no pad may be.
    for (;;) {
        if (broken_) return RingStatus::kViolation;
        if (head_ == peer_tail_) {
            if (!refresh_tail()) return RingStatus::kViolation;
            if (head_ == peer_tail_) return RingStatus::kEmpty;
        }
        const uint64_t offset = head_ & (peer_.data_bytes - 1);
        const uint64_t to_end = peer_.data_bytes - offset;
        const uint64_t available = std::min(peer_tail_ - head_, to_end);
        const RecordHeader header = load_header(peer_, offset, to_end);

        if (header.kind == static_cast<uint16_t>(RecordKind::kPad)) {
            if (offset == 0 || header.length != to_end || header.length > available ||
                header.flags != 0 || header.request_id != 0) {
                broken_ = true;
                return RingStatus::kViolation;
            }
            consume(to_end);
            continue;
        }

        if (header.kind != static_cast<uint16_t>(RecordKind::kMessage) || header.flags != 0 ||
            header.request_id == 0 || header.length <= kHeaderBytes ||
            header.length % kAlign != 0 || header.length > available ||
            header.length > peer_.data_bytes / 2) {
            broken_ = true;
            return RingStatus::kViolation;
        }
        const std::byte* body = peer_.base + kDataOffset + offset + kHeaderBytes;
        record->request_id = header.request_id;
        record->body.assign(body, body + (header.length - kHeaderBytes));
        // From here on only the copy is looked at; the compiler may not go back to the ring for it.
        std::atomic_signal_fence(std::memory_order_seq_cst);
        consume(header.length);
        return RingStatus::kOk;
    }
}

bool RingReader::peer_waits_for_space() const {
    full_fence();
    return peer_waits(peer_, kWaitSpace);
}

bool RingReader::prepare_wait_for_data() {
    set_wait(own_, kWaitData);
    full_fence();
    if (refresh_tail() && head_ == peer_tail_) return true;
    cancel_wait_for_data();
    return false;
}

void RingReader::cancel_wait_for_data() {
    clear_wait(own_, kWaitData);
}

}  // namespace xp::shm
