#include <cstdio>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "daemon/base/size.h"
#include "daemon/pack/pack.h"
#include "tools/common/terminal_text.h"
#include "tools/pack/command.h"

namespace xp {

namespace {

std::string role_text(const RoleLayout& role) {
    std::string text = fmt::format("{} {}x{}", traits_of(role.type).name, role.rows, role.cols);
    if (role.layout != StorageLayout::kGgml) text += fmt::format(" {}", layout_name(role.layout));
    return text;
}

bool alike(const PackLayer& a, const PackLayer& b) {
    if (a.n_experts != b.n_experts) return false;
    for (size_t r = 0; r < kExpertRoles; ++r) {
        if (role_text(a.roles[r]) != role_text(b.roles[r])) return false;
    }
    return true;
}

// Neighbouring layers of the same kind share a line: real models have up to 92 of them.
void print_layers(const Manifest& manifest) {
    fmt::print("{:>9}  {:>7}  {:>10}  {:<26}{:<26}{}\n", "layers", "experts", "object", "gate",
               "up", "down");
    const auto& layers = manifest.layers;
    for (size_t first = 0; first < layers.size();) {
        size_t last = first;
        while (last + 1 < layers.size() && layers[last + 1].layer == layers[last].layer + 1 &&
               alike(layers[first], layers[last + 1])) {
            ++last;
        }
        const std::string numbers =
            first == last ? std::to_string(layers[first].layer)
                          : fmt::format("{}-{}", layers[first].layer, layers[last].layer);
        fmt::print("{:>9}  {:>7}  {:>10}  {:<26}{:<26}{}\n", numbers, layers[first].n_experts,
                   format_size(layers[first].stride), role_text(layers[first].roles[0]),
                   role_text(layers[first].roles[1]), role_text(layers[first].roles[2]));
        first = last + 1;
    }
}

}  // namespace

int run_info(const InfoCommand& command) {
    const auto manifest = read_manifest(command.pack);
    if (!manifest) return report_error(manifest.error());
    if (command.json) {
        fmt::print("{}", format_manifest(*manifest));
        return kExitOk;
    }
    fmt::print("model         {} ({})\n", terminal_text(manifest->model_name),
               terminal_text(manifest->architecture));
    fmt::print("identity      {}\n", to_hex(manifest->identity));
    uint64_t expert_bytes = 0;
    for (const PackLayer& layer : manifest->layers) expert_bytes += layer.n_experts * layer.stride;
    fmt::print("experts       {} in {} layers, {}\n", manifest->n_objects, manifest->layers.size(),
               format_size(expert_bytes));
    for (const PackStripe& stripe : manifest->stripes) {
        fmt::print("stripe        {} ({})\n", terminal_text(stripe.path),
                   format_size(stripe.bytes));
    }
    for (const PackSourceFile& source : manifest->sources) {
        fmt::print("source        {} ({}, sha256 {})\n", terminal_text(source.name),
                   format_size(source.bytes), to_hex(source.digest));
    }
    fmt::print("\n");
    print_layers(*manifest);
    return kExitOk;
}

}  // namespace xp
