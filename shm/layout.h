// The shared-memory layout of a connection, the same for both sides and all compilers.
//
// A connection has two memfds, each with one writer: `req` (client writes, daemon maps read-only)
// and `resp` (daemon writes, client maps read-only). Each starts with four 64-byte lines, then the
// data ring of a power-of-two size. All words are little-endian; indices are free-running byte
// counts.
//
//   line 0   SegmentHeader, written once by the daemon before the descriptor is passed
//   line 1   tail      u64  bytes written into this segment's ring, by its writer
//   line 2   head      u64  bytes this segment's writer has consumed of the *other* ring
//   line 3   wait      u32  what this segment's writer sleeps for: kWaitData, kWaitSpace
//
// A record is a 16-byte header {u32 length with header, u16 kind, u16 flags, u64 request_id} and a
// flatbuffer, padded to 8 bytes; it never wraps: a kPad record fills the end of the ring.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace xp::shm {

inline constexpr uint32_t kRequestMagic = 0x51525058;   // "XPRQ"
inline constexpr uint32_t kResponseMagic = 0x53525058;  // "XPRS"
inline constexpr uint16_t kAbiMajor = 1;
inline constexpr uint16_t kAbiMinor = 1;

inline constexpr uint64_t kLineBytes = 64;
inline constexpr uint64_t kDataOffset = 4 * kLineBytes;
inline constexpr uint64_t kTailOffset = 1 * kLineBytes;
inline constexpr uint64_t kHeadOffset = 2 * kLineBytes;
inline constexpr uint64_t kWaitOffset = 3 * kLineBytes;

inline constexpr uint32_t kWaitData = 1;
inline constexpr uint32_t kWaitSpace = 2;

inline constexpr uint32_t kRequestRingBytes = uint32_t{4} << 20;
inline constexpr uint32_t kResponseRingBytes = uint32_t{1} << 20;

struct SegmentHeader {
    uint32_t magic;
    uint16_t abi_major;
    uint16_t abi_minor;
    uint64_t total_bytes;
    uint64_t data_offset;
    uint64_t data_bytes;
    uint8_t reserved[32];
};
static_assert(sizeof(SegmentHeader) == kLineBytes);

enum class RecordKind : uint16_t { kPad = 1, kMessage = 2 };

struct RecordHeader {
    uint32_t length;
    uint16_t kind;
    uint16_t flags;
    uint64_t request_id;
};
static_assert(sizeof(RecordHeader) == 16);
static_assert(std::atomic_ref<uint64_t>::is_always_lock_free);
static_assert(std::atomic_ref<uint32_t>::is_always_lock_free);

// A mapped segment, by the side that writes it.
struct Segment {
    std::byte* base = nullptr;
    uint64_t data_bytes = 0;
};
// A mapped segment of the peer.
struct ConstSegment {
    const std::byte* base = nullptr;
    uint64_t data_bytes = 0;
};

}  // namespace xp::shm
