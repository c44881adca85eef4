// The one pass over the source: reads it from the first byte to the last, hashes the files, and
// sends experts to their objects in the stripes and resident tensors to a sink.
//
// Resident tensors are asked for in file order by the GGUF writer; run_through() is called from
// inside its callbacks and handles everything that lies before the tensor on the way. While one
// chunk is hashed (file and slice, in parallel) and written, the next one is read: four tasks on a
// pool of four threads. Memory: two chunks and one converted matrix, whatever the model's size.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "daemon/base/memory.h"
#include "daemon/base/result.h"
#include "daemon/base/thread_pool.h"
#include "daemon/gguf/writer.h"
#include "daemon/pack/build_plan.h"
#include "daemon/pack/consume.h"
#include "daemon/pack/journal.h"
#include "daemon/pack/write_behind.h"

namespace xp {

class BuildStream {
public:
    // All arguments must outlive the stream. `consumer`, if there is one, gets resident tensors as
    // they pass, and is told of files that are done. `state` says where to go on: experts and
    // padding before state.next_step are not read again, resident tensors there are, unhashed.
    BuildStream(const GgufFile& source, const BuildPlan& plan, std::span<const UniqueFd> stripes,
                std::span<const Path> stripe_paths, const BuildOptions& options, Journal& journal,
                BuildState& state, SourceConsumer* consumer = nullptr);

    // Allocates the buffers and reads the first chunk.
    Result<void> start();
    // Handles all that is left of the steps up to and including `step`. Resident tensors among them
    // go to `sink`.
    Result<void> run_through(size_t step, const TensorToWrite::Sink& sink);
    // Makes the expert tensors stored so far durable and journals them.
    Result<void> save_progress();

private:
    struct Chunk {
        size_t step = 0;  // steps.size(): the end
        uint64_t offset = 0;
        uint64_t bytes = 0;
    };
    Chunk chunk_from(size_t step, uint64_t offset) const;
    bool needs_reading(size_t step) const;
    uint64_t chunk_limit(const BuildStep& step) const;
    Result<void> read(const Chunk& chunk, PageBuffer& buffer) const;
    Result<void> handle_current(const Chunk& next, const TensorToWrite::Sink& sink);
    void hash_file();
    void hash_slice();
    Result<void> check_values() const;
    Result<void> store_expert();
    Result<void> consume_done_files();
    void drop_from_cache(const Chunk& chunk) const;
    void report();

    const GgufFile& source_;
    const BuildPlan& plan_;
    std::span<const UniqueFd> stripes_;
    std::span<const Path> stripe_paths_;
    const BuildOptions& options_;
    Journal& journal_;
    BuildState& state_;
    SourceConsumer* const consumer_;
    const size_t resumed_step_;
    ThreadPool pool_;
    WriteBehind write_behind_;
    uint64_t unsaved_bytes_ = 0;
    Chunk current_;
    PageBuffer current_buffer_;
    PageBuffer next_buffer_;
    PageBuffer converted_;
    BuildProgress progress_;
};

}  // namespace xp
