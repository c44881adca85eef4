#include "tools/synth/generator.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "daemon/base/assert.h"
#include "daemon/base/hash.h"

namespace xp {

namespace {

constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;  // 2^64 divided by the golden ratio, odd

// SplitMix64's finaliser: every input bit changes every output bit with probability one half.
inline uint64_t mix(uint64_t value) {
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9;
    value = (value ^ value >> 27) * 0x94D049BB133111EB;
    return value ^ value >> 31;
}

constexpr size_t kMxfp4BlockBytes = 17;
constexpr size_t kMxfp4CodeBytes = 16;
constexpr size_t kQ8BlockBytes = 34;
constexpr size_t kQ8Codes = 32;

// Of MXFP4 codes that are equally likely: the mean of 0, ½, 1, 1½, 2, 3, 4, 6 squared is 68.5 / 8.
const double kMxfp4CodeDeviation = std::sqrt(68.5 / 8);
// Of -127 … 127, where -127 is as likely as two others.
const double kQ8CodeDeviation = std::sqrt((2 * (127.0 * 128 * 255 / 6) + 127.0 * 127) / 256);
constexpr int kMxfp4ExponentBias = 127;

// Even spread between -1 and 1 has deviation 1/sqrt(3).
const double kEvenReach = std::sqrt(3.0);
constexpr uint32_t kHalfBits = 12;

// Above what any model uses per token.
constexpr uint32_t kMaxIdsPerRow = 64;

}  // namespace

TensorGenerator::TensorGenerator(uint64_t seed, const SynthTensor& tensor)
    : type_(tensor.type),
      key_(mix(seed + kGoldenRatio) ^ xxh3_64(std::as_bytes(std::span(tensor.name)))),
      mean_(tensor.mean), deviation_(tensor.deviation), n_ids_(tensor.n_ids),
      ids_per_row_(static_cast<uint32_t>(tensor.ne[0])) {
    XP_ASSERT(n_ids_ == 0 || (ids_per_row_ <= n_ids_ && ids_per_row_ <= kMaxIdsPerRow));
    if (type_ == GgmlType::kMXFP4) {
        const double scale = deviation_ / kMxfp4CodeDeviation;
        const int exponent = static_cast<int>(std::floor(std::log2(scale)));
        scale_exponent_ = static_cast<uint8_t>(exponent + kMxfp4ExponentBias);
        // Squares of neighbouring scales differ by a factor of 4: s² = l² + share · 3 l².
        const double low = std::ldexp(1.0, exponent);
        upper_scale_share_ =
            static_cast<uint32_t>(((scale * scale) / (low * low) - 1) / 3 * 65536);
    } else if (type_ == GgmlType::kQ8_0) {
        // Scales of 0.65 to 1.35 times the middle one, whose squares' mean is 1.0525.
        const double middle = deviation_ / kQ8CodeDeviation / std::sqrt(1.0525);
        for (size_t i = 0; i < q8_scales_.size(); ++i) {
            const double factor = 0.65 + 0.1 * static_cast<double>(i);
            q8_scales_[i] = float_to_half(static_cast<float>(middle * factor));
        }
    } else if (type_ == GgmlType::kF16) {
        constexpr size_t kValues = size_t{1} << kHalfBits;
        for (size_t i = 0; i < kValues; ++i) {
            const double even = (2 * static_cast<double>(i) + 1) / kValues - 1;
            halves_.push_back(
                float_to_half(static_cast<float>(mean_ + even * kEvenReach * deviation_)));
        }
    }
}

void TensorGenerator::fill(uint64_t first, std::span<std::byte> bytes) const {
    XP_ASSERT(bytes.size() % traits_of(type_).block_bytes == 0);
    switch (type_) {
        case GgmlType::kMXFP4: return fill_mxfp4(first, bytes);
        case GgmlType::kQ8_0: return fill_q8_0(first, bytes);
        case GgmlType::kF16: return fill_f16(first, bytes);
        case GgmlType::kF32: return fill_f32(first, bytes);
        case GgmlType::kI32: return fill_ids(first, bytes);
        default: XP_ASSERT(!"a type that is never generated");
    }
}

inline uint64_t TensorGenerator::bits(uint64_t counter) const {
    return mix(key_ + (counter + 1) * kGoldenRatio);
}

void TensorGenerator::fill_mxfp4(uint64_t first, std::span<std::byte> bytes) const {
    const size_t n = bytes.size() / kMxfp4BlockBytes;
    for (size_t i = 0; i < n; ++i) {
        std::byte* block = bytes.data() + i * kMxfp4BlockBytes;
        const uint64_t counter = (first + i) * 3;
        const bool upper = bits(counter) >> 48 < upper_scale_share_;
        const uint64_t codes[2] = {bits(counter + 1), bits(counter + 2)};
        block[0] = static_cast<std::byte>(scale_exponent_ + (upper ? 1 : 0));
        std::memcpy(block + 1, codes, kMxfp4CodeBytes);
    }
}

void TensorGenerator::fill_q8_0(uint64_t first, std::span<std::byte> bytes) const {
    const size_t n = bytes.size() / kQ8BlockBytes;
    for (size_t i = 0; i < n; ++i) {
        std::byte* block = bytes.data() + i * kQ8BlockBytes;
        const uint64_t counter = (first + i) * 5;
        const uint16_t scale = q8_scales_[bits(counter) >> 61];
        const uint64_t words[4] = {bits(counter + 1), bits(counter + 2), bits(counter + 3),
                                   bits(counter + 4)};
        int8_t codes[kQ8Codes];
        std::memcpy(codes, words, kQ8Codes);
        // Quantisers never write -128.
        for (int8_t& code : codes) code = std::max<int8_t>(code, -127);
        std::memcpy(block, &scale, sizeof(scale));
        std::memcpy(block + sizeof(scale), codes, kQ8Codes);
    }
}

void TensorGenerator::fill_f16(uint64_t first, std::span<std::byte> bytes) const {
    XP_ASSERT(first % kElementGroup == 0);
    const size_t n = bytes.size() / sizeof(uint16_t);
    for (size_t i = 0; i < n; i += kElementGroup) {
        const uint64_t word = bits((first + i) / kElementGroup);
        uint16_t values[kElementGroup];
        for (size_t k = 0; k < kElementGroup; ++k) {
            values[k] = halves_[(word >> 16 * k & 0xffff) >> (16 - kHalfBits)];
        }
        std::memcpy(bytes.data() + i * sizeof(uint16_t), values,
                    std::min(sizeof(values), (n - i) * sizeof(uint16_t)));
    }
}

void TensorGenerator::fill_f32(uint64_t first, std::span<std::byte> bytes) const {
    const size_t n = bytes.size() / sizeof(float);
    for (size_t i = 0; i < n; ++i) {
        const double even = std::ldexp(static_cast<double>(bits(first + i) >> 11), -52) - 1;
        const float value = static_cast<float>(mean_ + even * kEvenReach * deviation_);
        std::memcpy(bytes.data() + i * sizeof(float), &value, sizeof(value));
    }
}

// A range may begin and end within a row, so rows are made whole and what is wanted is copied.
void TensorGenerator::fill_ids(uint64_t first, std::span<std::byte> bytes) const {
    const uint64_t end = first + bytes.size() / sizeof(int32_t);
    std::array<int32_t, kMaxIdsPerRow> row{};
    for (uint64_t r = first / ids_per_row_; r * ids_per_row_ < end; ++r) {
        for (uint32_t k = 0; k < ids_per_row_; ++k) {
            uint32_t id = static_cast<uint32_t>(bits(r * ids_per_row_ + k) % n_ids_);
            // There are at least as many ids as places, so a free one is found.
            while (std::find(row.begin(), row.begin() + k, static_cast<int32_t>(id)) !=
                   row.begin() + k) {
                id = (id + 1) % n_ids_;
            }
            row[k] = static_cast<int32_t>(id);
        }
        const uint64_t from = std::max(first, r * ids_per_row_);
        const uint64_t to = std::min(end, (r + 1) * ids_per_row_);
        std::memcpy(bytes.data() + (from - first) * sizeof(int32_t),
                    row.data() + (from - r * ids_per_row_), (to - from) * sizeof(int32_t));
    }
}

}  // namespace xp
