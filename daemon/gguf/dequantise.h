// The conversions behind TypeTraits::dequantise, one function per type; others reach them through
// traits_of(). To support a further type: add its function to an .inl file and name it here and in
// its table row. The .inl files are written so that other compilers can include them, too.
//
// Each value is a product of an f16 or power-of-two scale and a small integer, which float32
// holds exactly, so order, vector width and fused operations cannot change a bit. Types with a
// minimum (Q4_1, Q5_1, Q2_K, Q4_K, Q5_K) add one more such product and round once, in that sum.
#pragma once

#include <cstddef>
#include <cstdint>

namespace xp {

// dequantise.inl: floats, and blocks with one or two scales.
void dequantise_f32(const std::byte* source, float* destination, uint64_t n);
void dequantise_f16(const std::byte* source, float* destination, uint64_t n);
void dequantise_bf16(const std::byte* source, float* destination, uint64_t n);
void dequantise_q4_0(const std::byte* source, float* destination, uint64_t n);
void dequantise_q4_1(const std::byte* source, float* destination, uint64_t n);
void dequantise_q5_0(const std::byte* source, float* destination, uint64_t n);
void dequantise_q5_1(const std::byte* source, float* destination, uint64_t n);
void dequantise_q8_0(const std::byte* source, float* destination, uint64_t n);
void dequantise_q1_0(const std::byte* source, float* destination, uint64_t n);
void dequantise_q2_0(const std::byte* source, float* destination, uint64_t n);
void dequantise_mxfp4(const std::byte* source, float* destination, uint64_t n);
void dequantise_nvfp4(const std::byte* source, float* destination, uint64_t n);

// dequantise_k.inl
void dequantise_q2_k(const std::byte* source, float* destination, uint64_t n);
void dequantise_q3_k(const std::byte* source, float* destination, uint64_t n);
void dequantise_q4_k(const std::byte* source, float* destination, uint64_t n);
void dequantise_q5_k(const std::byte* source, float* destination, uint64_t n);
void dequantise_q6_k(const std::byte* source, float* destination, uint64_t n);
void dequantise_tq1_0(const std::byte* source, float* destination, uint64_t n);
void dequantise_tq2_0(const std::byte* source, float* destination, uint64_t n);

// dequantise_iq.inl
void dequantise_iq2_xxs(const std::byte* source, float* destination, uint64_t n);
void dequantise_iq2_xs(const std::byte* source, float* destination, uint64_t n);
void dequantise_iq2_s(const std::byte* source, float* destination, uint64_t n);
void dequantise_iq3_xxs(const std::byte* source, float* destination, uint64_t n);
void dequantise_iq3_s(const std::byte* source, float* destination, uint64_t n);
void dequantise_iq1_s(const std::byte* source, float* destination, uint64_t n);
void dequantise_iq1_m(const std::byte* source, float* destination, uint64_t n);
void dequantise_iq4_nl(const std::byte* source, float* destination, uint64_t n);
void dequantise_iq4_xs(const std::byte* source, float* destination, uint64_t n);
// The f16 scale of an IQ1_M block, which is stored in pieces.
uint16_t iq1_m_scale(const std::byte* block);

}  // namespace xp
