// Users and groups by name, or by number where the system knows no name.
#pragma once

#include <string>

#include <sys/types.h>

namespace xp::ctl {

std::string user_name(uid_t uid);
std::string group_name(gid_t gid);

}  // namespace xp::ctl
