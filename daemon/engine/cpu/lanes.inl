// Included by kernels_avx2.cc and kernels_avx512.cc inside a namespace of their own, after
// <immintrin.h>: sixteen float lanes and what they are made from. See kernels.h for the order of
// sums, which must be the same in both.
//
// No inline functions or templates of other headers here or in the files that follow: the linker
// would be free to keep their AVX-512 instance for the whole program.

#if defined(__AVX512F__)

struct Lanes {
    __m512 v;
};
inline Lanes zero() { return {_mm512_setzero_ps()}; }
inline Lanes load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Lanes load_first(const float* p, uint64_t n) {
    return {_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p)};
}
inline void store(float* p, Lanes a) { _mm512_storeu_ps(p, a.v); }
inline Lanes broadcast(float a) { return {_mm512_set1_ps(a)}; }
inline Lanes mul(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Lanes from_half(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline Lanes from_bfloat(const uint16_t* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
inline Lanes from_int8(__m128i q) { return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q))}; }
// E2M1 values, doubled: code 0..15 (in the low bits of each byte) → 0 1 2 3 4 6 8 12 and negatives.
inline Lanes from_e2m1(__m128i codes) {
    const __m512 table =
        _mm512_setr_ps(0, 1, 2, 3, 4, 6, 8, 12, -0.0f, -1, -2, -3, -4, -6, -8, -12);
    return {_mm512_permutexvar_ps(_mm512_cvtepu8_epi32(codes), table)};
}
inline void to_half(uint16_t* p, Lanes a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline __m256 add_halves(Lanes a) {
    return _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
}

#else

struct Lanes {
    __m256 lo, hi;
};
inline Lanes zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Lanes load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline Lanes load_first(const float* p, uint64_t n) {
    float padded[16] = {};
    for (uint64_t i = 0; i < n; ++i) padded[i] = p[i];
    return load(padded);
}
inline void store(float* p, Lanes a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
inline Lanes broadcast(float a) { return {_mm256_set1_ps(a), _mm256_set1_ps(a)}; }
inline Lanes mul(Lanes a, Lanes b) {
    return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline Lanes from_half(const uint16_t* p) {
    const __m128i* bits = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(bits)), _mm256_cvtph_ps(_mm_loadu_si128(bits + 1))};
}
inline __m256 bfloat_half(__m128i bits) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline Lanes from_bfloat(const uint16_t* p) {
    const __m128i* bits = reinterpret_cast<const __m128i*>(p);
    return {bfloat_half(_mm_loadu_si128(bits)), bfloat_half(_mm_loadu_si128(bits + 1))};
}
inline Lanes from_int8(__m128i q) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(q, 8)))};
}
inline __m256 e2m1_half(__m128i codes) {
    const __m256 magnitudes = _mm256_setr_ps(0, 1, 2, 3, 4, 6, 8, 12);
    const __m256i wide = _mm256_cvtepu8_epi32(codes);
    const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(wide, _mm256_set1_epi32(8)), 28);
    return _mm256_xor_ps(_mm256_permutevar8x32_ps(magnitudes, wide), _mm256_castsi256_ps(sign));
}
inline Lanes from_e2m1(__m128i codes) {
    return {e2m1_half(codes), e2m1_half(_mm_srli_si128(codes, 8))};
}
inline void to_half(uint16_t* p, Lanes a) {
    __m128i* bits = reinterpret_cast<__m128i*>(p);
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    _mm_storeu_si128(bits, _mm256_cvtps_ph(a.lo, kNearest));
    _mm_storeu_si128(bits + 1, _mm256_cvtps_ph(a.hi, kNearest));
}
inline __m256 add_halves(Lanes a) { return _mm256_add_ps(a.lo, a.hi); }

#endif

// Lane i + lane i+8, then i+4, i+2, i+1.
inline float sum(Lanes a) {
    const __m256 eight = add_halves(a);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
