#include "daemon/pack/build_stream.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <new>

#include "daemon/gguf/payload.h"
#include "daemon/pack/assemble.h"
#include "daemon/pack/format.h"
#include "daemon/pack/page_cache.h"

namespace xp {

namespace {

// For everything but experts, whose chunk is one matrix. Large enough for full drive speed, small
// enough that two of them do not matter.
constexpr uint64_t kChunkBytes = uint64_t{8} << 20;
// Read ahead, hash of the file, hash of the slice, convert and write.
constexpr unsigned kTasks = 4;

}  // namespace

BuildStream::BuildStream(const GgufFile& source, const BuildPlan& plan,
                         std::span<const UniqueFd> stripes, std::span<const Path> stripe_paths,
                         const BuildOptions& options, Journal& journal, BuildState& state,
                         SourceConsumer* consumer)
    : source_(source), plan_(plan), stripes_(stripes), stripe_paths_(stripe_paths),
      options_(options), journal_(journal), state_(state), consumer_(consumer),
      resumed_step_(state.next_step), pool_(kTasks) {
    progress_.total_bytes = plan.total_bytes;
    for (size_t i = 0; i < plan.steps.size(); ++i) {
        if (!needs_reading(i)) progress_.resumed_bytes += plan.steps[i].bytes;
    }
    progress_.done_bytes = progress_.resumed_bytes;
}

Result<void> BuildStream::start() {
    uint64_t largest = kChunkBytes;
    for (const PackLayer& layer : plan_.manifest.layers) {
        for (size_t r = 0; r < kExpertRoles; ++r) {
            // The whole segment: padding is added behind the matrix in the buffer.
            largest = std::max(largest, segment_end(layer, r) - layer.roles[r].offset);
        }
    }
    XP_TRY(current_buffer_, PageBuffer::allocate(largest, "reading the source"));
    XP_TRY(next_buffer_, PageBuffer::allocate(largest, "reading the source"));
    XP_TRY(converted_, PageBuffer::allocate(largest, "converting a matrix"));
    for (const GgufFile::File& file : source_.files()) {
        ::posix_fadvise(file.fd.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
    }
    current_ = chunk_from(0, 0);
    report();
    XP_CHECK(consume_done_files());
    return read(current_, current_buffer_);
}

// All files before that of the current chunk are done. Reading ahead is already in the next one.
Result<void> BuildStream::consume_done_files() {
    if (consumer_ == nullptr) return {};
    const bool at_end = current_.step == plan_.steps.size();
    const auto file = static_cast<uint32_t>(at_end ? source_.files().size()
                                                   : plan_.steps[current_.step].file);
    if (!consumer_->is_due(file)) return {};
    XP_CHECK(save_progress());
    return consumer_->consume_before(file);
}

Result<void> BuildStream::run_through(size_t step, const TensorToWrite::Sink& sink) {
    while (current_.step <= step && current_.step < plan_.steps.size()) {
        if (options_.cancelled && options_.cancelled()) {
            return make_error(ErrorCode::kCancelled, "the build was cancelled after {} of {} bytes",
                              progress_.done_bytes, progress_.total_bytes);
        }
        const Chunk next = chunk_from(current_.step, current_.offset + current_.bytes);
        XP_CHECK(handle_current(next, sink));
        drop_from_cache(current_);
        const size_t finished = current_.step;
        progress_.done_bytes += current_.bytes;
        current_ = next;
        std::swap(current_buffer_, next_buffer_);
        if (next.step != finished && finished >= resumed_step_) {
            state_.next_step = finished + 1;
            if (plan_.steps[finished].kind == BuildStep::Kind::kExperts) {
                journal_.record(plan_, state_);
                unsaved_bytes_ += plan_.steps[finished].bytes;
                if (unsaved_bytes_ >= options_.sync_bytes) XP_CHECK(save_progress());
            }
        }
        XP_CHECK(consume_done_files());
        report();
    }
    return {};
}

BuildStream::Chunk BuildStream::chunk_from(size_t step, uint64_t offset) const {
    const auto& steps = plan_.steps;
    while (step < steps.size() && (offset >= steps[step].bytes || !needs_reading(step))) {
        ++step;
        offset = 0;
    }
    if (step == steps.size()) return {step, 0, 0};
    return {step, offset, std::min(chunk_limit(steps[step]), steps[step].bytes - offset)};
}

bool BuildStream::needs_reading(size_t step) const {
    return step >= resumed_step_ || plan_.steps[step].kind == BuildStep::Kind::kResident;
}

uint64_t BuildStream::chunk_limit(const BuildStep& step) const {
    if (step.kind == BuildStep::Kind::kSkip) return kChunkBytes;
    if (step.kind == BuildStep::Kind::kResident) {
        // Whole blocks.
        return kChunkBytes - kChunkBytes % traits_of(step.tensor->type).block_bytes;
    }
    return plan_.manifest.layers[step.layer].roles[step.role].bytes;
}

Result<void> BuildStream::read(const Chunk& chunk, PageBuffer& buffer) const {
    if (chunk.bytes == 0) return {};
    const BuildStep& step = plan_.steps[chunk.step];
    const GgufFile::File& file = source_.files()[step.file];
    return read_exact(file.fd.get(), step.offset + chunk.offset, {buffer.data(), chunk.bytes},
                      file.path);
}

Result<void> BuildStream::handle_current(const Chunk& next, const TensorToWrite::Sink& sink) {
    const BuildStep::Kind kind = plan_.steps[current_.step].kind;
    const auto run_task = [&](uint64_t task) -> Result<void> {
        switch (task) {
            case 0: return read(next, next_buffer_);
            case 1: hash_file(); return {};
            case 2:
                if (kind == BuildStep::Kind::kExperts) hash_slice();
                return {};
            default:
                if (kind == BuildStep::Kind::kSkip) return {};
                XP_CHECK(check_values());
                if (kind == BuildStep::Kind::kExperts) return store_expert();
                if (consumer_ != nullptr) {
                    const BuildStep& step = plan_.steps[current_.step];
                    XP_CHECK(consumer_->keep(step.file, step.offset + current_.offset,
                                             {current_buffer_.data(), current_.bytes}));
                }
                return sink({current_buffer_.data(), current_.bytes});
        }
    };
    std::array<Result<void>, kTasks> results;
    pool_.run(kTasks, [&](uint64_t task) {
        try {
            results[task] = run_task(task);
        } catch (const std::bad_alloc&) {
            // Nothing may leave a thread of the pool. The text fits without an allocation.
            results[task] = Error{ErrorCode::kNoMemory, "out of memory"};
        }
    });
    for (Result<void>& result : results) XP_CHECK(std::move(result));
    return {};
}

void BuildStream::hash_file() {
    if (current_.step < resumed_step_) return;
    const BuildStep& step = plan_.steps[current_.step];
    state_.file_hash.update({current_buffer_.data(), current_.bytes});
    if (step.offset + current_.offset + current_.bytes == source_.files()[step.file].bytes) {
        state_.finished_files.push_back(state_.file_hash.finish());
    }
}

void BuildStream::hash_slice() {
    const BuildStep& step = plan_.steps[current_.step];
    const PackLayer& layer = plan_.manifest.layers[step.layer];
    const uint64_t expert = current_.offset / current_.bytes;
    state_.slices[layer.first_object + expert][step.role] =
        sha256({current_buffer_.data(), current_.bytes});
}

Result<void> BuildStream::check_values() const {
    const BuildStep& step = plan_.steps[current_.step];
    const GgmlType type = step.tensor->type;
    if (!options_.check_values) return {};
    const auto fault = find_payload_fault(type, {current_buffer_.data(), current_.bytes},
                                          current_.offset / traits_of(type).block_bytes);
    if (!fault) return {};
    return make_error(ErrorCode::kCorrupt,
                      "{}: tensor {} of type {}: {}; the file is damaged or was converted wrongly",
                      source_.files()[step.file].path.native(), step.tensor->name,
                      traits_of(type).name, *fault);
}

Result<void> BuildStream::store_expert() {
    const BuildStep& step = plan_.steps[current_.step];
    const PackLayer& layer = plan_.manifest.layers[step.layer];
    const RoleLayout& role = layer.roles[step.role];
    const uint64_t expert = current_.offset / role.bytes;
    std::byte* stored =
        role.layout == StorageLayout::kGgml ? current_buffer_.data() : converted_.data();
    state_.sums[layer.first_object + expert][step.role] =
        arrange_segment(layer, step.role, current_buffer_.data(), stored);
    const uint64_t segment = segment_end(layer, step.role) - role.offset;

    const size_t n_stripes = stripes_.size();
    const size_t stripe = expert % n_stripes;
    const uint64_t offset =
        layer.base[stripe] + expert / n_stripes * layer.stride + role.offset;
    XP_CHECK(write_exact(stripes_[stripe].get(), offset, {stored, segment},
                         stripe_paths_[stripe]));
    write_behind_.wrote(stripes_[stripe].get(), offset, segment);
    return {};
}

Result<void> BuildStream::save_progress() {
    if (unsaved_bytes_ == 0) return {};
    write_behind_.drain();
    for (size_t s = 0; s < stripes_.size(); ++s) {
        if (::fdatasync(stripes_[s].get()) != 0) {
            return errno_error(errno, fmt::format("cannot sync {}", stripe_paths_[s].native()));
        }
    }
    XP_CHECK(journal_.flush());
    unsaved_bytes_ = 0;
    return {};
}

void BuildStream::drop_from_cache(const Chunk& chunk) const {
    const BuildStep& step = plan_.steps[chunk.step];
    drop_cached(source_.files()[step.file].fd.get(), step.offset + chunk.offset, chunk.bytes);
}

void BuildStream::report() {
    if (options_.progress) options_.progress(progress_);
}

}  // namespace xp
