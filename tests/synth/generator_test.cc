// The values: the same from any range, of the asked distribution, and finite.
#include <cmath>
#include <cstring>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/gguf/payload.h"
#include "tools/synth/generator.h"

namespace xp::test {
namespace {

constexpr uint64_t kRows = 512;

SynthTensor tensor_of(GgmlType type, double mean, double deviation) {
    return {"blk.0.x.weight", type, {1024, kRows}, mean, deviation, 0};
}

std::vector<std::byte> bytes_of(uint64_t seed, const SynthTensor& tensor) {
    std::vector<std::byte> bytes(tensor.bytes());
    TensorGenerator(seed, tensor).fill(0, bytes);
    return bytes;
}

const SynthTensor kIds{"blk.0.ffn_gate_tid2eid.weight", GgmlType::kI32, {6, 5000}, 0, 0, 8};

TEST(TensorGenerator, AnyRangeIsThatPartOfTheWhole) {
    std::vector<SynthTensor> tensors = {kIds};
    for (const GgmlType type : {GgmlType::kF32, GgmlType::kF16, GgmlType::kQ8_0,
                                GgmlType::kMXFP4}) {
        tensors.push_back(tensor_of(type, 0, 0.03));
    }
    for (const SynthTensor& tensor : tensors) {
        const std::vector<std::byte> whole = bytes_of(7, tensor);
        const TensorGenerator generator(7, tensor);
        const uint64_t block = traits_of(tensor.type).block_bytes;
        const uint64_t n_blocks = whole.size() / block;
        std::vector<std::byte> parts(whole.size());
        uint64_t length = 4;  // 4, 20, 100, … and a rest
        for (uint64_t first = 0; first < n_blocks; length *= 5) {
            const uint64_t n = std::min(length, n_blocks - first);
            generator.fill(first, std::span(parts).subspan(first * block, n * block));
            first += n;
        }
        EXPECT_TRUE(parts == whole) << traits_of(tensor.type).name;
    }
}

TEST(TensorGenerator, SeedAndNameDecideTheBytes) {
    SynthTensor tensor = tensor_of(GgmlType::kMXFP4, 0, 0.03);
    const auto one = bytes_of(1, tensor);
    EXPECT_TRUE(bytes_of(1, tensor) == one);
    EXPECT_FALSE(bytes_of(2, tensor) == one);
    tensor.name = "blk.1.x.weight";
    EXPECT_FALSE(bytes_of(1, tensor) == one);
}

TEST(TensorGenerator, ValuesHaveTheAskedMeanAndDeviation) {
    const struct {
        GgmlType type;
        double mean, deviation;
    } cases[] = {{GgmlType::kF32, 1, 0.05},        {GgmlType::kF16, 0, 1},
                 {GgmlType::kF16, 0, 1 / 128.0},   {GgmlType::kQ8_0, 0, 1 / 64.0},
                 {GgmlType::kQ8_0, 0, 1 / 90.5},   {GgmlType::kMXFP4, 0, 1 / 64.0},
                 {GgmlType::kMXFP4, 0, 1 / 45.25}, {GgmlType::kMXFP4, 0, 1 / 11.3}};
    for (const auto& [type, mean, deviation] : cases) {
        const std::vector<std::byte> bytes = bytes_of(3, tensor_of(type, mean, deviation));
        EXPECT_EQ(find_payload_fault(type, bytes, 0), std::nullopt);
        const size_t n = 1024 * kRows;
        std::vector<float> values(n);
        traits_of(type).dequantise(bytes.data(), values.data(), n);
        double sum = 0;
        double squares = 0;
        for (const float value : values) {
            sum += value;
            squares += (value - mean) * (value - mean);
        }
        // Half a million values: the mean's own deviation is below 0.0014 of theirs.
        EXPECT_NEAR(sum / n, mean, 0.01 * deviation) << traits_of(type).name;
        EXPECT_NEAR(std::sqrt(squares / n), deviation, 0.01 * deviation) << traits_of(type).name;
    }
}

TEST(TensorGenerator, HashTablesHaveDifferentIdsPerTokenAndUseAll) {
    const std::vector<std::byte> bytes = bytes_of(5, kIds);
    std::vector<int32_t> ids(bytes.size() / sizeof(int32_t));
    std::memcpy(ids.data(), bytes.data(), bytes.size());
    std::vector<int> counts(8);
    for (size_t row = 0; row < 5000; ++row) {
        const std::set<int32_t> different(ids.begin() + row * 6, ids.begin() + row * 6 + 6);
        ASSERT_EQ(different.size(), 6u) << row;
        ASSERT_GE(*different.begin(), 0);
        ASSERT_LT(*different.rbegin(), 8);
        for (const int32_t id : different) ++counts[static_cast<size_t>(id)];
    }
    // 3750 each on average; 200 is more than 6 deviations.
    for (const int count : counts) EXPECT_NEAR(count, 3750, 200);
}

}  // namespace
}  // namespace xp::test
