// The router's choice of experts: a block per row makes the scores, one warp chooses.
#include <cmath>

#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/rows.cuh"
#include "cuda/shared_memory.h"

namespace xp::cuda {
namespace {

constexpr uint32_t kThreads = 256;

// Keeps a sum of scores usable as a divisor when all of them underflowed.
constexpr float kMinScoreSum = 1e-20f;

// sqrt(softplus(z)); softplus in the form that does not underflow for very negative z.
__device__ float sqrt_softplus(float z) {
    return sqrtf(fmaxf(z, 0.0f) + log1pf(expf(-fabsf(z))));
}

// The order of choices: highest first, ties to the lowest id.
__host__ __device__ inline bool goes_before(float a, uint32_t a_id, float b, uint32_t b_id) {
    return a > b || (a == b && a_id < b_id);
}

// Writes the ids of the top_k highest choices. A choice that was taken becomes NaN, which goes
// before nothing; the caller's are none. Each lane looks for its best again only when it was taken.
__device__ void choose(float* choice, uint32_t n_experts, uint32_t top_k, uint32_t* ids) {
    const uint32_t lane = threadIdx.x;
    float own = -INFINITY;
    uint32_t own_id = UINT32_MAX;
    const auto find_own = [&] {
        own = -INFINITY;
        own_id = UINT32_MAX;
        for (uint32_t e = lane; e < n_experts; e += kWarpSize) {
            const float value = choice[e];
            if (goes_before(value, e, own, own_id)) own = value, own_id = e;
        }
    };
    find_own();
    for (uint32_t j = 0; j < top_k; ++j) {
        float best = own;
        uint32_t best_id = own_id;
#pragma unroll
        for (uint32_t apart = kWarpSize / 2; apart > 0; apart /= 2) {
            const float other = __shfl_xor_sync(kAllLanes, best, apart);
            const uint32_t other_id = __shfl_xor_sync(kAllLanes, best_id, apart);
            if (goes_before(other, other_id, best, best_id)) best = other, best_id = other_id;
        }
        if (lane == 0) ids[j] = best_id;
        // Each lane reads its own choices only: the mark needs no barrier.
        if (best_id == own_id && best_id < n_experts) {
            choice[best_id] = NAN;
            find_own();
        }
    }
}

// Tells the host when all rows' choices have reached it.
__device__ void report(const DeviceRoute& args, uint32_t n_rows) {
    __threadfence_system();
    __syncwarp();
    if (threadIdx.x != 0) return;
    if (n_rows > 1) {
        if (atomicAdd(args.rows_done, 1) + 1 != n_rows) return;
        *args.rows_done = 0;
        __threadfence_system();
    }
    *static_cast<volatile uint32_t*>(args.ready) = args.number;
}

__global__ void __launch_bounds__(kThreads)
    route_kernel(const __grid_constant__ DeviceRoute args, uint32_t n_rows) {
    extern __shared__ float choice[];  // [n_experts], then [top_k] ids and scores
    const uint64_t row = blockIdx.x;
    const float* logits = args.logits + row * args.n_experts;
    auto* ids = reinterpret_cast<uint32_t*>(choice + args.n_experts);
    float* scores = choice + args.n_experts + args.top_k;
    const bool fixed = args.has_few_fixed || args.fixed != nullptr;
    let_next_start();
    after_previous();
    if (!fixed) {
        for (uint32_t e = threadIdx.x; e < args.n_experts; e += kThreads) {
            const float value =
                sqrt_softplus(logits[e]) + (args.bias != nullptr ? args.bias[e] : 0.0f);
            choice[e] = isnan(value) ? -INFINITY : value;
        }
        __syncthreads();
    }
    if (threadIdx.x >= kWarpSize) return;
    const uint32_t lane = threadIdx.x;
    if (!fixed) choose(choice, args.n_experts, args.top_k, ids);
    __syncwarp();
    for (uint32_t j = lane; j < args.top_k; j += kWarpSize) {
        if (fixed) {
            const uint64_t at = row * args.top_k + j;
            ids[j] = args.has_few_fixed ? args.few_fixed[at] : args.fixed[at];
        }
        scores[j] = sqrt_softplus(logits[ids[j]]);
    }
    __syncwarp();
    float sum = 0;
    for (uint32_t j = 0; j < args.top_k; ++j) sum += scores[j];
    // Written so that a NaN stays one.
    const float divisor = sum < kMinScoreSum ? kMinScoreSum : sum;
    const float factor = args.normalise ? args.scale / divisor : args.scale;
    for (uint32_t j = lane; j < args.top_k; j += kWarpSize) {
        const float weight = scores[j] * factor;
        args.weights[row * args.top_k + j] = weight;
        args.host_ids[row * args.top_k + j] = ids[j];
        args.host_weights[row * args.top_k + j] = weight;
    }
    report(args, n_rows);
}

}  // namespace

void launch_route(const DeviceRoute& args, uint32_t n_rows, cudaStream_t stream) {
    if (n_rows == 0) return;
    static_assert((kMaxExperts + 2 * kMaxTopK) * sizeof(float) <= kMaxSharedBytes);
    const uint32_t bytes = (args.n_experts + 2 * args.top_k) * uint32_t{sizeof(float)};
    if (bytes > 48 * 1024) {
        cudaFuncSetAttribute(route_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes));
    }
    launch(route_kernel, n_rows, kThreads, bytes, stream, args, n_rows);
}

}  // namespace xp::cuda
