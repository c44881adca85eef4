#include "daemon/tiers/host_memory.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <vector>

namespace xp {
namespace {

// A sixteenth of the machine, and at least this much, stays with the rest of the system: the page
// cache, other programs, and the daemon's own weights and sequences as they grow.
constexpr uint64_t kMinReserveBytes = uint64_t{256} << 20;
constexpr uint64_t kReserveFraction = 16;

// Of the kernel's files that are read here: /proc/meminfo and memory.stat have 1 to 2 KiB.
constexpr uint64_t kTextBytesMax = 64 << 10;

// Control groups are nested far less deeply.
constexpr int kGroupsMax = 64;

// The control groups of version 1 that have no limit say the largest multiple of a page.
constexpr uint64_t kNoLimit = uint64_t{1} << 62;

std::optional<uint64_t> number(std::string_view text) {
    uint64_t value = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
    if (parsed.ec != std::errc()) return std::nullopt;
    return value;
}

// The number behind `name`, which begins a line.
std::optional<uint64_t> field(std::string_view text, std::string_view name) {
    for (size_t at = text.find(name); at != std::string_view::npos; at = text.find(name, at + 1)) {
        if (at != 0 && text[at - 1] != '\n') continue;
        at = text.find_first_not_of(' ', at + name.size());
        return at == std::string_view::npos ? std::nullopt : number(text.substr(at));
    }
    return std::nullopt;
}

// The value of a line "Name:   123 kB" in bytes.
std::optional<uint64_t> kilobytes(std::string_view meminfo, std::string_view name) {
    const std::optional<uint64_t> kib = field(meminfo, name);
    if (!kib || *kib > UINT64_MAX / 1024) return std::nullopt;
    return *kib * 1024;
}

uint64_t less_reserve(uint64_t total, uint64_t available) {
    const uint64_t reserve = std::max(kMinReserveBytes, total / kReserveFraction);
    return available - std::min(available, reserve);
}

std::string text_of(const Path& path) {
    Result<std::string> text = read_text_file(path, kTextBytesMax);
    return text ? *std::move(text) : std::string();
}

// What one group allows. `total` is in front of the counters of a group with all below it.
uint64_t usable_of(const Path& group, const std::vector<const char*>& limits, const char* usage,
                   const std::string& total) {
    uint64_t limit = UINT64_MAX;
    for (const char* name : limits) {
        limit = std::min(limit, number(text_of(group / name)).value_or(UINT64_MAX));
    }
    const std::optional<uint64_t> used = number(text_of(group / usage));
    if (limit >= kNoLimit || !used) return UINT64_MAX;
    const std::string counters = text_of(group / "memory.stat");
    const uint64_t files = field(counters, total + "active_file ").value_or(0) +
                           field(counters, total + "inactive_file ").value_or(0);
    const uint64_t kept = *used - std::min(*used, files);
    return less_reserve(limit, limit - std::min(limit, kept));
}

// The least of a group and all above it. A container may see its own group as the mounted
// directory, under a name from outside.
uint64_t usable_below(const Path& mounted, std::string_view name, bool unified) {
    const auto usable_at = [&](const Path& group) {
        return unified
            ? usable_of(group, {"memory.max", "memory.high"}, "memory.current", "")
            : usable_of(group, {"memory.limit_in_bytes"}, "memory.usage_in_bytes", "total_");
    };
    Path group = mounted;
    uint64_t usable = usable_at(group);
    int depth = 0;
    for (const Path& part : Path(name).lexically_normal().relative_path()) {
        if (part.empty() || ++depth > kGroupsMax) break;
        group /= part;
        usable = std::min(usable, usable_at(group));
    }
    return usable;
}

}  // namespace

uint64_t usable_host_memory() {
    return std::min(usable_host_memory(text_of("/proc/meminfo")),
                    usable_group_memory(text_of("/proc/self/cgroup"), "/sys/fs/cgroup"));
}

uint64_t usable_host_memory(std::string_view meminfo) {
    const std::optional<uint64_t> total = kilobytes(meminfo, "MemTotal:");
    const std::optional<uint64_t> available = kilobytes(meminfo, "MemAvailable:");
    if (!total || !available) return UINT64_MAX;
    return less_reserve(*total, *available);
}

uint64_t usable_group_memory(std::string_view groups, const Path& mounted) {
    uint64_t usable = UINT64_MAX;
    while (!groups.empty()) {
        // "NUMBER:CONTROLLERS:NAME"; version 2 has number 0 and no controllers.
        const std::string_view line = groups.substr(0, groups.find('\n'));
        groups.remove_prefix(std::min(groups.size(), line.size() + 1));
        const size_t first = line.find(':');
        const size_t second = line.find(':', first + 1);
        if (first == std::string_view::npos || second == std::string_view::npos) continue;
        const std::string_view name = line.substr(second + 1);
        if (line.starts_with("0::")) {
            usable = std::min(usable, usable_below(mounted, name, true));
        } else if (line.substr(first + 1, second - first - 1) == "memory") {
            usable = std::min(usable, usable_below(mounted / "memory", name, false));
        }
    }
    return usable;
}

uint64_t free_huge_pages(std::string_view meminfo) {
    constexpr uint64_t kPage = uint64_t{2} << 20;
    const uint64_t free = field(meminfo, "HugePages_Free:").value_or(0);
    const uint64_t promised = field(meminfo, "HugePages_Rsvd:").value_or(0);
    if (kilobytes(meminfo, "Hugepagesize:") != kPage || free > UINT64_MAX / kPage) return 0;
    return (free - std::min(free, promised)) * kPage;
}

uint64_t usable_file_memory() {
    const uint64_t usable = usable_host_memory();
    const uint64_t huge = free_huge_pages(text_of("/proc/meminfo"));
    return usable + std::min(huge, UINT64_MAX - usable);
}

}  // namespace xp
