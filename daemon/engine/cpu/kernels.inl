// The kernels themselves; included after lanes.inl and the row readers.

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
// without a reader of their own. unpack(r, to) writes row r.
template <class Unpack>
inline void matmul_unpacked(uint32_t cols, uint32_t begin, uint32_t end, const float* x,
                            uint64_t x_stride, uint32_t n, float* y, uint64_t y_stride,
                            float* scratch, Unpack unpack) {
    for (uint32_t r = begin; r < end;) {
        const uint32_t count = end - r >= kTileRows ? kTileRows : 1;
        FloatRow rows[kTileRows];
        for (uint32_t i = 0; i < count; ++i) {
            float* row = scratch + uint64_t{i} * cols;
            unpack(r + i, row);
            rows[i].p = row;
        }
        if (count == kTileRows) {
            columns<kTileRows>(rows, cols, x, x_stride, n, y + r, y_stride);
        } else {
            columns<1>(rows, cols, x, x_stride, n, y + r, y_stride);
        }
        r += count;
    }
}

template <class RowType>
inline void unpack_row(const RowType& row, uint32_t cols, float* to) {
    const uint64_t blocks = cols / 32;
    for (uint64_t b = 0; b < blocks; ++b) {
        Lanes first, second;
        row.get(b, &first, &second);
        store(to + 32 * b, first);
        store(to + 32 * b + 16, second);
    }
    if constexpr (requires { row.at(uint64_t{0}); }) {
        for (uint64_t i = 32 * blocks; i < cols; ++i) to[i] = row.at(i);
    }
}

template <class RowType>
constexpr bool kIsFloats = false;
template <>
constexpr bool kIsFloats<FloatRow> = true;

template <class RowType, class MakeRow>
inline void matmul_rows(uint32_t cols, uint32_t begin, uint32_t end, const float* x,
                        uint64_t x_stride, uint32_t n, float* y, uint64_t y_stride, float* scratch,
                        MakeRow make_row) {
    if (n > 2 * kTileColumns && !kIsFloats<RowType>) {
        return matmul_unpacked(cols, begin, end, x, x_stride, n, y, y_stride, scratch,
                               [&](uint32_t r, float* to) { unpack_row(make_row(r), cols, to); });
    }
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
    const auto at = [&](uint32_t r) { return w.data + r * bytes; };
    const auto run = [&]<class RowType>(auto make_row) {
        matmul_rows<RowType>(w.cols, begin, end, x, x_stride, n, y, y_stride, scratch, make_row);
    };
    const auto blocks = [&]<class RowType>() {
        run.template operator()<RowType>([&](uint32_t r) { return RowType{at(r)}; });
    };
    switch (w.type) {
        case GgmlType::kF32: return blocks.template operator()<FloatRow>();
        case GgmlType::kF16: return blocks.template operator()<HalfRow>();
        case GgmlType::kBF16: return blocks.template operator()<BfloatRow>();
        case GgmlType::kQ4_0: return blocks.template operator()<Q4_0Row>();
        case GgmlType::kQ4_1: return blocks.template operator()<Q4_1Row>();
        case GgmlType::kQ5_0: return blocks.template operator()<Q5_0Row>();
        case GgmlType::kQ5_1: return blocks.template operator()<Q5_1Row>();
        case GgmlType::kQ8_0:
            if (w.layout == StorageLayout::kGgml) return blocks.template operator()<Q8_0Row>();
            return run.template operator()<Q8_0SplitRow>(
                [&](uint32_t r) { return Q8_0SplitRow{at(r), at(r) + w.cols}; });
        case GgmlType::kQ2_K: return blocks.template operator()<Q2_KRow>();
        case GgmlType::kQ3_K: return blocks.template operator()<Q3_KRow>();
        case GgmlType::kQ4_K: return blocks.template operator()<Q4_KRow>();
        case GgmlType::kQ5_K: return blocks.template operator()<Q5_KRow>();
        case GgmlType::kQ6_K: return blocks.template operator()<Q6_KRow>();
        case GgmlType::kIQ4_NL: return blocks.template operator()<IQ4_NLRow>();
        case GgmlType::kIQ4_XS: return blocks.template operator()<IQ4_XSRow>();
        case GgmlType::kIQ2_XXS: return blocks.template operator()<IQ2_XXSRow>();
        case GgmlType::kIQ2_XS: return blocks.template operator()<IQ2_XSRow>();
        case GgmlType::kIQ2_S: return blocks.template operator()<IQ2_SRow>();
        case GgmlType::kIQ3_XXS: return blocks.template operator()<IQ3_XXSRow>();
        case GgmlType::kIQ3_S: return blocks.template operator()<IQ3_SRow>();
        case GgmlType::kIQ1_S: return blocks.template operator()<IQ1_SRow>();
        case GgmlType::kMXFP4:
            if (w.layout == StorageLayout::kGgml) return blocks.template operator()<Mxfp4Row>();
            return run.template operator()<Mxfp4SplitRow>(
                [&](uint32_t r) { return Mxfp4SplitRow{at(r), at(r) + w.cols / 2}; });
        default: {
            const DequantiseFunction dequantise = traits_of(w.type).dequantise;
            matmul_unpacked(w.cols, begin, end, x, x_stride, n, y, y_stride, scratch,
                            [&](uint32_t r, float* to) { dequantise(at(r), to, w.cols); });
        }
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
