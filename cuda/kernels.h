// Everything on the device but matrix products, as launches on a stream. One function per operator
// of daemon/engine/operators.h with the same name and meaning (formulas and shapes are there; here
// only what differs): pointers and descriptors are in device memory, and results stay there.
//
// Sums are float32 in an order that depends on the dimensions alone: a fixed number of lanes, each
// in ascending elements, then a fixed tree. No atomics. Plain C++, included by nvcc and the host
// compiler alike; launches are asynchronous and report nothing: see Operators::status().
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define XP_ON_DEVICE __device__
#else
#define XP_ON_DEVICE
#endif

namespace xp::cuda {

// Descriptions of a batch's sequences. A few travel with the launch; more of them through memory,
// with the number of the segment of each row.
template <class T>
struct Segments {
    static constexpr uint32_t kFew = 8;
    T few[kFew] = {};
    const T* many = nullptr;
    const uint32_t* of_row = nullptr;         // with `many`
    uint32_t n = 0;

    // Values: a reference to either would be read as memory of any kind, which answers late.
    XP_ON_DEVICE T at(uint32_t s) const {
        if (many != nullptr) return many[s];
        return few[s];
    }
    // Segments are consecutive: the last one that begins at or before the row.
    XP_ON_DEVICE T of(uint32_t row) const {
        if (many != nullptr) return many[of_row[row]];
        uint32_t s = n - 1;
        while (s > 0 && few[s].first() > row) --s;
        return few[s];
    }
};

// ---- elementwise.cu -----------------------------------------------------------------------------

// state[row][s][..] = rows[row][..] for every stream s: what embed() does after unpacking rows.
void launch_spread(const float* rows, uint32_t n_rows, uint32_t streams, uint32_t dim, float* state,
                   cudaStream_t stream);
void launch_rms_norm(const float* x, const float* weight, float epsilon, uint32_t n_rows,
                     uint32_t dim, float* y, cudaStream_t stream);
struct DeviceHeads {
    float* x = nullptr;
    const float* norm = nullptr;
    const float* cos_sin = nullptr;
    std::byte* stored = nullptr;              // null: in place
    bool normed = false;
    bool half = false;                        // stored as binary16, round to nearest even
    float epsilon = 0;
    uint32_t n_heads = 0;
    uint32_t dim = 0;                         // even, as rope_dims
    uint32_t rope_dims = 0;
};
struct DeviceNormRope {
    static constexpr uint32_t kMaxKinds = 4;
    DeviceHeads kinds[kMaxKinds];
    uint32_t n_kinds = 0;
    uint32_t n_rows = 0;
};
void launch_norm_rope(const DeviceNormRope& args, cudaStream_t stream);

// ---- attention.cu -------------------------------------------------------------------------------

struct DeviceSegment {
    uint32_t first_row = 0;
    uint32_t n_rows = 0;
    uint64_t position = 0;
    std::byte* ring = nullptr;
    const std::byte* compressed = nullptr;
    XP_ON_DEVICE uint32_t first() const { return first_row; }
};
struct DeviceAttention {
    const float* q = nullptr;
    const std::byte* rows = nullptr;
    bool half = false;
    uint32_t n_rows = 0;                      // of all segments
    uint32_t n_heads = 0;
    uint32_t dim = 0;                         // at most kMaxAttentionDim
    uint32_t window = 0;
    uint32_t ratio = 0;
    const uint32_t* picks = nullptr;
    uint32_t max_picks = 0;
    const float* sinks = nullptr;
    float scale = 1;
    const float* cos_sin = nullptr;
    uint32_t rope_dims = 0;                   // even, as dim where it is not 0
    Segments<DeviceSegment> segments;
    // The largest number of keys of a row: bounds what a launch needs.
    uint64_t max_keys = 0;
    // [attention_scratch_floats(..)], aligned to 16 bytes; may be null when that is 0.
    float* scratch = nullptr;
    float* out = nullptr;
};
inline constexpr uint32_t kMaxAttentionDim = 1024;
// For few rows, units of keys are done side by side and merged through scratch memory.
uint64_t attention_scratch_floats(const DeviceAttention& args);
void launch_attention(const DeviceAttention& args, cudaStream_t stream);

// ---- compressor.cu ------------------------------------------------------------------------------

struct DeviceCompressorSegment {
    uint32_t first_row = 0;
    uint32_t n_rows = 0;
    uint64_t position = 0;
    float* keys = nullptr;
    float* gates = nullptr;
    std::byte* compressed = nullptr;
    uint32_t first_pooled = 0;                // of this segment's rows in `pooled` and `cos_sin`
    XP_ON_DEVICE uint32_t first() const { return first_pooled; }
};
struct DeviceCompressor {
    const float* keys = nullptr;
    const float* gates = nullptr;
    const float* bias = nullptr;
    const float* norm = nullptr;
    float epsilon = 0;
    uint32_t ratio = 0;
    uint32_t factor = 1;
    uint32_t dim = 0;
    uint32_t rope_dims = 0;
    bool half = false;
    Segments<DeviceCompressorSegment> segments;  // of_row: [n_pooled]
    uint32_t n_pooled = 0;                    // rows that are completed, of all segments
    const float* cos_sin = nullptr;           // [n_pooled][rope_dims / 2][2], of their positions
    float* pooled = nullptr;                  // [n_pooled][dim]
};
void launch_compress(const DeviceCompressor& args, cudaStream_t stream);

struct DeviceIndexSegment {
    uint32_t first_row = 0;
    uint32_t n_rows = 0;
    uint64_t position = 0;
    const std::byte* keys = nullptr;
    XP_ON_DEVICE uint32_t first() const { return first_row; }
};
struct DeviceIndex {
    const float* q = nullptr;
    const float* weights = nullptr;
    float scale = 1;                          // of the weights
    uint32_t n_rows = 0;
    uint32_t n_heads = 0;
    uint32_t dim = 0;
    uint32_t ratio = 0;
    bool half = false;
    uint32_t max_picks = 0;
    Segments<DeviceIndexSegment> segments;
    uint64_t max_visible = 0;                 // compressed rows that any row sees
    float* scores = nullptr;                  // [n_rows][max_visible], if max_visible > max_picks
    uint32_t* picks = nullptr;
};
void launch_index_rows(const DeviceIndex& args, cudaStream_t stream);

// ---- hyper_connection.cu ------------------------------------------------------------------------

struct DeviceHcUpdate {
    const float* post_comb = nullptr;         // null: no update
    const float* rest = nullptr;
    const float* parts = nullptr;             // may be null
    uint32_t n_slots = 0;
};
struct DeviceHyperConnection {
    float* state = nullptr;
    const void* fn = nullptr;                 // [outputs][streams · dim]
    bool half_fn = false;                     // binary16, else float32
    uint32_t outputs = 0;
    const float* base = nullptr;
    const float* scale = nullptr;
    const float* norm = nullptr;
    uint32_t streams = 0;                     // at most kMaxStreams
    uint32_t dim = 0;
    float norm_epsilon = 0;
    float epsilon = 0;
    uint32_t iterations = 0;
    float* parts = nullptr;                   // scratch, [hc_part_floats(..)]
};
inline constexpr uint32_t kMaxStreams = 8;
uint64_t hc_part_floats(const DeviceHyperConnection& args, uint32_t n_rows);
void launch_hc_post(const DeviceHcUpdate& update, uint32_t n_rows, uint32_t streams, uint32_t dim,
                    float* state, cudaStream_t stream);
void launch_hc_pre(const DeviceHyperConnection& args, const DeviceHcUpdate& update, uint32_t n_rows,
                   float* y, float* post_comb, cudaStream_t stream);
void launch_hc_head(const DeviceHyperConnection& args, uint32_t n_rows, float* y,
                    cudaStream_t stream);

// ---- routing.cu ---------------------------------------------------------------------------------

// Scores and choices are in shared memory.
inline constexpr uint32_t kMaxExperts = 16'384;
inline constexpr uint32_t kMaxTopK = 1024;
struct DeviceRoute {
    const float* logits = nullptr;
    const float* bias = nullptr;              // may be null
    // [n_rows][top_k] choices that are made already, if not null; a few travel with the launch.
    static constexpr uint32_t kFewFixed = 64;
    const uint32_t* fixed = nullptr;
    bool has_few_fixed = false;
    uint32_t few_fixed[kFewFixed] = {};
    bool normalise = true;
    float scale = 1;
    uint32_t n_experts = 0;
    uint32_t top_k = 0;
    float* weights = nullptr;                 // [n_rows][top_k]
    // The same for the host, in pinned memory: when all rows are there, `ready` becomes `number`.
    uint32_t* host_ids = nullptr;             // [n_rows][top_k]
    float* host_weights = nullptr;
    uint32_t* ready = nullptr;
    uint32_t number = 0;
    uint32_t* rows_done = nullptr;            // device memory, 0 before and after
};
void launch_route(const DeviceRoute& args, uint32_t n_rows, cudaStream_t stream);

// ---- dequantise.cu ------------------------------------------------------------------------------

// Rows of any type as float32, exactly as its dequantise function does. `type` is the GgmlType's
// number; layouts as stored.
void launch_dequantise(uint32_t type, bool split, const std::byte* table, uint64_t row_bytes,
                       uint32_t cols, uint32_t n_rows, float* rows, cudaStream_t stream);

// ---- upload.cu ----------------------------------------------------------------------------------

// Copies from pinned host memory, as kernels see it, to the device; addresses and bytes are
// multiples of kUploadAlignment. Copies beside others may begin before what is in front of them in
// the stream has ended, but end after it: only for where none of the copies since the last
// kAfterAll writes.
inline constexpr uint64_t kUploadAlignment = 16;
enum class UploadOrder { kAfterAll, kBesideOthers };
void launch_upload(const std::byte* host, uint64_t bytes, std::byte* device, UploadOrder order,
                   cudaStream_t stream);

// ---- probe.cu -----------------------------------------------------------------------------------

// Reads everything. `sink` is written only if the sum of all is one certain number.
void launch_read_all(const std::byte* data, uint64_t bytes, uint32_t blocks, uint32_t* sink,
                     cudaStream_t stream);

}  // namespace xp::cuda
