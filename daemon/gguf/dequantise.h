// The conversions behind TypeTraits::dequantise, one function per type; others reach them through
// traits_of(). To support a further type: add its function here and name it in its table row.
//
// Each value is a product of an f16 or power-of-two scale and a small integer, which float32
// holds exactly, so order, vector width and fused operations cannot change a bit.
#pragma once

#include <cstddef>
#include <cstdint>

namespace xp {

void dequantise_f32(const std::byte* source, float* destination, uint64_t n);
void dequantise_f16(const std::byte* source, float* destination, uint64_t n);
void dequantise_bf16(const std::byte* source, float* destination, uint64_t n);
void dequantise_q4_0(const std::byte* source, float* destination, uint64_t n);
void dequantise_q8_0(const std::byte* source, float* destination, uint64_t n);
void dequantise_mxfp4(const std::byte* source, float* destination, uint64_t n);

}  // namespace xp
