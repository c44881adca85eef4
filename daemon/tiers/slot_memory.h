// Where the slots of an expert cache live, and how bytes from a drive get into them. Host memory is
// read into directly; a device's slots are filled through pinned buffers, by copies that overlap
// with reads and computation. A device may also have RAM slots behind its slots (ram_tier.h).
//
// The life of a slot's content: take_buffer(), the drive writes into it, then fill() (or drop(),
// when the read failed or its checksum was wrong). Where there is a sink(), reads into buffers tell
// it of all that arrives: it may be copied to the slot at once, and what was never filled is then
// simply never handed out. From fill() on the slot may be: begin_use() orders the backend's
// computations behind the copy, end_use() the copies of the next take_buffer() of the slot behind
// them. save() copies a slot's content to a RAM slot, restore() a RAM slot's to a slot. Of any two
// of these calls that name the same slot or RAM slot, the first takes effect before the second.
// Nobody waits on the host for that.
//
// Threads: that of the cache; the sink is told by those of the read backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "daemon/base/result.h"
#include "daemon/io/read_backend.h"
#include "daemon/tiers/slot_plan.h"

namespace xp {

// Number of a slot over all classes, in their order.
using SlotNumber = uint32_t;
inline constexpr SlotNumber kNoSlot = UINT32_MAX;

class SlotMemory {
public:
    virtual ~SlotMemory() = default;
    // "host memory", "GPU memory": for messages.
    virtual const char* name() const = 0;
    // Bytes that slots may take now.
    virtual uint64_t usable() const = 0;
    // Bytes of host memory that allocate() takes for buffers, beside slots on a device.
    virtual uint64_t buffer_bytes(std::span<const SlotClass>) const { return 0; }
    // Once, before what follows; all slots of all classes.
    virtual Result<void> allocate(std::span<const SlotClass> classes) = 0;

    // Empty, or a sentence about what allocate() could not do as it should.
    virtual std::string warning() const { return ""; }

    // Bytes of host memory that RAM slots and buffers may take now; none where there can be no RAM
    // slots, because slots are in RAM themselves.
    virtual std::optional<uint64_t> usable_ram() const { return std::nullopt; }
    // RAM slots, of all classes: at most once, and only where usable_ram() is not none.
    virtual Result<void> allocate_ram(std::span<const SlotClass>) { return {}; }

    // Where computations find the slot's content.
    virtual std::byte* address(SlotNumber slot) const = 0;
    // Whether a buffer can be taken now. If not, each is being read into or copied out of; with
    // `wait`, all of them are being read into, and one of those reads must end in fill() or drop().
    virtual bool has_buffer(bool wait) = 0;
    // Page-aligned memory of the slot's size for a drive to write into.
    virtual std::byte* take_buffer(SlotNumber slot) = 0;
    // Of every read into a buffer; may be none.
    virtual PieceSink* sink() { return nullptr; }
    // Copies on what the sink was told of. To be called now and then while reads go on.
    virtual void copy_pieces() {}
    virtual void fill(SlotNumber slot) = 0;
    virtual void drop(SlotNumber slot) = 0;
    // With RAM slots only. Whether a copy can be started that will not hold up a later fill() or
    // restore() of its slot for long; if not, what would be saved is given up.
    virtual bool can_save() const { return false; }
    virtual void save(SlotNumber, SlotNumber /*ram_slot*/) {}
    virtual void restore(SlotNumber, SlotNumber /*ram_slot*/) {}
    virtual void begin_use(std::span<const SlotNumber> slots) = 0;
    virtual void end_use(std::span<const SlotNumber> slots) = 0;

    // The first error of a copy, which then stays: nothing in the slots can be relied upon.
    virtual Result<void> status() const = 0;
    // Bytes copied into slots, from buffers and RAM slots, also of reads that failed; 0 where slots
    // are read into directly.
    virtual uint64_t copied_bytes() const = 0;
    // Bytes copied from slots to RAM slots.
    virtual uint64_t saved_bytes() const { return 0; }
};

// Slots in page-aligned host memory.
std::unique_ptr<SlotMemory> make_host_slot_memory();

}  // namespace xp
