#include "daemon/pack/format.h"

#include <bit>
#include <cstring>

#include "daemon/base/memory.h"

namespace xp {

static_assert(std::endian::native == std::endian::little, "packs are read and written as they are");

namespace {

constexpr std::string_view kStripeMagic = "XPSTRIPE";
constexpr std::string_view kIndexMagic = "XPOBJIDX";

template <class T>
void put(std::string& bytes, size_t offset, const T& value) {
    XP_ASSERT(offset + sizeof(T) <= bytes.size());
    std::memcpy(bytes.data() + offset, &value, sizeof(T));
}

template <class T>
T get(const void* bytes, size_t offset) {
    T value;
    std::memcpy(&value, static_cast<const char*>(bytes) + offset, sizeof(T));
    return value;
}

Result<void> lay_out_role(const PackLayer& layer, size_t index, RoleLayout& role) {
    const std::string what =
        fmt::format("layer {}, {}", layer.layer, role_name(static_cast<ExpertRole>(index)));
    if (role.rows == 0 || role.cols == 0 || role.rows > kMaxDimension ||
        role.cols > kMaxDimension) {
        return make_error(ErrorCode::kLimit, "{}: {} rows of {} columns; each may be 1 to {}", what,
                          role.rows, role.cols, kMaxDimension);
    }
    const TypeTraits& traits = traits_of(role.type);
    if (role.cols % traits.block_elements != 0) {
        return make_error(ErrorCode::kInvalidArgument,
                          "{}: {} columns are not whole {} blocks of {}", what, role.cols,
                          traits.name, traits.block_elements);
    }
    if (!pack_layout_supported(role.type, role.layout)) {
        return make_error(ErrorCode::kInvalidArgument, "{}: {} cannot be stored in layout \"{}\"",
                          what, traits.name, layout_name(role.layout));
    }
    role.bytes = role.rows * row_bytes(role.type, role.cols);
    if (role.bytes > kMaxObjectBytes) {
        return make_error(ErrorCode::kLimit, "{}: a matrix of {} bytes; at most {} are supported",
                          what, role.bytes, kMaxObjectBytes);
    }
    return {};
}

Result<void> lay_out_layer(PackLayer& layer) {
    if (layer.n_experts == 0 || layer.n_experts > kMaxExperts) {
        return make_error(ErrorCode::kLimit, "layer {} has {} experts; 1 to {} are supported",
                          layer.layer, layer.n_experts, kMaxExperts);
    }
    uint64_t end = 0;
    for (size_t r = 0; r < kExpertRoles; ++r) {
        XP_CHECK(lay_out_role(layer, r, layer.roles[r]));
        layer.roles[r].offset = align_up(end, kRoleAlignment);
        end = layer.roles[r].offset + layer.roles[r].bytes;
    }
    layer.object_bytes = end;
    layer.stride = align_up(end, kPageBytes);
    if (layer.stride > kMaxObjectBytes) {
        return make_error(ErrorCode::kLimit,
                          "layer {}: an expert takes {} bytes; at most {} are supported",
                          layer.layer, layer.stride, kMaxObjectBytes);
    }
    return {};
}

}  // namespace

Result<void> lay_out(Manifest& manifest) {
    if (manifest.layers.empty() || manifest.layers.size() > kMaxLayers) {
        return make_error(ErrorCode::kLimit, "{} layers with experts; 1 to {} are supported",
                          manifest.layers.size(), kMaxLayers);
    }
    if (manifest.stripes.empty() || manifest.stripes.size() > kMaxStripes) {
        return make_error(ErrorCode::kLimit, "{} stripes; 1 to {} are supported",
                          manifest.stripes.size(), kMaxStripes);
    }
    const size_t n_stripes = manifest.stripes.size();
    std::vector<uint64_t> ends(n_stripes, kStripeHeaderBytes);
    manifest.n_objects = 0;
    const PackLayer* previous = nullptr;
    for (PackLayer& layer : manifest.layers) {
        if (layer.layer > kMaxLayerNumber || (previous && layer.layer <= previous->layer)) {
            return make_error(ErrorCode::kInvalidArgument,
                              "layer {} is out of order or above {}", layer.layer, kMaxLayerNumber);
        }
        XP_CHECK(lay_out_layer(layer));
        layer.first_object = manifest.n_objects;
        manifest.n_objects += layer.n_experts;
        layer.base = ends;
        for (size_t s = 0; s < n_stripes; ++s) {
            ends[s] += objects_in_stripe(layer.n_experts, n_stripes, s) * layer.stride;
        }
        if (manifest.n_objects > kMaxObjects) {
            return make_error(ErrorCode::kLimit, "more than {} expert objects up to layer {}",
                              kMaxObjects, layer.layer);
        }
        previous = &layer;
    }
    for (size_t s = 0; s < n_stripes; ++s) manifest.stripes[s].bytes = ends[s];
    return {};
}

Sha256Digest compute_identity(const Manifest& manifest) {
    std::string text = fmt::format("xpack {}\n", kPackVersion);
    for (const PackSourceFile& source : manifest.sources) {
        text += fmt::format("source {} {}\n", source.bytes, to_hex(source.digest));
    }
    for (const PackLayer& layer : manifest.layers) {
        text += fmt::format("layer {} {}\n", layer.layer, layer.n_experts);
        for (const RoleLayout& role : layer.roles) {
            text += fmt::format("role {} {} {} {} {}\n", static_cast<uint32_t>(role.type),
                                layout_name(role.layout), role.rows, role.cols, role.offset);
        }
    }
    return sha256(std::as_bytes(std::span(text)));
}

uint64_t segment_end(const PackLayer& layer, size_t role) {
    return role + 1 < kExpertRoles ? layer.roles[role + 1].offset : layer.stride;
}

uint64_t objects_in_stripe(uint32_t n_experts, size_t n_stripes, size_t stripe) {
    return (n_experts + n_stripes - 1 - stripe) / n_stripes;
}

std::string encode_stripe_header(const Manifest& manifest, size_t stripe) {
    std::string header(kStripeHeaderBytes, '\0');
    header.replace(0, kStripeMagic.size(), kStripeMagic);
    put(header, 8, kPackVersion);
    put(header, 12, static_cast<uint32_t>(stripe));
    put(header, 16, static_cast<uint32_t>(manifest.stripes.size()));
    put(header, 20, static_cast<uint32_t>(kStripeHeaderBytes));
    put(header, 24, manifest.stripes[stripe].bytes);
    put(header, 32, manifest.identity);
    return header;
}

std::string stripe_header_fault(const Manifest& manifest, size_t stripe,
                                std::span<const std::byte> header) {
    XP_ASSERT(header.size() == kStripeHeaderBytes);
    const std::string expected = encode_stripe_header(manifest, stripe);
    if (std::memcmp(expected.data(), header.data(), header.size()) == 0) return {};
    if (std::memcmp(header.data(), kStripeMagic.data(), kStripeMagic.size()) != 0) {
        return "is not a stripe file of an expert pack";
    }
    const uint32_t version = get<uint32_t>(header.data(), 8);
    if (version != kPackVersion) {
        return fmt::format("has stripe version {}; this build reads version {}", version,
                           kPackVersion);
    }
    const uint32_t number = get<uint32_t>(header.data(), 12);
    const uint32_t count = get<uint32_t>(header.data(), 16);
    if (get<Sha256Digest>(header.data(), 32) != manifest.identity) {
        return "belongs to another pack (its identity differs from the manifest's)";
    }
    if (number != stripe || count != manifest.stripes.size()) {
        return fmt::format("is stripe {} of {}, but stands where the manifest names stripe {} of "
                           "{}: were stripe files swapped?",
                           number, count, stripe, manifest.stripes.size());
    }
    return "has a damaged header";
}

uint64_t index_bytes(const Manifest& manifest) {
    return kIndexHeaderBytes + manifest.n_objects * kIndexEntryBytes;
}

std::string encode_index(const Manifest& manifest, std::span<const ObjectDigest> digests) {
    XP_ASSERT(digests.size() == manifest.n_objects);
    std::string text(index_bytes(manifest), '\0');
    text.replace(0, kIndexMagic.size(), kIndexMagic);
    put(text, 8, kPackVersion);
    put(text, 12, static_cast<uint32_t>(kIndexEntryBytes));
    put(text, 16, manifest.n_objects);
    put(text, 24, manifest.identity);
    for (size_t i = 0; i < digests.size(); ++i) {
        const size_t offset = kIndexHeaderBytes + i * kIndexEntryBytes;
        put(text, offset, digests[i].segments);
        put(text, offset + sizeof(SegmentSums), digests[i].source);
    }
    return text;
}

std::vector<ObjectDigest> decode_index(const Manifest& manifest, std::string_view text) {
    XP_ASSERT(text.size() == index_bytes(manifest));
    std::vector<ObjectDigest> digests(manifest.n_objects);
    for (size_t i = 0; i < digests.size(); ++i) {
        const size_t offset = kIndexHeaderBytes + i * kIndexEntryBytes;
        digests[i].segments = get<SegmentSums>(text.data(), offset);
        digests[i].stored_xxh3 = combine_sums(digests[i].segments);
        digests[i].source = get<Sha256Digest>(text.data(), offset + sizeof(SegmentSums));
    }
    return digests;
}

std::string index_header_fault(const Manifest& manifest, std::string_view text) {
    if (text.size() != index_bytes(manifest)) {
        return fmt::format("has {} bytes, not {}", text.size(), index_bytes(manifest));
    }
    if (!text.starts_with(kIndexMagic)) return "is not the index of an expert pack";
    const uint32_t version = get<uint32_t>(text.data(), 8);
    if (version != kPackVersion) {
        return fmt::format("has index version {}; this build reads version {}", version,
                           kPackVersion);
    }
    if (get<Sha256Digest>(text.data(), 24) != manifest.identity) {
        return "belongs to another pack (its identity differs from the manifest's)";
    }
    return {};
}

}  // namespace xp
