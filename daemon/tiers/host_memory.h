// How much of the host's memory slots and buffers may take now: what is available on the machine,
// and what the control groups of this process still allow (MemoryMax= of the unit, the memory of a
// container), each less a reserve for everything else; whichever is less. Memory that other caches
// reserved but have not filled yet counts as available.
#pragma once

#include <cstdint>
#include <string_view>

#include "daemon/base/file.h"

namespace xp {

// UINT64_MAX when nothing can be found out.
uint64_t usable_host_memory();

// The machine's part, from the text of /proc/meminfo.
uint64_t usable_host_memory(std::string_view meminfo);

// The control groups' part, from the text of /proc/self/cgroup and the directory where control
// groups are mounted; UINT64_MAX without limits. Pages that files are read through count as
// available, for the kernel takes them back.
uint64_t usable_group_memory(std::string_view groups, const Path& mounted);

// Huge pages of 2 MiB that are reserved and not used, from the text of /proc/meminfo: in bytes, and
// in none of the above.
uint64_t free_huge_pages(std::string_view meminfo);

// What memory files (daemon/base/memory_file.h) may take: usable_host_memory() and the huge pages.
uint64_t usable_file_memory();

}  // namespace xp
