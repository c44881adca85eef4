// Which expert is in which slot, and which slot makes room next. Pure bookkeeping: no memory, no
// reads, no locks; it belongs to the thread of its cache.
//
// A slot is free, being read into, or published. Only published slots can be evicted, and of those
// only unpinned ones. Who goes first is a matter of protection, and within one degree of it of the
// policy:
//   kNone      nobody waits for it
//   kExpected  a prefetch hint said that it will be asked for soon
//   kWanted    a live acquisition still waits to be handed it
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "daemon/tiers/policy.h"
#include "daemon/tiers/slot_memory.h"
#include "daemon/tiers/slot_plan.h"

namespace xp {

class SlotTable {
public:
    enum class State : uint8_t { kFree, kReading, kPublished };
    enum class Protection : uint8_t { kNone, kExpected, kWanted };

    struct Slot {
        State state = State::kFree;
        bool prefetched = false;  // being read for a hint
        ExpertNumber expert = 0;
        uint32_t pins = 0;
        uint32_t slot_class = 0;
    };

    struct TakenSlot {
        SlotNumber number = kNoSlot;
        std::optional<ExpertNumber> evicted;  // whose bytes are still in the slot
    };

    // What is going on in the slots of one class.
    struct ClassUse {
        SlotNumber first = 0;
        uint32_t slots = 0;
        uint32_t pinned = 0;
        uint32_t reading_hints = 0;
    };

    SlotTable(const SlotPlan& plan, uint32_t n_experts, std::unique_ptr<CachePolicy> policy);

    CachePolicy& policy() { return *policy_; }
    const Slot& slot(SlotNumber number) const { return slots_[number]; }
    const ClassUse& use(uint32_t slot_class) const { return classes_[slot_class]; }
    // Where the expert is or will be; kNoSlot when it is neither published nor being read.
    SlotNumber slot_of(ExpertNumber expert) const { return experts_[expert].slot; }
    bool is_published(ExpertNumber expert) const;

    uint64_t published() const { return published_; }
    uint64_t reading() const { return reading_; }
    uint64_t evictions() const { return evictions_; }

    // One more acquisition begins: hints grow older.
    void on_acquire() { ++acquires_; }
    void want(ExpertNumber expert);
    void unwant(ExpertNumber expert);
    void expect(ExpertNumber expert);
    // Of what was read for a hint, how much is there or on its way and still expected.
    size_t hints_ahead();

    void pin(SlotNumber number);
    void unpin(SlotNumber number);

    // Slots for reads are taken in rounds, within which nothing but take_slot() and start_reading()
    // may happen. `own` are experts of which none is evicted in this round, whatever is asked.
    void begin_round(uint32_t slot_class, std::span<const ExpertNumber> own);
    // A free slot, or one emptied by evicting an expert protected no more than `at_most`.
    std::optional<TakenSlot> take_slot(Protection at_most);
    void start_reading(SlotNumber number, ExpertNumber expert, bool prefetched);

    // The two ends of a read.
    void publish(SlotNumber number);
    void discard(SlotNumber number);

private:
    struct Expert {
        SlotNumber slot = kNoSlot;
        uint32_t wanted = 0;          // live acquisitions that wait for it
        uint64_t expected_until = 0;  // acquires
        uint64_t own_in_round = 0;
    };

    void collect_candidates();
    Protection protection(const Expert& expert) const;
    void end_reading(Slot& slot);

    std::unique_ptr<CachePolicy> policy_;
    std::vector<Slot> slots_;
    std::vector<ClassUse> classes_;
    std::vector<std::vector<SlotNumber>> free_;  // per class
    std::vector<Expert> experts_;
    std::vector<ExpertNumber> hinted_;           // what was read for hints, cleared now and then

    uint64_t published_ = 0;
    uint64_t reading_ = 0;
    uint64_t evictions_ = 0;
    uint64_t acquires_ = 0;

    uint64_t round_ = 0;
    uint32_t round_class_ = 0;
    std::span<const ExpertNumber> round_own_;
    bool collected_ = false;
    std::array<std::vector<Victim>, 3> candidates_;  // heaps, by protection
};

}  // namespace xp
