#include "daemon/tiers/slot_table.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "daemon/base/assert.h"

namespace xp {
namespace {

// How many acquisitions a hint protects an expert for. A hint is used within the same or the next
// token, so this is several tokens of the deepest models; without an end, hints of requests that
// were cancelled in between would hold slots for ever.
constexpr uint64_t kHintAcquires = 256;

}  // namespace

SlotTable::SlotTable(const SlotPlan& plan, uint32_t n_experts, std::unique_ptr<CachePolicy> policy)
    : policy_(std::move(policy)), experts_(n_experts) {
    for (const SlotClass& slot_class : plan.classes) {
        const auto index = static_cast<uint32_t>(classes_.size());
        const auto first = static_cast<SlotNumber>(slots_.size());
        const auto count = static_cast<uint32_t>(slot_class.slots);
        classes_.push_back({first, count, 0, 0});
        slots_.resize(slots_.size() + count);
        std::vector<SlotNumber>& free = free_.emplace_back();
        // Handed out from the back, so the first reads touch the first pages.
        for (SlotNumber number = first + count; number > first; --number) {
            slots_[number - 1].slot_class = index;
            free.push_back(number - 1);
        }
    }
}

bool SlotTable::is_published(ExpertNumber expert) const {
    const SlotNumber number = slot_of(expert);
    return number != kNoSlot && slots_[number].state == State::kPublished;
}

void SlotTable::want(ExpertNumber expert) {
    ++experts_[expert].wanted;
    experts_[expert].expected_until = 0;
}

void SlotTable::unwant(ExpertNumber expert) {
    XP_ASSERT(experts_[expert].wanted > 0);
    --experts_[expert].wanted;
}

void SlotTable::expect(ExpertNumber expert) {
    experts_[expert].expected_until = acquires_ + kHintAcquires;
}

size_t SlotTable::hints_ahead() {
    std::erase_if(hinted_, [&](ExpertNumber number) {
        const Expert& expert = experts_[number];
        return expert.slot == kNoSlot || expert.expected_until <= acquires_;
    });
    return hinted_.size();
}

void SlotTable::pin(SlotNumber number) {
    Slot& slot = slots_[number];
    XP_ASSERT(slot.state == State::kPublished);
    if (slot.pins++ == 0) ++classes_[slot.slot_class].pinned;
}

void SlotTable::unpin(SlotNumber number) {
    Slot& slot = slots_[number];
    XP_ASSERT(slot.pins > 0);
    if (--slot.pins == 0) --classes_[slot.slot_class].pinned;
}

void SlotTable::begin_round(uint32_t slot_class, std::span<const ExpertNumber> own) {
    ++round_;
    round_class_ = slot_class;
    round_own_ = own;
    collected_ = false;
}

std::optional<SlotTable::TakenSlot> SlotTable::take_slot(Protection at_most) {
    std::vector<SlotNumber>& free = free_[round_class_];
    if (!free.empty()) {
        const SlotNumber number = free.back();
        free.pop_back();
        return TakenSlot{number, std::nullopt};
    }
    if (!collected_) collect_candidates();
    for (size_t degree = 0; degree <= static_cast<size_t>(at_most); ++degree) {
        std::vector<Victim>& candidates = candidates_[degree];
        if (candidates.empty()) continue;
        std::ranges::pop_heap(candidates, std::greater());
        const ExpertNumber victim = candidates.back().expert;
        candidates.pop_back();
        const SlotNumber number = std::exchange(experts_[victim].slot, kNoSlot);
        slots_[number].state = State::kFree;
        --published_;
        ++evictions_;
        return TakenSlot{number, victim};
    }
    return std::nullopt;
}

void SlotTable::start_reading(SlotNumber number, ExpertNumber expert, bool prefetched) {
    Slot& slot = slots_[number];
    XP_ASSERT(slot.state == State::kFree && slot.pins == 0);
    XP_ASSERT(experts_[expert].slot == kNoSlot);
    slot.state = State::kReading;
    slot.expert = expert;
    slot.prefetched = prefetched;
    experts_[expert].slot = number;
    ++reading_;
    if (!prefetched) return;
    ++classes_[slot.slot_class].reading_hints;
    hinted_.push_back(expert);
}

void SlotTable::publish(SlotNumber number) {
    Slot& slot = slots_[number];
    end_reading(slot);
    slot.state = State::kPublished;
    ++published_;
}

void SlotTable::discard(SlotNumber number) {
    Slot& slot = slots_[number];
    end_reading(slot);
    slot.state = State::kFree;
    experts_[slot.expert].slot = kNoSlot;
    free_[slot.slot_class].push_back(number);
}

void SlotTable::end_reading(Slot& slot) {
    XP_ASSERT(slot.state == State::kReading);
    --reading_;
    if (std::exchange(slot.prefetched, false)) --classes_[slot.slot_class].reading_hints;
}

// One pass over the slots of the class for a whole round of reads, and only when no slot is free;
// then each victim comes off a heap. For the some thousand slots of a large model that is far less
// than reading the expert for which one is made free, so an ordered structure that every request,
// pin and hint must keep up is not worth it.
void SlotTable::collect_candidates() {
    collected_ = true;
    for (std::vector<Victim>& candidates : candidates_) candidates.clear();
    for (const ExpertNumber expert : round_own_) experts_[expert].own_in_round = round_;
    const ClassUse& use = classes_[round_class_];
    for (SlotNumber number = use.first; number < use.first + use.slots; ++number) {
        const Slot& slot = slots_[number];
        if (slot.state != State::kPublished || slot.pins != 0) continue;
        const Expert& expert = experts_[slot.expert];
        if (expert.own_in_round == round_) continue;
        candidates_[static_cast<size_t>(protection(expert))].push_back(
            {policy_->worth(slot.expert), slot.expert});
    }
    for (std::vector<Victim>& candidates : candidates_) {
        std::ranges::make_heap(candidates, std::greater());
    }
}

SlotTable::Protection SlotTable::protection(const Expert& expert) const {
    if (expert.wanted > 0) return Protection::kWanted;
    if (expert.expected_until > acquires_) return Protection::kExpected;
    return Protection::kNone;
}

}  // namespace xp
