// Arenas and pinned files on a device: the same bytes for whoever holds the descriptor, also when
// the process that wrote them was killed; and nothing left when they are gone.
#include "cuda/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "cuda/pinned_file.h"
#include "cuda/slots.h"
#include "tests/cuda/arena_child.h"
#include "tests/serve/process.h"

namespace xp::cuda {
namespace {

using testing::HasSubstr;

constexpr uint64_t kMega = uint64_t{1} << 20;

// Elsewhere slots do without descriptors, and there is nothing to test.
class CudaArena : public testing::Test {
protected:
    void SetUp() override {
        const auto exportable = Arena::check_export();
        if (exportable) return;
        ASSERT_EQ(exportable.error().code, ErrorCode::kUnsupported) << exportable.error().message;
        GTEST_SKIP() << exportable.error().message;
    }
    static Arena make(uint64_t bytes) {
        auto arena = Arena::create(bytes);
        EXPECT_TRUE(arena.ok()) << arena.error().message;
        return arena ? *std::move(arena) : Arena();
    }
    static std::vector<uint32_t> words_of(const Arena& arena) {
        std::vector<uint32_t> words(arena.bytes() / sizeof(uint32_t));
        EXPECT_EQ(cudaMemcpy(words.data(), arena.data(), arena.bytes(), cudaMemcpyDeviceToHost),
                  cudaSuccess);
        return words;
    }
};

TEST_F(CudaArena, IsCountedInTheDriversPiecesUntilItIsGone) {
    MemoryMeter& meter = device_meter();
    const uint64_t before = meter.now();
    {
        const Arena exact = make(256 * kMega);
        EXPECT_EQ(meter.now() - before, 256 * kMega);
        EXPECT_EQ(exact.bytes(), 256 * kMega);
        const Arena odd = make(2 * kMega + 4096);
        EXPECT_EQ(meter.now() - before, 260 * kMega);
        EXPECT_EQ(odd.bytes(), 2 * kMega + 4096);
        Arena moved = make(2 * kMega);
        moved = Arena();
        EXPECT_EQ(meter.now() - before, 260 * kMega);
    }
    EXPECT_EQ(meter.now(), before);
}

TEST_F(CudaArena, WhatItsDescriptorIsImportedAsHasTheSameBytes) {
    const unsigned seed = std::random_device{}();
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::vector<uint32_t> words(64 * kMega / sizeof(uint32_t));
    for (uint32_t& word : words) word = random();
    const uint64_t before = device_meter().now();
    {
        Arena first = make(64 * kMega);
        ASSERT_NE(first.data(), nullptr);
        ASSERT_EQ(cudaMemcpy(first.data(), words.data(), first.bytes(), cudaMemcpyHostToDevice),
                  cudaSuccess);
        auto fd = first.export_fd();
        ASSERT_TRUE(fd.ok()) << fd.error().message;
        auto second = Arena::import(fd->get(), 64 * kMega);
        ASSERT_TRUE(second.ok()) << second.error().message;
        EXPECT_NE(second->data(), first.data());
        EXPECT_EQ(words_of(*second), words);
        // One memory, not a copy.
        ASSERT_EQ(cudaMemset(second->data(), 0x5a, 4096), cudaSuccess);
        EXPECT_EQ(words_of(first)[1023], 0x5a5a5a5au);
        EXPECT_EQ(words_of(first)[1024], words[1024]);
        first = Arena();
        EXPECT_EQ(words_of(*second)[1024], words[1024]);
        *second = Arena();
        // By now only the descriptor keeps it.
        auto third = Arena::import(fd->get(), 64 * kMega);
        ASSERT_TRUE(third.ok()) << third.error().message;
        EXPECT_EQ(words_of(*third)[1023], 0x5a5a5a5au);
        EXPECT_EQ(words_of(*third).back(), words.back());
    }
    EXPECT_EQ(device_meter().now(), before);
}

// As the allocator is when a daemon is killed, and the next one adopts what was kept for it.
TEST_F(CudaArena, OutlivesTheProcessThatFilledItAndServesTheNextOne) {
    const auto start = [](const char* role, UniqueFd& ours) {
        int sockets[2] = {-1, -1};
        EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
        ours = UniqueFd(sockets[0]);
        const UniqueFd theirs(sockets[1]);
        const UniqueFd inherited(::dup(theirs.get()));  // without its flag
        return std::make_unique<scripted::Process>(std::vector<std::string>{
            std::filesystem::read_symlink("/proc/self/exe").string(),
            std::string(test::kArenaChild) + role, std::to_string(inherited.get())});
    };
    UniqueFd socket;
    auto maker = start("make", socket);
    std::optional<test::Kept> kept = test::receive_kept(socket.get());
    if (!kept) {
        maker->wait();
        FAIL() << maker->output();
    }
    maker->signal(SIGKILL);
    ASSERT_EQ(maker->wait(), 128 + SIGKILL) << maker->output();
    for (int n = 0; n < 2; ++n) {  // the first one that adopts leaves it to the second
        auto adopter = start("adopt", socket);
        ASSERT_TRUE(test::send_kept(socket.get(), *kept));
        const int status = adopter->wait();
        if (n == 0) {
            ASSERT_EQ(status, 0) << adopter->output();
        } else {
            EXPECT_EQ(status, 1);  // it sees what the first wrote behind the sum
            EXPECT_THAT(adopter->output(), HasSubstr("has other contents"));
        }
    }
}

TEST_F(CudaArena, OfTooMuchMemoryOrOfNoMemoryIsAnErrorThatHarmsNothing) {
    const uint64_t before = device_meter().now();
    const auto large = Arena::create(uint64_t{1} << 45);
    ASSERT_FALSE(large);
    EXPECT_THAT(large.error().message, HasSubstr("no 32.0 TiB of exportable GPU memory"));
    EXPECT_NE(large.error().code, ErrorCode::kDeviceLost);
    auto file = MemoryFile::create(2 * kMega, "a test");
    ASSERT_TRUE(file);
    const auto foreign = Arena::import(file->fd(), 2 * kMega);
    ASSERT_FALSE(foreign);
    EXPECT_THAT(foreign.error().message, HasSubstr("taking over 2.00 MiB of GPU memory"));
    EXPECT_NE(foreign.error().code, ErrorCode::kDeviceLost);
    const Arena small = make(2 * kMega);
    const auto fd = small.export_fd();
    ASSERT_TRUE(fd);
    EXPECT_FALSE(Arena::import(fd->get(), 64 * kMega));  // more than it is
    EXPECT_EQ(device_meter().now(), before + 2 * kMega);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(CudaPrivateArena, HasNoDescriptor) {
    const uint64_t before = device_meter().now();
    {
        const auto arena = Arena::create_private(3 * kMega);
        ASSERT_TRUE(arena.ok()) << arena.error().message;
        EXPECT_EQ(device_meter().now(), before + 4 * kMega);
        EXPECT_EQ(cudaMemset(arena->data(), 1, arena->bytes()), cudaSuccess);
        const auto fd = arena->export_fd();
        ASSERT_FALSE(fd);
        EXPECT_EQ(fd.error().code, ErrorCode::kUnsupported);
    }
    EXPECT_EQ(device_meter().now(), before);
}

TEST(CudaPinnedFile, IsCopiedFromAndToByTheDevice) {
    auto file = PinnedFile::create(8 * kMega, "a test");
    ASSERT_TRUE(file.ok()) << file.error().message;
    cudaPointerAttributes attributes{};
    ASSERT_EQ(cudaPointerGetAttributes(&attributes, file->data() + 4096), cudaSuccess);
    EXPECT_EQ(attributes.type, cudaMemoryTypeHost);  // pinned, and known to the runtime
    const auto memory = Memory::device(8 * kMega, "a test");
    ASSERT_TRUE(memory);
    std::memset(file->data(), 0x77, 8 * kMega);
    ASSERT_EQ(cudaMemcpy(memory->data(), file->data(), 8 * kMega, cudaMemcpyHostToDevice),
              cudaSuccess);
    std::memset(file->data(), 0, 8 * kMega);
    ASSERT_EQ(cudaMemcpy(file->data(), memory->data(), 8 * kMega, cudaMemcpyDeviceToHost),
              cudaSuccess);
    EXPECT_EQ(file->data()[8 * kMega - 1], std::byte{0x77});
    // Kept by its descriptor and pinned again.
    UniqueFd kept(::dup(file->file().fd()));
    *file = PinnedFile();
    auto adopted = MemoryFile::adopt(std::move(kept), "a test");
    ASSERT_TRUE(adopted.ok()) << adopted.error().message;
    const auto again = PinnedFile::pin(*std::move(adopted), "a test");
    ASSERT_TRUE(again.ok()) << again.error().message;
    EXPECT_EQ(again->data()[0], std::byte{0x77});
}

// More than one arena can hold: slots of all of them are their own memory.
TEST_F(CudaArena, SlotsOfAClassGoIntoSeveral) {
    constexpr uint64_t kStride = 96 * kMega, kSlots = 23;
    size_t free = 0, total = 0;
    ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
    if (free < 3 * (uint64_t{1} << 30)) GTEST_SKIP() << "too little free memory";
    const auto stream = make_stream("a test");
    ASSERT_TRUE(stream);
    const uint64_t before = device_meter().now();
    {
        auto memory = CudaSlotMemory::create(stream->get(), {.n_buffers = 1});
        ASSERT_TRUE(memory) << memory.error().message;
        const SlotClass slots{.stride = kStride, .slots = kSlots};
        const auto allocated = (*memory)->allocate({&slots, 1});
        ASSERT_TRUE(allocated) << allocated.error().message;
        EXPECT_EQ((*memory)->warning(), "");
        EXPECT_EQ((*memory)->buffer_bytes({&slots, 1}), kStride);
        EXPECT_EQ(device_meter().now() - before, kSlots * kStride);
        for (uint32_t slot = 0; slot < kSlots; ++slot) {
            ASSERT_EQ(cudaMemset((*memory)->address(slot), static_cast<int>(slot + 1), kStride),
                      cudaSuccess);
        }
        for (uint32_t slot = 0; slot < kSlots; ++slot) {
            for (const uint64_t at : {uint64_t{0}, kStride - 1}) {
                uint8_t value = 0;
                ASSERT_EQ(cudaMemcpy(&value, (*memory)->address(slot) + at, 1,
                                     cudaMemcpyDeviceToHost), cudaSuccess);
                EXPECT_EQ(value, slot + 1) << at;
            }
        }
    }
    EXPECT_EQ(device_meter().now(), before);
}

}  // namespace
}  // namespace xp::cuda
