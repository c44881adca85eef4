// Files damaged in every place: nothing may crash, and no count or length may make the reader
// allocate more than the file could hold. All allocations of this program are watched for that.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <random>

#include "daemon/gguf/gguf.h"
#include "tests/gguf/gguf_bytes.h"

namespace {
std::atomic<size_t> largest_allocation{0};
}

[[gnu::noinline]] void* operator new(size_t bytes) {
    size_t seen = largest_allocation.load();
    while (bytes > seen && !largest_allocation.compare_exchange_weak(seen, bytes)) {
    }
    void* memory = std::malloc(bytes);
    if (memory == nullptr) std::abort();
    return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace xp::test {
namespace {

using testing::HasSubstr;

// The reader's window is the largest thing needed for a small file.
constexpr size_t kAllowedBytes = 512 << 10;

// Uses everything that can be read.
void exercise(const GgufFile& file) {
    for (const auto& entry : file.metadata().entries()) {
        (void)!file.metadata().get_uint(entry.key).ok();
        (void)!file.metadata().get_ints(entry.key).ok();
        (void)!file.metadata().get_floats(entry.key).ok();
        (void)!file.metadata().get_strings(entry.key).ok();
    }
    for (const TensorInfo& tensor : file.tensors()) {
        std::vector<std::byte> bytes(tensor.bytes);
        EXPECT_TRUE(file.read_tensor(tensor, 0, bytes)) << tensor.name;
    }
}

class Hostile : public testing::Test {
protected:
    void SetUp() override {
        path_ = directory_.write("hostile.gguf", small_file());
        fd_ = *open_file(path_, O_RDWR);
    }
    void put(const std::string& bytes, uint64_t offset) {
        ASSERT_TRUE(write_exact(fd_.get(), offset, std::as_bytes(std::span(bytes)), path_));
    }
    TemporaryDirectory directory_;
    Path path_;
    UniqueFd fd_;
};

TEST_F(Hostile, EveryTruncationThatLosesDataIsRefused) {
    const std::string whole = small_file();
    const uint64_t last_byte_used = GgufFile::open(path_)->tensors()[2].offset + 5;
    ASSERT_LT(last_byte_used, whole.size());
    largest_allocation = 0;
    for (uint64_t n = whole.size(); n-- > 0;) {
        ASSERT_EQ(ftruncate(fd_.get(), static_cast<off_t>(n)), 0);
        const auto file = GgufFile::open(path_);
        if (n >= last_byte_used) {
            EXPECT_TRUE(file) << n;
        } else {
            ASSERT_FALSE(file) << n;
            EXPECT_EQ(file.error().code, ErrorCode::kCorrupt) << n << file.error().message;
            EXPECT_THAT(file.error().message, HasSubstr(path_.native()));
        }
    }
    EXPECT_LE(largest_allocation, kAllowedBytes);
}

TEST_F(Hostile, NoSingleBitFlipCrashesOrAllocatesMuch) {
    const std::string whole = small_file();
    const uint64_t data_start = GgufFile::open(path_)->files()[0].data_start;
    uint64_t n_refused = 0;
    largest_allocation = 0;
    for (uint64_t bit = 0; bit < 8 * whole.size(); ++bit) {
        const char flipped = static_cast<char>(whole[bit / 8] ^ 1 << bit % 8);
        put(std::string(1, flipped), bit / 8);
        const auto file = GgufFile::open(path_);
        if (file) exercise(*file);
        if (!file) ++n_refused;
        if (bit / 8 >= data_start) {
            EXPECT_TRUE(file) << "bit " << bit;
        }
        put(whole.substr(bit / 8, 1), bit / 8);
    }
    // Flips in lengths, types, counts and offsets must be noticed.
    EXPECT_GT(n_refused, data_start);
    EXPECT_LE(largest_allocation, kAllowedBytes);
}

TEST_F(Hostile, ExtremeFieldsAnywhereNeverCrashOrAllocateMuch) {
    std::mt19937_64 random(random_seed());
    const std::string whole = small_file();
    constexpr uint64_t kExtremes[] = {0, 1, 31, 1ull << 20, UINT32_MAX, 1ull << 32, INT64_MAX,
                                      1ull << 63, UINT64_MAX - 31, UINT64_MAX};
    largest_allocation = 0;
    for (int round = 0; round < 3000; ++round) {
        for (int i = 0; i < 2; ++i) {
            const uint64_t offset = random() % (whole.size() - 8);
            const uint64_t value = random() % 4 == 0 ? random() : kExtremes[random() % 10];
            put(number(value).substr(0, 1 + random() % 8), offset);
        }
        const auto file = GgufFile::open(path_);
        if (file) exercise(*file);
        put(whole, 0);
    }
    EXPECT_LE(largest_allocation, kAllowedBytes);
}

// The header of a whole model, with a few bits wrong, or cut off; its data is a hole.
TEST_F(Hostile, DamagedHeadersOfAModelNeverCrashOrAllocateMuch) {
    std::mt19937_64 random(random_seed());
    const Path model = Path(XP_TEST_DATA) / "deepseek-v4-tiny/tiny_deepseek4.gguf";
    const uint64_t size = std::filesystem::file_size(model);
    const uint64_t data_start = GgufFile::open(model)->files()[0].data_start;
    const std::string head = read_bytes(model).substr(0, data_start);
    put(head, 0);
    ASSERT_EQ(ftruncate(fd_.get(), static_cast<off_t>(size)), 0);
    ASSERT_TRUE(GgufFile::open(path_));
    uint64_t n_refused = 0;
    // A wrong length may reach into the data; it is held in at most eight times its size.
    const size_t allowed = 8 * size;
    largest_allocation = 0;
    for (int round = 0; round < 200; ++round) {
        std::string damaged = head;
        for (uint64_t flips = 1 + random() % 8; flips > 0; --flips) {
            const uint64_t bit = random() % (8 * head.size());
            damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ 1 << bit % 8);
        }
        put(damaged, 0);
        const auto file = GgufFile::open(path_);
        if (!file) ++n_refused;
    }
    put(head, 0);
    for (int round = 0; round < 50; ++round) {
        ASSERT_EQ(ftruncate(fd_.get(), static_cast<off_t>(random() % data_start)), 0);
        const auto file = GgufFile::open(path_);
        EXPECT_FALSE(file);
        ASSERT_EQ(ftruncate(fd_.get(), static_cast<off_t>(size)), 0);
        put(head, 0);
    }
    EXPECT_GT(n_refused, 0u);
    EXPECT_LE(largest_allocation, allowed);
}

TEST_F(Hostile, HugeCountsInATinyFileFailWithoutAllocation) {
    const std::string files[] = {
        header(INT64_MAX, 0), header(0, INT64_MAX), header(1ull << 61, 1ull << 61),
        header(0, 1) + array_key("k", 8, (1ull << 63) - 1, ""),
        header(0, 1) + array_key("k", 9, 1ull << 60, ""),
        header(0, 1) + array_key("k", 0, 1ull << 62, ""),
        header(0, 1) + key("k", 8, number(uint64_t{1} << 40)),
    };
    for (const std::string& bytes : files) {
        const Path path = directory_.write("huge.gguf", bytes + std::string(64, 'x'));
        largest_allocation = 0;
        const auto file = GgufFile::open(path);
        ASSERT_FALSE(file);
        EXPECT_EQ(file.error().code, ErrorCode::kCorrupt) << file.error().message;
        EXPECT_LE(largest_allocation, kAllowedBytes);
    }
}

// A sparse file makes any count plausible against the file's size; then the header limit holds.
TEST_F(Hostile, HugeCountsInAHugeSparseFileMeetTheHeaderLimit) {
    const std::pair<std::string, const char*> files[] = {
        {header(0, 1) + array_key("list", 10, 1ull << 27, ""), "key 'list'"},
        {header(0, 1) + array_key("list", 8, 1ull << 25, ""), "key 'list'"},
        {header(1ull << 24, 0), "tensor infos"},
        {header(0, 1ull << 24), "keys"},
    };
    for (const auto& [bytes, part] : files) {
        const Path path = directory_.write("sparse.gguf", bytes);
        std::filesystem::resize_file(path, 1ull << 36);
        largest_allocation = 0;
        const auto file = GgufFile::open(path);
        ASSERT_FALSE(file);
        EXPECT_EQ(file.error().code, ErrorCode::kLimit) << file.error().message;
        EXPECT_THAT(file.error().message, HasSubstr("limit of 134217728 bytes"));
        EXPECT_THAT(file.error().message, HasSubstr(part));
        EXPECT_LE(largest_allocation, kAllowedBytes);
    }
}

}  // namespace
}  // namespace xp::test
