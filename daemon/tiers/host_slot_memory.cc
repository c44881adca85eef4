// Slots that drives write to and the CPU computes on: nothing to copy, nothing to order.
#include <vector>

#include "daemon/base/memory.h"
#include "daemon/tiers/host_memory.h"
#include "daemon/tiers/slot_memory.h"

namespace xp {
namespace {

class HostSlotMemory final : public SlotMemory {
public:
    const char* name() const override { return "memory"; }
    uint64_t usable() const override { return usable_host_memory(); }

    Result<void> allocate(std::span<const SlotClass> classes) override {
        for (const SlotClass& c : classes) {
            XP_TRY(PageBuffer bytes,
                   PageBuffer::allocate(c.slots * c.stride,
                                        fmt::format("the {} slots of the expert cache", c.slots)));
            for (uint64_t i = 0; i < c.slots; ++i) slots_.push_back(bytes.data() + i * c.stride);
            memory_.push_back(std::move(bytes));
        }
        return {};
    }

    std::byte* address(SlotNumber slot) const override { return slots_[slot]; }
    bool has_buffer(bool) override { return true; }
    std::byte* take_buffer(SlotNumber slot) override { return slots_[slot]; }
    void fill(SlotNumber) override {}
    void drop(SlotNumber) override {}
    void begin_use(std::span<const SlotNumber>) override {}
    void end_use(std::span<const SlotNumber>) override {}
    Result<void> status() const override { return {}; }
    uint64_t copied_bytes() const override { return 0; }

private:
    std::vector<PageBuffer> memory_;
    std::vector<std::byte*> slots_;
};

}  // namespace

std::unique_ptr<SlotMemory> make_host_slot_memory() { return std::make_unique<HostSlotMemory>(); }

}  // namespace xp
