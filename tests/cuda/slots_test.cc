// Slots in GPU memory: what was read is what kernels see, in whatever order slots are filled, used
// and filled again.
#include "cuda/slots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

namespace xp::cuda {
namespace {

class CudaSlots : public testing::Test {
protected:
    void SetUp() override {
        auto stream = make_stream("a test");
        ASSERT_TRUE(stream) << stream.error().message;
        stream_ = *std::move(stream);
    }
    std::unique_ptr<CudaSlotMemory> make(uint32_t n_buffers, std::vector<SlotClass> classes) {
        auto memory = CudaSlotMemory::create(stream_.get(), {.n_buffers = n_buffers});
        EXPECT_TRUE(memory) << memory.error().message;
        const auto allocated = (*memory)->allocate(classes);
        EXPECT_TRUE(allocated) << allocated.error().message;
        return *std::move(memory);
    }
    // Words at the start of every page and at the end, which arrives last.
    static void write(std::byte* buffer, uint64_t bytes, uint32_t value) {
        for (uint64_t at = 0; at < bytes; at += 4096) {
            std::memcpy(buffer + at, &value, sizeof value);
        }
        std::memcpy(buffer + bytes - sizeof value, &value, sizeof value);
    }
    // What a read does that brings `value`: by two threads, in pieces of odd sizes in any order.
    static void read(CudaSlotMemory& memory, SlotNumber slot, uint64_t bytes, uint32_t value,
                     std::mt19937& random) {
        std::byte* buffer = memory.take_buffer(slot);
        std::vector<std::pair<uint64_t, uint64_t>> pieces;
        for (uint64_t at = 0; at < bytes;) {
            const uint64_t size = std::min<uint64_t>(bytes - at, 4096 * (1 + random() % 128));
            pieces.emplace_back(at, size);
            at += size;
        }
        std::shuffle(pieces.begin(), pieces.end(), random);
        const auto tell = [&](size_t first) {
            for (size_t i = first; i < pieces.size(); i += 2) {
                memory.sink()->on_piece(buffer + pieces[i].first, pieces[i].second);
                if (first == 1) memory.copy_pieces();
            }
        };
        write(buffer, bytes, value);
        std::thread other(tell, 0);
        tell(1);
        other.join();
    }
    Stream stream_;
};

TEST_F(CudaSlots, HaveAddressesOfTheirOwnInEveryClass) {
    const auto memory = make(2, {{.stride = 8192, .slots = 3}, {.stride = 4096 * 5, .slots = 2}});
    std::vector<std::byte*> addresses;
    for (SlotNumber slot = 0; slot < 5; ++slot) addresses.push_back(memory->address(slot));
    EXPECT_EQ(addresses[1], addresses[0] + 8192);
    EXPECT_EQ(addresses[2], addresses[1] + 8192);
    EXPECT_EQ(addresses[4], addresses[3] + 4096 * 5);
}

TEST_F(CudaSlots, BuffersAreFreeAgainWhenTheirReadsEnd) {
    const auto memory = make(2, {{.stride = 4096, .slots = 4}});
    memory->take_buffer(0);
    std::byte* second = memory->take_buffer(1);
    EXPECT_FALSE(memory->has_buffer(true));
    memory->drop(0);
    EXPECT_TRUE(memory->has_buffer(false)) << "nothing was copied out of it";
    std::byte* third = memory->take_buffer(2);
    EXPECT_FALSE(memory->has_buffer(true));
    memory->sink()->on_piece(second, 4096);
    memory->fill(1);
    EXPECT_TRUE(memory->has_buffer(true));
    memory->sink()->on_piece(third, 4096);
    memory->fill(2);
    EXPECT_TRUE(memory->status());
    EXPECT_EQ(memory->copied_bytes(), 2 * 4096u);
}

// Thousands of reads and uses in random order, each use a copy out of the slot on the compute
// stream: it must see the read before it, and no later or failed one. The number of reads beside
// them decides who copies.
class CudaSlotReads : public CudaSlots, public testing::WithParamInterface<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(CudaSlots, CudaSlotReads, testing::Values(0, 10));

TEST_P(CudaSlotReads, UsesSeeTheFillBeforeThemAndNoOther) {
    constexpr uint64_t kBytes = 5 << 20;  // more than is copied at a time
    constexpr uint64_t kPart = kBytes - (512 << 10);
    constexpr uint32_t kSlots = 6, kRounds = 3000;
    const uint32_t others = GetParam();
    const auto memory = make(3 + others, {{.stride = kBytes, .slots = kSlots + others}});
    for (uint32_t i = 0; i < others; ++i) memory->take_buffer(kSlots + i);
    const unsigned seed = std::random_device{}();
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    auto seen_memory = Memory::pinned(uint64_t{kRounds} * sizeof(uint32_t), "a test");
    ASSERT_TRUE(seen_memory);
    auto* seen = reinterpret_cast<uint32_t*>(seen_memory->data());
    std::vector<uint32_t> expected(kRounds);
    std::vector<uint32_t> content(kSlots);
    uint64_t fills = 0, dropped = 0;
    for (uint32_t round = 0; round < kRounds; ++round) {
        const SlotNumber slot = random() % kSlots;
        if (content[slot] == 0 || random() % 2 == 0) {
            if (random() % 4 == 0) {
                // Fails when a part of it was copied already.
                std::byte* buffer = memory->take_buffer(slot);
                write(buffer, kBytes, UINT32_MAX);
                memory->sink()->on_piece(buffer + kPart / 2, kPart / 2);
                memory->sink()->on_piece(buffer, kPart / 2);
                memory->copy_pieces();
                memory->drop(slot);
                dropped += kPart;
            }
            content[slot] = round + 1;
            read(*memory, slot, kBytes, content[slot], random);
            memory->fill(slot);
            ++fills;
        }
        const SlotNumber used[] = {slot};
        memory->begin_use(used);
        // Any page of it.
        const uint64_t at = random() % (kBytes / 4096) * 4096;
        cudaMemcpyAsync(&seen[round], memory->address(slot) + at, sizeof(uint32_t),
                        cudaMemcpyDeviceToHost, stream_.get());
        memory->end_use(used);
        expected[round] = content[slot];
    }
    ASSERT_EQ(cudaStreamSynchronize(stream_.get()), cudaSuccess);
    ASSERT_TRUE(memory->status());
    EXPECT_EQ(std::vector<uint32_t>(seen, seen + kRounds), expected);
    EXPECT_EQ(memory->copied_bytes(), fills * kBytes + dropped);
    for (uint32_t i = 0; i < others; ++i) memory->drop(kSlots + i);
}

// The same with RAM slots: contents move between both in random order, and are used and overwritten
// at once.
TEST_F(CudaSlots, WhatWasSavedComesBackAsItWas) {
    constexpr uint64_t kBytes = 1 << 20;
    constexpr uint32_t kSlots = 5, kRamSlots = 4, kRounds = 4000;
    const auto memory = make(3, {{.stride = kBytes, .slots = kSlots}});
    const SlotClass ram_class{.stride = kBytes, .slots = kRamSlots};
    ASSERT_TRUE(memory->usable_ram());
    ASSERT_TRUE(memory->allocate_ram({&ram_class, 1}));
    const unsigned seed = std::random_device{}();
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    auto seen_memory = Memory::pinned(uint64_t{kRounds} * 2 * sizeof(uint32_t), "a test");
    ASSERT_TRUE(seen_memory);
    auto* seen = reinterpret_cast<uint32_t*>(seen_memory->data());
    std::vector<uint32_t> expected;
    std::vector<uint32_t> content(kSlots), ram_content(kRamSlots);
    uint64_t saves = 0, refused = 0, restores = 0, fills = 0;
    for (uint32_t round = 0; round < kRounds; ++round) {
        const SlotNumber slot = random() % kSlots;
        if (content[slot] != 0 && random() % 2 == 0) {
            const SlotNumber ram_slot = random() % kRamSlots;
            if (memory->can_save()) {
                memory->save(slot, ram_slot);
                ram_content[ram_slot] = content[slot];
                ++saves;
            } else {
                ++refused;
            }
        }
        const SlotNumber from = random() % kRamSlots;
        if (ram_content[from] != 0 && random() % 2 == 0) {
            memory->restore(slot, from);
            content[slot] = ram_content[from];
            ++restores;
        } else if (content[slot] == 0 || random() % 2 == 0) {
            content[slot] = round + 1;
            read(*memory, slot, kBytes, content[slot], random);
            memory->fill(slot);
            ++fills;
        }
        const SlotNumber used[] = {slot};
        memory->begin_use(used);
        for (const uint64_t at : {uint64_t{0}, kBytes - 4}) {
            cudaMemcpyAsync(&seen[expected.size()], memory->address(slot) + at, sizeof(uint32_t),
                            cudaMemcpyDeviceToHost, stream_.get());
            expected.push_back(content[slot]);
        }
        memory->end_use(used);
    }
    ASSERT_EQ(cudaStreamSynchronize(stream_.get()), cudaSuccess);
    ASSERT_TRUE(memory->status());
    EXPECT_EQ(std::vector<uint32_t>(seen, seen + expected.size()), expected);
    EXPECT_EQ(memory->saved_bytes(), saves * kBytes);
    EXPECT_EQ(memory->copied_bytes(), (fills + restores) * kBytes);
    EXPECT_GT(saves, 0u);
    EXPECT_GT(restores, 0u);
    std::printf("%llu copies to RAM slots, %llu refused\n", static_cast<unsigned long long>(saves),
                static_cast<unsigned long long>(refused));
}

}  // namespace
}  // namespace xp::cuda
