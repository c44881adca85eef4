// How much RAM slots may take on this machine now.
#pragma once

#include <cstdint>
#include <string_view>

namespace xp {

// MemAvailable of /proc/meminfo less a reserve for everything else; UINT64_MAX when that cannot be
// read. Memory that other caches reserved but have not filled yet counts as available, and limits
// of a control group are not seen: dividing memory between models is up to the configuration.
uint64_t usable_host_memory();

// The same from the text of /proc/meminfo.
uint64_t usable_host_memory(std::string_view meminfo);

}  // namespace xp
