// The operator set: what a backend computes, and the memory it computes on. Model graphs are
// written once against it; CPU and CUDA implement it, and one conformance suite runs on both.
//
// Pointers are into the backend's memory unless a name begins with `host_`; spans of descriptors
// (segments, experts) are host memory. Matrices are row-major, contiguous float32 unless said
// otherwise. Operators run in call order, perhaps behind the caller: download() and routed() wait.
// Where a backend pays for every call, what belongs together is one: several products of the same
// x, a norm with the rotation after it, what a layer gave with what the next one takes in.
//
// Numerics: float32 with float32 accumulation. The order of every sum depends on the operator's
// inner dimensions only, never on the number of rows or threads, so that a row gets the same bits
// alone, in a prefill chunk, or in a batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "daemon/base/result.h"
#include "daemon/gguf/types.h"
#include "daemon/text/tokenizer.h"

namespace xp {

// How attention rows are kept between passes.
enum class KvType : uint8_t { kF32, kF16 };
constexpr uint64_t kv_bytes(KvType type) { return type == KvType::kF32 ? 4 : 2; }

// Memory of a backend; move-only, may be empty.
class DeviceBuffer {
public:
    DeviceBuffer() = default;
    DeviceBuffer(std::byte* data, uint64_t bytes, std::function<void(std::byte*)> free)
        : data_(data, Free{std::move(free)}), bytes_(bytes) {}

    std::byte* data() const { return data_.get(); }
    uint64_t bytes() const { return bytes_; }
    template <class T>
    T* as() const {
        return reinterpret_cast<T*>(data_.get());
    }

private:
    struct Free {
        std::function<void(std::byte*)> function;
        void operator()(std::byte* data) const { function(data); }
    };
    std::unique_ptr<std::byte, Free> data_;
    uint64_t bytes_ = 0;
};

// A weight matrix: `rows` outputs of `cols` inputs, in its stored type.
struct Weight {
    GgmlType type = GgmlType::kF32;
    StorageLayout layout = StorageLayout::kGgml;
    uint32_t rows = 0;
    uint32_t cols = 0;
    const std::byte* data = nullptr;
};

// y = w · x, one of several products of the same rows.
struct Product {
    Weight w;
    float* y = nullptr;                  // [n_rows][w.rows]
};

// Heads of every row, `dim` each (dim and rope_dims even): normed (x / sqrt(mean(x²) + epsilon),
// times `norm` if not null), then adjacent pairs of the trailing rope_dims turned:
// (a, b) → (a·cos − b·sin, a·sin + b·cos).
struct NormRopeArgs {
    float* x = nullptr;                  // [n_rows][n_heads][dim], in place unless stored
    bool normed = false;
    const float* norm = nullptr;         // [dim]
    float epsilon = 0;
    uint32_t n_heads = 0;
    uint32_t dim = 0;
    const float* cos_sin = nullptr;      // [n_rows][rope_dims / 2][2]
    uint32_t rope_dims = 0;
    std::byte* stored = nullptr;         // [n_rows][n_heads][dim] as `kv`: the results' only place
    KvType kv = KvType::kF32;
};

// Consecutive rows of a batch that belong to one sequence, with that sequence's state of the layer.
struct AttentionSegment {
    uint32_t first_row = 0;
    uint32_t n_rows = 0;
    uint64_t position = 0;                 // of first_row; the following rows count up
    std::byte* ring = nullptr;             // [window][dim]: position p at p mod window
    const std::byte* compressed = nullptr; // [..][dim]
};

// Softmax attention with one shared key-value row per position (MQA, K = V), over a window of raw
// rows and, when ratio is not 0, over compressed rows, all in one softmax with a sink per head:
//   a_j = exp(q·K_j·scale − M) / (Σ exp(..) + exp(sink − M)),  out = Σ a_j K_j
// Rows are taken in the order: window by ascending position, then compressed by ascending index.
// The values were turned as keys: out is turned back by cos_sin, with −sin. Then each segment's
// last rows are copied into its ring.
struct AttentionArgs {
    const float* q = nullptr;            // [n_rows][n_heads][dim]
    const std::byte* rows = nullptr;     // [n_rows][dim]: the batch's own rows, as stored
    KvType kv = KvType::kF32;            // of rows, rings and compressed rows
    uint32_t n_heads = 0;
    uint32_t dim = 0;
    uint32_t window = 0;                 // positions p − window + 1 .. p
    uint32_t ratio = 0;                  // compressed rows 0 .. (p + 1) / ratio − 1 are visible
    const uint32_t* picks = nullptr;     // [n_rows][max_picks] of index_rows; null: all visible
    uint32_t max_picks = 0;
    const float* sinks = nullptr;        // [n_heads]
    float scale = 1;
    const float* cos_sin = nullptr;      // [n_rows][rope_dims / 2][2]
    uint32_t rope_dims = 0;              // trailing ones of each head, 0: none; even, like dim
    std::span<const AttentionSegment> segments;
    float* out = nullptr;                // [n_rows][n_heads][dim]
};

// One compressor's state of one sequence and the rows it appends to.
// factor 1 (`ratio` tokens make a row) or 2 (overlapping: first halves of the window before,
// second halves of the current one). Buffers: [factor·ratio][factor·dim]; keys start as 0, gates
// as −∞; with factor 2 the lower `ratio` slots hold the window before.
struct CompressorSegment {
    uint32_t first_row = 0;
    uint32_t n_rows = 0;
    uint64_t position = 0;
    float* keys = nullptr;
    float* gates = nullptr;
    std::byte* compressed = nullptr;     // row w is written when position p = (w + 1)·ratio − 1
};

struct CompressorArgs {
    const float* keys = nullptr;         // [n_rows][factor·dim]
    const float* gates = nullptr;        // [n_rows][factor·dim], before the position bias
    const float* bias = nullptr;         // [ratio][factor·dim], by position mod ratio
    const float* norm = nullptr;         // [dim], RMS norm of the pooled row
    float epsilon = 0;
    uint32_t ratio = 0;
    uint32_t factor = 1;
    uint32_t dim = 0;
    uint32_t rope_dims = 0;              // trailing dimensions rotated by position w·ratio
    std::span<const double> host_frequencies;  // [rope_dims / 2]
    KvType kv = KvType::kF32;            // of the appended rows
    std::span<const CompressorSegment> segments;
};

struct IndexSegment {
    uint32_t first_row = 0;
    uint32_t n_rows = 0;
    uint64_t position = 0;
    const std::byte* keys = nullptr;     // [..][dim], compressed indexer rows
};

// Picks compressed rows by score_w = Σ_h scale·weight_h · max(0, q_h·key_w): the max_picks highest
// of the (p + 1) / ratio visible, ties to the lowest index.
struct IndexArgs {
    const float* q = nullptr;            // [n_rows][n_heads][dim]
    const float* weights = nullptr;      // [n_rows][n_heads]
    float scale = 1;                     // of the weights
    uint32_t n_heads = 0;
    uint32_t dim = 0;
    uint32_t ratio = 0;
    KvType kv = KvType::kF32;
    uint32_t max_picks = 0;
    std::span<const IndexSegment> segments;
    uint32_t* picks = nullptr;           // [n_rows][max_picks], ascending; unused tail kNoPick
};
inline constexpr uint32_t kNoPick = UINT32_MAX;

// What a sublayer gave, to be spread over the streams:
//   state'_k = post_k·o + Σ_j comb[j][k]·state_j,  o = Σ_slot parts[slot] (ascending) + rest
struct HcUpdate {
    const float* post_comb = nullptr;    // [n_rows]{post[streams], comb[streams][streams]}
    const float* rest = nullptr;         // [n_rows][dim]
    const float* parts = nullptr;        // [n_rows][n_slots][dim]; null: o is the rest alone
    uint32_t n_slots = 0;
};

// Mixes a row's streams into the input of a sublayer. With factor f = 1 / sqrt(mean(state²) + ε):
//   m = f · (fn · state);  pre_i = σ(m_i·scale_0 + base_i) + epsilon
//   y = rms_norm(Σ_i pre_i·state_i) · norm
struct HyperConnectionArgs {
    float* state = nullptr;              // [n_rows][streams][dim]; written if there is an update
    Weight fn;                           // [outputs] × [streams·dim]
    const float* base = nullptr;         // [outputs]
    const float* scale = nullptr;        // [3], or [1] for the head
    const float* norm = nullptr;         // [dim]
    uint32_t streams = 0;
    uint32_t dim = 0;
    float norm_epsilon = 0;              // of f and of y's norm
    float epsilon = 0;
    uint32_t iterations = 0;             // Sinkhorn normalisations
};

// What becomes of g = gate·x and u = up·x in a gated feed-forward part, by element:
//   kSwiGlu: silu(min(g, limit)) · clamp(u, ±limit)
//   kSiTu:   beta·tanh(g / beta)·σ(g) · linear_beta·tanh(u / linear_beta)   (Kimi-K3)
// σ of the uncapped g; both in float32.
struct Activation {
    enum class Kind : uint8_t { kSwiGlu, kSiTu };
    Kind kind = Kind::kSwiGlu;
    float limit = 0;
    float beta = 0, linear_beta = 0;
};

// One routed expert's share of a batch.
struct ExpertWork {
    const std::byte* object = nullptr;   // in a cache slot
    std::span<const uint32_t> rows;      // batch rows that chose it
    std::span<const uint32_t> slots;     // where each row's output goes, see ExpertArgs::out
    std::span<const uint32_t> choices;   // its place among the row's, see ExpertArgs::weights
};

// out[row][slot] = down · (activation(gate·x, up·x) · weight), or, where outputs are weighed,
// weight · (down · activation(gate·x, up·x)): one product in float32 after the sum.
struct ExpertArgs {
    Weight gate, up, down;               // data: offsets are added to each object
    uint64_t gate_offset = 0, up_offset = 0, down_offset = 0;
    const float* x = nullptr;            // [n_rows][gate.cols]
    const float* weights = nullptr;      // [n_rows][n_slots], of route()
    Activation activation;
    bool weigh_outputs = false;
    uint32_t n_slots = 0;                // per row: top_k
    std::span<const ExpertWork> experts;
    float* out = nullptr;                // [n_rows][n_slots][down.rows]
};

enum class RouterScore : uint8_t { kSqrtSoftplus, kSigmoid };

// Score of an expert: sqrt(softplus(logit)) or σ(logit). Its weight is its score, divided when
// normalised by the sum of those of all chosen ones in their order: by max(sum, 1e-20), of
// sigmoids by sum + 1e-20.
struct RouteArgs {
    RouterScore score = RouterScore::kSqrtSoftplus;
    const float* logits = nullptr;       // [n_rows][n_experts]
    const float* bias = nullptr;         // [n_experts], for the choice only; may be null
    // [n_rows][top_k] fixed choices (hash routing) instead of the highest scores; may be null
    const uint32_t* host_fixed = nullptr;
    bool normalise = true;
    float scale = 1;                     // of the weights, after normalising
    uint32_t n_experts = 0;
    uint32_t top_k = 0;
    float* weights = nullptr;            // [n_rows][top_k], in the order of the choices
};

// One input of short_conv().
struct ConvInput {
    float* x = nullptr;                  // [n_rows][channels], in place
    const float* weight = nullptr;       // [channels][taps], the last tap for the row itself
};

struct ConvSegment {
    uint32_t first_row = 0;
    uint32_t n_rows = 0;
    float* history = nullptr;            // [inputs][taps − 1][channels], oldest first; zeros first
};

// Causal convolution of every channel with itself, then SiLU:
//   y_t = silu(Σ_j weight[j]·x_{t − taps + 1 + j}),  j ascending, products and sums rounded each;
// rows before a segment's first are its history, which becomes the segment's last taps − 1 inputs
// (the inputs themselves: neither convolved nor activated).
struct ShortConvArgs {
    std::span<const ConvInput> inputs;
    uint32_t channels = 0;
    uint32_t taps = 0;
    std::span<const ConvSegment> segments;
};

struct DeltaSegment {
    uint32_t first_row = 0;
    uint32_t n_rows = 0;
    float* state = nullptr;              // [n_heads][dim of keys][dim of values]; zeros first
};

// Kimi Delta Attention: per head a matrix S that every row decays by channel of the key, corrects
// towards its value, and reads. Rows of a segment one after the other; of one row and head,
//   q = query / sqrt(Σ query² + 1e-6) · dim^−½,  k = key / sqrt(Σ key² + 1e-6)
//   z_e = gate_e + gate_bias_e;  g_e = lower_bound·σ(decay·z_e), or where lower_bound is 0
//   g_e = −decay·softplus(z_e) with softplus(z) = max(z, 0) + log1p(exp(−|z|)); a_e = exp(g_e)
//   S_ec ← a_e·S_ec;  r_c = Σ_e k_e·S_ec;  d_c = σ(beta)·(v_c − r_c)
//   S_ec ← S_ec + k_e·d_c;  o_c = Σ_e q_e·S_ec            (of the S that was written)
//   out_c = o_c / sqrt(mean(o²) + epsilon) · norm_c · σ(out_gate_c)
// Sums over e that make r and o are in ascending e from 0, one fused multiply-add each; sums of
// squares are those of rms_norm(). There is no form for chunks: a row's result depends on the
// rows before it alone, not on the calls they came in. A device keeps S in registers for a segment.
struct DeltaAttentionArgs {
    const float* q = nullptr;            // [n_rows][n_heads][dim], like all of them
    const float* k = nullptr;
    const float* v = nullptr;
    const float* gate = nullptr;
    const float* gate_bias = nullptr;    // [n_heads][dim]
    const float* decay = nullptr;        // [n_heads], positive
    float lower_bound = 0;               // of g; negative, or 0
    const float* beta = nullptr;         // [n_rows][n_heads], before σ
    const float* out_gate = nullptr;     // before σ
    const float* norm = nullptr;         // [dim]
    float epsilon = 0;
    uint32_t n_heads = 0;
    uint32_t dim = 0;
    std::span<const DeltaSegment> segments;
    float* out = nullptr;
};

struct LatentSegment {
    uint32_t first_row = 0;
    uint32_t n_rows = 0;
    uint64_t position = 0;               // of first_row
    std::byte* rows = nullptr;           // [context][latent + tail], those before `position` there
};

// Attention over one latent row per position, without positions (multi-head latent attention in
// its absorbed form). First every row of the batch is put into its sequence's rows at its position:
//   (kv[0 .. latent) / sqrt(mean of their squares + epsilon) · norm, kv[latent ..] as it is);
// then, of a row at position p and every head, over positions s = 0 .. p ascending,
//   w_s = (q_latent·row_s[0 .. latent) + q_tail·row_s[latent ..])·scale,
//   out = Σ_s softmax(w)_s · row_s[0 .. latent)
// of the rows as stored. The two dots are sums of their own; exp(w_s − max) are added in ascending
// s, and each is divided by that sum before it weighs its row. A device may cut positions into
// pieces of a fixed size and merge them in order.
struct LatentAttentionArgs {
    const float* q_latent = nullptr;     // [n_rows][n_heads][latent]
    const float* q = nullptr;            // [n_rows][n_heads][q_dim], the last `tail` are q_tail
    const float* kv = nullptr;           // [n_rows][latent + tail], before the norm
    const float* norm = nullptr;         // [latent]
    float epsilon = 0;
    KvType kv_type = KvType::kF32;       // of the segments' rows
    uint32_t n_heads = 0;
    uint32_t latent = 0;
    uint32_t tail = 0;
    uint32_t q_dim = 0;
    float scale = 1;
    std::span<const LatentSegment> segments;
    float* out = nullptr;                // [n_rows][n_heads][latent]
};

// Attention residuals (Kimi-K3): a row has a stream P, and a bank of what P was at the ends of
// earlier blocks. Of one row, in this order:
//   P ← P + given, or `given` alone on restart, where given = given[0] + given[1];
//   v_1 .. v_n the bank, v_{n+1} = P:  w_r = (score·v_r) / sqrt(mean(v_r²) + epsilon),
//   h = Σ_r softmax(w)_r · v_r,  y = h / sqrt(mean(h²) + epsilon) · norm;
//   where `keep`, P becomes bank row n.
// Softmax and h take rows in ascending r, with products and sums rounded each; dots are those of
// rms_norm().
struct ResidualMixArgs {
    float* stream = nullptr;             // [n_rows][dim]
    float* bank = nullptr;               // [n_rows][bank_rows][dim], the first n_banked in use
    uint32_t bank_rows = 0;
    uint32_t n_banked = 0;               // with none, h is the stream
    const float* given[2] = {};          // [n_rows][dim]; null: nothing
    bool restart = false;
    bool keep = false;
    const float* score = nullptr;        // [dim]
    const float* norm = nullptr;         // [dim]
    float epsilon = 0;
    uint32_t dim = 0;
    float* y = nullptr;                  // [n_rows][dim]; null: the stream alone is of interest
};

// What work of a device costs the host, since the backend was opened.
struct OperatorCounts {
    uint64_t launches = 0;  // kernels given to the device
    uint64_t waits = 0;     // times that the host waited for it
    uint64_t wait_us = 0;   // and for how long together
};

class Operators {
public:
    virtual ~Operators() = default;
    // "cpu (AVX-512, 2 threads)" or the device's name, for stats and status lines.
    virtual std::string describe() const = 0;
    // The first error of anything that was started; it stays, and no result can be relied upon.
    virtual Result<void> status() const = 0;
    // Zeros where the host computes itself.
    virtual OperatorCounts counts() const { return {}; }

    // ---- memory -----------------------------------------------------------------------------
    // How a resident matrix with rows of `cols` elements is best stored.
    virtual StorageLayout resident_layout(GgmlType type, uint64_t cols) const = 0;
    // Zero-filled.
    virtual Result<DeviceBuffer> allocate(uint64_t bytes, std::string_view what) = 0;
    // Host memory that download() is fastest to.
    virtual Result<DeviceBuffer> allocate_host(uint64_t bytes, std::string_view what) {
        return allocate(bytes, what);
    }
    virtual void upload(std::byte* to, std::span<const std::byte> host_from) = 0;
    virtual void download(std::span<std::byte> host_to, const std::byte* from) const = 0;

    // ---- matrices ---------------------------------------------------------------------------
    // state[row][s] = table row of token, for every stream s. The table is in host memory, in any
    // layout that resident_layout() may name or in kGgml: a pass needs a few rows of what is a
    // gigabyte in large models.
    virtual void embed(const Weight& host_table, std::span<const TokenId> host_tokens,
                       uint32_t streams, float* state) = 0;
    // y[row][o] = Σ_i w[o][i]·x[row][i], for all products; their cols are the same.
    virtual void matmuls(std::span<const Product> products, const float* x, uint32_t n_rows) = 0;
    void matmul(const Weight& w, const float* x, uint32_t n_rows, float* y) {
        const Product product{w, y};
        matmuls({&product, 1}, x, n_rows);
    }
    // The same of rms_norm(x, weight, epsilon) instead of x, which holds either afterwards.
    virtual void normed_matmuls(std::span<const Product> products, float* x, const float* weight,
                                float epsilon, uint32_t n_rows) {
        rms_norm(x, weight, epsilon, n_rows, products[0].w.cols, x);
        matmuls(products, x, n_rows);
    }
    // Block-diagonal: output rows of group g see inputs [g·x_group, g·x_group + cols) only, of rows
    // of groups·x_group; x_group 0: cols.
    virtual void matmul_grouped(const Weight& w, uint32_t groups, const float* x, uint32_t n_rows,
                                float* y, uint32_t x_group = 0) = 0;
    // y = activation(gate·x, up·x)
    virtual void matmul_gated(const Weight& gate, const Weight& up, const float* x, uint32_t n_rows,
                              const Activation& activation, float* y) = 0;
    // y = x / sqrt(mean(x²) + epsilon), times weight if not null. In place allowed.
    virtual void rms_norm(const float* x, const float* weight, float epsilon, uint32_t n_rows,
                          uint32_t dim, float* y) = 0;
    // y = x; the ranges do not overlap.
    virtual void copy(const float* x, uint64_t n, float* y) = 0;

    // ---- attention --------------------------------------------------------------------------
    virtual void norm_rope(std::span<const NormRopeArgs> args, uint32_t n_rows) = 0;
    virtual void attention(const AttentionArgs& args) = 0;
    virtual void compress(const CompressorArgs& args) = 0;
    virtual void index_rows(const IndexArgs& args) = 0;

    // ---- hyper-connections (DeepSeek-V4) ------------------------------------------------------
    virtual void hc_post(const HcUpdate& update, uint32_t n_rows, uint32_t streams, uint32_t dim,
                         float* state) = 0;
    // First hc_post(*update), if there is one; its post_comb may be the one that is written here.
    virtual void hc_pre(const HyperConnectionArgs& args, const HcUpdate* update, uint32_t n_rows,
                        float* y, float* post_comb) = 0;
    virtual void hc_head(const HyperConnectionArgs& args, uint32_t n_rows, float* y) = 0;

    // ---- linear and latent attention, attention residuals (Kimi-K3) ---------------------------
    // Whether this section is there, and SiTU, sigmoid scores and weighed outputs of experts. A
    // model that needs them is refused where they are not.
    virtual bool has_kimi_k3() const { return false; }
    virtual void short_conv(const ShortConvArgs&) { not_there(); }
    virtual void delta_attention(const DeltaAttentionArgs&) { not_there(); }
    virtual void latent_attention(const LatentAttentionArgs&) { not_there(); }
    virtual void residual_mix(const ResidualMixArgs&, uint32_t /*n_rows*/) { not_there(); }
    // x_i ← x_i·σ(gate_i), i < n
    virtual void sigmoid_gate(const float* /*gate*/, uint64_t /*n*/, float* /*x*/) { not_there(); }
    // y[row] = Σ_slot parts[row][slot], ascending: what experts() gave.
    virtual void sum_slots(const float* /*parts [n_rows][n_slots][dim]*/, uint32_t /*n_rows*/,
                           uint32_t /*n_slots*/, uint32_t /*dim*/, float* /*y*/) { not_there(); }

    // ---- mixture of experts -------------------------------------------------------------------
    virtual void route(const RouteArgs& args, uint32_t n_rows) = 0;
    // The choices of the last route(), [n_rows][top_k] each, in the router's order (highest first,
    // ties to the lowest id). `host_weights` may be empty.
    // `meanwhile`, if any, is called again and again while it waits.
    virtual void routed(std::span<uint32_t> host_ids, std::span<float> host_weights,
                        const std::function<void()>& meanwhile = {}) = 0;
    // Whether operators run behind the caller, so that more of them should be called before what
    // waits.
    virtual bool runs_behind() const = 0;
    virtual void experts(const ExpertArgs& args) = 0;

private:
    static void not_there() { XP_ASSERT(!"an operator that this backend does not have"); }
};

// `threads` 0: one per hardware thread. kUnsupported on processors without AVX2, FMA and F16C.
Result<std::unique_ptr<Operators>> make_cpu_operators(unsigned threads);

}  // namespace xp
