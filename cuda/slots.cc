#include "cuda/slots.h"

#include <algorithm>

#include "daemon/base/memory.h"

namespace xp::cuda {
namespace {

// Device memory comes in pieces of this size at most, so that shrinking a cache can give some back.
constexpr uint64_t kArenaBytes = uint64_t{1} << 30;

void keep(cudaError_t status, const char* what, std::optional<Error>& error) {
    if (status != cudaSuccess && !error) error = cuda_error(status, what);
}

}  // namespace

Result<StreamMarks> StreamMarks::create(std::string_view what) {
    StreamMarks marks;
    for (Event& event : marks.events_) {
        XP_TRY(event, make_event(what));
    }
    return marks;
}

uint64_t StreamMarks::mark(cudaStream_t stream, std::optional<Error>& error) {
    ++last_;
    keep(cudaEventRecord(events_[last_ % kEvents].get(), stream), "marking a stream", error);
    return last_;
}

void StreamMarks::wait(cudaStream_t stream, uint64_t number, uint64_t& waited,
                       std::optional<Error>& error) {
    if (number <= waited || number <= reached_) return;
    // An event that was recorded again since stands for a later mark, and waiting for that one is
    // waiting for both; it is never one that has yet to come.
    keep(cudaStreamWaitEvent(stream, events_[number % kEvents].get()), "ordering streams", error);
    waited = number;
}

bool StreamMarks::reached(uint64_t number, bool block, std::optional<Error>& error) {
    if (number <= reached_) return true;
    const cudaEvent_t event = events_[number % kEvents].get();
    const cudaError_t status = block ? cudaEventSynchronize(event) : cudaEventQuery(event);
    if (status == cudaErrorNotReady) return false;
    keep(status, "waiting for a copy to the device", error);
    reached_ = number;
    return true;
}

Result<std::unique_ptr<CudaSlotMemory>> CudaSlotMemory::create(cudaStream_t compute,
                                                               const CudaSlotOptions& options) {
    XP_ASSERT(options.n_buffers > 0);
    std::unique_ptr<CudaSlotMemory> memory(new CudaSlotMemory(compute, options));
    XP_TRY(memory->copy_, make_stream("a stream for copies to the device"));
    XP_TRY(memory->copies_, StreamMarks::create("events of copies"));
    XP_TRY(memory->uses_, StreamMarks::create("events of uses"));
    return memory;
}

// Copies may still write.
CudaSlotMemory::~CudaSlotMemory() { cudaStreamSynchronize(copy_.get()); }

uint64_t CudaSlotMemory::usable() const {
    size_t free = 0, total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) return 0;
    return free > options_.reserve_bytes ? free - options_.reserve_bytes : 0;
}

Result<void> CudaSlotMemory::allocate(std::span<const SlotClass> classes) {
    uint64_t largest = 0;
    for (const SlotClass& c : classes) {
        largest = std::max(largest, c.stride);
        const uint64_t per_arena = std::max<uint64_t>(1, kArenaBytes / c.stride);
        for (uint64_t done = 0; done < c.slots; done += per_arena) {
            const uint64_t n = std::min(per_arena, c.slots - done);
            XP_TRY(Memory arena, Memory::device(n * c.stride, "expert slots"));
            for (uint64_t i = 0; i < n; ++i) {
                slots_.push_back({.address = arena.data() + i * c.stride, .bytes = c.stride});
            }
            arenas_.push_back(std::move(arena));
        }
    }
    const uint64_t bytes = align_up(largest, kPageBytes);
    XP_TRY(pool_, Memory::pinned(bytes * options_.n_buffers, "reads of experts"));
    for (uint32_t i = 0; i < options_.n_buffers; ++i) {
        buffers_.push_back({.data = pool_.data() + i * bytes});
    }
    return {};
}

bool CudaSlotMemory::has_buffer() const {
    return std::any_of(buffers_.begin(), buffers_.end(),
                       [](const Buffer& buffer) { return !buffer.reading; });
}

std::byte* CudaSlotMemory::take_buffer(SlotNumber slot) {
    // The one whose copy was started first is the first to be free again.
    Buffer* best = nullptr;
    for (Buffer& buffer : buffers_) {
        if (buffer.reading) continue;
        if (best == nullptr || buffer.copied < best->copied) best = &buffer;
    }
    XP_ASSERT(best != nullptr);
    copies_.reached(best->copied, true, error_);
    best->reading = true;
    slots_[slot].buffer = static_cast<uint32_t>(best - buffers_.data());
    return best->data;
}

void CudaSlotMemory::fill(SlotNumber number) {
    Slot& slot = slots_[number];
    XP_ASSERT(slot.buffer != kNoBuffer);
    Buffer& buffer = buffers_[slot.buffer];
    uses_.wait(copy_.get(), slot.used, copy_waited_, error_);
    keep(cudaMemcpyAsync(slot.address, buffer.data, slot.bytes, cudaMemcpyHostToDevice,
                         copy_.get()),
         "copying an expert to the device", error_);
    slot.copied = buffer.copied = copies_.mark(copy_.get(), error_);
    slot.buffer = kNoBuffer;
    buffer.reading = false;
    copied_bytes_ += slot.bytes;
}

void CudaSlotMemory::drop(SlotNumber number) {
    Slot& slot = slots_[number];
    XP_ASSERT(slot.buffer != kNoBuffer);
    buffers_[slot.buffer].reading = false;
    slot.buffer = kNoBuffer;
}

void CudaSlotMemory::begin_use(std::span<const SlotNumber> slots) {
    uint64_t last = 0;
    for (const SlotNumber slot : slots) last = std::max(last, slots_[slot].copied);
    copies_.wait(compute_, last, compute_waited_, error_);
}

void CudaSlotMemory::end_use(std::span<const SlotNumber> slots) {
    if (slots.empty()) return;
    const uint64_t mark = uses_.mark(compute_, error_);
    for (const SlotNumber slot : slots) slots_[slot].used = mark;
}

Result<void> CudaSlotMemory::status() const {
    if (error_) return *error_;
    return {};
}

}  // namespace xp::cuda
