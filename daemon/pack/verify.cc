#include "daemon/pack/verify.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <set>

#include "daemon/base/memory.h"
#include "daemon/pack/build_plan.h"
#include "daemon/pack/compare_metadata.h"
#include "daemon/pack/format.h"
#include "daemon/pack/pack_files.h"
#include "daemon/pack/page_cache.h"

namespace xp {

namespace {

// A pack on a dying drive may have a fault per object; the first ones tell enough.
constexpr size_t kMaxFaults = 1000;
constexpr uint64_t kPieceBytes = uint64_t{8} << 20;

class Verifier {
public:
    Verifier(const Path& directory, const VerifyOptions& options)
        : directory_(directory), options_(options) {}

    Result<VerifyReport> run();

private:
    void fault(std::string text);
    Result<void> fault(const Error& error);
    Result<void> advance(uint64_t bytes);

    Result<void> open_parts();
    void count_work();
    Result<void> check_resident_digest();
    Result<void> check_objects();
    void check_stored(const PackLayer& layer, uint32_t expert);
    Result<void> check_against_source(const PackLayer& layer, uint32_t expert);
    void find_source_tensors();
    Result<void> check_resident_against_source();
    Result<void> read_source(const TensorInfo& tensor, uint64_t offset);
    Result<void> compare_resident(const TensorInfo& resident, const TensorInfo& source);
    std::string role_of(const PackLayer& layer, uint32_t expert, size_t role) const;

    const Path& directory_;
    const VerifyOptions& options_;
    VerifyReport report_;
    uint64_t n_faults_ = 0;
    uint64_t done_bytes_ = 0;
    uint64_t total_bytes_ = 0;

    Manifest manifest_;
    std::vector<UniqueFd> stripes_;      // an empty one did not open
    std::vector<ObjectDigest> digests_;  // empty: no index
    std::optional<GgufFile> resident_;
    std::optional<GgufFile> source_;
    // Per layer and role the source's tensor, or null when it has none that fits.
    std::vector<std::array<const TensorInfo*, kExpertRoles>> source_tensors_;
    PageBuffer object_;
    std::vector<std::byte> slice_;
    std::vector<std::byte> restored_;
};

Result<VerifyReport> Verifier::run() {
    if (options_.against) {
        XP_TRY(source_, GgufFile::open(*options_.against));
    }
    if (auto manifest = read_manifest(directory_)) {
        manifest_ = *std::move(manifest);
        XP_CHECK(open_parts());
        if (options_.deep || source_) {
            count_work();
            if (source_) find_source_tensors();
            XP_CHECK(check_objects());
            if (options_.deep) XP_CHECK(check_resident_digest());
            if (source_) XP_CHECK(check_resident_against_source());
        }
    } else {
        XP_CHECK(fault(manifest.error()));
    }
    if (n_faults_ > kMaxFaults) {
        report_.faults.push_back(fmt::format("{} more faults", n_faults_ - kMaxFaults));
    }
    return std::move(report_);
}

void Verifier::fault(std::string text) {
    if (++n_faults_ <= kMaxFaults) report_.faults.push_back(std::move(text));
}

// What this process lacks, memory or descriptors, is no fault of the pack.
Result<void> Verifier::fault(const Error& error) {
    if (error.code == ErrorCode::kNoMemory || error.code == ErrorCode::kBusy) return error;
    fault(error.message);
    return {};
}

Result<void> Verifier::advance(uint64_t bytes) {
    done_bytes_ += bytes;
    report_.checked_bytes += bytes;
    if (options_.progress) options_.progress(std::min(done_bytes_, total_bytes_), total_bytes_);
    if (options_.cancelled && options_.cancelled()) {
        return make_error(ErrorCode::kCancelled, "verifying {} was cancelled after {} of {} bytes",
                          directory_.native(), done_bytes_, total_bytes_);
    }
    return {};
}

// Each part for itself, so that one fault does not hide another.
Result<void> Verifier::open_parts() {
    for (size_t s = 0; s < manifest_.stripes.size(); ++s) {
        auto stripe = open_stripe(directory_, manifest_, s, /*direct=*/true);
        // Where the drive cannot be read past the page cache, what the cache holds must do.
        if (!stripe && stripe.error().code == ErrorCode::kUnsupported) {
            stripe = open_stripe(directory_, manifest_, s, /*direct=*/false);
        }
        if (!stripe) XP_CHECK(fault(stripe.error()));
        stripes_.push_back(stripe ? *std::move(stripe) : UniqueFd());
    }
    auto index = read_index_text(directory_, manifest_);
    if (index) {
        digests_ = decode_index(manifest_, *index);
        // Its entries are compared all the same, to name the objects that no longer match.
        if (auto same = check_index_digest(directory_, manifest_, *index); !same) {
            XP_CHECK(fault(same.error()));
        }
    } else {
        XP_CHECK(fault(index.error()));
    }
    auto resident = open_resident(directory_, manifest_);
    if (resident) {
        resident_.emplace(*std::move(resident));
    } else {
        XP_CHECK(fault(resident.error()));
    }
    uint64_t largest = 0;
    for (const PackLayer& layer : manifest_.layers) largest = std::max(largest, layer.stride);
    XP_TRY(object_, PageBuffer::allocate(largest, "verifying objects"));
    return {};
}

void Verifier::count_work() {
    for (const PackLayer& layer : manifest_.layers) {
        total_bytes_ += layer.n_experts * layer.stride;
    }
    if (!resident_) return;
    if (options_.deep) total_bytes_ += resident_->files()[0].bytes;
    if (source_) {
        for (const TensorInfo& tensor : resident_->tensors()) total_bytes_ += tensor.bytes;
    }
}

Result<void> Verifier::check_resident_digest() {
    if (!resident_) return {};
    bool cancelled = false;
    const Result<void> checked =
        xp::check_resident_digest(directory_, manifest_, [&](uint64_t bytes) {
            Result<void> going_on = advance(bytes);
            cancelled = !going_on;
            return going_on;
        });
    if (cancelled) return checked;
    return checked ? checked : fault(checked.error());
}

Result<void> Verifier::check_objects() {
    for (const PackLayer& layer : manifest_.layers) {
        for (uint32_t e = 0; e < layer.n_experts; ++e) {
            const StripeSpot spot = locate(manifest_, layer, e);
            if (stripes_[spot.stripe]) {
                const int fd = stripes_[spot.stripe].get();
                const auto read = read_exact(fd, spot.offset, {object_.data(), layer.stride},
                                             stripe_path(directory_, manifest_, spot.stripe));
                drop_cached(fd, spot.offset, layer.stride);
                if (!read) {
                    XP_CHECK(fault(Error(read.error()).with_context(
                        describe_object(manifest_, layer, e))));
                } else {
                    if (options_.deep) check_stored(layer, e);
                    if (source_) XP_CHECK(check_against_source(layer, e));
                    ++report_.checked_objects;
                }
            }
            XP_CHECK(advance(layer.stride));
        }
    }
    return {};
}

void Verifier::check_stored(const PackLayer& layer, uint32_t expert) {
    if (digests_.empty()) return;
    const SegmentSums found = segment_sums(layer, {object_.data(), layer.stride});
    const ObjectDigest& expected = digests_[layer.first_object + expert];
    for (size_t r = 0; r < kExpertRoles; ++r) {
        if (found[r] == expected.segments[r]) continue;
        fault(fmt::format("{}: stored bytes do not match objects.idx", role_of(layer, expert, r)));
    }
}

// Undoes the storage layout and compares with the slices of the source; also the source's digest in
// the index, so that it can be relied on when the source is gone.
Result<void> Verifier::check_against_source(const PackLayer& layer, uint32_t expert) {
    const auto& tensors = source_tensors_[static_cast<size_t>(&layer - manifest_.layers.data())];
    std::array<Sha256Digest, kExpertRoles> slice_digests;
    bool all_there = true;
    for (size_t r = 0; r < kExpertRoles; ++r) {
        const RoleLayout& role = layer.roles[r];
        if (tensors[r] == nullptr) {
            all_there = false;
            continue;
        }
        slice_.resize(role.bytes);
        restored_.resize(role.bytes);
        XP_CHECK(read_source(*tensors[r], expert * role.bytes));
        slice_digests[r] = sha256(slice_);
        const uint64_t row = row_bytes(role.type, role.cols);
        for (uint64_t i = 0; i < role.rows; ++i) {
            row_from_layout(role.type, role.layout, object_.data() + role.offset + i * row,
                            restored_.data() + i * row, role.cols);
        }
        const auto [stored, original] = std::ranges::mismatch(restored_, slice_);
        if (stored == restored_.end()) continue;
        fault(fmt::format("{}: differs from {} of {} from byte {} of the expert's slice on",
                          role_of(layer, expert, r), tensors[r]->name,
                          options_.against->native(), stored - restored_.begin()));
    }
    if (all_there && !digests_.empty() &&
        combine_source_digests(slice_digests) != digests_[layer.first_object + expert].source) {
        fault(fmt::format("{}: the source digest in objects.idx is not that of {}",
                          describe_object(manifest_, layer, expert), options_.against->native()));
    }
    return {};
}

void Verifier::find_source_tensors() {
    for (const PackLayer& layer : manifest_.layers) {
        auto& tensors = source_tensors_.emplace_back();
        for (size_t r = 0; r < kExpertRoles; ++r) {
            const std::string name = expert_tensor_name(layer.layer, static_cast<ExpertRole>(r));
            const RoleLayout& role = layer.roles[r];
            const TensorInfo* tensor = source_->find_tensor(name);
            if (tensor == nullptr) {
                fault(fmt::format("{} has no tensor {}", options_.against->native(), name));
            } else if (tensor->type != role.type || tensor->ne[0] != role.cols ||
                       tensor->ne[1] != role.rows || tensor->ne[2] != layer.n_experts) {
                fault(fmt::format("{} has {} as {} {}, the pack as {} [{}, {}, {}]",
                                  options_.against->native(), name, traits_of(tensor->type).name,
                                  tensor->shape(), traits_of(role.type).name, role.cols, role.rows,
                                  layer.n_experts));
                tensor = nullptr;
            }
            tensors[r] = tensor;
        }
    }
}

Result<void> Verifier::check_resident_against_source() {
    if (!resident_) return {};
    for (const std::string& difference :
         metadata_differences(source_->metadata(), resident_->metadata())) {
        fault(fmt::format("{}: {}", (directory_ / kResidentName).native(), difference));
    }
    std::set<std::string> packed;
    for (const PackLayer& layer : manifest_.layers) {
        for (size_t r = 0; r < kExpertRoles; ++r) {
            packed.insert(expert_tensor_name(layer.layer, static_cast<ExpertRole>(r)));
        }
    }
    for (const TensorInfo& tensor : source_->tensors()) {
        if (packed.contains(tensor.name)) continue;
        const TensorInfo* resident = resident_->find_tensor(tensor.name);
        if (resident == nullptr) {
            fault(fmt::format("tensor {} of {} is nowhere in the pack", tensor.name,
                              options_.against->native()));
            continue;
        }
        XP_CHECK(compare_resident(*resident, tensor));
    }
    for (const TensorInfo& tensor : resident_->tensors()) {
        if (source_->find_tensor(tensor.name) != nullptr) continue;
        fault(fmt::format("tensor {} of {} is not in {}", tensor.name,
                          (directory_ / kResidentName).native(), options_.against->native()));
    }
    return {};
}

// Fills slice_.
Result<void> Verifier::read_source(const TensorInfo& tensor, uint64_t offset) {
    XP_CHECK(source_->read_tensor(tensor, offset, slice_));
    drop_cached(source_->files()[tensor.file].fd.get(), tensor.offset + offset, slice_.size());
    return {};
}

Result<void> Verifier::compare_resident(const TensorInfo& resident, const TensorInfo& source) {
    if (resident.type != source.type || resident.ne != source.ne) {
        fault(fmt::format("tensor {} is {} {} in the pack, {} {} in {}", source.name,
                          traits_of(resident.type).name, resident.shape(),
                          traits_of(source.type).name, source.shape(),
                          options_.against->native()));
        return {};
    }
    for (uint64_t offset = 0; offset < source.bytes; offset += kPieceBytes) {
        const uint64_t n = std::min(kPieceBytes, source.bytes - offset);
        slice_.resize(n);
        restored_.resize(n);
        XP_CHECK(read_source(source, offset));
        if (auto read = resident_->read_tensor(resident, offset, restored_); !read) {
            return fault(std::move(read).error().with_context("tensor " + source.name));
        }
        const auto [stored, original] = std::ranges::mismatch(restored_, slice_);
        if (stored != restored_.end()) {
            fault(fmt::format("tensor {} of {} differs from {} from byte {} on", source.name,
                              (directory_ / kResidentName).native(), options_.against->native(),
                              offset + static_cast<uint64_t>(stored - restored_.begin())));
            return {};
        }
        XP_CHECK(advance(n));
    }
    return {};
}

// "expert 17 of layer 3, up (experts.000.xpk, offset 1234944, 53248 bytes)".
std::string Verifier::role_of(const PackLayer& layer, uint32_t expert, size_t role) const {
    const StripeSpot spot = locate(manifest_, layer, expert);
    return fmt::format("expert {} of layer {}, {} ({}, offset {}, {} bytes)", expert, layer.layer,
                       role_name(static_cast<ExpertRole>(role)),
                       Path(manifest_.stripes[spot.stripe].path).filename().native(),
                       spot.offset + layer.roles[role].offset, layer.roles[role].bytes);
}

}  // namespace

Result<VerifyReport> verify_pack(const Path& directory, const VerifyOptions& options) {
    try {
        return Verifier(directory, options).run();
    } catch (const std::bad_alloc&) {
        return Error{ErrorCode::kNoMemory, "out of memory"};
    }
}

}  // namespace xp
