#include "cuda/slots.h"

#include <algorithm>
#include <utility>

#include "cuda/arena_plan.h"
#include "cuda/kernels.h"
#include "daemon/base/memory.h"
#include "daemon/tiers/host_memory.h"

namespace xp::cuda {
namespace {

// Copies to RAM slots that may be under way when another is started: what is copied into the slot
// then waits for all of them. One takes less than reading an expert from a drive does, and a layer
// seldom misses more than these.
constexpr uint64_t kSavesMax = 8;

// Of an object whose read goes on, copied at a time. While few are read, somebody waits for them,
// and a kernel copies (see upload.cu). While many are, the device has something else to do, which
// kernels would take room from: copies are the copy engine's, and long ones, since short ones hold
// up those who read.
constexpr uint64_t kFewBytes = uint64_t{1} << 20;
constexpr uint64_t kManyBytes = uint64_t{4} << 20;
constexpr uint32_t kFewReads = 8;

void keep(cudaError_t status, const char* what, std::optional<Error>& error) {
    if (status != cudaSuccess && !error) error = cuda_error(status, what);
}

// Calls `add(address, bytes)` for each slot of all classes, in memory from `make(bytes)`.
template <class Arena, class Make, class Add>
Result<void> divide(std::span<const SlotClass> classes, std::vector<Arena>& arenas, Make make,
                    Add add) {
    for (const SlotClass& c : classes) {
        for (const uint64_t n : slots_of_arenas(c.stride, c.slots)) {
            XP_TRY(Arena arena, make(n * c.stride));
            for (uint64_t i = 0; i < n; ++i) add(arena.data() + i * c.stride, c.stride);
            arenas.push_back(std::move(arena));
        }
    }
    return {};
}

uint64_t largest_slot(std::span<const SlotClass> classes) {
    uint64_t largest = 0;
    for (const SlotClass& c : classes) largest = std::max(largest, c.stride);
    return align_up(largest, kPageBytes);
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
                       std::optional<Error>& error) const {
    if (number <= waited) return;
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
    keep(status, "waiting for a copy", error);
    reached_ = number;
    return true;
}

Result<std::unique_ptr<CudaSlotMemory>> CudaSlotMemory::create(cudaStream_t compute,
                                                               const CudaSlotOptions& options) {
    XP_ASSERT(options.n_buffers > 0);
    std::unique_ptr<CudaSlotMemory> memory(new CudaSlotMemory(compute, options));
    XP_CUDA(cudaGetDevice(&memory->device_), "asking for the device");
    XP_TRY(memory->copy_, make_stream("a stream for copies to the device", true));
    XP_TRY(memory->save_, make_stream("a stream for copies to RAM slots"));
    XP_TRY(memory->copies_, StreamMarks::create("events of copies"));
    XP_TRY(memory->saves_, StreamMarks::create("events of copies to RAM slots"));
    XP_TRY(memory->uses_, StreamMarks::create("events of uses"));
    return memory;
}

// Copies may still write, and computations read: giving back arenas does not wait for either.
CudaSlotMemory::~CudaSlotMemory() {
    cudaStreamSynchronize(compute_);
    if (copy_.get() != nullptr) cudaStreamSynchronize(copy_.get());
    if (save_.get() != nullptr) cudaStreamSynchronize(save_.get());
}

uint64_t CudaSlotMemory::usable() const {
    size_t free = 0, total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) return 0;
    return free > options_.reserve_bytes ? free - options_.reserve_bytes : 0;
}

uint64_t CudaSlotMemory::buffer_bytes(std::span<const SlotClass> classes) const {
    return options_.n_buffers * largest_slot(classes);
}

Result<void> CudaSlotMemory::allocate(std::span<const SlotClass> classes) {
    const Result<void> exportable = Arena::check_export();
    if (!exportable) {
        if (exportable.error().code != ErrorCode::kUnsupported) return exportable.error();
        warning_ = fmt::format("the expert cache works, but will not outlive this process, because "
                               "its GPU memory cannot have descriptors here ({}). ",
                               exportable.error().message);
    }
    const auto make = [&](uint64_t bytes) {
        return exportable ? Arena::create(bytes) : Arena::create_private(bytes);
    };
    XP_CHECK(divide(classes, arenas_, make, [this](std::byte* address, uint64_t bytes) {
        slots_.push_back({.address = address, .bytes = bytes});
    }));
    buffer_bytes_ = largest_slot(classes);
    XP_TRY(pool_, PinnedFile::create(buffer_bytes(classes), "reads of experts"));
    for (uint32_t i = 0; i < options_.n_buffers; ++i) {
        const uint64_t at = i * buffer_bytes_;
        buffers_.push_back({.data = pool_.data() + at, .on_device = pool_.on_device() + at});
    }
    return {};
}

std::optional<uint64_t> CudaSlotMemory::usable_ram() const { return usable_file_memory(); }

Result<void> CudaSlotMemory::allocate_ram(std::span<const SlotClass> classes) {
    return divide(
        classes, ram_arenas_,
        [](uint64_t bytes) { return PinnedFile::create(bytes, "the RAM tier"); },
        [this](std::byte* data, uint64_t bytes) {
            ram_slots_.push_back({.data = data, .bytes = bytes});
        });
}

// The one whose copies ended last, since its memory is still in the processor's cache; or the one
// that is the first to be free again.
CudaSlotMemory::Buffer* CudaSlotMemory::next_buffer() {
    Buffer *newest = nullptr, *oldest = nullptr;
    for (Buffer& buffer : buffers_) {
        if (buffer.slot != kNoSlot) continue;
        if (oldest == nullptr || buffer.copied < oldest->copied) oldest = &buffer;
        const bool newer = newest == nullptr || buffer.copied > newest->copied;
        if (newer && copies_.reached(buffer.copied, false, error_)) newest = &buffer;
    }
    return newest != nullptr ? newest : oldest;
}

bool CudaSlotMemory::has_buffer(bool wait) {
    const Buffer* buffer = next_buffer();
    return buffer != nullptr && copies_.reached(buffer->copied, wait, error_);
}

std::byte* CudaSlotMemory::take_buffer(SlotNumber number) {
    Buffer* buffer = next_buffer();
    XP_ASSERT(buffer != nullptr);
    copies_.reached(buffer->copied, true, error_);
    buffer->slot = number;
    ++n_reading_;
    buffer->read = buffer->sent = 0;
    buffer->beyond.clear();
    slots_[number].buffer = static_cast<uint32_t>(buffer - buffers_.data());
    return buffer->data;
}

void CudaSlotMemory::on_piece(const std::byte* data, uint64_t bytes) {
    Buffer& buffer = buffers_[static_cast<uint64_t>(data - pool_.data()) / buffer_bytes_];
    std::lock_guard lock(pieces_mutex_);
    const auto from = static_cast<uint64_t>(data - buffer.data);
    buffer.beyond.emplace_back(from, from + bytes);
    const auto adjoins = [&](const auto& run) { return run.first == buffer.read; };
    for (auto run = std::ranges::find_if(buffer.beyond, adjoins); run != buffer.beyond.end();
         run = std::ranges::find_if(buffer.beyond, adjoins)) {
        buffer.read = run->second;
        buffer.beyond.erase(run);
    }
    pieces_.fetch_add(1, std::memory_order_release);
}

bool CudaSlotMemory::few_are_read() const { return n_reading_ <= kFewReads; }

void CudaSlotMemory::copy_pieces() {
    const uint64_t pieces = pieces_.load(std::memory_order_acquire);
    if (pieces == std::exchange(pieces_seen_, pieces)) return;
    for (Buffer& buffer : buffers_) {
        if (buffer.slot != kNoSlot) copy_pieces(buffer, few_are_read() ? kFewBytes : kManyBytes);
    }
}

// What has come from the beginning on, if it is as much as `least` or the end, behind the last use
// and the last save of what was in the slot.
void CudaSlotMemory::copy_pieces(Buffer& buffer, uint64_t least) {
    const Slot& slot = slots_[buffer.slot];
    uint64_t read = 0;
    {
        std::lock_guard lock(pieces_mutex_);
        read = buffer.read - buffer.read % kUploadAlignment;
    }
    const uint64_t bytes = read - buffer.sent;
    if (bytes == 0 || (bytes < least && read < slot.bytes)) return;
    uses_.wait(copy_.get(), slot.used, copy_waited_, error_);
    saves_.wait(copy_.get(), saves_.unless_reached(slot.saved), copy_waited_saves_, error_);
    if (few_are_read()) {
        const UploadOrder order =
            buffer.sent == 0 ? UploadOrder::kAfterAll : UploadOrder::kBesideOthers;
        launch_upload(buffer.on_device + buffer.sent, bytes, slot.address + buffer.sent, order,
                      copy_.get());
    } else {
        keep(cudaMemcpyAsync(slot.address + buffer.sent, buffer.data + buffer.sent, bytes,
                             cudaMemcpyHostToDevice, copy_.get()),
             "copying an expert to the device", error_);
    }
    buffer.sent = read;
}

CudaSlotMemory::Buffer& CudaSlotMemory::end_read(Slot& slot) {
    XP_ASSERT(slot.buffer != kNoBuffer);
    Buffer& buffer = buffers_[slot.buffer];
    slot.buffer = kNoBuffer;
    buffer.slot = kNoSlot;
    --n_reading_;
    copied_bytes_ += buffer.sent;
    if (buffer.sent > 0) buffer.copied = copies_.mark(copy_.get(), error_);
    return buffer;
}

void CudaSlotMemory::fill(SlotNumber number) {
    Slot& slot = slots_[number];
    XP_ASSERT(slot.buffer != kNoBuffer);
    copy_pieces(buffers_[slot.buffer], 0);
    const Buffer& buffer = end_read(slot);
    XP_ASSERT(buffer.sent == slot.bytes);
    slot.copied = buffer.copied;
}

void CudaSlotMemory::drop(SlotNumber number) { end_read(slots_[number]); }

bool CudaSlotMemory::can_save() const {
    return last_save_ < kSavesMax || saves_.reached(last_save_ - kSavesMax + 1, false, error_);
}

// Uses of the slot read it too, so this need not wait for them.
void CudaSlotMemory::save(SlotNumber number, SlotNumber ram_number) {
    Slot& slot = slots_[number];
    RamSlot& ram = ram_slots_[ram_number];
    XP_ASSERT(ram.bytes == slot.bytes);
    const uint64_t copied = copies_.unless_reached(std::max(slot.copied, ram.restored));
    copies_.wait(save_.get(), copied, save_waited_, error_);
    keep(cudaMemcpyAsync(ram.data, slot.address, slot.bytes, cudaMemcpyDeviceToHost, save_.get()),
         "copying an expert from the device", error_);
    last_save_ = slot.saved = ram.saved = saves_.mark(save_.get(), error_);
    saved_bytes_ += slot.bytes;
}

void CudaSlotMemory::restore(SlotNumber number, SlotNumber ram_number) {
    Slot& slot = slots_[number];
    RamSlot& ram = ram_slots_[ram_number];
    XP_ASSERT(ram.bytes == slot.bytes);
    uses_.wait(copy_.get(), slot.used, copy_waited_, error_);
    const uint64_t saved = saves_.unless_reached(std::max(slot.saved, ram.saved));
    saves_.wait(copy_.get(), saved, copy_waited_saves_, error_);
    keep(cudaMemcpyAsync(slot.address, ram.data, slot.bytes, cudaMemcpyHostToDevice, copy_.get()),
         "copying an expert to the device", error_);
    slot.copied = ram.restored = copies_.mark(copy_.get(), error_);
    copied_bytes_ += slot.bytes;
}

void CudaSlotMemory::begin_use(std::span<const SlotNumber> slots) {
    uint64_t last = 0;
    for (const SlotNumber slot : slots) last = std::max(last, slots_[slot].copied);
    copies_.wait(compute_, copies_.unless_reached(last), compute_waited_, error_);
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
