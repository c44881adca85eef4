// A device without a device: its slots are host memory, and its copies happen some time later, in a
// random order that keeps to what slot_memory.h promises and to nothing more. So a cache that
// relies on more hands out wrong bytes. Pieces of a read are copied on as they arrive, from any
// thread; a read is only filled when every byte of it was told of once.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <random>
#include <vector>

#include "daemon/base/memory.h"
#include "daemon/tiers/slot_memory.h"

namespace xp {

struct FakeDeviceOptions {
    uint64_t usable = UINT64_MAX;
    uint64_t usable_ram = UINT64_MAX;
    uint32_t n_buffers = 3;
    uint32_t busy_buffers = 0;   // one in so many free ones is still copied out of; 0: none
    uint32_t refused_saves = 0;  // one in so many is; 0: none, 1: all
    std::string warning = "";
};

class FakeDeviceMemory final : public SlotMemory, private PieceSink {
public:
    explicit FakeDeviceMemory(uint64_t seed, FakeDeviceOptions options = {})
        : random_(seed), options_(options) {}

    const char* name() const override { return "fake memory"; }
    uint64_t usable() const override { return options_.usable; }
    uint64_t buffer_bytes(std::span<const SlotClass> classes) const override {
        uint64_t largest = 0;
        for (const SlotClass& c : classes) largest = std::max(largest, c.stride);
        return options_.n_buffers * largest;
    }
    std::string warning() const override { return options_.warning; }
    std::optional<uint64_t> usable_ram() const override { return options_.usable_ram; }
    Result<void> allocate(std::span<const SlotClass> classes) override {
        add_places(classes, slots_);
        uint64_t largest = 0;
        for (const SlotClass& c : classes) largest = std::max(largest, c.stride);
        for (uint32_t i = 0; i < options_.n_buffers; ++i) add_place(largest, buffers_);
        buffer_of_.resize(slots_.size());
        return {};
    }
    Result<void> allocate_ram(std::span<const SlotClass> classes) override {
        add_places(classes, ram_);
        return {};
    }

    std::byte* address(SlotNumber slot) const override { return slots_[slot]->memory.data(); }
    bool has_buffer(bool wait) override {
        std::lock_guard lock(mutex_);
        const bool busy = options_.busy_buffers != 0 && random_() % options_.busy_buffers == 0;
        return free_buffer() != nullptr && (wait || !busy);
    }
    std::byte* take_buffer(SlotNumber slot) override {
        std::lock_guard lock(mutex_);
        run_some();
        Place* buffer = free_buffer();
        run_before_write(all_of(*buffer));
        buffer->in_use = true;
        buffer->slot = slot;
        buffer->told = 0;
        slots_[slot]->filled = false;
        buffer_of_[slot] = buffer;
        return buffer->memory.data();
    }
    PieceSink* sink() override { return this; }
    void fill(SlotNumber slot) override {
        std::lock_guard lock(mutex_);
        Place& buffer = *buffer_of_[slot];
        EXPECT_EQ(buffer.told, slots_[slot]->memory.bytes()) << "filled before all was read";
        buffer.in_use = false;
        slots_[slot]->filled = true;
        run_some();
    }
    void drop(SlotNumber slot) override {
        std::lock_guard lock(mutex_);
        buffer_of_[slot]->in_use = false;
    }
    bool can_save() const override {
        std::lock_guard lock(mutex_);
        return options_.refused_saves == 0 || random_() % options_.refused_saves != 0;
    }
    void save(SlotNumber slot, SlotNumber ram_slot) override {
        std::lock_guard lock(mutex_);
        add_copy(*slots_[slot], *ram_[ram_slot]);
        saved_bytes_ += slots_[slot]->memory.bytes();
    }
    void restore(SlotNumber slot, SlotNumber ram_slot) override {
        std::lock_guard lock(mutex_);
        add_copy(*ram_[ram_slot], *slots_[slot]);
        copied_bytes_ += slots_[slot]->memory.bytes();
    }
    void begin_use(std::span<const SlotNumber> slots) override {
        std::lock_guard lock(mutex_);
        run_some();
        for (const SlotNumber slot : slots) {
            EXPECT_TRUE(slots_[slot]->filled) << "slot " << slot << " has no content";
            run_before_read(all_of(*slots_[slot]));
        }
    }
    void end_use(std::span<const SlotNumber>) override {
        std::lock_guard lock(mutex_);
        run_some();
    }
    Result<void> status() const override { return {}; }
    uint64_t copied_bytes() const override {
        std::lock_guard lock(mutex_);
        return copied_bytes_;
    }
    uint64_t saved_bytes() const override { return saved_bytes_; }

private:
    struct Place {
        PageBuffer memory;
        bool filled = false;
        // Of a buffer:
        bool in_use = false;  // is read into
        SlotNumber slot = 0;
        uint64_t told = 0;    // bytes
    };
    struct Range {
        Place* place = nullptr;
        uint64_t at = 0, bytes = 0;
        bool meets(const Range& other) const {
            return place == other.place && at < other.at + other.bytes && other.at < at + bytes;
        }
        std::byte* data() const { return place->memory.data() + at; }
    };
    struct Copy {
        Range from, to;
    };
    using Places = std::vector<std::unique_ptr<Place>>;

    static void add_place(uint64_t bytes, Places& places) {
        Result<PageBuffer> memory = PageBuffer::allocate(bytes, "a test");
        ASSERT_TRUE(memory) << memory.error().message;
        std::memset(memory->data(), 0xee, bytes);
        places.push_back(std::make_unique<Place>());
        places.back()->memory = std::move(*memory);
    }
    static void add_places(std::span<const SlotClass> classes, Places& places) {
        for (const SlotClass& c : classes) {
            for (uint64_t i = 0; i < c.slots; ++i) add_place(c.stride, places);
        }
    }

    static Range all_of(Place& place) { return {&place, 0, place.memory.bytes()}; }
    Place* free_buffer() const {
        const auto buffer = std::find_if(buffers_.begin(), buffers_.end(),
                                         [](const auto& b) { return !b->in_use; });
        return buffer == buffers_.end() ? nullptr : buffer->get();
    }

    void on_piece(const std::byte* data, uint64_t bytes) override {
        std::lock_guard lock(mutex_);
        const auto found = std::find_if(buffers_.begin(), buffers_.end(), [&](const auto& b) {
            return data >= b->memory.data() && data < b->memory.data() + b->memory.bytes();
        });
        ASSERT_NE(found, buffers_.end()) << "a piece of no buffer";
        Place& buffer = **found;
        Place& slot = *slots_[buffer.slot];
        const auto at = static_cast<uint64_t>(data - buffer.memory.data());
        EXPECT_TRUE(buffer.in_use) << "a piece after the end of its read";
        EXPECT_LE(at + bytes, slot.memory.bytes());
        buffer.told += bytes;
        copied_bytes_ += bytes;
        copies_.push_back({{&buffer, at, bytes}, {&slot, at, bytes}});
        run_some();
    }
    void add_copy(Place& from, Place& to) {
        EXPECT_TRUE(from.filled) << "a copy of what nobody wrote";
        to.filled = true;
        copies_.push_back({all_of(from), all_of(to)});
        run_some();
    }
    void run_some() {
        while (!copies_.empty() && random_() % 3 == 0) run(random_() % copies_.size());
    }
    // After those before it that it depends on.
    void run(size_t index) {
        const Copy copy = copies_[index];
        copies_.erase(copies_.begin() + static_cast<ptrdiff_t>(index));
        run_while(index, [&](const Copy& earlier) {
            return earlier.to.meets(copy.from) || earlier.to.meets(copy.to) ||
                   earlier.from.meets(copy.to);
        });
        std::memcpy(copy.to.data(), copy.from.data(), std::min(copy.from.bytes, copy.to.bytes));
    }
    // Runs the last of the first `end` copies that matches, and so what it depends on, until none
    // does.
    template <class Matches>
    void run_while(size_t end, Matches matches) {
        for (;;) {
            size_t index = std::min(end, copies_.size());
            while (index > 0 && !matches(copies_[index - 1])) --index;
            if (index == 0) return;
            const size_t before = copies_.size();
            run(index - 1);
            end -= std::min(end, before - copies_.size());
        }
    }
    void run_before_read(const Range& range) {
        run_while(copies_.size(), [&](const Copy& copy) { return copy.to.meets(range); });
    }
    void run_before_write(const Range& range) {
        run_while(copies_.size(), [&](const Copy& copy) {
            return copy.to.meets(range) || copy.from.meets(range);
        });
    }

    mutable std::mutex mutex_;  // of all below
    mutable std::mt19937_64 random_;
    const FakeDeviceOptions options_;
    Places slots_, ram_, buffers_;
    std::vector<Place*> buffer_of_;  // per slot
    std::vector<Copy> copies_;       // not done yet, in the order they were asked for
    uint64_t copied_bytes_ = 0, saved_bytes_ = 0;
};

}  // namespace xp
