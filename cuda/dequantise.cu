// Weights of any type as float32, bit for bit as the host does it, from the same sources. A thread
// does one block of a row. For the types that have no matrix kernels, and for embeddings.
#include <cuda_fp16.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "daemon/gguf/iq_grids.h"
#include "daemon/gguf/types.h"

#define XP_DEVICE __device__
#define XP_TABLE __device__

namespace xp::cuda {
namespace {

// What the sources read fields with (daemon/gguf/block_fields.h on the host).
constexpr uint64_t kSuperBlock = 256;
template <class T>
__device__ T load_field(const std::byte* source) {
    T value;
    memcpy(&value, source, sizeof(value));
    return value;
}
__device__ float half_to_float(uint16_t half) { return __half2float(__ushort_as_half(half)); }
__device__ float load_half(const std::byte* source) {
    return half_to_float(load_field<uint16_t>(source));
}
__device__ int byte_at(const std::byte* source, int i) { return static_cast<int>(source[i]); }

#include "daemon/gguf/iq_grids.inl"

#include "daemon/gguf/dequantise.inl"
#include "daemon/gguf/dequantise_iq.inl"
#include "daemon/gguf/dequantise_k.inl"

__device__ void dequantise(GgmlType type, const std::byte* source, float* to, uint64_t n) {
    switch (type) {
        case GgmlType::kF32: return dequantise_f32(source, to, n);
        case GgmlType::kF16: return dequantise_f16(source, to, n);
        case GgmlType::kBF16: return dequantise_bf16(source, to, n);
        case GgmlType::kQ4_0: return dequantise_q4_0(source, to, n);
        case GgmlType::kQ4_1: return dequantise_q4_1(source, to, n);
        case GgmlType::kQ5_0: return dequantise_q5_0(source, to, n);
        case GgmlType::kQ5_1: return dequantise_q5_1(source, to, n);
        case GgmlType::kQ8_0: return dequantise_q8_0(source, to, n);
        case GgmlType::kQ1_0: return dequantise_q1_0(source, to, n);
        case GgmlType::kQ2_0: return dequantise_q2_0(source, to, n);
        case GgmlType::kMXFP4: return dequantise_mxfp4(source, to, n);
        case GgmlType::kNVFP4: return dequantise_nvfp4(source, to, n);
        case GgmlType::kQ2_K: return dequantise_q2_k(source, to, n);
        case GgmlType::kQ3_K: return dequantise_q3_k(source, to, n);
        case GgmlType::kQ4_K: return dequantise_q4_k(source, to, n);
        case GgmlType::kQ5_K: return dequantise_q5_k(source, to, n);
        case GgmlType::kQ6_K: return dequantise_q6_k(source, to, n);
        case GgmlType::kTQ1_0: return dequantise_tq1_0(source, to, n);
        case GgmlType::kTQ2_0: return dequantise_tq2_0(source, to, n);
        case GgmlType::kIQ2_XXS: return dequantise_iq2_xxs(source, to, n);
        case GgmlType::kIQ2_XS: return dequantise_iq2_xs(source, to, n);
        case GgmlType::kIQ2_S: return dequantise_iq2_s(source, to, n);
        case GgmlType::kIQ3_XXS: return dequantise_iq3_xxs(source, to, n);
        case GgmlType::kIQ3_S: return dequantise_iq3_s(source, to, n);
        case GgmlType::kIQ1_S: return dequantise_iq1_s(source, to, n);
        case GgmlType::kIQ1_M: return dequantise_iq1_m(source, to, n);
        case GgmlType::kIQ4_NL: return dequantise_iq4_nl(source, to, n);
        case GgmlType::kIQ4_XS: return dequantise_iq4_xs(source, to, n);
        default: break;
    }
    // A type that computations were never allowed with: wrong on purpose, not silently 0.
    for (uint64_t i = 0; i < n; ++i) to[i] = __int_as_float(0x7fc00000);
}

struct Rows {
    GgmlType type;
    bool split;
    const std::byte* table;
    uint64_t row_bytes;
    uint32_t cols;
    uint32_t block_elements, block_bytes;
    float* to;
};

constexpr uint32_t kMaxBlockBytes = 34;  // of a type with a split layout: Q8_0

__global__ void dequantise_rows(const Rows rows) {
    const uint32_t block = blockIdx.x * blockDim.x + threadIdx.x;
    const uint32_t n_blocks = rows.cols / rows.block_elements;
    let_next_start();
    after_previous();  // the rows that are written may be in use
    if (block >= n_blocks) return;
    const uint64_t r = blockIdx.y;
    const std::byte* stored = rows.table + r * rows.row_bytes;
    float* to = rows.to + r * rows.cols + uint64_t{block} * rows.block_elements;
    if (!rows.split) {
        return dequantise(rows.type, stored + uint64_t{block} * rows.block_bytes, to,
                          rows.block_elements);
    }
    // Scale and codes side by side again.
    const bool mxfp4 = rows.type == GgmlType::kMXFP4;
    const uint32_t scale_bytes = mxfp4 ? 1 : 2;
    const uint32_t code_bytes = rows.block_bytes - scale_bytes;
    const std::byte* scale = stored + uint64_t{n_blocks} * code_bytes + block * scale_bytes;
    std::byte whole[kMaxBlockBytes];
    for (uint32_t i = 0; i < scale_bytes; ++i) whole[i] = scale[i];
    for (uint32_t i = 0; i < code_bytes; ++i) {
        whole[scale_bytes + i] = stored[uint64_t{block} * code_bytes + i];
    }
    dequantise(rows.type, whole, to, rows.block_elements);
}

}  // namespace

void launch_dequantise(uint32_t type, bool split, const std::byte* table, uint64_t row_bytes,
                       uint32_t cols, uint32_t n_rows, float* rows, cudaStream_t stream) {
    constexpr uint32_t kThreads = 128;
    constexpr uint32_t kMaxGridRows = 65'535;
    const TypeTraits& traits = traits_of(static_cast<GgmlType>(type));
    // Of types without blocks, a thread takes up to 4 elements: what divides a row.
    const uint32_t block_elements =
        traits.block_elements == 1 ? std::min(cols & (~cols + 1), 4u) : traits.block_elements;
    Rows args{traits.type, split, table, row_bytes, cols, block_elements,
              traits.block_bytes * (block_elements / traits.block_elements), rows};
    const uint32_t blocks = cols / block_elements;
    for (uint32_t done = 0; done < n_rows; done += kMaxGridRows) {
        const uint32_t n = std::min(kMaxGridRows, n_rows - done);
        args.table = table + done * row_bytes;
        args.to = rows + uint64_t{done} * cols;
        launch(dequantise_rows, dim3((blocks + kThreads - 1) / kThreads, n), kThreads, 0, stream,
               args);
    }
}

}  // namespace xp::cuda
