#include "cuda/operators.h"

#include <algorithm>
#include <cmath>
#include <cstring>

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

// Rows with the number of the segment each belongs to.
template <class Segments>
std::vector<uint32_t> segment_of_row(const Segments& segments) {
    uint32_t n_rows = 0;
    for (const auto& segment : segments) {
        n_rows = std::max(n_rows, segment.first_row + segment.n_rows);
    }
    std::vector<uint32_t> of_row(n_rows);
    for (uint32_t s = 0; s < segments.size(); ++s) {
        std::fill_n(of_row.begin() + segments[s].first_row, segments[s].n_rows, s);
    }
    return of_row;
}

DeviceHyperConnection hyper_connection_of(const HyperConnectionArgs& args) {
    return {args.state, args.mixes, args.base, args.scale, args.streams, args.dim,
            args.norm_epsilon, args.epsilon, args.iterations};
}

}  // namespace

std::byte* Scratch::reserve(uint64_t bytes, cudaStream_t stream, std::optional<Error>& error) {
    if (bytes <= memory_.bytes() || error) return memory_.data();
    cudaStreamSynchronize(stream);  // kernels may still use what is given back now
    memory_ = Memory();
    Result<Memory> memory = Memory::device(bytes, what_);
    if (!memory) {
        error = std::move(memory).error();
        return nullptr;
    }
    memory_ = *std::move(memory);
    return memory_.data();
}

Result<ArgumentRing> ArgumentRing::create(cudaStream_t stream) {
    ArgumentRing ring;
    XP_TRY(ring.memory_, Memory::device(kBytes, "kernel arguments"));
    ring.stream_ = stream;
    return ring;
}

std::byte* ArgumentRing::push(std::span<const std::byte> host, std::optional<Error>& error) {
    if (error || host.empty()) return nullptr;
    if (host.size() > kBytes) {
        error = make_error(ErrorCode::kLimit, "{} bytes of arguments for one kernel, at most {}",
                           host.size(), kBytes);
        return nullptr;
    }
    if (next_ + host.size() > kBytes) next_ = 0;
    std::byte* to = memory_.data() + next_;
    next_ = (next_ + host.size() + 255) / 256 * 256;
    // From pageable memory: the call returns when it has its own copy.
    const cudaError_t status =
        cudaMemcpyAsync(to, host.data(), host.size(), cudaMemcpyHostToDevice, stream_);
    if (status != cudaSuccess) error = cuda_error(status, "copying kernel arguments");
    return to;
}

Result<std::unique_ptr<CudaOperators>> CudaOperators::create(int device, cudaStream_t stream) {
    std::unique_ptr<CudaOperators> operators(new CudaOperators(stream));
    cudaDeviceProp properties{};
    XP_CUDA(cudaGetDeviceProperties(&properties, device), "asking for the device's properties");
    operators->description_ = fmt::format("cuda ({})", properties.name);
    XP_TRY(operators->arguments_, ArgumentRing::create(stream));
    XP_TRY(operators->download_buffer_,
           Memory::pinned(kDownloadBytes, "results on their way to the host"));
    return operators;
}

Result<void> CudaOperators::status() const {
    check(cudaPeekAtLastError(), "a kernel");
    if (error_) return *error_;
    return {};
}

// Only the first error says what happened.
void CudaOperators::check(cudaError_t status, const char* what) const {
    if (status != cudaSuccess && !error_) error_ = cuda_error(status, what);
}

void CudaOperators::require(bool fits, const char* what, uint32_t value, uint32_t limit) {
    if (fits || error_) return;
    error_ = make_error(ErrorCode::kUnsupported,
                        "the CUDA backend computes with at most {} {}, not {}", limit, what, value);
}

StorageLayout CudaOperators::resident_layout(GgmlType type, uint64_t cols) const {
    // Rows of whole 16-byte pieces only; others gain nothing.
    const bool split = layout_supported(type, StorageLayout::kSplit) &&
                       row_bytes(type, cols) % 16 == 0;
    return split ? StorageLayout::kSplit : StorageLayout::kGgml;
}

// ---- memory -------------------------------------------------------------------------------------

Result<DeviceBuffer> CudaOperators::allocate(uint64_t bytes, std::string_view what) {
    XP_TRY(Memory memory, Memory::device(std::max<uint64_t>(bytes, 1), what));
    XP_CUDA(cudaMemsetAsync(memory.data(), 0, memory.bytes(), stream_), what);
    std::byte* data = memory.data();
    auto owner = std::make_shared<Memory>(std::move(memory));
    return DeviceBuffer(data, bytes, [owner](std::byte*) {});
}

void CudaOperators::upload(std::byte* to, std::span<const std::byte> host_from) {
    if (host_from.empty()) return;
    check(cudaMemcpyAsync(to, host_from.data(), host_from.size(), cudaMemcpyHostToDevice, stream_),
          "copying to the device");
}

// Through a pinned buffer, which is one copy of the device and one wait, where a pageable target
// costs several of both.
void CudaOperators::download(std::span<std::byte> host_to, const std::byte* from) const {
    while (!host_to.empty()) {
        const uint64_t n = std::min<uint64_t>(host_to.size(), download_buffer_.bytes());
        check(cudaMemcpyAsync(download_buffer_.data(), from, n, cudaMemcpyDeviceToHost, stream_),
              "copying from the device");
        check(cudaStreamSynchronize(stream_), "waiting for the device");
        std::memcpy(host_to.data(), download_buffer_.data(), n);
        host_to = host_to.subspan(n);
        from += n;
    }
}

// ---- matrices -----------------------------------------------------------------------------------

Weight CudaOperators::unpacked(const Weight& w, Scratch& scratch) {
    std::byte* rows =
        scratch.reserve(uint64_t{w.rows} * w.cols * sizeof(float), stream_, error_);
    if (!error_) {
        launch_dequantise(static_cast<uint32_t>(w.type), w.layout == StorageLayout::kSplit, w.data,
                          row_bytes(w.type, w.cols), w.cols, nullptr, 0, w.rows,
                          reinterpret_cast<float*>(rows), stream_);
    }
    return {GgmlType::kF32, StorageLayout::kGgml, w.rows, w.cols, rows};
}

void CudaOperators::embed(const Weight& table, std::span<const TokenId> host_tokens,
                          uint32_t streams, float* state) {
    const auto n_rows = static_cast<uint32_t>(host_tokens.size());
    std::vector<uint32_t> ids(host_tokens.begin(), host_tokens.end());
    const uint32_t* device_ids = push(std::span<const uint32_t>(ids));
    auto* rows = reinterpret_cast<float*>(
        work_.reserve(uint64_t{n_rows} * table.cols * sizeof(float), stream_, error_));
    if (error_) return;
    launch_dequantise(static_cast<uint32_t>(table.type), table.layout == StorageLayout::kSplit,
                      table.data, row_bytes(table.type, table.cols), table.cols, device_ids, 0,
                      n_rows, rows, stream_);
    launch_spread(rows, n_rows, streams, table.cols, state, stream_);
}

// `args` says everything but the jobs and how `w` is stored, which has a kernel.
void CudaOperators::matmul_jobs(MatmulArgs args, const Weight& w,
                                std::span<const MatmulJob> jobs) {
    args.cols = w.cols;
    args.n_jobs = static_cast<uint32_t>(jobs.size());
    if (jobs.size() <= MatmulArgs::kFewJobs) {
        std::copy(jobs.begin(), jobs.end(), args.few);
    } else {
        args.jobs = push(jobs);
        if (error_) return;
    }
    args.form = *form_of(w, args.aligned_base && is_aligned(args.x));
    args.row_bytes = row_bytes(w.type, w.cols);
    launch_matmul(args, stream_);
}

void CudaOperators::matmul(const Weight& w, const float* x, uint32_t n_rows, float* y) {
    matmul_grouped(w, 1, x, n_rows, y);
}

void CudaOperators::matmul_grouped(const Weight& stored, uint32_t groups, const float* x,
                                   uint32_t n_rows, float* y) {
    const bool aligned = is_aligned(stored.data) && is_aligned(x);
    const Weight w = form_of(stored, aligned) ? stored : unpacked(stored, unpacked_);
    if (error_) return;
    const uint64_t bytes = row_bytes(w.type, w.cols);
    MatmulArgs args;
    args.rows = w.rows / groups;
    args.x = x;
    args.x_stride = uint64_t{groups} * w.cols;
    args.y = y;
    args.y_stride = w.rows;
    args.max_columns = n_rows;
    args.aligned_base = is_aligned(w.data);
    std::vector<MatmulJob> jobs(groups);
    for (uint32_t g = 0; g < groups; ++g) {
        MatmulJob& job = jobs[g];
        job.weight = w.data + uint64_t{g} * args.rows * bytes;
        job.n_columns = n_rows;
        job.x_offset = uint64_t{g} * w.cols;
        job.y_offset = uint64_t{g} * args.rows;
    }
    matmul_jobs(args, w, jobs);
}

void CudaOperators::rms_norm(const float* x, const float* weight, float epsilon, uint32_t n_rows,
                             uint32_t dim, float* y) {
    launch_rms_norm(x, weight, epsilon, n_rows, dim, y, stream_);
}

void CudaOperators::copy(const float* x, uint64_t n, float* y) {
    check(cudaMemcpyAsync(y, x, n * sizeof(float), cudaMemcpyDeviceToDevice, stream_), "copying");
}

void CudaOperators::scale(float* x, float factor, uint64_t n) {
    launch_scale(x, factor, n, stream_);
}

void CudaOperators::add(const float* x, uint64_t n, float* y) { launch_add(x, n, y, stream_); }

void CudaOperators::swiglu(const float* gate, const float* up, float limit, uint64_t n, float* y) {
    launch_swiglu(gate, up, limit, n, y, stream_);
}

// ---- attention ----------------------------------------------------------------------------------

void CudaOperators::rope(float* x, const float* cos_sin, uint32_t n_rows, uint32_t n_heads,
                         uint32_t dim, uint32_t rope_dims, bool inverse) {
    launch_rope(x, cos_sin, n_rows, n_heads, dim, rope_dims, inverse, stream_);
}

void CudaOperators::store_rows(const float* x, KvType kv, uint32_t n_rows, uint32_t dim,
                               std::byte* rows) {
    launch_store_rows(x, kv == KvType::kF16, uint64_t{n_rows} * dim, rows, stream_);
}

DeviceAttention CudaOperators::attention_of(const AttentionArgs& args) {
    DeviceAttention device;
    std::vector<DeviceSegment> segments;
    for (const AttentionSegment& s : args.segments) {
        segments.push_back({s.first_row, s.n_rows, s.position, s.ring, s.compressed});
        const uint64_t end = s.position + s.n_rows;
        uint64_t compressed = args.ratio != 0 ? end / args.ratio : 0;
        if (args.picks != nullptr) compressed = std::min<uint64_t>(compressed, args.max_picks);
        device.max_keys =
            std::max(device.max_keys, std::min<uint64_t>(args.window, end) + compressed);
    }
    const std::vector<uint32_t> of_row = segment_of_row(args.segments);
    device.q = args.q;
    device.rows = args.rows;
    device.half = args.kv == KvType::kF16;
    device.n_rows = static_cast<uint32_t>(of_row.size());
    device.n_heads = args.n_heads;
    device.dim = args.dim;
    device.window = args.window;
    device.ratio = args.ratio;
    device.picks = args.picks;
    device.max_picks = args.max_picks;
    device.sinks = args.sinks;
    device.scale = args.scale;
    device.segments = send(std::span<const DeviceSegment>(segments), of_row);
    device.out = args.out;
    return device;
}

void CudaOperators::attention(const AttentionArgs& args) {
    require(args.dim <= kMaxAttentionDim, "elements in an attention row", args.dim,
            kMaxAttentionDim);
    DeviceAttention device = attention_of(args);
    if (const uint64_t floats = attention_scratch_floats(device); floats > 0) {
        device.scratch = reinterpret_cast<float*>(
            work_.reserve(floats * sizeof(float), stream_, error_));
    }
    if (error_) return;
    launch_attention(device, stream_);
}

void CudaOperators::update_rings(const AttentionArgs& args) {
    const DeviceAttention device = attention_of(args);
    if (error_) return;
    launch_update_rings(device, stream_);
}

void CudaOperators::compress(const CompressorArgs& args) {
    std::vector<DeviceCompressorSegment> segments;
    std::vector<uint32_t> of_pooled;
    std::vector<float> cos_sin;
    for (const CompressorSegment& s : args.segments) {
        segments.push_back({s.first_row, s.n_rows, s.position, s.keys, s.gates, s.compressed,
                            static_cast<uint32_t>(of_pooled.size())});
        const uint64_t end = (s.position + s.n_rows) / args.ratio;
        for (uint64_t w = s.position / args.ratio; w < end; ++w) {
            of_pooled.push_back(static_cast<uint32_t>(segments.size() - 1));
            for (const double frequency : args.host_frequencies) {
                const double angle = static_cast<double>(w * args.ratio) * frequency;
                cos_sin.push_back(static_cast<float>(std::cos(angle)));
                cos_sin.push_back(static_cast<float>(std::sin(angle)));
            }
        }
    }
    DeviceCompressor device;
    device.keys = args.keys;
    device.gates = args.gates;
    device.bias = args.bias;
    device.norm = args.norm;
    device.epsilon = args.epsilon;
    device.ratio = args.ratio;
    device.factor = args.factor;
    device.dim = args.dim;
    device.rope_dims = args.rope_dims;
    device.half = args.kv == KvType::kF16;
    device.n_pooled = static_cast<uint32_t>(of_pooled.size());
    device.segments =
        send(std::span<const DeviceCompressorSegment>(segments), of_pooled);
    device.cos_sin = push(std::span<const float>(cos_sin));
    device.pooled = reinterpret_cast<float*>(
        work_.reserve(of_pooled.size() * args.dim * sizeof(float), stream_, error_));
    if (error_) return;
    launch_compress(device, stream_);
}

void CudaOperators::index_rows(const IndexArgs& args) {
    std::vector<DeviceIndexSegment> segments;
    DeviceIndex device;
    for (const IndexSegment& s : args.segments) {
        segments.push_back({s.first_row, s.n_rows, s.position, s.keys});
        device.max_visible = std::max(device.max_visible, (s.position + s.n_rows) / args.ratio);
    }
    const std::vector<uint32_t> of_row = segment_of_row(args.segments);
    device.q = args.q;
    device.weights = args.weights;
    device.n_rows = static_cast<uint32_t>(of_row.size());
    device.n_heads = args.n_heads;
    device.dim = args.dim;
    device.ratio = args.ratio;
    device.half = args.kv == KvType::kF16;
    device.max_picks = args.max_picks;
    device.segments = send(std::span<const DeviceIndexSegment>(segments), of_row);
    device.picks = args.picks;
    if (device.max_visible > device.max_picks) {
        device.scores = reinterpret_cast<float*>(work_.reserve(
            device.n_rows * device.max_visible * sizeof(float), stream_, error_));
    }
    if (error_) return;
    launch_index_rows(device, stream_);
}

// ---- hyper-connections --------------------------------------------------------------------------

void CudaOperators::hc_pre(const HyperConnectionArgs& args, uint32_t n_rows, float* y,
                           float* post_comb) {
    require(args.streams <= kMaxStreams, "residual streams", args.streams, kMaxStreams);
    if (error_) return;
    launch_hc_pre(hyper_connection_of(args), n_rows, y, post_comb, stream_);
}

void CudaOperators::hc_post(const float* o, const float* post_comb, uint32_t n_rows,
                            uint32_t streams, uint32_t dim, float* state) {
    launch_hc_post(o, post_comb, n_rows, streams, dim, state, stream_);
}

void CudaOperators::hc_head(const HyperConnectionArgs& args, uint32_t n_rows, float* y) {
    launch_hc_head(hyper_connection_of(args), n_rows, y, stream_);
}

// ---- mixture of experts -------------------------------------------------------------------------

void CudaOperators::route(const RouteArgs& args, uint32_t n_rows, uint32_t* host_ids,
                          float* host_weights) {
    const uint64_t n = uint64_t{n_rows} * args.top_k;
    require(args.n_experts <= kMaxExperts, "experts a layer", args.n_experts, kMaxExperts);
    std::byte* work = work_.reserve(n * (sizeof(uint32_t) + sizeof(float)), stream_, error_);
    DeviceRoute device;
    device.logits = args.logits;
    device.bias = args.bias;
    if (args.host_fixed != nullptr) device.fixed = push(std::span(args.host_fixed, n));
    device.normalise = args.normalise;
    device.scale = args.scale;
    device.n_experts = args.n_experts;
    device.top_k = args.top_k;
    device.ids = reinterpret_cast<uint32_t*>(work);
    device.weights = reinterpret_cast<float*>(work + n * sizeof(uint32_t));
    if (!error_) {
        launch_route(device, n_rows, stream_);
        std::vector<std::byte> host(n * (sizeof(uint32_t) + sizeof(float)));
        download(host, work);
        std::memcpy(host_ids, host.data(), n * sizeof(uint32_t));
        std::memcpy(host_weights, host.data() + n * sizeof(uint32_t), n * sizeof(float));
    }
    if (error_) {
        // Ids that are in range, for a caller that only then asks for status().
        std::fill_n(host_weights, n, 0.0f);
        for (uint64_t i = 0; i < n; ++i) host_ids[i] = static_cast<uint32_t>(i % args.top_k);
    }
}

void CudaOperators::experts(const ExpertArgs& args) {
    // All (expert, row) pairs in one list: the columns of the products.
    std::vector<uint32_t> x_rows, y_rows;
    std::vector<float> factors;
    uint32_t max_columns = 0;
    for (const ExpertWork& work : args.experts) {
        for (size_t i = 0; i < work.rows.size(); ++i) {
            x_rows.push_back(work.rows[i]);
            y_rows.push_back(work.rows[i] * args.n_slots + work.slots[i]);
            factors.push_back(work.weights[i]);
        }
        max_columns = std::max(max_columns, static_cast<uint32_t>(work.rows.size()));
    }
    // One row per expert, as when decoding one sequence, needs no lists.
    const bool lists = max_columns > 1;
    const uint32_t* const device_x_rows =
        lists ? push(std::span<const uint32_t>(x_rows)) : nullptr;
    const uint32_t* const device_y_rows =
        lists ? push(std::span<const uint32_t>(y_rows)) : nullptr;
    const float* const device_factors = lists ? push(std::span<const float>(factors)) : nullptr;
    auto* mid = reinterpret_cast<float*>(expert_mid_.reserve(
        x_rows.size() * args.gate.rows * sizeof(float), stream_, error_));
    if (error_) return;

    MatmulArgs in;
    in.rows = args.gate.rows;
    in.x = args.x;
    in.x_stride = args.gate.cols;
    in.y = mid;
    in.y_stride = args.gate.rows;
    in.gated = true;
    in.limit = args.limit;
    in.aligned_base = args.gate_offset % 16 == 0 && args.up_offset % 16 == 0;
    MatmulArgs out;
    out.rows = args.down.rows;
    out.x = mid;
    out.x_stride = args.gate.rows;
    out.y = args.out;
    out.y_stride = args.down.rows;
    out.aligned_base = args.down_offset % 16 == 0;

    std::vector<MatmulJob> in_jobs, out_jobs;
    uint32_t first = 0;
    for (const ExpertWork& work : args.experts) {
        const auto n = static_cast<uint32_t>(work.rows.size());
        MatmulJob job;
        job.weight = work.object + args.gate_offset;
        job.weight2 = work.object + args.up_offset;
        job.x_rows = lists ? device_x_rows + first : nullptr;
        job.x_first = x_rows[first];
        job.factors = lists ? device_factors + first : nullptr;
        job.factor = factors[first];
        job.y_first = first;
        job.n_columns = n;
        in_jobs.push_back(job);
        job = MatmulJob{};
        job.weight = work.object + args.down_offset;
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
    for (const MatmulJob& job : jobs) args.max_columns = std::max(args.max_columns, job.n_columns);
    const bool aligned = args.aligned_base && is_aligned(args.x);
    if (other == nullptr && form_of(shape, aligned)) return matmul_jobs(args, shape, jobs);
    args.aligned_base = true;
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
        args.max_columns = job.n_columns;
        matmul_jobs(args, floats, {&job, 1});
    }
}

void CudaOperators::sum_slots(const float* parts, uint32_t n_rows, uint32_t n_slots, uint32_t dim,
                              float* y) {
    launch_sum_slots(parts, n_rows, n_slots, dim, y, stream_);
}

}  // namespace xp::cuda
