#include "client/xpctl/stats_view.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "client/xpctl/output.h"
#include "client/xpctl/table.h"

namespace xp::ctl {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kMissing[] = "-";
// Terminals of 80 columns show the lines of counters unbroken.
constexpr size_t kLineWidth = 79;
constexpr size_t kLabelWidth = 10;

const Json* find(const Json& object, const char* key) {
    if (!object.is_object()) return nullptr;
    const auto member = object.find(key);
    return member == object.end() ? nullptr : &*member;
}

std::optional<double> number_at(const Json& object, const char* key) {
    const Json* value = find(object, key);
    return value && value->is_number() ? std::optional(value->get<double>()) : std::nullopt;
}

std::string dump(const Json& value) {
    return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// A value as its name says it: sizes and times with their units.
std::string field(std::string_view key, const Json& value) {
    if (value.is_null()) return kMissing;
    if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
    if (value.is_string()) return value.get<std::string>();
    if (value.is_number()) {
        if (key.ends_with("bytes")) return format_bytes(value.get<double>());
        if (key.ends_with("_us")) return format_duration(value.get<double>() / 1e6);
        if (key.ends_with("_ms")) return format_duration(value.get<double>() / 1e3);
        if (value.is_number_float()) return fmt::format("{:.1f}", value.get<double>());
    }
    return dump(value);
}

std::string field(const Json& object, const char* key) {
    const Json* value = find(object, key);
    return value ? field(key, *value) : kMissing;
}

// "read_bytes" becomes "read", "half_open" becomes "half open": the unit is in the value.
std::string label(std::string key) {
    for (const char* unit : {"_bytes", "_us", "_ms"}) {
        if (key.ends_with(unit)) key.resize(key.size() - std::string_view(unit).size());
    }
    std::replace(key.begin(), key.end(), '_', ' ');
    return key;
}

// One group of counters on a line, or several when it is long.
std::string counter_lines(const std::string& name, const Json& value) {
    std::vector<std::string> parts;
    if (value.is_object()) {
        for (const auto& [key, member] : value.items()) {
            if (member.is_string() && member.get_ref<const std::string&>().empty()) continue;
            parts.push_back(one_line(label(key) + " " + field(key, member)));
        }
    } else {
        parts.push_back(one_line(field(name, value)));
    }
    std::string line = one_line(label(name));
    line.resize(std::max(line.size() + 1, kLabelWidth), ' ');
    std::string out;
    for (size_t i = 0; i < parts.size(); ++i) {
        const std::string part = parts[i] + (i + 1 < parts.size() ? ", " : "");
        if (i > 0 && line.size() + part.size() > kLineWidth) {
            line.erase(line.find_last_not_of(' ') + 1);
            out += line + "\n";
            line.assign(kLabelWidth, ' ');
        }
        line += part;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    return out + line + "\n";
}

std::string heading(const Json& stats) {
    const std::optional<double> uptime_ms = number_at(stats, "uptime_ms");
    return one_line(fmt::format("expertpackd {}, backend {}, up {}", field(stats, "version"),
                                field(stats, "backend"),
                                uptime_ms ? format_duration(*uptime_ms / 1e3) : kMissing)) + "\n";
}

std::string hit_rate(const Json& cache) {
    const std::optional<double> hits = number_at(cache, "hits");
    const std::optional<double> misses = number_at(cache, "misses");
    if (!hits || !misses || *hits + *misses <= 0) return kMissing;
    return fmt::format("{:.1f} %", 100 * *hits / (*hits + *misses));
}

std::string models_table(const Json& models) {
    Table table({"model", "architecture", ">layers", ">experts", ">top-k", ">context",
                 ">sequences", ">weights"});
    for (const Json& model : models) {
        table.add_row({field(model, "name"), field(model, "architecture"), field(model, "layers"),
                       field(model, "experts"), field(model, "top_k"), field(model, "context"),
                       field(model, "sequences"), field(model, "weight_bytes")});
    }
    return table.text();
}

std::string cache_tables(const Json& models) {
    Table use({"cache", "policy", ">slots", ">used", ">of experts", ">slot size", ">hits",
               ">misses", ">hit rate", ">evictions"});
    Table work({"cache", ">read", ">waves", ">stalls", ">stalled for", ">prefetches", ">verified",
                ">verify failures", ">I/O errors"});
    Table ram({"RAM tier", ">slots", ">used", ">slot size", ">hits", ">evictions", ">to device",
               ">from device"});
    size_t caches = 0, ram_tiers = 0;
    for (const Json& model : models) {
        const Json* cache = find(model, "cache");
        if (!cache || !cache->is_object()) continue;
        ++caches;
        use.add_row({field(model, "name"), field(*cache, "policy"), field(*cache, "slots"),
                     field(*cache, "slots_used"), field(*cache, "objects"),
                     field(*cache, "slot_bytes"), field(*cache, "hits"), field(*cache, "misses"),
                     hit_rate(*cache), field(*cache, "evictions")});
        work.add_row({field(model, "name"), field(*cache, "read_bytes"), field(*cache, "waves"),
                      field(*cache, "stalls"), field(*cache, "stall_us"),
                      field(*cache, "prefetches"), field(*cache, "verified"),
                      field(*cache, "verify_failures"), field(*cache, "io_errors")});
        if (number_at(*cache, "ram_slots").value_or(0) == 0) continue;
        ++ram_tiers;
        ram.add_row({field(model, "name"), field(*cache, "ram_slots"),
                     field(*cache, "ram_slots_used"), field(*cache, "ram_slot_bytes"),
                     field(*cache, "ram_hits"), field(*cache, "ram_evictions"),
                     field(*cache, "h2d_bytes"), field(*cache, "d2h_bytes")});
    }
    if (caches == 0) return "";
    return "\n" + use.text() + "\n" + work.text() +
           (ram_tiers == 0 ? std::string() : "\n" + ram.text());
}

}  // namespace

std::optional<std::string> stats_tables(std::string_view json, std::string_view rates) {
    const Json stats = Json::parse(json, nullptr, false);
    if (!stats.is_object()) return std::nullopt;
    std::string out = heading(stats);
    for (const char* name = "rates"; !rates.empty(); name = "") {
        const size_t end = std::min(rates.find('\n'), rates.size());
        out += fmt::format("{:{}}{}\n", name, kLabelWidth, rates.substr(0, end));
        rates.remove_prefix(std::min(end + 1, rates.size()));
    }
    const Json* models = find(stats, "models");
    if (models && models->is_array() && !models->empty()) {
        out += "\n" + models_table(*models) + cache_tables(*models);
    }
    std::string counters;
    for (const auto& [key, value] : stats.items()) {
        if (key == "version" || key == "backend" || key == "uptime_ms" || value.is_null()) continue;
        if (key == "models" && value.is_array()) continue;
        counters += counter_lines(key, value);
    }
    if (!counters.empty()) out += "\n" + counters;
    return out;
}

}  // namespace xp::ctl
