// Readers of IQ types: block / 8 is the super-block, block % 8 the group of 32 elements in it.

struct Iq4Codes {
    static __m128i values(__m128i codes) {
        return _mm_shuffle_epi8(_mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25,
                                              38, 53, 69, 89, 113), codes);
    }
    static void get(const std::byte* codes, float scale, Lanes* first, Lanes* second) {
        const __m128i bytes = load_bytes(codes);
        *first = scaled(scale, values(field(bytes, 0, 15)));
        *second = scaled(scale, values(field(bytes, 4, 15)));
    }
};

struct IQ4_NLRow {
    const std::byte* p;
    void get(uint64_t block, Lanes* first, Lanes* second) const {
        Iq4Codes::get(p + 18 * block + 2, load_half(p + 18 * block), first, second);
    }
};

struct IQ4_XSRow {
    const std::byte* p;
    void get(uint64_t block, Lanes* first, Lanes* second) const {
        const std::byte* b = p + 136 * (block / 8);
        const uint64_t group = block % 8;
        const uint32_t low = byte_at(b + 4, group / 2) >> 4 * (group % 2) & 15;
        const uint32_t high = load_u16(b + 2) >> 2 * group & 3;
        Iq4Codes::get(b + 8 + 16 * group, load_half(b) * to_float((low | high << 4) - 32), first,
                      second);
    }
};

// Two codebook entries of eight elements, or four of four.
template <class Grid>
inline __m128i entries(const Grid& grid, uint64_t i, uint64_t j) {
    static_assert(sizeof(grid) % 8 == 0);
    const std::byte* table = reinterpret_cast<const std::byte*>(&grid);
    uint64_t low, high;
    __builtin_memcpy(&low, table + 8 * i, 8);
    __builtin_memcpy(&high, table + 8 * j, 8);
    return _mm_set_epi64x(static_cast<int64_t>(high), static_cast<int64_t>(low));
}
template <class Grid>
inline __m128i entries(const Grid& grid, uint64_t i, uint64_t j, uint64_t k, uint64_t l) {
    const std::byte* table = reinterpret_cast<const std::byte*>(&grid);
    return _mm_setr_epi32(static_cast<int>(load_u32(table + 4 * i)),
                          static_cast<int>(load_u32(table + 4 * j)),
                          static_cast<int>(load_u32(table + 4 * k)),
                          static_cast<int>(load_u32(table + 4 * l)));
}

// Negates byte i where bit i of `signs` is set.
inline __m128i with_signs(__m128i values, uint32_t signs) {
    const __m128i minus = spread_bits(signs);
    return _mm_sub_epi8(_mm_xor_si128(values, minus), minus);
}
// Eight signs from seven stored ones: the eighth makes the number of minus signs even.
inline uint32_t with_parity(uint32_t signs) {
    return signs | static_cast<uint32_t>(__builtin_parity(signs)) << 7;
}
// Two times eight signs from a word's seven-bit fields i and i + 1.
inline uint32_t two_signs(uint32_t word, uint32_t i) {
    return with_parity(word >> 7 * i & 127) | with_parity(word >> 7 * (i + 1) & 127) << 8;
}

struct IQ2_XXSRow {
    const std::byte* p;
    void get(uint64_t block, Lanes* first, Lanes* second) const {
        const std::byte* b = p + 66 * (block / 8);
        const std::byte* i = b + 2 + 8 * (block % 8);
        const uint32_t word = load_u32(i + 4);
        const float scale = load_half(b) * (0.5f + to_float(word >> 28)) * 0.25f;
        *first = scaled(scale, with_signs(entries(kIq2XxsGrid, byte_at(i, 0), byte_at(i, 1)),
                                          two_signs(word, 0)));
        *second = scaled(scale, with_signs(entries(kIq2XxsGrid, byte_at(i, 2), byte_at(i, 3)),
                                           two_signs(word, 2)));
    }
};

struct IQ2_XSRow {
    const std::byte* p;
    static __m128i values(const std::byte* words) {
        const uint32_t word0 = load_u16(words), word1 = load_u16(words + 2);
        return with_signs(entries(kIq2XsGrid, word0 & 511, word1 & 511),
                          with_parity(word0 >> 9) | with_parity(word1 >> 9) << 8);
    }
    void get(uint64_t block, Lanes* first, Lanes* second) const {
        const std::byte* b = p + 74 * (block / 8);
        const uint64_t group = block % 8;
        const uint32_t steps = byte_at(b + 66, group);
        const float d = load_half(b);
        *first = scaled(d * (0.5f + to_float(steps & 15)) * 0.25f, values(b + 2 + 8 * group));
        *second = scaled(d * (0.5f + to_float(steps >> 4)) * 0.25f, values(b + 6 + 8 * group));
    }
};

struct IQ2_SRow {
    const std::byte* p;
    static __m128i values(const std::byte* indices, uint32_t high, const std::byte* signs) {
        return with_signs(entries(kIq2SGrid, byte_at(indices, 0) | (high & 3) << 8,
                                  byte_at(indices, 1) | (high >> 2 & 3) << 8),
                          load_u16(signs));
    }
    void get(uint64_t block, Lanes* first, Lanes* second) const {
        const std::byte* b = p + 82 * (block / 8);
        const uint64_t group = block % 8;
        const std::byte* i = b + 2 + 4 * group;
        const std::byte* signs = b + 34 + 4 * group;
        const uint32_t high = byte_at(b + 66, group), steps = byte_at(b + 74, group);
        const float d = load_half(b);
        *first = scaled(d * (0.5f + to_float(steps & 15)) * 0.25f, values(i, high, signs));
        *second = scaled(d * (0.5f + to_float(steps >> 4)) * 0.25f,
                         values(i + 2, high >> 4, signs + 2));
    }
};

struct IQ3_XXSRow {
    const std::byte* p;
    static __m128i values(const std::byte* i) {
        return entries(kIq3XxsGrid, byte_at(i, 0), byte_at(i, 1), byte_at(i, 2), byte_at(i, 3));
    }
    void get(uint64_t block, Lanes* first, Lanes* second) const {
        const std::byte* b = p + 98 * (block / 8);
        const uint64_t group = block % 8;
        const uint32_t word = load_u32(b + 66 + 4 * group);
        const float scale = load_half(b) * (0.5f + to_float(word >> 28)) * 0.5f;
        *first = scaled(scale, with_signs(values(b + 2 + 8 * group), two_signs(word, 0)));
        *second = scaled(scale, with_signs(values(b + 6 + 8 * group), two_signs(word, 2)));
    }
};

struct IQ3_SRow {
    const std::byte* p;
    static __m128i values(const std::byte* i, uint32_t high, const std::byte* signs) {
        const auto index = [&](uint32_t k) { return byte_at(i, k) | (high >> k & 1) << 8; };
        return with_signs(entries(kIq3SGrid, index(0), index(1), index(2), index(3)),
                          load_u16(signs));
    }
    void get(uint64_t block, Lanes* first, Lanes* second) const {
        const std::byte* b = p + 110 * (block / 8);
        const uint64_t group = block % 8;
        const std::byte* i = b + 2 + 8 * group;
        const std::byte* signs = b + 74 + 4 * group;
        const uint32_t high = byte_at(b + 66, group);
        const uint32_t step = byte_at(b + 106, group / 2) >> 4 * (group % 2) & 15;
        const float scale = load_half(b) * to_float(1 + 2 * step);
        *first = scaled(scale, values(i, high, signs));
        *second = scaled(scale, values(i + 4, high >> 4, signs + 2));
    }
};

struct IQ1_SRow {
    const std::byte* p;
    // 8·value ± 1: the shift is an eighth.
    static __m128i eighths(const std::byte* i, uint32_t high, __m128i shift) {
        const __m128i values = entries(kIq1Grid, byte_at(i, 0) | (high & 7) << 8,
                                       byte_at(i, 1) | (high >> 3 & 7) << 8);
        const __m128i doubled = _mm_add_epi8(values, values);
        const __m128i fourfold = _mm_add_epi8(doubled, doubled);
        return _mm_add_epi8(_mm_add_epi8(fourfold, fourfold), shift);
    }
    void get(uint64_t block, Lanes* first, Lanes* second) const {
        const std::byte* b = p + 50 * (block / 8);
        const uint64_t group = block % 8;
        const std::byte* i = b + 2 + 4 * group;
        const uint32_t word = load_u16(b + 34 + 2 * group);
        const __m128i shift = _mm_set1_epi8(word & 0x8000 ? -1 : 1);
        const float scale = load_half(b) * to_float(2 * (word >> 12 & 7) + 1) * 0.125f;
        *first = scaled(scale, eighths(i, word, shift));
        *second = scaled(scale, eighths(i + 2, word >> 6, shift));
    }
};
