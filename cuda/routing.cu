// The router's choice of experts: a warp per row, so that a decode step needs no barrier.
#include <cmath>

#include "cuda/kernels.h"
#include "cuda/rows.cuh"
#include "cuda/shared_memory.h"

namespace xp::cuda {
namespace {

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
// before nothing; the caller's are none.
__device__ void choose(float* choice, uint32_t n_experts, uint32_t top_k, uint32_t* ids) {
    const uint32_t lane = threadIdx.x;
    for (uint32_t j = 0; j < top_k; ++j) {
        float best = -INFINITY;
        uint32_t best_id = UINT32_MAX;
        for (uint32_t e = lane; e < n_experts; e += kWarpSize) {
            const float value = choice[e];
            if (goes_before(value, e, best, best_id)) best = value, best_id = e;
        }
#pragma unroll
        for (uint32_t apart = kWarpSize / 2; apart > 0; apart /= 2) {
            const float other = __shfl_xor_sync(kAllLanes, best, apart);
            const uint32_t other_id = __shfl_xor_sync(kAllLanes, best_id, apart);
            if (goes_before(other, other_id, best, best_id)) best = other, best_id = other_id;
        }
        // Each lane reads its own choices only: the mark needs no barrier.
        if (best_id % kWarpSize == lane && best_id < n_experts) choice[best_id] = NAN;
        if (lane == 0) ids[j] = best_id;
    }
}

__global__ void __launch_bounds__(kWarpSize) route_kernel(const DeviceRoute args) {
    extern __shared__ float choice[];  // [n_experts]
    const uint32_t lane = threadIdx.x;
    const uint64_t row = blockIdx.x;
    const float* logits = args.logits + row * args.n_experts;
    uint32_t* ids = args.ids + row * args.top_k;
    float* weights = args.weights + row * args.top_k;
    if (args.fixed != nullptr) {
        for (uint32_t j = lane; j < args.top_k; j += kWarpSize) {
            ids[j] = args.fixed[row * args.top_k + j];
        }
    } else {
        for (uint32_t e = lane; e < args.n_experts; e += kWarpSize) {
            const float value =
                sqrt_softplus(logits[e]) + (args.bias != nullptr ? args.bias[e] : 0.0f);
            choice[e] = isnan(value) ? -INFINITY : value;
        }
        choose(choice, args.n_experts, args.top_k, ids);
    }
    __syncwarp();
    for (uint32_t j = lane; j < args.top_k; j += kWarpSize) {
        weights[j] = sqrt_softplus(logits[ids[j]]);
    }
    __syncwarp();
    float sum = 0;
    for (uint32_t j = 0; j < args.top_k; ++j) sum += weights[j];
    __syncwarp();
    // Written so that a NaN stays one.
    const float divisor = sum < kMinScoreSum ? kMinScoreSum : sum;
    const float factor = args.normalise ? args.scale / divisor : args.scale;
    for (uint32_t j = lane; j < args.top_k; j += kWarpSize) weights[j] *= factor;
}

}  // namespace

void launch_route(const DeviceRoute& args, uint32_t n_rows, cudaStream_t stream) {
    if (n_rows == 0) return;
    static_assert(kMaxExperts * sizeof(float) <= kMaxSharedBytes);
    const uint32_t bytes = args.fixed != nullptr ? 0 : args.n_experts * uint32_t{sizeof(float)};
    if (bytes > 48 * 1024) {
        cudaFuncSetAttribute(route_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes));
    }
    route_kernel<<<n_rows, kWarpSize, bytes, stream>>>(args);
}

}  // namespace xp::cuda
