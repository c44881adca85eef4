// Readers of weight rows, 32 elements at a time; included between lanes.inl and kernels.inl. The
// layouts are described where the types are dequantised, in daemon/gguf.

// A reader of one row: get(block, &first, &second) gives elements 32·block + 0..15 and 16..31, as
// the type's dequantise function would. Only FloatRow, HalfRow and BfloatRow may have a tail.

struct FloatRow {
    const float* p = nullptr;
    FloatRow() = default;
    explicit FloatRow(const std::byte* row) : p(reinterpret_cast<const float*>(row)) {}
    void get(uint64_t block, Lanes* first, Lanes* second) const {
        *first = load(p + 32 * block);
        *second = load(p + 32 * block + 16);
    }
    float at(uint64_t i) const { return p[i]; }
};

struct HalfRow {
    const uint16_t* p = nullptr;
    HalfRow() = default;
    explicit HalfRow(const std::byte* row) : p(reinterpret_cast<const uint16_t*>(row)) {}
    void get(uint64_t block, Lanes* first, Lanes* second) const {
        *first = from_half(p + 32 * block);
        *second = from_half(p + 32 * block + 16);
    }
    float at(uint64_t i) const { return _cvtsh_ss(p[i]); }
};

struct BfloatRow {
    const uint16_t* p = nullptr;
    BfloatRow() = default;
    explicit BfloatRow(const std::byte* row) : p(reinterpret_cast<const uint16_t*>(row)) {}
    void get(uint64_t block, Lanes* first, Lanes* second) const {
        *first = from_bfloat(p + 32 * block);
        *second = from_bfloat(p + 32 * block + 16);
    }
    float at(uint64_t i) const { return __builtin_bit_cast(float, uint32_t{p[i]} << 16); }
};

inline __m128i load_bytes(const std::byte* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
inline uint32_t byte_at(const std::byte* p, uint64_t i) { return static_cast<uint32_t>(p[i]); }
inline uint32_t load_u16(const std::byte* p) {
    uint16_t bits;
    __builtin_memcpy(&bits, p, sizeof bits);
    return bits;
}
inline uint32_t load_u32(const std::byte* p) {
    uint32_t bits;
    __builtin_memcpy(&bits, p, sizeof bits);
    return bits;
}
inline float load_half(const std::byte* p) { return _cvtsh_ss(static_cast<uint16_t>(load_u16(p))); }
inline float to_float(uint32_t n) { return static_cast<float>(static_cast<int32_t>(n)); }

// (byte >> shift) & mask in every byte; the field must not cross its byte.
inline __m128i field(__m128i bytes, uint64_t shift, char mask) {
    return _mm_and_si128(_mm_srl_epi16(bytes, _mm_cvtsi32_si128(static_cast<int>(shift))),
                         _mm_set1_epi8(mask));
}
// 0xff in byte i where bit i of the lowest 16 is set, else 0.
inline __m128i spread_bits(uint32_t bits) {
    const __m128i which = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m128i bit = _mm_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
    const __m128i bytes = _mm_shuffle_epi8(_mm_cvtsi32_si128(static_cast<int>(bits)), which);
    return _mm_cmpeq_epi8(_mm_and_si128(bytes, bit), bit);
}
inline Lanes scaled(float scale, __m128i codes) { return mul(broadcast(scale), from_int8(codes)); }
// scale·code − minimum, rounded once: the product is exact.
inline Lanes affine(float scale, __m128i codes, float minimum) {
    return fma(broadcast(scale), from_int8(codes), broadcast(-minimum));
}

inline void q8_0_block(const std::byte* codes, const std::byte* scale, Lanes* first,
                       Lanes* second) {
    const float d = load_half(scale);
    *first = scaled(d, load_bytes(codes));
    *second = scaled(d, load_bytes(codes + 16));
}

struct Q8_0Row {
    const std::byte* p;
    void get(uint64_t block, Lanes* first, Lanes* second) const {
        q8_0_block(p + 34 * block + 2, p + 34 * block, first, second);
    }
};

struct Q8_0SplitRow {
    const std::byte* codes;
    const std::byte* scales;
    void get(uint64_t block, Lanes* first, Lanes* second) const {
        q8_0_block(codes + 32 * block, scales + 2 * block, first, second);
    }
};

struct Q4_0Row {
    const std::byte* p;
    void get(uint64_t block, Lanes* first, Lanes* second) const {
        const std::byte* b = p + 18 * block;
        const float d = load_half(b);
        const __m128i codes = load_bytes(b + 2);
        const __m128i eight = _mm_set1_epi8(8);
        *first = scaled(d, _mm_sub_epi8(field(codes, 0, 15), eight));
        *second = scaled(d, _mm_sub_epi8(field(codes, 4, 15), eight));
    }
};

struct Q4_1Row {
    const std::byte* p;
    void get(uint64_t block, Lanes* first, Lanes* second) const {
        const std::byte* b = p + 20 * block;
        const float d = load_half(b), minimum = -load_half(b + 2);
        const __m128i codes = load_bytes(b + 4);
        *first = affine(d, field(codes, 0, 15), minimum);
        *second = affine(d, field(codes, 4, 15), minimum);
    }
};

// Nibbles with their fifth bits.
inline void five_bits(const std::byte* codes, uint32_t high, __m128i* first, __m128i* second) {
    const __m128i bytes = load_bytes(codes);
    const __m128i sixteen = _mm_set1_epi8(16);
    *first = _mm_or_si128(field(bytes, 0, 15), _mm_and_si128(spread_bits(high), sixteen));
    *second = _mm_or_si128(field(bytes, 4, 15), _mm_and_si128(spread_bits(high >> 16), sixteen));
}

struct Q5_0Row {
    const std::byte* p;
    void get(uint64_t block, Lanes* first, Lanes* second) const {
        const std::byte* b = p + 22 * block;
        const float d = load_half(b);
        __m128i low, high;
        five_bits(b + 6, load_u32(b + 2), &low, &high);
        *first = scaled(d, _mm_sub_epi8(low, _mm_set1_epi8(16)));
        *second = scaled(d, _mm_sub_epi8(high, _mm_set1_epi8(16)));
    }
};

struct Q5_1Row {
    const std::byte* p;
    void get(uint64_t block, Lanes* first, Lanes* second) const {
        const std::byte* b = p + 24 * block;
        const float d = load_half(b), minimum = -load_half(b + 2);
        __m128i low, high;
        five_bits(b + 8, load_u32(b + 4), &low, &high);
        *first = affine(d, low, minimum);
        *second = affine(d, high, minimum);
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
