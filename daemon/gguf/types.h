// Tensor types of GGUF files. One table drives every size computed anywhere: container checks,
// pack layout, memory plans and operators. A type that has a table row but no `dequantise` can be
// carried through a file, not computed with.
//
// Block layouts and ids: ggml's file format (type ids are those stored in tensor infos).
// A row of n elements is n / block_elements consecutive blocks; blocks never straddle rows.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace xp {

enum class GgmlType : uint32_t {
    kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ4_1 = 3, kQ5_0 = 6, kQ5_1 = 7, kQ8_0 = 8, kQ8_1 = 9,
    kQ2_K = 10, kQ3_K = 11, kQ4_K = 12, kQ5_K = 13, kQ6_K = 14, kQ8_K = 15,
    kIQ2_XXS = 16, kIQ2_XS = 17, kIQ3_XXS = 18, kIQ1_S = 19, kIQ4_NL = 20, kIQ3_S = 21,
    kIQ2_S = 22, kIQ4_XS = 23, kI8 = 24, kI16 = 25, kI32 = 26, kI64 = 27, kF64 = 28,
    kIQ1_M = 29, kBF16 = 30, kTQ1_0 = 34, kTQ2_0 = 35, kMXFP4 = 39, kNVFP4 = 40,
    kQ1_0 = 41, kQ2_0 = 42,
};

// Converts n elements (a multiple of block_elements) to float32. The result is exact or, for types
// with an offset term, rounded once: bit-identical on every machine. `source` needs no alignment.
using DequantiseFunction = void (*)(const std::byte* source, float* destination, uint64_t n);

struct TypeTraits {
    GgmlType type;
    const char* name;         // as people and other tools write it: "MXFP4", "Q8_0", "F16"
    uint32_t block_elements;
    uint32_t block_bytes;
    DequantiseFunction dequantise;  // null: cannot be computed with
};

// The row of a known type. Every GgmlType above has one.
const TypeTraits& traits_of(GgmlType type);

// From a file's type id; nothing for ids that are unknown or were removed from the format.
std::optional<GgmlType> type_from_id(uint32_t id);
std::optional<GgmlType> type_from_name(std::string_view name);

// Why an id has no row, for error messages: "removed from the format", "a private type of
// ik_llama.cpp", "unknown".
const char* unknown_type_reason(uint32_t id);

// Bytes of a row of n elements; n must be a multiple of the block size.
uint64_t row_bytes(GgmlType type, uint64_t n);

// IEEE binary16 <-> binary32; to half rounds to nearest even, overflow gives infinity. The first is
// inline and without branches on the common path, for inner loops: the exponent is rebased by one
// exact multiplication, which also normalises subnormal halves.
inline float half_to_float(uint16_t half) {
    const float magnitude =
        std::bit_cast<float>(static_cast<uint32_t>(half & 0x7fff) << 13) * 0x1p112f;
    const uint32_t not_finite = (half & 0x7c00) == 0x7c00 ? 0x7f800000 : 0;
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | not_finite | sign);
}
uint16_t float_to_half(float value);

// How the bytes of a matrix are arranged in an expert object or in memory; never in a GGUF.
//   kGgml   as in the GGUF.
//   kSplit  per row, the scales of all blocks after the codes of all blocks, instead of in front
//           of each. For MXFP4 and Q8_0; same size, reversible row by row. Keeps codes aligned.
enum class StorageLayout : uint8_t { kGgml = 0, kSplit = 1 };

const char* layout_name(StorageLayout layout);
std::optional<StorageLayout> layout_from_name(std::string_view name);
bool layout_supported(GgmlType type, StorageLayout layout);

// Re-arranges one row of n elements between the GGUF's form and `layout` (out of place).
void row_to_layout(GgmlType type, StorageLayout layout, const std::byte* ggml_row,
                   std::byte* stored_row, uint64_t n);
void row_from_layout(GgmlType type, StorageLayout layout, const std::byte* stored_row,
                     std::byte* ggml_row, uint64_t n);

}  // namespace xp
