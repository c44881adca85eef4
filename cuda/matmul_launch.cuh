// How the kernels behind matmul.h are launched: which of them, how many rows and columns a warp
// takes, how the rows are shared out. matmul_FORM.cu does it for each row form, so that they
// compile side by side.
#pragma once

#include <algorithm>

#include "cuda/matmul.cuh"
#include "cuda/shared_memory.h"

namespace xp::cuda {

// What a device has for the blocks of a kernel.
struct Room {
    uint32_t blocks = 1;      // at a time
    uint64_t near_bytes = 0;  // of its L2 cache, for what is not computed with yet
};
// Asked once for each amount of shared memory in a row, since asking takes longer than launching.
template <auto kKernel>
Room room_for(int threads, uint32_t bytes) {
    static thread_local uint32_t asked_bytes = UINT32_MAX;
    static thread_local Room room;
    if (asked_bytes != bytes) {
        int device = 0, processors = 0, each = 0, cache_bytes = 0;
        cudaGetDevice(&device);
        cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
        cudaDeviceGetAttribute(&cache_bytes, cudaDevAttrL2CacheSize, device);
        cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes);
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kKernel, threads, bytes);
        asked_bytes = bytes;
        room = {static_cast<uint32_t>(std::max(1, processors * each)),
                static_cast<uint64_t>(std::max(0, cache_bytes)) / 2};
    }
    return room;
}

// Kernels whose weights are ready may fetch them early.
template <class Kernel, class... Rest>
void launch_product(Kernel kernel, dim3 grid, uint32_t bytes, cudaStream_t stream,
                    const MatmulArgs& args, const Rest&... rest) {
    constexpr uint32_t kThreads = kWarps * kLanes;
    if (args.late_weights || args.jobs != nullptr) {
        launch<Start::kAfterAll>(kernel, grid, kThreads, bytes, stream, args, rest...);
    } else {
        launch(kernel, grid, kThreads, bytes, stream, args, rest...);
    }
}

// Of jobs that came with the launch. False when x is too large to be staged.
template <class Reader, int R, int C, bool kGated>
bool launch_few(const MatmulArgs& args, cudaStream_t stream) {
    const auto tiling_of = [&](uint32_t rows) {
        return Tiling(args, Reader::kElements, rows);
    };
    // Pieces are staged in whole steps.
    uint32_t places = 0;
    for (uint32_t j = 0; j < args.n_jobs; ++j) {
        places = std::max(places, tiling_of(args.few[j].rows).places());
    }
    const uint32_t bytes = C * Reader::kElements / 4 * (places + 1) * uint32_t{sizeof(float4)} +
                           2 * kWarps * (kGated ? 2 : 1) * R * C * uint32_t{sizeof(float)};
    if (bytes > kMaxSharedBytes) return false;
    constexpr auto kKernel = few_columns<Reader, R, C, kGated>;
    const uint32_t column_tiles = (args.max_columns + C - 1) / C;
    const Room room = room_for<kKernel>(kWarps * kLanes, bytes);
    const auto tile_rows_of = [&](uint32_t rows) {
        return kWarps / tiling_of(rows).warps_per_row * static_cast<uint32_t>(R);
    };
    Shares shares;
    for (uint32_t j = 0; j < args.n_jobs; ++j) {
        const uint32_t rows = args.few[j].rows, tile_rows = tile_rows_of(rows);
        const uint64_t share = uint64_t{room.blocks} / column_tiles * rows /
                               std::max(args.all_rows, 1u);
        const uint64_t tiles = (rows + tile_rows - 1) / tile_rows;
        shares.blocks[j] = static_cast<uint32_t>(
            std::clamp<uint64_t>(share, 1, std::max<uint64_t>(tiles, 1)));
    }
    const uint32_t most = *std::max_element(shares.blocks, shares.blocks + args.n_jobs);
    constexpr uint64_t kMostAhead = 16;
    const uint64_t block_bytes =
        room.near_bytes / (uint64_t{most} * args.n_jobs * (kGated ? 2 : 1));
    const uint64_t tile_bytes = tile_rows_of(args.max_rows) * args.row_bytes;
    shares.tiles_ahead =
        static_cast<uint32_t>(std::clamp<uint64_t>(block_bytes / tile_bytes, 1, kMostAhead));
    shares.near_bytes = static_cast<uint32_t>(std::min(block_bytes, tile_bytes));
    launch_product(kKernel, dim3(most, column_tiles, args.n_jobs), bytes, stream, args, shares);
    return true;
}

template <class Reader, int R, int C, bool kGated>
void launch_many(const MatmulArgs& args, cudaStream_t stream) {
    constexpr uint32_t kStepBytes = C * kLanes * Reader::kElements * sizeof(float);
    constexpr uint32_t kStageBytes = 40 * 1024;  // leaves room for several blocks
    Cuts cuts;
    uint32_t most_steps = 1;
    for (uint32_t j = 0; j < (args.jobs == nullptr ? args.n_jobs : 1); ++j) {
        const uint32_t rows = args.jobs == nullptr ? args.few[j].rows : args.max_rows;
        cuts.of_job[j] = Tiling(args, Reader::kElements, rows);
        most_steps = std::max(most_steps, cuts.of_job[j].total_steps);
    }
    cuts.stage_steps = std::clamp<uint32_t>(kStageBytes / kStepBytes, 1, most_steps);
    constexpr uint32_t kPitchBytes = C * Reader::kElements / 4 * sizeof(float4);
    // What a launch may have without asking for more.
    static_assert(std::max(kStageBytes, kStepBytes) + kPitchBytes <= 48 * 1024);
    const uint32_t bytes = cuts.stage_steps * kStepBytes + kPitchBytes;
    const dim3 grid((args.max_rows + R * kWarps - 1) / (R * kWarps),
                    (args.max_columns + C - 1) / C, args.n_jobs);
    launch_product(many_columns<Reader, R, C, kGated>, grid, bytes, stream, args, cuts);
}

// Of readers that need many registers for a piece, a warp takes fewer rows at a time.
template <class Reader>
constexpr bool has_fewer_rows() {
    return requires { Reader::kFewerRows; };
}

// How many rows and columns a warp takes changes no sum.
template <class Reader, bool kGated>
void launch_columns(const MatmulArgs& args, cudaStream_t stream) {
    constexpr int kRows = (kGated ? 2 : 4) / (has_fewer_rows<Reader>() ? 2 : 1);
    constexpr int kManyColumns = Reader::kElements > 32 ? 4 : 8;  // what can be staged
    constexpr uint32_t kFewRows = 1024;  // not enough to keep a large device busy
    bool launched = false;
    if (args.jobs != nullptr) {
        // Many jobs are many columns.
    } else if (args.max_columns == 1) {
        launched = args.all_rows <= kFewRows ? launch_few<Reader, 1, 1, kGated>(args, stream)
                                             : launch_few<Reader, kRows, 1, kGated>(args, stream);
    } else if (args.max_columns == 2) {
        launched = launch_few<Reader, kRows, 2, kGated>(args, stream);
    } else if (args.max_columns <= 4) {
        // Long pieces of so many columns would not fit into registers.
        if constexpr (Reader::kElements <= 32) {
            launched = launch_few<Reader, kRows, 4, kGated>(args, stream);
        }
    }
    if (!launched) launch_many<Reader, 2 * kRows, kManyColumns, kGated>(args, stream);
}

template <class Reader>
void launch_form(const MatmulArgs& args, cudaStream_t stream) {
    args.gated ? launch_columns<Reader, true>(args, stream)
               : launch_columns<Reader, false>(args, stream);
}

}  // namespace xp::cuda
