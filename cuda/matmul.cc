#include "cuda/matmul.h"

namespace xp::cuda {

// `aligned`: rows of weights and of x may be read 16 bytes at a time.
void launch_f32(const MatmulArgs& args, bool aligned, cudaStream_t stream);
void launch_f16(const MatmulArgs& args, bool aligned, cudaStream_t stream);
void launch_bf16(const MatmulArgs& args, bool aligned, cudaStream_t stream);
void launch_q8_0(const MatmulArgs& args, bool aligned, cudaStream_t stream);
void launch_mxfp4(const MatmulArgs& args, bool aligned, cudaStream_t stream);
void launch_q2_k(const MatmulArgs& args, cudaStream_t stream);
void launch_q3_k(const MatmulArgs& args, cudaStream_t stream);
void launch_q4_k(const MatmulArgs& args, cudaStream_t stream);
void launch_q6_k(const MatmulArgs& args, cudaStream_t stream);

namespace {

constexpr uint64_t kVectorBytes = 16;

bool is_aligned(const MatmulArgs& args) {
    return args.aligned_base && args.row_bytes % kVectorBytes == 0 &&
           args.x_stride * sizeof(float) % kVectorBytes == 0 &&
           reinterpret_cast<uintptr_t>(args.x) % kVectorBytes == 0 && args.cols % 8 == 0;
}

}  // namespace

// Of columns of several quads per thread that fit into shared memory, by few_columns().
bool norms_columns(const MatmulArgs& args) {
    constexpr uint32_t kLeast = 512, kMost = 16384;
    const bool known = args.form == RowForm::kQ8_0Split || args.form == RowForm::kF16 ||
                       args.form == RowForm::kBF16 || args.form == RowForm::kF32 ||
                       args.form == RowForm::kMxfp4Split;
    return known && is_aligned(args) && args.max_columns == 1 && args.cols > kLeast &&
           args.cols <= kMost && reinterpret_cast<uintptr_t>(args.norm) % kVectorBytes == 0;
}

void launch_matmul(const MatmulArgs& args, cudaStream_t stream) {
    if (args.max_rows == 0 || args.max_columns == 0 || args.n_jobs == 0) return;
    const bool aligned = is_aligned(args);
    switch (args.form) {
        case RowForm::kF32: return launch_f32(args, aligned, stream);
        case RowForm::kF16: return launch_f16(args, aligned, stream);
        case RowForm::kBF16: return launch_bf16(args, aligned, stream);
        case RowForm::kQ8_0:
        case RowForm::kQ8_0Split: return launch_q8_0(args, aligned, stream);
        case RowForm::kMxfp4:
        case RowForm::kMxfp4Split: return launch_mxfp4(args, aligned, stream);
        case RowForm::kQ2_K: return launch_q2_k(args, stream);
        case RowForm::kQ3_K: return launch_q3_k(args, stream);
        case RowForm::kQ4_K: return launch_q4_k(args, stream);
        case RowForm::kQ6_K: return launch_q6_k(args, stream);
    }
}

}  // namespace xp::cuda
