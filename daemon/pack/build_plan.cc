#include "daemon/pack/build_plan.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

#include <fmt/ranges.h>

#include "daemon/base/memory.h"
#include "daemon/pack/format.h"

namespace xp {

namespace {

using LayerTensors = std::map<uint32_t, std::array<const TensorInfo*, kExpertRoles>>;

// N of "blk.N.…", canonical decimal only.
std::optional<uint32_t> block_number(std::string_view name) {
    if (!name.starts_with("blk.")) return std::nullopt;
    name.remove_prefix(4);
    uint32_t number = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (error != std::errc() || end == name.data() + name.size() || *end != '.') {
        return std::nullopt;
    }
    return number;
}

Result<LayerTensors> find_experts(const GgufFile& source) {
    LayerTensors layers;
    for (const TensorInfo& tensor : source.tensors()) {
        const auto block = block_number(tensor.name);
        if (!block || !tensor.name.ends_with("_exps.weight")) continue;
        size_t role = 0;
        while (role < kExpertRoles &&
               tensor.name != expert_tensor_name(*block, static_cast<ExpertRole>(role))) {
            ++role;
        }
        if (role == kExpertRoles) {
            return make_error(ErrorCode::kUnsupported,
                              "{}: tensor {} looks like routed experts, but is not one of "
                              "ffn_gate_exps, ffn_up_exps, ffn_down_exps; packs cannot hold it",
                              source.files()[tensor.file].path.native(), tensor.name);
        }
        layers[*block][role] = &tensor;
    }
    if (layers.empty()) {
        return make_error(ErrorCode::kInvalidArgument,
                          "{} has no routed experts (tensors blk.N.ffn_gate_exps.weight and so "
                          "on): only mixture-of-experts models can be packed",
                          source.files()[0].path.native());
    }
    return layers;
}

// Of every layer at once, before anything is read.
Result<void> check_all_roles(const GgufFile& source, const LayerTensors& layers) {
    std::vector<std::string> missing;
    for (const auto& [number, tensors] : layers) {
        for (size_t r = 0; r < kExpertRoles; ++r) {
            if (tensors[r] != nullptr) continue;
            missing.push_back(expert_tensor_name(number, static_cast<ExpertRole>(r)));
        }
    }
    if (missing.empty()) return {};
    return make_error(ErrorCode::kCorrupt,
                      "{} lacks expert tensors: {}; all of gate, up and down must be there in a "
                      "layer that has one of them", source.files()[0].path.native(),
                      fmt::join(missing, ", "));
}

Result<PackLayer> describe_layer(uint32_t number,
                                 const std::array<const TensorInfo*, kExpertRoles>& tensors,
                                 StorageLayout mxfp4_layout) {
    PackLayer layer;
    layer.layer = number;
    for (size_t r = 0; r < kExpertRoles; ++r) {
        const std::string name = expert_tensor_name(number, static_cast<ExpertRole>(r));
        const TensorInfo* tensor = tensors[r];
        if (tensor->ne[3] != 1 || tensor->ne[2] == 0 || tensor->n_dims < 3) {
            return make_error(ErrorCode::kCorrupt,
                              "tensor {} has shape {}; [columns, rows, experts] was expected", name,
                              tensor->shape());
        }
        const uint64_t n_experts = tensor->ne[2];
        if (n_experts > kMaxExperts) {
            return make_error(ErrorCode::kLimit, "tensor {} has {} experts; at most {} can be",
                              name, n_experts, kMaxExperts);
        }
        if (r > 0 && n_experts != layer.n_experts) {
            return make_error(ErrorCode::kCorrupt, "tensor {} has {} experts, {} has {}", name,
                              n_experts, tensors[0]->name, layer.n_experts);
        }
        layer.n_experts = static_cast<uint32_t>(n_experts);
        RoleLayout& role = layer.roles[r];
        role.type = tensor->type;
        role.layout = pack_layout_supported(tensor->type, mxfp4_layout) ? mxfp4_layout
                                                                        : StorageLayout::kGgml;
        role.rows = tensor->ne[1];
        role.cols = tensor->ne[0];
    }
    const auto& [gate, up, down] = layer.roles;
    if (gate.rows != up.rows || gate.cols != up.cols || down.cols != gate.rows) {
        return make_error(ErrorCode::kCorrupt,
                          "layer {}: gate {}, up {} and down {} do not fit together", number,
                          tensors[0]->shape(), tensors[1]->shape(), tensors[2]->shape());
    }
    return layer;
}

// Tensors and the gaps around them, in file order; an empty tensor before the one that starts where
// it lies.
void plan_steps(const GgufFile& source, const LayerTensors& layers, BuildPlan& plan) {
    std::map<const TensorInfo*, std::pair<size_t, size_t>> experts;
    size_t index = 0;
    for (const auto& [number, tensors] : layers) {
        for (size_t r = 0; r < kExpertRoles; ++r) experts[tensors[r]] = {index, r};
        ++index;
    }
    std::vector<const TensorInfo*> order;
    for (const TensorInfo& tensor : source.tensors()) order.push_back(&tensor);
    std::ranges::stable_sort(order, [](const TensorInfo* a, const TensorInfo* b) {
        return std::tuple(a->file, a->offset, a->bytes) <
               std::tuple(b->file, b->offset, b->bytes);
    });
    const auto skip = [&](uint32_t file, uint64_t begin, uint64_t end) {
        if (begin >= end) return;
        plan.steps.push_back({.kind = BuildStep::Kind::kSkip, .file = file, .offset = begin,
                              .bytes = end - begin});
    };
    auto next = order.begin();
    for (uint32_t file = 0; file < source.files().size(); ++file) {
        uint64_t position = 0;
        for (; next != order.end() && (*next)->file == file; ++next) {
            const TensorInfo& tensor = **next;
            skip(file, position, tensor.offset);
            BuildStep step{.kind = BuildStep::Kind::kResident, .file = file,
                           .offset = tensor.offset, .bytes = tensor.bytes, .tensor = &tensor};
            if (const auto it = experts.find(&tensor); it != experts.end()) {
                step.kind = BuildStep::Kind::kExperts;
                step.layer = it->second.first;
                step.role = it->second.second;
            } else {
                plan.resident_steps.push_back(plan.steps.size());
            }
            plan.steps.push_back(step);
            position = tensor.offset + tensor.bytes;
        }
        skip(file, position, source.files()[file].bytes);
        plan.total_bytes += source.files()[file].bytes;
    }
}

Result<void> plan_resident(const GgufFile& source, BuildPlan& plan) {
    plan.resident_metadata = source.metadata();
    std::vector<std::string> split_keys;
    for (const GgufMetadata::Entry& entry : source.metadata().entries()) {
        if (entry.key.starts_with("split.")) split_keys.push_back(entry.key);
    }
    for (const std::string& key : split_keys) plan.resident_metadata.erase(key);
    XP_TRY(const uint64_t alignment,
           source.metadata().get_uint_or("general.alignment", 32, uint64_t{1} << 20));
    // Metadata repeats that of the first file; its header also has the experts' tensor infos.
    plan.resident_bytes = source.files()[0].data_start + kPageBytes;
    for (const size_t i : plan.resident_steps) {
        const BuildStep& step = plan.steps[i];
        plan.resident_bytes += step.bytes + alignment + step.tensor->name.size() + 64;
    }
    return {};
}

Result<void> compute_keys(const GgufFile& source, BuildPlan& plan) {
    XP_TRY(const std::vector<SourceStamp> stamps, stamp_source(source));
    std::string text;
    for (size_t i = 0; i < stamps.size(); ++i) {
        text += fmt::format("file {} {} {}\n", plan.manifest.sources[i].name, stamps[i].bytes,
                            stamps[i].modified_ns);
    }
    for (const TensorInfo& tensor : source.tensors()) {
        text += fmt::format("tensor {} {} {} {} {}\n", tensor.name,
                            static_cast<uint32_t>(tensor.type), tensor.shape(), tensor.file,
                            tensor.offset);
    }
    plan.source_key = sha256(std::as_bytes(std::span(text)));
    // Everything in the manifest that is known now; digests and identity are still zero.
    const std::string layout = format_manifest(plan.manifest);
    plan.layout_key = sha256(std::as_bytes(std::span(layout)));
    return {};
}

}  // namespace

std::string expert_tensor_name(uint32_t layer, ExpertRole role) {
    return fmt::format("blk.{}.ffn_{}_exps.weight", layer, role_name(role));
}

Result<std::vector<SourceStamp>> stamp_source(const GgufFile& source) {
    std::vector<SourceStamp> stamps;
    for (const GgufFile::File& file : source.files()) {
        struct stat info;
        if (::fstat(file.fd.get(), &info) != 0) {
            return errno_error(errno, fmt::format("cannot stat {}", file.path.native()));
        }
        stamps.push_back({static_cast<uint64_t>(info.st_size),
                          info.st_mtim.tv_sec * int64_t{1'000'000'000} + info.st_mtim.tv_nsec});
    }
    return stamps;
}

Result<BuildPlan> plan_build(const GgufFile& source, const std::vector<std::string>& stripe_paths,
                             StorageLayout mxfp4_layout) {
    XP_TRY(const LayerTensors layers, find_experts(source));
    XP_CHECK(check_all_roles(source, layers));
    BuildPlan plan;
    Manifest& manifest = plan.manifest;
    auto architecture = source.metadata().get_string("general.architecture");
    if (!architecture) {
        return std::move(architecture).error().with_context(source.files()[0].path.native());
    }
    manifest.architecture = *std::move(architecture);
    const Result<std::string> name = source.metadata().get_string("general.name");
    manifest.model_name = name ? *name : source.files()[0].path.stem().native();
    if (source.files().size() > kMaxSourceFiles) {
        return make_error(ErrorCode::kLimit, "{} source files; at most {} are supported",
                          source.files().size(), kMaxSourceFiles);
    }
    for (const GgufFile::File& file : source.files()) {
        manifest.sources.push_back({file.path.filename().native(), file.bytes, {}});
    }
    for (const std::string& path : stripe_paths) manifest.stripes.push_back({path, 0});
    for (const auto& [number, tensors] : layers) {
        XP_TRY(PackLayer layer, describe_layer(number, tensors, mxfp4_layout));
        manifest.layers.push_back(std::move(layer));
    }
    XP_CHECK(lay_out(manifest));
    plan_steps(source, layers, plan);
    XP_CHECK(plan_resident(source, plan));
    XP_CHECK(compute_keys(source, plan));
    return plan;
}

}  // namespace xp
