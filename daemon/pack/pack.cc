#include "daemon/pack/pack.h"

#include <algorithm>

#include "daemon/pack/format.h"
#include "daemon/pack/pack_files.h"

namespace xp {

const char* role_name(ExpertRole role) {
    switch (role) {
        case ExpertRole::kGate: return "gate";
        case ExpertRole::kUp: return "up";
        case ExpertRole::kDown: return "down";
    }
    return "unknown";
}

bool pack_layout_supported(GgmlType type, StorageLayout layout) {
    return layout == StorageLayout::kGgml || type == GgmlType::kMXFP4;
}

SegmentSums segment_sums(const PackLayer& layer, std::span<const std::byte> object) {
    XP_ASSERT(object.size() == layer.stride);
    SegmentSums sums;
    for (size_t r = 0; r < kExpertRoles; ++r) {
        const uint64_t begin = layer.roles[r].offset;
        sums[r] = xxh3_64(object.subspan(begin, segment_end(layer, r) - begin));
    }
    return sums;
}

uint64_t combine_sums(const SegmentSums& sums) { return xxh3_64(std::as_bytes(std::span(sums))); }

uint64_t stored_checksum(const PackLayer& layer, std::span<const std::byte> object) {
    return combine_sums(segment_sums(layer, object));
}

Sha256Digest combine_source_digests(std::span<const Sha256Digest, kExpertRoles> slices) {
    return sha256(std::as_bytes(slices));
}

Result<Manifest> read_manifest(const Path& directory) {
    const Path path = directory / kManifestName;
    Result<std::string> text = read_text_file(path, kMaxManifestBytes);
    if (!text) {
        if (text.error().code == ErrorCode::kNotFound) {
            std::error_code ignored;
            if (std::filesystem::exists(directory / kJournalName, ignored)) {
                return make_error(ErrorCode::kNotFound,
                                  "{} is an unfinished build: run the same `xp-pack build` again "
                                  "to go on with it", directory.native());
            }
            return make_error(ErrorCode::kNotFound, "{} is not an expert pack: it has no {}",
                              directory.native(), kManifestName);
        }
        return std::move(text).error();
    }
    return parse_manifest(*text, path);
}

Result<std::unique_ptr<Pack>> Pack::open(const Path& directory, const PackOpenOptions& options) {
    auto pack = std::make_unique<Pack>();
    pack->directory_ = directory;
    XP_TRY(pack->manifest_, read_manifest(directory));
    for (size_t s = 0; s < pack->manifest_.stripes.size(); ++s) {
        XP_TRY(UniqueFd fd, open_stripe(directory, pack->manifest_, s, options.direct));
        pack->stripe_fds_.push_back(std::move(fd));
    }
    XP_TRY(const std::string index, read_index_text(directory, pack->manifest_));
    XP_CHECK(check_index_digest(directory, pack->manifest_, index));
    pack->digests_ = decode_index(pack->manifest_, index);
    XP_TRY(pack->resident_, open_resident(directory, pack->manifest_));
    return pack;
}

Result<void> Pack::check_resident() const {
    return check_resident_digest(directory_, manifest_, {});
}

const PackLayer* Pack::find_layer(uint32_t layer) const {
    const auto it = std::ranges::lower_bound(manifest_.layers, layer, {}, &PackLayer::layer);
    return it != manifest_.layers.end() && it->layer == layer ? &*it : nullptr;
}

Pack::ObjectPlace Pack::place(const PackLayer& layer, uint32_t expert) const {
    const StripeSpot spot = locate(manifest_, layer, expert);
    return {stripe_fds_[spot.stripe].get(), spot.stripe, spot.offset, layer.stride};
}

const ObjectDigest& Pack::digest(const PackLayer& layer, uint32_t expert) const {
    XP_ASSERT(expert < layer.n_experts);
    return digests_[layer.first_object + expert];
}

std::string Pack::describe(const PackLayer& layer, uint32_t expert) const {
    return describe_object(manifest_, layer, expert);
}

}  // namespace xp
