#include "client/xpctl/names.h"

#include <vector>

#include <grp.h>
#include <pwd.h>

namespace xp::ctl {
namespace {

// Entries with many members are larger; their groups are shown by number then.
constexpr size_t kEntryBytes = 16 << 10;

}  // namespace

std::string user_name(uid_t uid) {
    std::vector<char> buffer(kEntryBytes);
    passwd entry{};
    passwd* found = nullptr;
    const int error = ::getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found);
    return error == 0 && found ? found->pw_name : std::to_string(uid);
}

std::string group_name(gid_t gid) {
    std::vector<char> buffer(kEntryBytes);
    group entry{};
    group* found = nullptr;
    const int error = ::getgrgid_r(gid, &entry, buffer.data(), buffer.size(), &found);
    return error == 0 && found ? found->gr_name : std::to_string(gid);
}

}  // namespace xp::ctl
