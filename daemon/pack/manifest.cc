// manifest.json as text. The parser takes facts (sources, layers, stripe paths, digests) and
// recomputes all that follows from them; a number that differs from what it must be is kCorrupt.

#include <set>

#include <nlohmann/json.hpp>

#include "daemon/pack/format.h"

namespace xp {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormatName = "expertpackd expert pack";
// The manifest is four deep; anything deeper is not one.
constexpr int kMaxDepth = 8;
constexpr size_t kMaxNameBytes = 1024;
constexpr size_t kMaxPathBytes = 4095;

// The JSON library's filter hook, used to refuse what it would let pass: repeated keys (the last
// would win) and nesting without end.
class StrictFilter {
public:
    bool operator()(int depth, Json::parse_event_t event, Json& value) {
        if (depth > kMaxDepth) fault_ = "nested too deeply";
        if (!fault_.empty()) return false;
        if (event == Json::parse_event_t::object_start) keys_.emplace_back();
        if (event == Json::parse_event_t::object_end && !keys_.empty()) keys_.pop_back();
        if (event == Json::parse_event_t::key && !keys_.empty() &&
            !keys_.back().insert(value.get<std::string>()).second) {
            fault_ = fmt::format("key \"{}\" appears twice", value.get<std::string>());
        }
        return fault_.empty();
    }
    const std::string& fault() const { return fault_; }

private:
    std::vector<std::set<std::string>> keys_;
    std::string fault_;
};

// One JSON object with its name for messages ("layers[3].roles.up").
class Fields {
public:
    static Result<Fields> of(const Json& json, std::string name, const Path& path) {
        if (!json.is_object()) {
            return make_error(ErrorCode::kCorrupt, "{}: {} is not an object", path.native(),
                              name.empty() ? "the whole text" : name);
        }
        return Fields(json, std::move(name), path);
    }

    std::string name_of(std::string_view key) const {
        return name_.empty() ? std::string(key) : fmt::format("{}.{}", name_, key);
    }

    template <class... Args>
    Error fault(std::string_view key, fmt::format_string<Args...> format, Args&&... args) const {
        return make_error(ErrorCode::kCorrupt, "{}: {} {}", path_->native(), name_of(key),
                          fmt::format(format, std::forward<Args>(args)...));
    }

    Result<const Json*> value(const char* key) const {
        const auto it = json_->find(key);
        if (it == json_->end()) return fault(key, "is missing");
        return &*it;
    }

    Result<uint64_t> number(const char* key, uint64_t max) const {
        XP_TRY(const Json* json, value(key));
        if (!json->is_number_unsigned()) return fault(key, "is not a whole number");
        const uint64_t number = json->get<uint64_t>();
        if (number > max) return fault(key, "is {}, above the limit {}", number, max);
        return number;
    }

    Result<std::string> text(const char* key, size_t max_bytes) const {
        XP_TRY(const Json* json, value(key));
        if (!json->is_string()) return fault(key, "is not a string");
        std::string text = json->get<std::string>();
        if (text.size() > max_bytes) return fault(key, "is longer than {} bytes", max_bytes);
        if (text.find('\0') != std::string::npos) return fault(key, "contains a zero byte");
        return text;
    }

    Result<Sha256Digest> digest(const char* key) const {
        XP_TRY(const std::string hex, text(key, kMaxNameBytes));
        const std::optional<Sha256Digest> digest = digest_from_hex(hex);
        if (!digest) return fault(key, "is not a SHA-256 in 64 lower-case hexadecimal digits");
        return *digest;
    }

    Result<const Json*> list(const char* key, size_t max) const {
        XP_TRY(const Json* json, value(key));
        if (!json->is_array()) return fault(key, "is not a list");
        if (json->empty() || json->size() > max) {
            return fault(key, "has {} elements; 1 to {} are possible", json->size(), max);
        }
        return json;
    }

    Result<Fields> object(const char* key) const {
        XP_TRY(const Json* json, value(key));
        return of(*json, name_of(key), *path_);
    }

    Result<Fields> element(const Json& list, const char* key, size_t i) const {
        return of(list[i], fmt::format("{}[{}]", name_of(key), i), *path_);
    }

private:
    Fields(const Json& json, std::string name, const Path& path)
        : json_(&json), name_(std::move(name)), path_(&path) {}

    const Json* json_;
    std::string name_;
    const Path* path_;
};

Result<RoleLayout> parse_role(const Fields& fields) {
    RoleLayout role;
    XP_TRY(const std::string type, fields.text("type", kMaxNameBytes));
    XP_TRY(const std::string layout, fields.text("layout", kMaxNameBytes));
    const auto known_type = type_from_name(type);
    if (!known_type) return fields.fault("type", "\"{}\" is not a known tensor type", type);
    const auto known_layout = layout_from_name(layout);
    if (!known_layout) {
        return fields.fault("layout", "\"{}\" is not a storage layout this build knows", layout);
    }
    role.type = *known_type;
    role.layout = *known_layout;
    XP_TRY(role.rows, fields.number("rows", kMaxDimension));
    XP_TRY(role.cols, fields.number("cols", kMaxDimension));
    XP_TRY(role.offset, fields.number("offset", kMaxObjectBytes));
    XP_TRY(role.bytes, fields.number("bytes", kMaxObjectBytes));
    return role;
}

Result<PackLayer> parse_layer(const Fields& fields) {
    PackLayer layer;
    XP_TRY(const uint64_t number, fields.number("layer", kMaxLayerNumber));
    XP_TRY(const uint64_t n_experts, fields.number("experts", kMaxExperts));
    layer.layer = static_cast<uint32_t>(number);
    layer.n_experts = static_cast<uint32_t>(n_experts);
    XP_TRY(layer.object_bytes, fields.number("object_bytes", kMaxObjectBytes));
    XP_TRY(layer.stride, fields.number("stride", kMaxObjectBytes));
    XP_TRY(layer.first_object, fields.number("first_object", kMaxObjects));
    XP_TRY(const Json* base, fields.list("base", kMaxStripes));
    for (const Json& offset : *base) {
        if (!offset.is_number_unsigned()) return fields.fault("base", "is not a list of offsets");
        layer.base.push_back(offset.get<uint64_t>());
    }
    XP_TRY(const Fields roles, fields.object("roles"));
    for (size_t r = 0; r < kExpertRoles; ++r) {
        XP_TRY(const Fields role, roles.object(role_name(static_cast<ExpertRole>(r))));
        XP_TRY(layer.roles[r], parse_role(role));
    }
    return layer;
}

Result<void> parse_sources(const Fields& top, Manifest& manifest) {
    XP_TRY(const Json* sources, top.list("sources", kMaxSourceFiles));
    for (size_t i = 0; i < sources->size(); ++i) {
        XP_TRY(const Fields fields, top.element(*sources, "sources", i));
        PackSourceFile& source = manifest.sources.emplace_back();
        XP_TRY(source.name, fields.text("name", kMaxPathBytes));
        XP_TRY(source.bytes, fields.number("bytes", INT64_MAX));
        XP_TRY(source.digest, fields.digest("sha256"));
        if (source.name.empty() || source.name.find('/') != std::string::npos) {
            return fields.fault("name", "must be a file name without directories");
        }
    }
    return {};
}

// A stripe inside the pack is a plain name; one on another drive an absolute path. Anything else
// ("../x", "a/b") could reach files that are not this pack's.
Result<void> parse_stripes(const Fields& top, Manifest& manifest) {
    XP_TRY(const Json* stripes, top.list("stripes", kMaxStripes));
    std::set<std::string> seen;
    for (size_t i = 0; i < stripes->size(); ++i) {
        XP_TRY(const Fields fields, top.element(*stripes, "stripes", i));
        PackStripe& stripe = manifest.stripes.emplace_back();
        XP_TRY(stripe.path, fields.text("path", kMaxPathBytes));
        XP_TRY(stripe.bytes, fields.number("bytes", INT64_MAX));
        const Path path(stripe.path);
        const bool plain = !stripe.path.empty() && stripe.path != "." && stripe.path != ".." &&
                           stripe.path.find('/') == std::string::npos;
        const bool absolute = path.is_absolute() && path.has_filename() &&
                              path.lexically_normal().native() == stripe.path;
        if (!plain && !absolute) {
            return fields.fault("path", "\"{}\" is neither a plain file name nor a clean absolute "
                                "path", stripe.path);
        }
        if (!seen.insert(stripe.path).second) {
            return fields.fault("path", "\"{}\" names the same file as an earlier stripe",
                                stripe.path);
        }
    }
    return {};
}

Result<void> expect(const Path& path, const std::string& name, uint64_t found, uint64_t must) {
    if (found == must) return {};
    return make_error(ErrorCode::kCorrupt, "{}: {} is {}, but must be {}", path.native(), name,
                      found, must);
}

// Everything derived must be what the layout rules give.
Result<void> check_derived(const Manifest& manifest, const Path& path) {
    Manifest expected = manifest;
    if (auto laid_out = lay_out(expected); !laid_out) {
        return make_error(ErrorCode::kCorrupt, "{}: {}", path.native(), laid_out.error().message);
    }
    XP_CHECK(expect(path, "objects", manifest.n_objects, expected.n_objects));
    for (size_t s = 0; s < manifest.stripes.size(); ++s) {
        XP_CHECK(expect(path, fmt::format("stripes[{}].bytes", s), manifest.stripes[s].bytes,
                        expected.stripes[s].bytes));
    }
    for (size_t i = 0; i < manifest.layers.size(); ++i) {
        const PackLayer& found = manifest.layers[i];
        const PackLayer& must = expected.layers[i];
        const std::string name = fmt::format("layers[{}]", i);
        XP_CHECK(expect(path, name + ".object_bytes", found.object_bytes, must.object_bytes));
        XP_CHECK(expect(path, name + ".stride", found.stride, must.stride));
        XP_CHECK(expect(path, name + ".first_object", found.first_object, must.first_object));
        XP_CHECK(expect(path, name + ".base's length", found.base.size(), must.base.size()));
        for (size_t s = 0; s < must.base.size(); ++s) {
            XP_CHECK(expect(path, fmt::format("{}.base[{}]", name, s), found.base[s],
                            must.base[s]));
        }
        for (size_t r = 0; r < kExpertRoles; ++r) {
            const std::string role =
                fmt::format("{}.roles.{}", name, role_name(static_cast<ExpertRole>(r)));
            XP_CHECK(expect(path, role + ".offset", found.roles[r].offset, must.roles[r].offset));
            XP_CHECK(expect(path, role + ".bytes", found.roles[r].bytes, must.roles[r].bytes));
        }
    }
    if (manifest.identity != compute_identity(manifest)) {
        return make_error(ErrorCode::kCorrupt,
                          "{}: identity does not follow from the sources and layers: the manifest "
                          "was changed after the build", path.native());
    }
    return {};
}

Result<Manifest> parse_document(const Json& json, const Path& path) {
    XP_TRY(const Fields top, Fields::of(json, "", path));
    XP_TRY(const std::string format, top.text("format", kMaxNameBytes));
    if (format != kFormatName) return top.fault("format", "\"{}\" is not an expert pack", format);
    XP_TRY(const uint64_t version, top.number("version", UINT32_MAX));
    if (version != kPackVersion) {
        return make_error(ErrorCode::kUnsupported, "{}: version {}; this build reads version {}",
                          path.native(), version, kPackVersion);
    }
    XP_TRY(const Json* complete, top.value("complete"));
    if (!complete->is_boolean() || !complete->get<bool>()) {
        return top.fault("complete", "is not true: the pack was not finished");
    }
    Manifest manifest;
    XP_TRY(manifest.architecture, top.text("architecture", kMaxNameBytes));
    if (manifest.architecture.empty()) return top.fault("architecture", "is empty");
    XP_TRY(manifest.model_name, top.text("model_name", kMaxNameBytes));
    XP_TRY(manifest.identity, top.digest("identity"));
    XP_TRY(manifest.n_objects, top.number("objects", kMaxObjects));
    XP_TRY(manifest.resident_digest, top.digest("resident_sha256"));
    XP_TRY(manifest.index_digest, top.digest("index_sha256"));
    XP_CHECK(parse_sources(top, manifest));
    XP_CHECK(parse_stripes(top, manifest));
    XP_TRY(const Json* layers, top.list("layers", kMaxLayers));
    for (size_t i = 0; i < layers->size(); ++i) {
        XP_TRY(const Fields fields, top.element(*layers, "layers", i));
        XP_TRY(PackLayer layer, parse_layer(fields));
        manifest.layers.push_back(std::move(layer));
    }
    XP_CHECK(check_derived(manifest, path));
    return manifest;
}

Json role_to_json(const RoleLayout& role) {
    return Json{{"type", traits_of(role.type).name}, {"layout", layout_name(role.layout)},
                {"rows", role.rows}, {"cols", role.cols},
                {"offset", role.offset}, {"bytes", role.bytes}};
}

}  // namespace

Result<Manifest> parse_manifest(std::string_view text, const Path& path) {
    if (text.size() > kMaxManifestBytes) {
        return make_error(ErrorCode::kCorrupt, "{}: {} bytes, above the limit {}", path.native(),
                          text.size(), kMaxManifestBytes);
    }
    try {
        StrictFilter filter;
        const Json json = Json::parse(text, std::ref(filter), /*allow_exceptions=*/true);
        if (!filter.fault().empty()) {
            return make_error(ErrorCode::kCorrupt, "{}: {}", path.native(), filter.fault());
        }
        return parse_document(json, path);
    } catch (const std::exception& exception) {
        return make_error(ErrorCode::kCorrupt, "{}: not valid JSON: {}", path.native(),
                          exception.what());
    }
}

bool is_utf8(std::string_view text) {
    try {
        (void)Json(text).dump();
        return true;
    } catch (const std::exception&) {
        return false;
    }
}

std::string format_manifest(const Manifest& manifest) {
    Json json;
    json["format"] = kFormatName;
    json["version"] = kPackVersion;
    json["complete"] = true;
    json["architecture"] = manifest.architecture;
    json["model_name"] = manifest.model_name;
    json["identity"] = to_hex(manifest.identity);
    json["objects"] = manifest.n_objects;
    json["resident_sha256"] = to_hex(manifest.resident_digest);
    json["index_sha256"] = to_hex(manifest.index_digest);
    json["sources"] = Json::array();
    for (const PackSourceFile& source : manifest.sources) {
        json["sources"].push_back({{"name", source.name}, {"bytes", source.bytes},
                                   {"sha256", to_hex(source.digest)}});
    }
    json["stripes"] = Json::array();
    for (const PackStripe& stripe : manifest.stripes) {
        json["stripes"].push_back({{"path", stripe.path}, {"bytes", stripe.bytes}});
    }
    json["layers"] = Json::array();
    for (const PackLayer& layer : manifest.layers) {
        Json entry{{"layer", layer.layer}, {"experts", layer.n_experts},
                   {"object_bytes", layer.object_bytes}, {"stride", layer.stride},
                   {"first_object", layer.first_object}, {"base", layer.base}};
        for (size_t r = 0; r < kExpertRoles; ++r) {
            entry["roles"][role_name(static_cast<ExpertRole>(r))] = role_to_json(layer.roles[r]);
        }
        json["layers"].push_back(std::move(entry));
    }
    // A model's name may hold any bytes; a manifest holds UTF-8.
    return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace xp
