#include "cuda/operators.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "cuda/launch.h"

namespace xp::cuda {
namespace {

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

DeviceHcUpdate update_of(const HcUpdate* update) {
    if (update == nullptr) return {};
    return {update->post_comb, update->rest, update->parts, update->n_slots};
}

// Copies of pageable memory up to this size travel with the commands, which is the fastest way.
constexpr uint64_t kInlineBytes = uint64_t{16} << 10;

constexpr uint64_t kChoicesHeader = 256;  // the number of the call, on a line of its own

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
    XP_TRY(ring.device_, Memory::device(kParts * kPartBytes, "kernel arguments"));
    XP_TRY(ring.host_, Memory::pinned(kParts * kPartBytes, "kernel arguments"));
    for (Event& event : ring.copied_) {
        XP_TRY(event, make_event("kernel arguments"));
    }
    ring.stream_ = stream;
    return ring;
}

std::byte* ArgumentRing::push(std::span<const std::byte> host, std::optional<Error>& error) {
    if (error || host.empty()) return nullptr;
    if (host.size() > kPartBytes) {
        error = make_error(ErrorCode::kLimit, "{} bytes of arguments for one kernel, at most {}",
                           host.size(), kPartBytes);
        return nullptr;
    }
    cudaError_t status = cudaSuccess;
    if (used_ + host.size() > kPartBytes) {
        status = cudaEventRecord(copied_[part_].get(), stream_);
        part_ = (part_ + 1) % kParts;
        used_ = 0;
        // An event that was never recorded is over.
        if (status == cudaSuccess) status = cudaEventSynchronize(copied_[part_].get());
    }
    const uint64_t at = part_ * kPartBytes + used_;
    std::byte* to = device_.data() + at;
    used_ = (used_ + host.size() + 255) / 256 * 256;
    if (status == cudaSuccess) {
        const std::byte* from = host.data();
        if (host.size() > kInlineBytes) {
            from = host_.data() + at;
            std::memcpy(host_.data() + at, host.data(), host.size());
        }
        status = cudaMemcpyAsync(to, from, host.size(), cudaMemcpyHostToDevice, stream_);
    }
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
    XP_TRY(operators->rows_done_, Memory::device(sizeof(uint32_t), "the router's counter"));
    XP_CUDA(cudaMemsetAsync(operators->rows_done_.data(), 0, sizeof(uint32_t), stream),
            "the router's counter");
    return operators;
}

Result<void> CudaOperators::status() const {
    check(cudaPeekAtLastError(), "a kernel");
    if (error_) return *error_;
    return {};
}

OperatorCounts CudaOperators::counts() const {
    OperatorCounts counts = waited_;
    counts.launches = launches();
    return counts;
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

Result<DeviceBuffer> CudaOperators::allocate_host(uint64_t bytes, std::string_view what) {
    XP_TRY(Memory memory, Memory::pinned(std::max<uint64_t>(bytes, 1), what));
    std::byte* data = memory.data();
    auto owner = std::make_shared<Memory>(std::move(memory));
    return DeviceBuffer(data, bytes, [owner](std::byte*) {});
}

// Through a pinned buffer, which is one copy of the device and one wait, where a pageable target
// costs several of both; or straight to where it belongs, if that is pinned.
void CudaOperators::download(std::span<std::byte> host_to, const std::byte* from) const {
    cudaPointerAttributes target{};
    if (!host_to.empty() && cudaPointerGetAttributes(&target, host_to.data()) == cudaSuccess &&
        target.type == cudaMemoryTypeHost) {
        check(cudaMemcpyAsync(host_to.data(), from, host_to.size(), cudaMemcpyDeviceToHost,
                              stream_),
              "copying from the device");
        waiting([&] { check(cudaStreamSynchronize(stream_), "waiting for the device"); });
        return;
    }
    while (!host_to.empty()) {
        const uint64_t n = std::min<uint64_t>(host_to.size(), download_buffer_.bytes());
        check(cudaMemcpyAsync(download_buffer_.data(), from, n, cudaMemcpyDeviceToHost, stream_),
              "copying from the device");
        waiting([&] { check(cudaStreamSynchronize(stream_), "waiting for the device"); });
        std::memcpy(host_to.data(), download_buffer_.data(), n);
        host_to = host_to.subspan(n);
        from += n;
    }
}

// ---- norms and copies ---------------------------------------------------------------------------

void CudaOperators::rms_norm(const float* x, const float* weight, float epsilon, uint32_t n_rows,
                             uint32_t dim, float* y) {
    launch_rms_norm(x, weight, epsilon, n_rows, dim, y, stream_);
}

void CudaOperators::copy(const float* x, uint64_t n, float* y) {
    check(cudaMemcpyAsync(y, x, n * sizeof(float), cudaMemcpyDeviceToDevice, stream_), "copying");
}

// ---- attention ----------------------------------------------------------------------------------

void CudaOperators::norm_rope(std::span<const NormRopeArgs> all, uint32_t n_rows) {
    for (size_t first = 0; first < all.size(); first += DeviceNormRope::kMaxKinds) {
        DeviceNormRope device;
        device.n_rows = n_rows;
        for (const NormRopeArgs& args : all.subspan(
                 first, std::min<size_t>(DeviceNormRope::kMaxKinds, all.size() - first))) {
            require(args.rope_dims == 0 || args.dim % 2 == 0, "elements in a turned head", args.dim,
                    args.dim - args.dim % 2);
            device.kinds[device.n_kinds++] = {
                .x = args.x, .norm = args.norm, .cos_sin = args.cos_sin, .stored = args.stored,
                .normed = args.normed, .half = args.kv == KvType::kF16, .epsilon = args.epsilon,
                .n_heads = args.n_heads, .dim = args.dim, .rope_dims = args.rope_dims};
        }
        if (error_) return;
        launch_norm_rope(device, stream_);
    }
}

void CudaOperators::attention(const AttentionArgs& args) {
    require(args.dim <= kMaxAttentionDim, "elements in an attention row", args.dim,
            kMaxAttentionDim);
    require(args.rope_dims == 0 || args.dim % 2 == 0, "elements in a turned head", args.dim,
            args.dim - args.dim % 2);
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
    device.cos_sin = args.cos_sin;
    device.rope_dims = args.rope_dims;
    device.segments = send(std::span<const DeviceSegment>(segments), of_row);
    device.out = args.out;
    if (const uint64_t floats = attention_scratch_floats(device); floats > 0) {
        device.scratch = reinterpret_cast<float*>(
            work_.reserve(floats * sizeof(float), stream_, error_));
    }
    if (error_) return;
    launch_attention(device, stream_);
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
    device.scale = args.scale;
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

DeviceHyperConnection CudaOperators::hyper_connection_of(const HyperConnectionArgs& args,
                                                         uint32_t n_rows) {
    require(args.streams <= kMaxStreams, "residual streams", args.streams, kMaxStreams);
    DeviceHyperConnection device;
    device.half_fn = args.fn.type == GgmlType::kF16;
    const bool known = device.half_fn || args.fn.type == GgmlType::kF32;
    device.fn = known ? args.fn.data : unpacked(args.fn, unpacked_).data;
    device.state = args.state;
    device.outputs = args.fn.rows;
    device.base = args.base;
    device.scale = args.scale;
    device.norm = args.norm;
    device.streams = args.streams;
    device.dim = args.dim;
    device.norm_epsilon = args.norm_epsilon;
    device.epsilon = args.epsilon;
    device.iterations = args.iterations;
    device.parts = reinterpret_cast<float*>(
        work_.reserve(hc_part_floats(device, n_rows) * sizeof(float), stream_, error_));
    return device;
}

void CudaOperators::hc_post(const HcUpdate& update, uint32_t n_rows, uint32_t streams, uint32_t dim,
                            float* state) {
    require(streams <= kMaxStreams, "residual streams", streams, kMaxStreams);
    if (error_) return;
    launch_hc_post(update_of(&update), n_rows, streams, dim, state, stream_);
}

void CudaOperators::hc_pre(const HyperConnectionArgs& args, const HcUpdate* update, uint32_t n_rows,
                           float* y, float* post_comb) {
    const DeviceHyperConnection device = hyper_connection_of(args, n_rows);
    if (error_) return;
    launch_hc_pre(device, update_of(update), n_rows, y, post_comb, stream_);
}

void CudaOperators::hc_head(const HyperConnectionArgs& args, uint32_t n_rows, float* y) {
    const DeviceHyperConnection device = hyper_connection_of(args, n_rows);
    if (error_) return;
    launch_hc_head(device, n_rows, y, stream_);
}

// ---- mixture of experts -------------------------------------------------------------------------

void CudaOperators::reserve_choices(uint64_t n) {
    if (n <= choice_slots_ || error_) return;
    cudaStreamSynchronize(stream_);  // the last choices may still come
    choices_ = Memory();
    choice_slots_ = 0;
    Result<Memory> memory =
        Memory::pinned(kChoicesHeader + n * (sizeof(uint32_t) + sizeof(float)), "routing");
    if (!memory) {
        error_ = std::move(memory).error();
        return;
    }
    choices_ = *std::move(memory);
    std::memset(choices_.data(), 0, kChoicesHeader);
    choice_slots_ = n;
}

void CudaOperators::route(const RouteArgs& args, uint32_t n_rows) {
    const uint64_t n = uint64_t{n_rows} * args.top_k;
    require(args.n_experts <= kMaxExperts, "experts a layer", args.n_experts, kMaxExperts);
    require(args.top_k <= kMaxTopK, "experts a token", args.top_k, kMaxTopK);
    reserve_choices(n);
    DeviceRoute device;
    device.logits = args.logits;
    device.bias = args.bias;
    if (args.host_fixed != nullptr) {
        const std::span fixed(args.host_fixed, n);
        device.has_few_fixed = n <= DeviceRoute::kFewFixed;
        if (device.has_few_fixed) {
            std::ranges::copy(fixed, device.few_fixed);
        } else {
            device.fixed = push(fixed);
        }
    }
    if (error_ || n == 0) return;
    device.normalise = args.normalise;
    device.scale = args.scale;
    device.n_experts = args.n_experts;
    device.top_k = args.top_k;
    device.weights = args.weights;
    device.ready = reinterpret_cast<uint32_t*>(choices_.data());
    device.host_ids = reinterpret_cast<uint32_t*>(choices_.data() + kChoicesHeader);
    device.host_weights = reinterpret_cast<float*>(device.host_ids + choice_slots_);
    device.number = ++route_number_;
    device.rows_done = reinterpret_cast<uint32_t*>(rows_done_.data());
    launch_route(device, n_rows, stream_);
}

// The device writes into host memory, so that nothing else that it was given is waited for.
void CudaOperators::wait_for_choices(const std::function<void()>& meanwhile) {
    constexpr uint32_t kLooksBetweenChecks = 4096;
    const auto ready = [&] {
        auto& number = *reinterpret_cast<uint32_t*>(choices_.data());
        return std::atomic_ref(number).load(std::memory_order_acquire) == route_number_;
    };
    for (uint32_t look = 1; !error_ && !ready(); ++look) {
        if (meanwhile) meanwhile();
        if (look % kLooksBetweenChecks != 0) continue;
        const cudaError_t status = cudaStreamQuery(stream_);
        if (status == cudaErrorNotReady) continue;
        check(status, "waiting for the router");
        // All is done, so the choices must be there now.
        if (!error_ && !ready()) {
            error_ = make_error(ErrorCode::kInternal, "the router's choices did not arrive");
        }
    }
}

void CudaOperators::routed(std::span<uint32_t> host_ids, std::span<float> host_weights,
                           const std::function<void()>& meanwhile) {
    if (!host_ids.empty()) waiting([&] { wait_for_choices(meanwhile); });
    if (error_) {
        // Ids that are in range, for a caller that only then asks for status().
        std::ranges::fill(host_ids, 0u);
        std::ranges::fill(host_weights, 0.0f);
        return;
    }
    const std::byte* ids = choices_.data() + kChoicesHeader;
    std::memcpy(host_ids.data(), ids, host_ids.size_bytes());
    std::memcpy(host_weights.data(), ids + choice_slots_ * sizeof(uint32_t),
                host_weights.size_bytes());
}

}  // namespace xp::cuda
