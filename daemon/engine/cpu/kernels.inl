// Included by kernels_avx2.cc and kernels_avx512.cc inside a namespace of their own, after
// <immintrin.h>. See kernels.h for the order of sums, which must be the same in both.
//
// No inline functions or templates of other headers here: the linker would be free to keep their
// AVX-512 instance for the whole program.

// ---- sixteen float lanes ------------------------------------------------------------------------

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
    const __m512 table = _mm512_setr_ps(0, 1, 2, 3, 4, 6, 8, 12, -0.0f, -1, -2, -3, -4, -6, -8, -12);
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
inline Lanes mul(Lanes a, Lanes b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
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
    _mm_storeu_si128(bits, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128(bits + 1, _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
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

// ---- rows of weights, 32 elements at a time -------------------------------------------------------

// A reader of one row: get(block, &first, &second) gives elements 32·block + 0..15 and 16..31, as
// the type's dequantise function would. Only FloatRow, HalfRow and BfloatRow may have a tail.

struct FloatRow {
    const float* p;
    void get(uint64_t block, Lanes* first, Lanes* second) const {
        *first = load(p + 32 * block);
        *second = load(p + 32 * block + 16);
    }
    float at(uint64_t i) const { return p[i]; }
};

struct HalfRow {
    const uint16_t* p;
    void get(uint64_t block, Lanes* first, Lanes* second) const {
        *first = from_half(p + 32 * block);
        *second = from_half(p + 32 * block + 16);
    }
    float at(uint64_t i) const { return _cvtsh_ss(p[i]); }
};

struct BfloatRow {
    const uint16_t* p;
    void get(uint64_t block, Lanes* first, Lanes* second) const {
        *first = from_bfloat(p + 32 * block);
        *second = from_bfloat(p + 32 * block + 16);
    }
    float at(uint64_t i) const { return __builtin_bit_cast(float, uint32_t{p[i]} << 16); }
};

inline __m128i load_bytes(const std::byte* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
inline float load_half(const std::byte* p) {
    uint16_t bits;
    __builtin_memcpy(&bits, p, sizeof bits);
    return _cvtsh_ss(bits);
}

struct Q8_0Row {
    const std::byte* p;
    void get(uint64_t block, Lanes* first, Lanes* second) const {
        const std::byte* b = p + 34 * block;
        const Lanes d = broadcast(load_half(b));
        *first = mul(d, from_int8(load_bytes(b + 2)));
        *second = mul(d, from_int8(load_bytes(b + 18)));
    }
};

struct Q4_0Row {
    const std::byte* p;
    void get(uint64_t block, Lanes* first, Lanes* second) const {
        const std::byte* b = p + 18 * block;
        const Lanes d = broadcast(load_half(b));
        const __m128i bytes = load_bytes(b + 2);
        const __m128i mask = _mm_set1_epi8(15);
        const __m128i eight = _mm_set1_epi8(8);
        *first = mul(d, from_int8(_mm_sub_epi8(_mm_and_si128(bytes, mask), eight)));
        *second = mul(d, from_int8(_mm_sub_epi8(
                             _mm_and_si128(_mm_srli_epi16(bytes, 4), mask), eight)));
    }
};

// 2^(e − 128), subnormal for e < 2.
inline float e8m0_half(uint8_t e) {
    return __builtin_bit_cast(float, e < 2 ? 0x00200000u << e : (uint32_t{e} - 1) << 23);
}

inline void mxfp4_block(const std::byte* codes, std::byte scale, Lanes* first, Lanes* second) {
    const Lanes d = broadcast(e8m0_half(static_cast<uint8_t>(scale)));
    const __m128i bytes = load_bytes(codes);
    const __m128i mask = _mm_set1_epi8(15);
    *first = mul(d, from_e2m1(_mm_and_si128(bytes, mask)));
    *second = mul(d, from_e2m1(_mm_and_si128(_mm_srli_epi16(bytes, 4), mask)));
}

struct Mxfp4Row {
    const std::byte* p;
    void get(uint64_t block, Lanes* first, Lanes* second) const {
        mxfp4_block(p + 17 * block + 1, p[17 * block], first, second);
    }
};

struct Mxfp4SplitRow {
    const std::byte* codes;
    const std::byte* scales;
    void get(uint64_t block, Lanes* first, Lanes* second) const {
        mxfp4_block(codes + 16 * block, scales[block], first, second);
    }
};

// ---- products -------------------------------------------------------------------------------------

// R rows of weights × C columns of x: every (row, column) has its own 16 lanes.
template <int R, int C, class RowType>
inline void tile(const RowType* rows, uint64_t cols, const float* x, uint64_t x_stride, float* y,
                 uint64_t y_stride) {
    Lanes acc[R][C];
    for (int r = 0; r < R; ++r) {
        for (int c = 0; c < C; ++c) acc[r][c] = zero();
    }
    const uint64_t blocks = cols / 32;
    for (uint64_t b = 0; b < blocks; ++b) {
        Lanes first[R], second[R];
        for (int r = 0; r < R; ++r) rows[r].get(b, &first[r], &second[r]);
        for (int c = 0; c < C; ++c) {
            const Lanes x0 = load(x + static_cast<uint64_t>(c) * x_stride + 32 * b);
            const Lanes x1 = load(x + static_cast<uint64_t>(c) * x_stride + 32 * b + 16);
            for (int r = 0; r < R; ++r) {
                acc[r][c] = fma(first[r], x0, acc[r][c]);
                acc[r][c] = fma(second[r], x1, acc[r][c]);
            }
        }
    }
    if constexpr (requires { rows[0].at(uint64_t{0}); }) {
        for (uint64_t i = 32 * blocks; i < cols; i += 16) {
            const uint64_t n = cols - i < 16 ? cols - i : 16;
            for (int r = 0; r < R; ++r) {
                float w[16] = {};
                for (uint64_t j = 0; j < n; ++j) w[j] = rows[r].at(i + j);
                for (int c = 0; c < C; ++c) {
                    const float* column = x + static_cast<uint64_t>(c) * x_stride + i;
                    acc[r][c] = fma(load(w), n == 16 ? load(column) : load_first(column, n),
                                    acc[r][c]);
                }
            }
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int c = 0; c < C; ++c) {
            y[static_cast<uint64_t>(c) * y_stride + static_cast<uint64_t>(r)] = sum(acc[r][c]);
        }
    }
}

// Register tiles: accumulators, weights and x must fit into 32 (16) vector registers.
#if defined(__AVX512F__)
constexpr int kTileRows = 4;
constexpr int kTileColumns = 4;
#else
constexpr int kTileRows = 2;
constexpr int kTileColumns = 2;
#endif

template <int R, class RowType>
inline void columns(const RowType* rows, uint64_t cols, const float* x, uint64_t x_stride,
                    uint32_t n, float* y, uint64_t y_stride) {
    uint32_t c = 0;
    for (; c + kTileColumns <= n; c += kTileColumns) {
        tile<R, kTileColumns>(rows, cols, x + c * x_stride, x_stride, y + c * y_stride, y_stride);
    }
    for (; c < n; ++c) {
        tile<R, 1>(rows, cols, x + c * x_stride, x_stride, y + c * y_stride, y_stride);
    }
}

// Rows as floats, for many columns (unpacking once instead of once per column tile) and for types
// without a reader of their own.
inline void matmul_dequantised(const Weight& w, uint32_t begin, uint32_t end, const float* x,
                               uint64_t x_stride, uint32_t n, float* y, uint64_t y_stride,
                               float* scratch) {
    std::byte* const ggml_row = reinterpret_cast<std::byte*>(scratch + uint64_t{kTileRows} * w.cols);
    const TypeTraits& traits = traits_of(w.type);
    const uint64_t bytes = row_bytes(w.type, w.cols);
    const auto unpack = [&](uint32_t row, float* to) {
        const std::byte* from = w.data + row * bytes;
        if (w.layout != StorageLayout::kGgml) {
            row_from_layout(w.type, w.layout, from, ggml_row, w.cols);
            from = ggml_row;
        }
        traits.dequantise(from, to, w.cols);
    };
    for (uint32_t r = begin; r < end;) {
        const uint32_t count = end - r >= kTileRows ? kTileRows : 1;
        FloatRow rows[kTileRows];
        for (uint32_t i = 0; i < count; ++i) {
            float* row = scratch + uint64_t{i} * w.cols;
            unpack(r + i, row);
            rows[i].p = row;
        }
        if (count == kTileRows) {
            columns<kTileRows>(rows, w.cols, x, x_stride, n, y + r, y_stride);
        } else {
            columns<1>(rows, w.cols, x, x_stride, n, y + r, y_stride);
        }
        r += count;
    }
}

template <class RowType, class MakeRow>
inline void matmul_rows(uint32_t cols, uint32_t begin, uint32_t end, const float* x,
                        uint64_t x_stride, uint32_t n, float* y, uint64_t y_stride,
                        MakeRow make_row) {
    uint32_t r = begin;
    for (; r + kTileRows <= end; r += kTileRows) {
        RowType rows[kTileRows];
        for (uint32_t i = 0; i < kTileRows; ++i) rows[i] = make_row(r + i);
        columns<kTileRows>(rows, cols, x, x_stride, n, y + r, y_stride);
    }
    for (; r < end; ++r) {
        const RowType row = make_row(r);
        columns<1>(&row, cols, x, x_stride, n, y + r, y_stride);
    }
}

void matmul(const Weight& w, uint32_t begin, uint32_t end, const float* x, uint64_t x_stride,
            uint32_t n, float* y, uint64_t y_stride, float* scratch) {
    const uint64_t bytes = row_bytes(w.type, w.cols);
    const auto run = [&]<class RowType>(auto make_row) {
        matmul_rows<RowType>(w.cols, begin, end, x, x_stride, n, y, y_stride, make_row);
    };
    const auto at = [&](uint32_t r) { return w.data + r * bytes; };
    if (w.type == GgmlType::kF32) {
        return run.template operator()<FloatRow>(
            [&](uint32_t r) { return FloatRow{reinterpret_cast<const float*>(at(r))}; });
    }
    if (n > 2 * kTileColumns) {
        return matmul_dequantised(w, begin, end, x, x_stride, n, y, y_stride, scratch);
    }
    switch (w.type) {
        case GgmlType::kF16:
            return run.template operator()<HalfRow>(
                [&](uint32_t r) { return HalfRow{reinterpret_cast<const uint16_t*>(at(r))}; });
        case GgmlType::kBF16:
            return run.template operator()<BfloatRow>(
                [&](uint32_t r) { return BfloatRow{reinterpret_cast<const uint16_t*>(at(r))}; });
        case GgmlType::kQ8_0:
            return run.template operator()<Q8_0Row>([&](uint32_t r) { return Q8_0Row{at(r)}; });
        case GgmlType::kQ4_0:
            return run.template operator()<Q4_0Row>([&](uint32_t r) { return Q4_0Row{at(r)}; });
        case GgmlType::kMXFP4:
            if (w.layout == StorageLayout::kGgml) {
                return run.template operator()<Mxfp4Row>([&](uint32_t r) { return Mxfp4Row{at(r)}; });
            }
            return run.template operator()<Mxfp4SplitRow>(
                [&](uint32_t r) { return Mxfp4SplitRow{at(r), at(r) + w.cols / 2}; });
        default:
            return matmul_dequantised(w, begin, end, x, x_stride, n, y, y_stride, scratch);
    }
}

float dot(const float* a, const float* b, uint64_t n) {
    Lanes acc = zero();
    uint64_t i = 0;
    for (; i + 16 <= n; i += 16) acc = fma(load(a + i), load(b + i), acc);
    if (i < n) acc = fma(load_first(a + i, n - i), load_first(b + i, n - i), acc);
    return sum(acc);
}

void axpy(float a, const float* x, float* y, uint64_t n) {
    uint64_t i = 0;
    for (; i + 16 <= n; i += 16) store(y + i, fma(broadcast(a), load(x + i), load(y + i)));
    for (; i < n; ++i) y[i] = __builtin_fmaf(a, x[i], y[i]);
}

void half_to_float_row(const uint16_t* x, float* y, uint64_t n) {
    uint64_t i = 0;
    for (; i + 16 <= n; i += 16) store(y + i, from_half(x + i));
    for (; i < n; ++i) y[i] = _cvtsh_ss(x[i]);
}

void float_to_half_row(const float* x, uint16_t* y, uint64_t n) {
    uint64_t i = 0;
    for (; i + 16 <= n; i += 16) to_half(y + i, load(x + i));
    for (; i < n; ++i) y[i] = static_cast<uint16_t>(_cvtss_sh(x[i], _MM_FROUND_TO_NEAREST_INT));
}
