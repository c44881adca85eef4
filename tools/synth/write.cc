#include "tools/synth/write.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <system_error>

#include "daemon/base/memory.h"
#include "daemon/base/thread_pool.h"
#include "daemon/gguf/writer.h"
#include "daemon/pack/assemble.h"
#include "daemon/pack/build_plan.h"
#include "daemon/pack/destination.h"
#include "daemon/pack/file_digest.h"
#include "daemon/pack/format.h"
#include "daemon/pack/pack.h"
#include "daemon/pack/pack_files.h"
#include "daemon/pack/write_behind.h"
#include "tools/synth/generator.h"
#include "tools/synth/tensors.h"

namespace xp {

namespace {

constexpr uint32_t kGeneratorVersion = 1;
// Long enough for writes at full speed, short enough to stay in a core's cache until written.
constexpr uint64_t kPieceBytes = uint64_t{1} << 20;
// A close upper bound of what a header needs per token (its text, type and lengths) and besides.
constexpr uint64_t kHeaderBytesPerToken = 40;
constexpr uint64_t kHeaderBytes = uint64_t{1} << 20;

std::string model_name(const Preset& preset, uint64_t seed) {
    return fmt::format("{} seed {}", preset.name, seed);
}

bool is_expert(const SynthTensor& tensor) { return tensor.name.ends_with("_exps.weight"); }

// What all threads tell: progress, the first error, and whether to go on.
class Work {
public:
    Work(const SynthOptions& options, uint64_t total_bytes)
        : options_(options), total_bytes_(total_bytes) {}

    Result<void> advance(uint64_t bytes) {
        if (options_.cancelled && options_.cancelled()) {
            return make_error(ErrorCode::kCancelled,
                              "cancelled; what was written has been removed");
        }
        std::lock_guard lock(mutex_);
        done_bytes_ += bytes;
        if (options_.progress) options_.progress(done_bytes_, total_bytes_);
        return {};
    }
    bool failed() const { return failed_.load(std::memory_order_relaxed); }
    void fail(Error error) {
        std::lock_guard lock(mutex_);
        if (!error_) error_ = std::move(error);
        failed_.store(true, std::memory_order_relaxed);
    }
    Result<void> result() const { return error_ ? Result<void>(*error_) : Result<void>(); }

private:
    const SynthOptions& options_;
    const uint64_t total_bytes_;
    std::atomic<bool> failed_{false};
    std::mutex mutex_;
    uint64_t done_bytes_ = 0;
    std::optional<Error> error_;
};

// Tensors as write_gguf() takes them, generated a buffer at a time: by the calling thread, or by
// all of a pool.
class GgufSource {
public:
    GgufSource(uint64_t seed, Work& work, ThreadPool* pool)
        : seed_(seed), work_(work), pool_(pool), pieces_(pool == nullptr ? 1 : pool->n_threads()) {}

    Result<void> start() {
        XP_TRY(buffer_, PageBuffer::allocate(pieces_ * kPieceBytes, "generating tensors"));
        return {};
    }
    TensorToWrite to_write(const SynthTensor& tensor) {
        return {tensor.name, tensor.type, tensor.ne,
                [this, &tensor](const TensorToWrite::Sink& sink) { return write(tensor, sink); }};
    }

private:
    Result<void> write(const SynthTensor& tensor, const TensorToWrite::Sink& sink) {
        const TensorGenerator generator(seed_, tensor);
        const uint64_t block = traits_of(tensor.type).block_bytes;
        const uint64_t group = block * TensorGenerator::kElementGroup;
        const uint64_t piece = kPieceBytes - kPieceBytes % group;
        const uint64_t total = tensor.bytes();
        for (uint64_t offset = 0; offset < total;) {
            const uint64_t bytes = std::min(pieces_ * piece, total - offset);
            const auto generate = [&](uint64_t i) {
                const uint64_t begin = i * piece;
                generator.fill((offset + begin) / block,
                               {buffer_.data() + begin, std::min(piece, bytes - begin)});
            };
            const uint64_t n = (bytes + piece - 1) / piece;
            if (pool_ != nullptr) {
                pool_->run(n, generate);
            } else {
                generate(0);
            }
            XP_CHECK(sink({buffer_.data(), bytes}));
            XP_CHECK(work_.advance(bytes));
            offset += bytes;
        }
        return {};
    }

    const uint64_t seed_;
    Work& work_;
    ThreadPool* pool_;
    const uint64_t pieces_;
    PageBuffer buffer_;
};

Result<Manifest> plan_manifest(const SynthModel& model, StorageLayout layout) {
    Manifest manifest;
    manifest.architecture = model.architecture;
    manifest.model_name = model.name;
    for (const SynthTensor& tensor : model.tensors) {
        for (size_t r = 0; r < kExpertRoles; ++r) {
            const uint32_t number = static_cast<uint32_t>(manifest.layers.size());
            const uint32_t layer = r == 0 ? number : number - 1;
            if (tensor.name != expert_tensor_name(layer, static_cast<ExpertRole>(r))) continue;
            if (r == 0) manifest.layers.emplace_back().layer = layer;
            manifest.layers.back().n_experts = static_cast<uint32_t>(tensor.ne[2]);
            RoleLayout& role = manifest.layers.back().roles[r];
            role.type = tensor.type;
            role.layout =
                pack_layout_supported(tensor.type, layout) ? layout : StorageLayout::kGgml;
            role.rows = tensor.ne[1];
            role.cols = tensor.ne[0];
            break;
        }
    }
    manifest.stripes.push_back({"experts.000.xpk", 0});
    XP_CHECK(lay_out(manifest));
    return manifest;
}

uint64_t resident_tensor_bytes(const SynthModel& model) {
    uint64_t bytes = 0;
    for (const SynthTensor& tensor : model.tensors) {
        if (!is_expert(tensor)) bytes += align_up(tensor.bytes(), 32);
    }
    return bytes;
}

uint64_t header_bound(const Preset& preset) {
    return kHeaderBytes + preset.shape.n_vocab * kHeaderBytesPerToken;
}

class PackWriter {
public:
    PackWriter(const SynthModel& model, Manifest manifest, Destination& destination,
               const SynthOptions& options)
        : model_(model), manifest_(std::move(manifest)), destination_(destination),
          options_(options), resident_path_(destination.directory() / kResidentName),
          digests_(manifest_.n_objects),
          work_(options, manifest_.stripes[0].bytes + resident_tensor_bytes(model)) {
        for (const SynthTensor& tensor : model.tensors) {
            if (is_expert(tensor)) generators_.emplace_back(options.seed, tensor);
        }
        for (const PackLayer& layer : manifest_.layers) {
            const size_t index = static_cast<size_t>(&layer - manifest_.layers.data());
            for (uint32_t e = 0; e < layer.n_experts; ++e) objects_.push_back({index, e});
        }
    }

    // resident.gguf is one task beside the objects and, as the longest one, the first.
    Result<Sha256Digest> write() {
        ThreadPool pool(options_.threads);
        pool.run(objects_.size() + 1, [this](uint64_t task) {
            if (work_.failed()) return;
            try {
                Result<void> done = task == 0 ? write_resident() : write_object(task - 1);
                if (!done) work_.fail(std::move(done).error());
            } catch (const std::bad_alloc&) {
                // Nothing may leave a thread of the pool. The text fits without an allocation.
                work_.fail(Error{ErrorCode::kNoMemory, "out of memory"});
            }
        });
        XP_CHECK(work_.result());
        write_behind_.drain();
        XP_CHECK(seal_pack(destination_.directory(), manifest_, digests_,
                           destination_.stripe_fds(), destination_.stripe_paths()));
        return compute_identity(manifest_);
    }

private:
    struct Object {
        size_t layer = 0;  // index into Manifest::layers
        uint32_t expert = 0;
    };
    struct Buffers {
        PageBuffer matrix;
        PageBuffer object;
    };

    Result<void> write_resident() {
        GgufSource source(options_.seed, work_, nullptr);
        XP_CHECK(source.start());
        std::vector<TensorToWrite> tensors;
        for (const SynthTensor& tensor : model_.tensors) {
            if (!is_expert(tensor)) tensors.push_back(source.to_write(tensor));
        }
        XP_TRY(const uint64_t bytes, write_gguf(resident_path_, model_.metadata, tensors));
        (void)bytes;
        XP_TRY(manifest_.resident_digest,
               digest_file(resident_path_, [this](uint64_t) { return work_.advance(0); }));
        return {};
    }

    Result<void> write_object(uint64_t number) {
        const auto [layer_index, expert] = objects_[number];
        const PackLayer& layer = manifest_.layers[layer_index];
        XP_TRY(std::unique_ptr<Buffers> buffers, take_buffers());
        std::byte* const object = buffers->object.data();
        ObjectDigest& digest = digests_[number];
        std::array<Sha256Digest, kExpertRoles> slices;
        for (size_t r = 0; r < kExpertRoles; ++r) {
            const RoleLayout& role = layer.roles[r];
            const std::span matrix(buffers->matrix.data(), role.bytes);
            const uint64_t blocks = role.bytes / traits_of(role.type).block_bytes;
            generators_[layer_index * kExpertRoles + r].fill(expert * blocks, matrix);
            slices[r] = sha256(matrix);
            digest.segments[r] = arrange_segment(layer, r, matrix.data(), object + role.offset);
        }
        digest.stored_xxh3 = combine_sums(digest.segments);
        digest.source = combine_source_digests(slices);
        const StripeSpot spot = locate(manifest_, layer, expert);
        const int fd = destination_.stripe_fds()[spot.stripe].get();
        XP_CHECK(write_exact(fd, spot.offset, {object, layer.stride},
                             destination_.stripe_paths()[spot.stripe]));
        {
            // Waits for the drive when too much is on its way, and so do then all threads.
            std::lock_guard lock(mutex_);
            write_behind_.wrote(fd, spot.offset, layer.stride);
            free_buffers_.push_back(std::move(buffers));
        }
        return work_.advance(layer.stride);
    }

    Result<std::unique_ptr<Buffers>> take_buffers() {
        {
            std::lock_guard lock(mutex_);
            if (!free_buffers_.empty()) {
                std::unique_ptr<Buffers> buffers = std::move(free_buffers_.back());
                free_buffers_.pop_back();
                return buffers;
            }
        }
        uint64_t matrix = 0;
        uint64_t object = 0;
        for (const PackLayer& layer : manifest_.layers) {
            object = std::max(object, layer.stride);
            for (const RoleLayout& role : layer.roles) matrix = std::max(matrix, role.bytes);
        }
        auto buffers = std::make_unique<Buffers>();
        XP_TRY(buffers->matrix, PageBuffer::allocate(matrix, "generating a matrix"));
        XP_TRY(buffers->object, PageBuffer::allocate(object, "generating an expert"));
        return buffers;
    }

    const SynthModel& model_;
    Manifest manifest_;
    Destination& destination_;
    const SynthOptions& options_;
    const Path resident_path_;
    std::vector<TensorGenerator> generators_;  // per layer gate, up, down
    std::vector<Object> objects_;
    std::vector<ObjectDigest> digests_;
    Work work_;
    std::mutex mutex_;
    WriteBehind write_behind_;
    std::vector<std::unique_ptr<Buffers>> free_buffers_;
};

Error thread_error(const std::system_error& error) {
    return errno_error(error.code().value(),
                       "cannot start the threads; fewer need less memory and a lower limit");
}

Result<uint64_t> write_gguf_file(const SynthModel& model, const Path& path,
                                 const SynthOptions& options) {
    uint64_t total = 0;
    for (const SynthTensor& tensor : model.tensors) total += tensor.bytes();
    try {
        ThreadPool pool(options.threads);
        Work work(options, total);
        GgufSource source(options.seed, work, &pool);
        XP_CHECK(source.start());
        std::vector<TensorToWrite> tensors;
        for (const SynthTensor& tensor : model.tensors) tensors.push_back(source.to_write(tensor));
        return write_gguf(path, model.metadata, tensors);
    } catch (const std::bad_alloc&) {
        return Error{ErrorCode::kNoMemory, "out of memory"};
    } catch (const std::system_error& error) {
        return thread_error(error);
    }
}

}  // namespace

Result<SynthSizes> synth_sizes(const Preset& preset, StorageLayout layout) {
    const SynthModel model = describe_model(preset.shape, preset.name);
    XP_TRY(const Manifest manifest, plan_manifest(model, layout));
    SynthSizes sizes{.layers = manifest.layers.size(), .objects = manifest.n_objects,
                     .object_bytes = 0, .expert_bytes = manifest.stripes[0].bytes,
                     .resident_bytes = resident_tensor_bytes(model)};
    for (const PackLayer& layer : manifest.layers) {
        sizes.object_bytes = std::max(sizes.object_bytes, layer.stride);
    }
    return sizes;
}

std::string synth_recipe(const Preset& preset, uint64_t seed) {
    return fmt::format("xp-synth {}: {}", kGeneratorVersion, model_name(preset, seed));
}

Result<Sha256Digest> write_synth_pack(const Preset& preset, const Path& directory,
                                      const SynthOptions& options) {
    const SynthModel model = describe_model(preset.shape, model_name(preset, options.seed));
    XP_TRY(Manifest manifest, plan_manifest(model, options.layout));
    const std::string recipe = synth_recipe(preset, options.seed);
    manifest.sources.push_back({recipe, recipe.size(), sha256(std::as_bytes(std::span(recipe)))});
    using Existing = Destination::Existing;
    XP_TRY(Destination destination,
           Destination::open(directory, {},
                             options.replace ? Existing::kReplace : Existing::kKeep));
    const uint64_t resident_bytes = resident_tensor_bytes(model) + header_bound(preset);
    Result<Sha256Digest> identity = make_error(ErrorCode::kInternal, "nothing was written");
    auto prepared = destination.prepare_without_journal(manifest, resident_bytes,
                                                        options.reserve_bytes);
    if (!prepared) {
        identity = std::move(prepared).error();
    } else {
        try {
            PackWriter writer(model, std::move(manifest), destination, options);
            identity = writer.write();
        } catch (const std::bad_alloc&) {
            identity = Error{ErrorCode::kNoMemory, "out of memory"};
        } catch (const std::system_error& error) {
            identity = thread_error(error);
        }
    }
    if (!identity) destination.discard();
    return identity;
}

Result<uint64_t> write_synth_gguf(const Preset& preset, const Path& path,
                                  const SynthOptions& options) {
    std::error_code ignored;
    if (std::filesystem::exists(path, ignored) && !options.replace) {
        return make_error(ErrorCode::kInvalidArgument,
                          "{} exists; choose another name, or replace it", path.native());
    }
    const SynthModel model = describe_model(preset.shape, model_name(preset, options.seed));
    uint64_t bytes = header_bound(preset);
    for (const SynthTensor& tensor : model.tensors) bytes += align_up(tensor.bytes(), 32);
    const Path parent = path.has_parent_path() ? path.parent_path() : Path(".");
    XP_CHECK(check_free_space(parent, bytes, options.reserve_bytes));
    const Path partial = path.native() + ".tmp";
    auto written = write_gguf_file(model, partial, options);
    if (written && ::rename(partial.c_str(), path.c_str()) != 0) {
        written = errno_error(errno, fmt::format("cannot rename {} to {}", partial.native(),
                                                 path.native()));
    }
    if (!written) {
        ::unlink(partial.c_str());
        return written;
    }
    XP_CHECK(sync_directory(parent));
    return written;
}

}  // namespace xp
