#include "daemon/gguf/types.h"

#include <array>
#include <bit>
#include <cstring>
#include <string_view>

#include "daemon/base/assert.h"
#include "daemon/gguf/dequantise.h"

namespace xp {
namespace {

constexpr TypeTraits kTable[] = {
    {GgmlType::kF32, "F32", 1, 4, dequantise_f32},
    {GgmlType::kF16, "F16", 1, 2, dequantise_f16},
    {GgmlType::kQ4_0, "Q4_0", 32, 18, dequantise_q4_0},
    {GgmlType::kQ4_1, "Q4_1", 32, 20, dequantise_q4_1},
    {GgmlType::kQ5_0, "Q5_0", 32, 22, dequantise_q5_0},
    {GgmlType::kQ5_1, "Q5_1", 32, 24, dequantise_q5_1},
    {GgmlType::kQ8_0, "Q8_0", 32, 34, dequantise_q8_0},
    {GgmlType::kQ8_1, "Q8_1", 32, 36, nullptr},
    {GgmlType::kQ2_K, "Q2_K", 256, 84, dequantise_q2_k},
    {GgmlType::kQ3_K, "Q3_K", 256, 110, dequantise_q3_k},
    {GgmlType::kQ4_K, "Q4_K", 256, 144, dequantise_q4_k},
    {GgmlType::kQ5_K, "Q5_K", 256, 176, dequantise_q5_k},
    {GgmlType::kQ6_K, "Q6_K", 256, 210, dequantise_q6_k},
    {GgmlType::kQ8_K, "Q8_K", 256, 292, nullptr},
    {GgmlType::kIQ2_XXS, "IQ2_XXS", 256, 66, dequantise_iq2_xxs},
    {GgmlType::kIQ2_XS, "IQ2_XS", 256, 74, dequantise_iq2_xs},
    {GgmlType::kIQ3_XXS, "IQ3_XXS", 256, 98, dequantise_iq3_xxs},
    {GgmlType::kIQ1_S, "IQ1_S", 256, 50, dequantise_iq1_s},
    {GgmlType::kIQ4_NL, "IQ4_NL", 32, 18, dequantise_iq4_nl},
    {GgmlType::kIQ3_S, "IQ3_S", 256, 110, dequantise_iq3_s},
    {GgmlType::kIQ2_S, "IQ2_S", 256, 82, dequantise_iq2_s},
    {GgmlType::kIQ4_XS, "IQ4_XS", 256, 136, dequantise_iq4_xs},
    {GgmlType::kI8, "I8", 1, 1, nullptr},
    {GgmlType::kI16, "I16", 1, 2, nullptr},
    {GgmlType::kI32, "I32", 1, 4, nullptr},
    {GgmlType::kI64, "I64", 1, 8, nullptr},
    {GgmlType::kF64, "F64", 1, 8, nullptr},
    {GgmlType::kIQ1_M, "IQ1_M", 256, 56, dequantise_iq1_m},
    {GgmlType::kBF16, "BF16", 1, 2, dequantise_bf16},
    {GgmlType::kTQ1_0, "TQ1_0", 256, 54, dequantise_tq1_0},
    {GgmlType::kTQ2_0, "TQ2_0", 256, 66, dequantise_tq2_0},
    {GgmlType::kMXFP4, "MXFP4", 32, 17, dequantise_mxfp4},
    {GgmlType::kNVFP4, "NVFP4", 64, 36, dequantise_nvfp4},
    {GgmlType::kQ1_0, "Q1_0", 128, 18, dequantise_q1_0},
    {GgmlType::kQ2_0, "Q2_0", 64, 18, dequantise_q2_0},
};

constexpr uint32_t kIdEnd = static_cast<uint32_t>(GgmlType::kQ2_0) + 1;

// Table row by type id; -1 for the gaps in the numbering.
constexpr std::array<int8_t, kIdEnd> kRowById = [] {
    std::array<int8_t, kIdEnd> rows{};
    rows.fill(-1);
    for (size_t i = 0; i < std::size(kTable); ++i) {
        rows[static_cast<uint32_t>(kTable[i].type)] = static_cast<int8_t>(i);
    }
    return rows;
}();

// Ids that ik_llama.cpp gives to types of its own lie in this range; upstream is far below it.
constexpr uint32_t kPrivateIdFirst = 97;
constexpr uint32_t kPrivateIdLast = 511;

// Bytes of a block's scale, which stands in front of its codes; 0 for types that are never split.
uint64_t split_scale_bytes(GgmlType type) {
    return type == GgmlType::kMXFP4 ? 1 : type == GgmlType::kQ8_0 ? 2 : 0;
}

// The blocks of a row in the split layout.
struct SplitBlocks {
    SplitBlocks(GgmlType type, uint64_t n_elements)
        : n(n_elements / traits_of(type).block_elements),
          scale_bytes(split_scale_bytes(type)),
          code_bytes(traits_of(type).block_bytes - scale_bytes) {}
    uint64_t n, scale_bytes, code_bytes;
};

}  // namespace

const TypeTraits& traits_of(GgmlType type) {
    const uint32_t id = static_cast<uint32_t>(type);
    XP_ASSERT(id < kIdEnd && kRowById[id] >= 0);
    return kTable[kRowById[id]];
}

std::optional<GgmlType> type_from_id(uint32_t id) {
    if (id >= kIdEnd || kRowById[id] < 0) return std::nullopt;
    return static_cast<GgmlType>(id);
}

std::optional<GgmlType> type_from_name(std::string_view name) {
    for (const TypeTraits& row : kTable) {
        if (name == row.name) return row.type;
    }
    return std::nullopt;
}

const char* unknown_type_reason(uint32_t id) {
    if (id < kIdEnd) return "removed from the format";
    if (id >= kPrivateIdFirst && id <= kPrivateIdLast) return "a private type of ik_llama.cpp";
    return "unknown";
}

uint64_t row_bytes(GgmlType type, uint64_t n) {
    const TypeTraits& traits = traits_of(type);
    XP_ASSERT(n % traits.block_elements == 0);
    return n / traits.block_elements * traits.block_bytes;
}

uint16_t float_to_half(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return sign | 0x7e00;
    // 65520 is the first value that rounds up past the largest half.
    if (magnitude >= 0x477ff000) return sign | 0x7c00;
    if (magnitude < 0x38800000) {
        // Below 2^-14: adding 0.5 leaves the subnormal half in the low bits, rounded by the FPU,
        // since the unit in the last place of 0.5 is 2^-24.
        const float sum = std::bit_cast<float>(magnitude) + 0.5f;
        return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(sum) - 0x3f000000);
    }
    const uint32_t odd = magnitude >> 13 & 1;
    return sign | static_cast<uint16_t>((magnitude - 0x38000000 + 0xfff + odd) >> 13);
}

const char* layout_name(StorageLayout layout) {
    return layout == StorageLayout::kSplit ? "split" : "ggml";
}

std::optional<StorageLayout> layout_from_name(std::string_view name) {
    if (name == "ggml") return StorageLayout::kGgml;
    if (name == "split") return StorageLayout::kSplit;
    return std::nullopt;
}

bool layout_supported(GgmlType type, StorageLayout layout) {
    return layout == StorageLayout::kGgml || split_scale_bytes(type) != 0;
}

void row_to_layout(GgmlType type, StorageLayout layout, const std::byte* ggml_row,
                   std::byte* stored_row, uint64_t n) {
    XP_ASSERT(layout_supported(type, layout));
    const uint64_t bytes = row_bytes(type, n);
    if (layout == StorageLayout::kGgml) {
        std::memcpy(stored_row, ggml_row, bytes);
        return;
    }
    const SplitBlocks split(type, n);
    std::byte* scales = stored_row + split.n * split.code_bytes;
    for (uint64_t i = 0; i < split.n; ++i) {
        const std::byte* block = ggml_row + i * (split.scale_bytes + split.code_bytes);
        std::memcpy(scales + i * split.scale_bytes, block, split.scale_bytes);
        std::memcpy(stored_row + i * split.code_bytes, block + split.scale_bytes,
                    split.code_bytes);
    }
}

void row_from_layout(GgmlType type, StorageLayout layout, const std::byte* stored_row,
                     std::byte* ggml_row, uint64_t n) {
    XP_ASSERT(layout_supported(type, layout));
    const uint64_t bytes = row_bytes(type, n);
    if (layout == StorageLayout::kGgml) {
        std::memcpy(ggml_row, stored_row, bytes);
        return;
    }
    const SplitBlocks split(type, n);
    const std::byte* scales = stored_row + split.n * split.code_bytes;
    for (uint64_t i = 0; i < split.n; ++i) {
        std::byte* block = ggml_row + i * (split.scale_bytes + split.code_bytes);
        std::memcpy(block, scales + i * split.scale_bytes, split.scale_bytes);
        std::memcpy(block + split.scale_bytes, stored_row + i * split.code_bytes,
                    split.code_bytes);
    }
}

}  // namespace xp
