#include "daemon/tiers/host_memory.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "daemon/base/file.h"

namespace xp {
namespace {

// A sixteenth of the machine, and at least this much, stays with the rest of the system: the page
// cache, other programs, and the daemon's own weights and sequences as they grow.
constexpr uint64_t kMinReserveBytes = uint64_t{256} << 20;
constexpr uint64_t kReserveFraction = 16;

// The value of a line "Name:   123 kB" in bytes.
std::optional<uint64_t> field(std::string_view meminfo, std::string_view name) {
    size_t at = meminfo.find(name);
    if (at == std::string_view::npos) return std::nullopt;
    at = meminfo.find_first_not_of(' ', at + name.size());
    if (at == std::string_view::npos) return std::nullopt;
    uint64_t kib = 0;
    const auto parsed = std::from_chars(meminfo.data() + at, meminfo.data() + meminfo.size(), kib);
    if (parsed.ec != std::errc() || kib > UINT64_MAX / 1024) return std::nullopt;
    return kib * 1024;
}

}  // namespace

uint64_t usable_host_memory() {
    constexpr uint64_t kMeminfoBytesMax = 64 << 10;  // about 1.5 KiB on any kernel
    const Result<std::string> meminfo = read_text_file("/proc/meminfo", kMeminfoBytesMax);
    return meminfo ? usable_host_memory(*meminfo) : UINT64_MAX;
}

uint64_t usable_host_memory(std::string_view meminfo) {
    const std::optional<uint64_t> total = field(meminfo, "MemTotal:");
    const std::optional<uint64_t> available = field(meminfo, "MemAvailable:");
    if (!total || !available) return UINT64_MAX;
    const uint64_t reserve = std::max(kMinReserveBytes, *total / kReserveFraction);
    return *available - std::min(*available, reserve);
}

}  // namespace xp
