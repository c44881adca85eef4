// Expert slots in GPU memory, filled from a pool of pinned buffers on a copy stream of their own:
// each piece as soon as it was read, by the thread that read it, so that when the last one arrives
// little is left to be copied. RAM slots behind them are pinned too: they are filled from slots on
// a second stream, so that copies in both directions overlap, and slots from them on the first.
//
// Ordering is by events alone. Copies and uses are numbered; the events of the last kEvents numbers
// are kept, and waiting for a later number of the same stream includes all earlier ones. A use that
// begins after its slots' copies were waited for once costs no call at all. The first copy into a
// slot waits for what went on in it before, and no earlier: copies into others go ahead until then.
#pragma once

#include <array>
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
    // before, which `waited` (the caller's, one per waiting stream) remembers. From any thread.
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
        uint64_t copied = 0;          // mark of the last copy out of it
        bool reading = false;
        // While it is read, of the threads that read, under pieces_mutex_.
        std::byte* slot = nullptr;
        uint64_t used = 0, saved = 0; // marks that the first copy into the slot waits for
        uint64_t bytes = 0;
        uint64_t read = 0;            // from the beginning on, without a gap
        // What was read behind it: from, to.
        std::vector<std::pair<uint64_t, uint64_t>> beyond = {};
        uint64_t sent = 0;            // bytes whose copies were started
    };

    struct RamSlot {
        std::byte* data = nullptr;
        uint64_t bytes = 0;
        uint64_t saved = 0;           // mark of the copy into it
        uint64_t restored = 0;        // mark of the last copy out of it
    };

    void on_piece(const std::byte* data, uint64_t bytes) override;
    Buffer* oldest_buffer();
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
    uint64_t compute_waited_ = 0, save_waited_ = 0;
    std::vector<Arena> arenas_;
    std::vector<PinnedFile> ram_arenas_;
    PinnedFile pool_;
    uint64_t buffer_bytes_ = 0;              // of each
    std::string warning_;
    std::vector<Slot> slots_;
    std::vector<RamSlot> ram_slots_;
    std::vector<Buffer> buffers_;
    uint64_t copied_bytes_ = 0, saved_bytes_ = 0;
    uint64_t last_save_ = 0;
    mutable std::optional<Error> error_;

    mutable std::mutex pieces_mutex_;        // of what copies into slots from several threads share
    uint64_t copy_waited_ = 0, copy_waited_saves_ = 0;
    std::optional<Error> pieces_error_;
};

}  // namespace xp::cuda
