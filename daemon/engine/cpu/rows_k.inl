// Readers of K-quants: block / 8 is the super-block, block % 8 the group of 32 elements in it.

struct Q2_KRow {
    const std::byte* p;
    void get(uint64_t block, Lanes* first, Lanes* second) const {
        const std::byte* b = p + 84 * (block / 8);
        const uint64_t group = block % 8;
        const std::byte* codes = b + 16 + 32 * (group / 4);
        const uint64_t shift = 2 * (group % 4);
        const float d = load_half(b + 80), dmin = load_half(b + 82);
        const uint32_t s0 = byte_at(b, 2 * group), s1 = byte_at(b, 2 * group + 1);
        *first = affine(d * to_float(s0 & 15), field(load_bytes(codes), shift, 3),
                        dmin * to_float(s0 >> 4));
        *second = affine(d * to_float(s1 & 15), field(load_bytes(codes + 16), shift, 3),
                         dmin * to_float(s1 >> 4));
    }
};

struct Q3_KRow {
    const std::byte* p;
    // Two low bits, and a third that is worth 4 above an offset of 4.
    static __m128i codes(const std::byte* b, uint64_t group, uint64_t half) {
        const __m128i low = load_bytes(b + 32 + 32 * (group / 4) + 16 * half);
        const __m128i high = field(load_bytes(b + 16 * half), group, 1);
        return _mm_sub_epi8(_mm_or_si128(field(low, 2 * (group % 4), 3), _mm_slli_epi16(high, 2)),
                            _mm_set1_epi8(4));
    }
    static float scale(const std::byte* b, uint64_t i) {
        const uint32_t low = byte_at(b + 96, i % 8) >> 4 * (i / 8) & 15;
        const uint32_t high = byte_at(b + 104, i % 4) >> 2 * (i / 4) & 3;
        return to_float((low | high << 4) - 32);
    }
    void get(uint64_t block, Lanes* first, Lanes* second) const {
        const std::byte* b = p + 110 * (block / 8);
        const uint64_t group = block % 8;
        const float d = load_half(b + 108);
        *first = scaled(d * scale(b, 2 * group), codes(b, group, 0));
        *second = scaled(d * scale(b, 2 * group + 1), codes(b, group, 1));
    }
};

// The six-bit scale and minimum of a group of 32, times the super-block's.
inline void scale_and_minimum(const std::byte* b, uint64_t group, float* scale, float* minimum) {
    const std::byte* s = b + 4;
    uint32_t a, m;
    if (group < 4) {
        a = byte_at(s, group) & 63;
        m = byte_at(s, group + 4) & 63;
    } else {
        a = (byte_at(s, group + 4) & 15) | byte_at(s, group - 4) >> 6 << 4;
        m = byte_at(s, group + 4) >> 4 | byte_at(s, group) >> 6 << 4;
    }
    *scale = load_half(b) * to_float(a);
    *minimum = load_half(b + 2) * to_float(m);
}

struct Q4_KRow {
    const std::byte* p;
    void get(uint64_t block, Lanes* first, Lanes* second) const {
        const std::byte* b = p + 144 * (block / 8);
        const uint64_t group = block % 8;
        const std::byte* codes = b + 16 + 32 * (group / 2);
        const uint64_t shift = 4 * (group % 2);
        float scale, minimum;
        scale_and_minimum(b, group, &scale, &minimum);
        *first = affine(scale, field(load_bytes(codes), shift, 15), minimum);
        *second = affine(scale, field(load_bytes(codes + 16), shift, 15), minimum);
    }
};

struct Q5_KRow {
    const std::byte* p;
    static __m128i codes(const std::byte* b, uint64_t group, uint64_t half) {
        const __m128i low = load_bytes(b + 48 + 32 * (group / 2) + 16 * half);
        const __m128i high = field(load_bytes(b + 16 + 16 * half), group, 1);
        return _mm_or_si128(field(low, 4 * (group % 2), 15), _mm_slli_epi16(high, 4));
    }
    void get(uint64_t block, Lanes* first, Lanes* second) const {
        const std::byte* b = p + 176 * (block / 8);
        float scale, minimum;
        scale_and_minimum(b, block % 8, &scale, &minimum);
        *first = affine(scale, codes(b, block % 8, 0), minimum);
        *second = affine(scale, codes(b, block % 8, 1), minimum);
    }
};

struct Q6_KRow {
    const std::byte* p;
    static __m128i codes(const std::byte* b, uint64_t group, uint64_t half) {
        const uint64_t part = group / 4, pair = group % 4;
        const __m128i low = load_bytes(b + 64 * part + 32 * (pair % 2) + 16 * half);
        const __m128i high = load_bytes(b + 128 + 32 * part + 16 * half);
        return _mm_sub_epi8(_mm_or_si128(field(low, 4 * (pair / 2), 15),
                                         _mm_slli_epi16(field(high, 2 * pair, 3), 4)),
                            _mm_set1_epi8(32));
    }
    static float scale(const std::byte* b, uint64_t i) {
        return static_cast<float>(static_cast<int8_t>(b[192 + i]));
    }
    void get(uint64_t block, Lanes* first, Lanes* second) const {
        const std::byte* b = p + 210 * (block / 8);
        const uint64_t group = block % 8;
        const float d = load_half(b + 208);
        *first = scaled(d * scale(b, 2 * group), codes(b, group, 0));
        *second = scaled(d * scale(b, 2 * group + 1), codes(b, group, 1));
    }
};
