// Expert slots in GPU memory, filled from a pool of pinned buffers on a copy stream of their own:
// pieces soon after they were read, so that when the last one arrives little is left to be copied.
// Threads that read only say what has come; the cache's thread starts the copies. RAM slots behind
// them are pinned too: they are filled from slots on a second stream, so that copies in both
// directions overlap, and slots from them on the first.
//
// Ordering is by events alone. Copies and uses are numbered; the events of the last kEvents numbers
// are kept, and waiting for a later number of the same stream includes all earlier ones. A use that
// begins after its slots' copies were waited for once costs no call at all. The first copy into a
// slot waits for what went on in it before, and no earlier: copies into others go ahead until then.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cuda/arena.h"
#include "cuda/pinned_file.h"
#include "cuda/runtime.h"
#include "daemon/tiers/slot_memory.h"

namespace xp::cuda {

struct CudaSlotOptions {
    // Pinned buffers of the largest slot's size: reads in flight and copies under way.
    uint32_t n_buffers = 16;
    // What slots must leave free on the device, for workspaces and other programs.
    uint64_t reserve_bytes = uint64_t{1} << 30;
};

// Points of a stream that others may wait for.
class StreamMarks {
public:
    static Result<StreamMarks> create(std::string_view what);
    // Numbers from 1.
    uint64_t mark(cudaStream_t stream, std::optional<Error>& error);
    // `stream` goes on when mark `number` is reached; nothing for 0 and for what it waited for
    // before, which `waited` (the caller's, one per waiting stream) remembers.
    void wait(cudaStream_t stream, uint64_t number, uint64_t& waited,
              std::optional<Error>& error) const;
    // The number, or 0 if it is known to be reached.
    uint64_t unless_reached(uint64_t number) const { return number <= reached_ ? 0 : number; }
    // Whether it is reached; blocks until then if `block`.
    bool reached(uint64_t number, bool block, std::optional<Error>& error);

private:
    static constexpr size_t kEvents = 64;
    std::array<Event, kEvents> events_;
    uint64_t last_ = 0;
    uint64_t reached_ = 0;
};

class CudaSlotMemory final : public SlotMemory, private PieceSink {
public:
    // `compute` is the stream that the slots' users run on; it outlives this.
    static Result<std::unique_ptr<CudaSlotMemory>> create(cudaStream_t compute,
                                                          const CudaSlotOptions& options);
    ~CudaSlotMemory() override;

    const char* name() const override { return "GPU memory"; }
    std::string warning() const override { return warning_; }
    uint64_t usable() const override;
    uint64_t buffer_bytes(std::span<const SlotClass> classes) const override;
    Result<void> allocate(std::span<const SlotClass> classes) override;
    std::optional<uint64_t> usable_ram() const override;
    Result<void> allocate_ram(std::span<const SlotClass> classes) override;
    std::byte* address(SlotNumber slot) const override { return slots_[slot].address; }
    bool has_buffer(bool wait) override;
    std::byte* take_buffer(SlotNumber slot) override;
    PieceSink* sink() override { return this; }
    void copy_pieces() override;
    void fill(SlotNumber slot) override;
    void drop(SlotNumber slot) override;
    bool can_save() const override;
    void save(SlotNumber slot, SlotNumber ram_slot) override;
    void restore(SlotNumber slot, SlotNumber ram_slot) override;
    void begin_use(std::span<const SlotNumber> slots) override;
    void end_use(std::span<const SlotNumber> slots) override;
    Result<void> status() const override;
    uint64_t copied_bytes() const override { return copied_bytes_; }
    uint64_t saved_bytes() const override { return saved_bytes_; }

private:
    static constexpr uint32_t kNoBuffer = UINT32_MAX;
    struct Slot {
        std::byte* address = nullptr;
        uint64_t bytes = 0;
        uint64_t copied = 0;          // mark of the copy into it
        uint64_t used = 0;            // mark of its last use
        uint64_t saved = 0;           // mark of the last copy of it to a RAM slot
        uint32_t buffer = kNoBuffer;  // while it is read
    };
    struct Buffer {
        std::byte* data = nullptr;
        std::byte* on_device = nullptr;  // the same for kernels
        uint64_t copied = 0;          // mark of the last copy out of it
        SlotNumber slot = kNoSlot;    // while it is read for it
        uint64_t sent = 0;            // bytes whose copies were started
        // Under pieces_mutex_, written by the threads that read: bytes read from the beginning on
        // without a gap, and what was read behind them (from, to).
        uint64_t read = 0;
        std::vector<std::pair<uint64_t, uint64_t>> beyond = {};
    };

    struct RamSlot {
        std::byte* data = nullptr;
        uint64_t bytes = 0;
        uint64_t saved = 0;           // mark of the copy into it
        uint64_t restored = 0;        // mark of the last copy out of it
    };

    void on_piece(const std::byte* data, uint64_t bytes) override;
    // The one to read into next, null while all are being read into.
    Buffer* next_buffer();
    void copy_pieces(Buffer& buffer, uint64_t least);
    bool few_are_read() const;
    // The slot's read is over: its buffer, which is free when the copies out of it are done.
    Buffer& end_read(Slot& slot);

    explicit CudaSlotMemory(cudaStream_t compute, const CudaSlotOptions& options)
        : compute_(compute), options_(options) {}

    cudaStream_t compute_;
    CudaSlotOptions options_;
    int device_ = 0;
    Stream copy_, save_;                     // into slots, and to RAM slots
    StreamMarks copies_, uses_;              // of copy_ and compute_
    mutable StreamMarks saves_;              // of save_
    // What a stream waited for last of another's marks.
    uint64_t compute_waited_ = 0, save_waited_ = 0, copy_waited_ = 0, copy_waited_saves_ = 0;
    std::vector<Arena> arenas_;
    std::vector<PinnedFile> ram_arenas_;
    PinnedFile pool_;
    uint64_t buffer_bytes_ = 0;              // of each
    std::string warning_;
    std::vector<Slot> slots_;
    std::vector<RamSlot> ram_slots_;
    std::vector<Buffer> buffers_;
    uint32_t n_reading_ = 0;                 // buffers that are read into
    uint64_t copied_bytes_ = 0, saved_bytes_ = 0;
    uint64_t last_save_ = 0;
    mutable std::optional<Error> error_;

    std::mutex pieces_mutex_;
    std::atomic<uint64_t> pieces_ = 0;       // told of so far
    uint64_t pieces_seen_ = 0;
};

}  // namespace xp::cuda
