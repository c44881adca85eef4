// The operators that are products with weights: which kernel, which jobs.
#include <algorithm>
#include <cstring>

#include "cuda/operators.h"

namespace xp::cuda {
namespace {

constexpr uint64_t kVectorBytes = 16;

bool is_aligned(const void* at) { return reinterpret_cast<uintptr_t>(at) % kVectorBytes == 0; }

// The form a kernel of matmul.h reads; nothing for what is unpacked first: types without kernels,
// and K types where not everything is `aligned`, weights and rows of x.
std::optional<RowForm> form_of(const Weight& w, bool aligned) {
    const bool split = w.layout == StorageLayout::kSplit;
    const auto if_aligned = [&](RowForm form) {
        return aligned ? std::optional(form) : std::nullopt;
    };
    switch (w.type) {
        case GgmlType::kF32: return RowForm::kF32;
        case GgmlType::kF16: return RowForm::kF16;
        case GgmlType::kBF16: return RowForm::kBF16;
        case GgmlType::kQ8_0: return split ? RowForm::kQ8_0Split : RowForm::kQ8_0;
        case GgmlType::kMXFP4: return split ? RowForm::kMxfp4Split : RowForm::kMxfp4;
        case GgmlType::kQ2_K: return if_aligned(RowForm::kQ2_K);
        case GgmlType::kQ3_K: return if_aligned(RowForm::kQ3_K);
        case GgmlType::kQ4_K: return if_aligned(RowForm::kQ4_K);
        case GgmlType::kQ6_K: return if_aligned(RowForm::kQ6_K);
        default: return std::nullopt;
    }
}

}  // namespace

Weight CudaOperators::unpacked(const Weight& w, Scratch& scratch) {
    std::byte* rows =
        scratch.reserve(uint64_t{w.rows} * w.cols * sizeof(float), stream_, error_);
    if (!error_) {
        launch_dequantise(static_cast<uint32_t>(w.type), w.layout == StorageLayout::kSplit, w.data,
                          row_bytes(w.type, w.cols), w.cols, w.rows,
                          reinterpret_cast<float*>(rows), stream_);
    }
    return {GgmlType::kF32, StorageLayout::kGgml, w.rows, w.cols, rows};
}

// The rows come from the host as they are stored, in pieces that the ring has room for.
void CudaOperators::embed(const Weight& host_table, std::span<const TokenId> host_tokens,
                          uint32_t streams, float* state) {
    const auto n_rows = static_cast<uint32_t>(host_tokens.size());
    const uint32_t cols = host_table.cols;
    const uint64_t bytes = row_bytes(host_table.type, cols);
    auto* rows = reinterpret_cast<float*>(
        work_.reserve(uint64_t{n_rows} * cols * sizeof(float), stream_, error_));
    const auto piece = static_cast<uint32_t>(
        std::clamp<uint64_t>(ArgumentRing::kPartBytes / bytes, 1, std::max(n_rows, 1u)));
    std::vector<std::byte> stored(piece * bytes);
    for (uint32_t done = 0; done < n_rows; done += piece) {
        const uint32_t n = std::min(piece, n_rows - done);
        for (uint32_t i = 0; i < n; ++i) {
            const auto token = static_cast<uint64_t>(host_tokens[done + i]);
            std::memcpy(&stored[i * bytes], host_table.data + token * bytes, bytes);
        }
        const std::byte* table = push(std::span<const std::byte>(stored).first(n * bytes));
        if (error_) return;
        launch_dequantise(static_cast<uint32_t>(host_table.type),
                          host_table.layout == StorageLayout::kSplit, table, bytes, cols, n,
                          rows + uint64_t{done} * cols, stream_);
    }
    if (error_) return;
    launch_spread(rows, n_rows, streams, cols, state, stream_);
}

// `args` has the jobs.
void CudaOperators::launch_jobs(MatmulArgs& args, std::span<const MatmulJob> jobs) {
    args.n_jobs = static_cast<uint32_t>(jobs.size());
    args.max_rows = args.all_rows = 0;
    for (const MatmulJob& job : jobs) {
        args.max_rows = std::max(args.max_rows, job.rows);
        args.all_rows += job.rows;
    }
    launch_matmul(args, stream_);
}

// `args` says everything but the jobs and how `w` is stored, which has a kernel.
void CudaOperators::matmul_jobs(MatmulArgs args, const Weight& w,
                                std::span<const MatmulJob> jobs) {
    constexpr size_t kAtOnce = MatmulArgs::kFewJobs;
    args.cols = w.cols;
    args.form = *form_of(w, args.aligned_base && is_aligned(args.x));
    args.row_bytes = row_bytes(w.type, w.cols);
    for (const MatmulJob& job : jobs) args.max_columns = std::max(args.max_columns, job.n_columns);
    if (jobs.size() > kAtOnce && args.max_columns > MatmulArgs::kFewColumns) {
        args.jobs = push(jobs);
        if (error_) return;
        launch_jobs(args, jobs);
        return;
    }
    for (; !jobs.empty(); jobs = jobs.subspan(std::min(jobs.size(), kAtOnce))) {
        const auto some = jobs.first(std::min(jobs.size(), kAtOnce));
        std::ranges::copy(some, args.few);
        launch_jobs(args, some);
    }
}

void CudaOperators::matmuls(std::span<const Product> products, const float* x, uint32_t n_rows) {
    multiply(products, x, n_rows, {});
}

// A norm of its own costs as much as a small product does, where one row is all there is.
void CudaOperators::normed_matmuls(std::span<const Product> products, float* x, const float* weight,
                                   float epsilon, uint32_t n_rows) {
    const auto norms = [&](const Product& product) {
        const std::optional<RowForm> form =
            form_of(product.w, is_aligned(product.w.data) && is_aligned(x));
        if (!form) return false;
        MatmulArgs args = args_of(product.w, x);
        args.form = *form;
        args.max_columns = n_rows;
        args.norm = weight;
        return norms_columns(args);
    };
    if (!std::ranges::all_of(products, norms)) {
        rms_norm(x, weight, epsilon, n_rows, products[0].w.cols, x);
        return matmuls(products, x, n_rows);
    }
    multiply(products, x, n_rows, {.on = true, .weight = weight, .epsilon = epsilon});
}

// What products with `w` have in common.
MatmulArgs CudaOperators::args_of(const Weight& w, const float* x) {
    MatmulArgs args;
    args.x = x;
    args.x_stride = args.cols = w.cols;
    args.row_bytes = row_bytes(w.type, w.cols);
    args.aligned_base = is_aligned(w.data);
    return args;
}

// Those that are stored alike go together, the others are unpacked one after the other.
void CudaOperators::multiply(std::span<const Product> products, const float* x, uint32_t n_rows,
                             const InputNorm& norm) {
    const auto form = [&](const Weight& w) {
        return form_of(w, is_aligned(w.data) && is_aligned(x));
    };
    std::vector<bool> done(products.size(), false);
    for (size_t i = 0; i < products.size(); ++i) {
        const Weight& first = products[i].w;
        if (done[i]) continue;
        if (!form(first)) {
            matmul_grouped(first, 1, x, n_rows, products[i].y, 0);
            continue;
        }
        MatmulArgs args = args_of(first, x);
        args.normed = norm.on;
        args.norm = norm.weight;
        args.norm_epsilon = norm.epsilon;
        std::vector<MatmulJob> jobs;
        for (size_t j = i; j < products.size() && jobs.size() < MatmulArgs::kFewJobs; ++j) {
            const Weight& w = products[j].w;
            if (done[j] || form(w) != form(first) ||
                is_aligned(w.data) != args.aligned_base) {
                continue;
            }
            MatmulJob job;
            job.weight = w.data;
            job.y = products[j].y;
            job.y_stride = job.rows = w.rows;
            job.n_columns = n_rows;
            jobs.push_back(job);
            done[j] = true;
        }
        matmul_jobs(args, first, jobs);
    }
}

void CudaOperators::matmul_grouped(const Weight& stored, uint32_t groups, const float* x,
                                   uint32_t n_rows, float* y, uint32_t x_group) {
    const bool known = form_of(stored, is_aligned(stored.data) && is_aligned(x)).has_value();
    const Weight w = known ? stored : unpacked(stored, unpacked_);
    if (error_) return;
    const uint64_t bytes = row_bytes(w.type, w.cols);
    const uint32_t rows = w.rows / groups;
    MatmulArgs args;
    args.late_weights = !known;
    args.alike = groups;
    args.x = x;
    if (x_group == 0) x_group = w.cols;
    args.x_stride = uint64_t{groups} * x_group;
    args.aligned_base = is_aligned(w.data);
    std::vector<MatmulJob> jobs(groups);
    for (uint32_t g = 0; g < groups; ++g) {
        MatmulJob& job = jobs[g];
        job.weight = w.data + uint64_t{g} * rows * bytes;
        job.y = y + uint64_t{g} * rows;
        job.y_stride = w.rows;
        job.rows = rows;
        job.n_columns = n_rows;
        job.x_offset = uint64_t{g} * x_group;
    }
    matmul_jobs(args, w, jobs);
}

void CudaOperators::matmul_gated(const Weight& gate, const Weight& up, const float* x,
                                 uint32_t n_rows, const Activation& activation, float* y) {
    MatmulArgs args;
    args.x = x;
    args.x_stride = gate.cols;
    args.gated = true;
    args.limit = activation.limit;
    args.aligned_base = is_aligned(gate.data) && is_aligned(up.data);
    MatmulJob job;
    job.weight = gate.data;
    job.weight2 = up.data;
    job.y = y;
    job.y_stride = job.rows = gate.rows;
    job.n_columns = n_rows;
    const bool same = gate.type == up.type && gate.layout == up.layout;
    expert_products(args, gate, same ? nullptr : &up, {&job, 1});
}

void CudaOperators::experts(const ExpertArgs& args) {
    // All (expert, row) pairs in one list: the columns of the products.
    std::vector<uint32_t> x_rows, y_rows, factor_at;
    bool lists = false;  // one row per expert, as when decoding one sequence, needs none
    for (const ExpertWork& work : args.experts) {
        for (size_t i = 0; i < work.rows.size(); ++i) {
            x_rows.push_back(work.rows[i]);
            y_rows.push_back(work.rows[i] * args.n_slots + work.slots[i]);
            factor_at.push_back(work.rows[i] * args.n_slots + work.choices[i]);
        }
        lists = lists || work.rows.size() > 1;
    }
    const auto device_list = [&](const std::vector<uint32_t>& list) {
        return lists ? push(std::span<const uint32_t>(list)) : nullptr;
    };
    const uint32_t* const device_x_rows = device_list(x_rows);
    const uint32_t* const device_y_rows = device_list(y_rows);
    const uint32_t* const device_factor_at = device_list(factor_at);
    auto* mid = reinterpret_cast<float*>(expert_mid_.reserve(
        x_rows.size() * args.gate.rows * sizeof(float), stream_, error_));
    if (error_) return;

    constexpr uint32_t kExperts = 8;  // of a token
    MatmulArgs in;
    in.alike = kExperts;
    in.x = args.x;
    in.x_stride = args.gate.cols;
    in.gated = true;
    in.limit = args.activation.limit;
    in.factors = args.weights;
    in.aligned_base = args.gate_offset % 16 == 0 && args.up_offset % 16 == 0;
    MatmulArgs out;
    out.alike = kExperts;
    out.x = mid;
    out.x_stride = args.gate.rows;
    out.aligned_base = args.down_offset % 16 == 0;

    std::vector<MatmulJob> in_jobs, out_jobs;
    uint32_t first = 0;
    for (const ExpertWork& work : args.experts) {
        const auto n = static_cast<uint32_t>(work.rows.size());
        MatmulJob job;
        job.weight = work.object + args.gate_offset;
        job.weight2 = work.object + args.up_offset;
        job.y = mid;
        job.y_stride = job.rows = args.gate.rows;
        job.x_rows = lists ? device_x_rows + first : nullptr;
        job.x_first = x_rows[first];
        job.factor_at = lists ? device_factor_at + first : nullptr;
        job.factor_first = factor_at[first];
        job.y_first = first;
        job.n_columns = n;
        in_jobs.push_back(job);
        job = MatmulJob{};
        job.weight = work.object + args.down_offset;
        job.y = args.out;
        job.y_stride = job.rows = args.down.rows;
        job.x_first = first;
        job.y_rows = lists ? device_y_rows + first : nullptr;
        job.y_first = y_rows[first];
        job.n_columns = n;
        out_jobs.push_back(job);
        first += n;
    }
    const bool same = args.gate.type == args.up.type && args.gate.layout == args.up.layout;
    expert_products(in, args.gate, same ? nullptr : &args.up, in_jobs);
    expert_products(out, args.down, nullptr, out_jobs);
}

// One launch for all experts, where there is a kernel for the type; else one after the other, each
// unpacked first. `other`: the second matrix of a gated product, when it is stored differently.
void CudaOperators::expert_products(MatmulArgs args, const Weight& shape, const Weight* other,
                                    std::span<const MatmulJob> jobs) {
    const bool aligned = args.aligned_base && is_aligned(args.x);
    if (other == nullptr && form_of(shape, aligned)) return matmul_jobs(args, shape, jobs);
    args.aligned_base = true;
    args.late_weights = true;
    for (MatmulJob job : jobs) {
        Weight w = shape;
        w.data = job.weight;
        const Weight floats = unpacked(w, unpacked_);
        job.weight = floats.data;
        if (args.gated) {
            w = other != nullptr ? *other : shape;
            w.data = job.weight2;
            job.weight2 = unpacked(w, unpacked_up_).data;
        }
        if (error_) return;
        matmul_jobs(args, floats, {&job, 1});
    }
}

}  // namespace xp::cuda
