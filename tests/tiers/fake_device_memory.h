// A device without a device: its slots are host memory, and its copies happen some time later, in a
// random order that keeps to what slot_memory.h promises and to nothing more. So a cache that
// relies on more hands out wrong bytes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "daemon/base/memory.h"
#include "daemon/tiers/slot_memory.h"

namespace xp {

struct FakeDeviceOptions {
    uint64_t usable = UINT64_MAX;
    uint64_t usable_ram = UINT64_MAX;
    uint32_t n_buffers = 3;
    uint32_t refused_saves = 0;  // one in so many is; 0: none, 1: all
    std::string warning = "";
};

class FakeDeviceMemory final : public SlotMemory {
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
    bool has_buffer() const override {
        return std::any_of(buffers_.begin(), buffers_.end(),
                           [](const auto& buffer) { return !buffer->in_use; });
    }
    std::byte* take_buffer(SlotNumber slot) override {
        run_some();
        const auto buffer = std::find_if(buffers_.begin(), buffers_.end(),
                                         [](const auto& b) { return !b->in_use; });
        run_before_write(**buffer);
        (*buffer)->in_use = true;
        buffer_of_[slot] = buffer->get();
        return (*buffer)->memory.data();
    }
    void fill(SlotNumber slot) override {
        Place& buffer = *buffer_of_[slot];
        buffer.filled = true;
        add_copy(buffer, *slots_[slot]);
        buffer.in_use = false;
        copied_bytes_ += slots_[slot]->memory.bytes();
    }
    void drop(SlotNumber slot) override {
        buffer_of_[slot]->in_use = false;
        slots_[slot]->filled = false;
    }
    bool can_save() const override {
        return options_.refused_saves == 0 || random_() % options_.refused_saves != 0;
    }
    void save(SlotNumber slot, SlotNumber ram_slot) override {
        add_copy(*slots_[slot], *ram_[ram_slot]);
        saved_bytes_ += slots_[slot]->memory.bytes();
    }
    void restore(SlotNumber slot, SlotNumber ram_slot) override {
        add_copy(*ram_[ram_slot], *slots_[slot]);
        copied_bytes_ += slots_[slot]->memory.bytes();
    }
    void begin_use(std::span<const SlotNumber> slots) override {
        run_some();
        for (const SlotNumber slot : slots) {
            EXPECT_TRUE(slots_[slot]->filled) << "slot " << slot << " has no content";
            run_before_read(*slots_[slot]);
        }
    }
    void end_use(std::span<const SlotNumber>) override { run_some(); }
    Result<void> status() const override { return {}; }
    uint64_t copied_bytes() const override { return copied_bytes_; }
    uint64_t saved_bytes() const override { return saved_bytes_; }

private:
    struct Place {
        PageBuffer memory;
        bool in_use = false;  // a buffer that is read into
        bool filled = false;
    };
    struct Copy {
        Place* from = nullptr;
        Place* to = nullptr;
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

    void add_copy(Place& from, Place& to) {
        EXPECT_TRUE(from.filled) << "a copy of what nobody wrote";
        to.filled = true;
        copies_.push_back({&from, &to});
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
            return earlier.to == copy.from || earlier.to == copy.to || earlier.from == copy.to;
        });
        std::memcpy(copy.to->memory.data(), copy.from->memory.data(),
                    std::min(copy.from->memory.bytes(), copy.to->memory.bytes()));
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
    void run_before_read(const Place& place) {
        run_while(copies_.size(), [&](const Copy& copy) { return copy.to == &place; });
    }
    void run_before_write(const Place& place) {
        run_while(copies_.size(),
                  [&](const Copy& copy) { return copy.to == &place || copy.from == &place; });
    }

    mutable std::mt19937_64 random_;
    const FakeDeviceOptions options_;
    Places slots_, ram_, buffers_;
    std::vector<Place*> buffer_of_;  // per slot
    std::vector<Copy> copies_;       // not done yet, in the order they were asked for
    uint64_t copied_bytes_ = 0, saved_bytes_ = 0;
};

}  // namespace xp
