#include "daemon/gguf/payload.h"

#include <fmt/format.h>

#include "daemon/gguf/block_fields.h"
#include "daemon/gguf/dequantise.h"

namespace xp {
namespace {

// The first block whose word at `offset` has all bits of `mask` (a float's exponent) set.
template <class Word>
std::optional<uint64_t> find_all_set(std::span<const std::byte> blocks, uint64_t block_bytes,
                                     uint64_t offset, Word mask) {
    const uint64_t n = blocks.size() / block_bytes;
    for (uint64_t i = 0; i < n; ++i) {
        const Word word = load_field<Word>(blocks.data() + i * block_bytes + offset);
        if ((word & mask) == mask) return i;
    }
    return std::nullopt;
}

constexpr uint16_t kHalf = 0x7c00;

std::optional<uint64_t> find_iq1_m(std::span<const std::byte> blocks, uint64_t block_bytes) {
    for (uint64_t i = 0; i < blocks.size() / block_bytes; ++i) {
        if ((iq1_m_scale(blocks.data() + i * block_bytes) & kHalf) == kHalf) return i;
    }
    return std::nullopt;
}

std::optional<uint64_t> find_bad_block(GgmlType type, std::span<const std::byte> blocks) {
    const uint64_t bytes = traits_of(type).block_bytes;
    const auto half_at = [&](uint64_t offset) {
        return find_all_set<uint16_t>(blocks, bytes, offset, kHalf);
    };
    const auto two_halves_at = [&](uint64_t offset) {
        const auto first = half_at(offset);
        const auto second = half_at(offset + 2);
        return !first || (second && *second < *first) ? second : first;
    };
    switch (type) {
        case GgmlType::kF32: case GgmlType::kQ8_K:
            return find_all_set<uint32_t>(blocks, bytes, 0, 0x7f800000);
        case GgmlType::kF64:
            return find_all_set<uint64_t>(blocks, bytes, 0, 0x7ff0000000000000);
        case GgmlType::kBF16: return find_all_set<uint16_t>(blocks, bytes, 0, 0x7f80);
        case GgmlType::kMXFP4: return find_all_set<uint8_t>(blocks, bytes, 0, 0xff);
        case GgmlType::kF16: case GgmlType::kQ4_0: case GgmlType::kQ5_0: case GgmlType::kQ8_0:
        case GgmlType::kQ1_0: case GgmlType::kQ2_0: case GgmlType::kIQ4_NL:
        case GgmlType::kIQ4_XS: case GgmlType::kIQ2_XXS: case GgmlType::kIQ2_XS:
        case GgmlType::kIQ2_S: case GgmlType::kIQ3_XXS: case GgmlType::kIQ3_S:
        case GgmlType::kIQ1_S:
            return half_at(0);
        case GgmlType::kQ4_1: case GgmlType::kQ5_1: case GgmlType::kQ8_1: case GgmlType::kQ4_K:
        case GgmlType::kQ5_K:
            return two_halves_at(0);
        case GgmlType::kQ2_K: return two_halves_at(80);
        case GgmlType::kQ3_K: return half_at(108);
        case GgmlType::kQ6_K: return half_at(208);
        case GgmlType::kTQ1_0: return half_at(52);
        case GgmlType::kTQ2_0: return half_at(64);
        case GgmlType::kIQ1_M: return find_iq1_m(blocks, bytes);
        // Every byte is a finite scale, or a number.
        case GgmlType::kNVFP4: case GgmlType::kI8: case GgmlType::kI16: case GgmlType::kI32:
        case GgmlType::kI64:
            return std::nullopt;
    }
    return std::nullopt;
}

}  // namespace

std::optional<std::string> find_payload_fault(GgmlType type, std::span<const std::byte> blocks,
                                              uint64_t first_block) {
    const auto bad = find_bad_block(type, blocks);
    if (!bad) return std::nullopt;
    const uint64_t block = first_block + *bad;
    const uint64_t elements = traits_of(type).block_elements;
    if (elements == 1) return fmt::format("element {} is not finite", block);
    return fmt::format("block {} (elements {} to {}) has a scale that is not finite", block,
                       block * elements, (block + 1) * elements - 1);
}

}  // namespace xp
