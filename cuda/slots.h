// Expert slots in GPU memory, filled from a pool of pinned buffers on a copy stream of their own.
// RAM slots behind them are pinned too: they are filled from slots on a second stream, so that
// copies in both directions overlap, and slots from them on the first.
//
// Ordering is by events alone. Copies and uses are numbered; the events of the last kEvents numbers
// are kept, and waiting for a later number of the same stream includes all earlier ones. A use that
// begins after its slots' copies were waited for once costs no call at all.
#pragma once

#include <array>
#include <memory>
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
    void wait(cudaStream_t stream, uint64_t number, uint64_t& waited, std::optional<Error>& error);
    // Whether it is reached; blocks until then if `block`.
    bool reached(uint64_t number, bool block, std::optional<Error>& error);

private:
    static constexpr size_t kEvents = 64;
    std::array<Event, kEvents> events_;
    uint64_t last_ = 0;
    uint64_t reached_ = 0;
};

class CudaSlotMemory final : public SlotMemory {
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
    bool has_buffer() const override;
    std::byte* take_buffer(SlotNumber slot) override;
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
        uint64_t copied = 0;          // mark of the copy out of it
        bool reading = false;
    };

    struct RamSlot {
        std::byte* data = nullptr;
        uint64_t bytes = 0;
        uint64_t saved = 0;           // mark of the copy into it
        uint64_t restored = 0;        // mark of the last copy out of it
    };

    void copy_in(Slot& slot, const std::byte* from);

    explicit CudaSlotMemory(cudaStream_t compute, const CudaSlotOptions& options)
        : compute_(compute), options_(options) {}

    cudaStream_t compute_;
    CudaSlotOptions options_;
    Stream copy_, save_;                     // into slots, and to RAM slots
    StreamMarks copies_, uses_;              // of copy_ and compute_
    mutable StreamMarks saves_;              // of save_
    // What a stream waited for last of another's marks.
    uint64_t compute_waited_ = 0, copy_waited_ = 0, copy_waited_saves_ = 0, save_waited_ = 0;
    std::vector<Arena> arenas_;
    std::vector<PinnedFile> ram_arenas_;
    PinnedFile pool_;
    std::string warning_;
    std::vector<Slot> slots_;
    std::vector<RamSlot> ram_slots_;
    std::vector<Buffer> buffers_;
    uint64_t copied_bytes_ = 0, saved_bytes_ = 0;
    uint64_t last_save_ = 0;
    mutable std::optional<Error> error_;
};

}  // namespace xp::cuda
