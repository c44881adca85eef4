// Starts a program in surroundings that take something away from it:
//   confined [OPTION...] -- PROGRAM [ARGUMENT...]
//     --deny-io-uring ERRNO   io_uring_setup fails with it (EPERM as under the sysctl
//                             kernel.io_uring_disabled=2 or a container's filter, ENOSYS as in a
//                             kernel without it)
//     --memlock BYTES         locked memory
//     --file-size BYTES       the largest file
//     --read-only DIRECTORY   a mount of its own, in a mount namespace of its own
//     --uid NUMBER            user and group, last of all
// Exit 77, before the program runs, where this system does not allow it; 2 for wrong usage.
#include <grp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tests/fault/seccomp.h"

namespace {

constexpr int kCannot = 77;
constexpr int kUsage = 2;

bool limit(int resource, const char* value) {
    const rlim_t bytes = std::strtoull(value, nullptr, 10);
    const rlimit both{bytes, bytes};
    return ::setrlimit(static_cast<__rlimit_resource>(resource), &both) == 0;
}

bool make_read_only(const char* directory) {
    return ::unshare(CLONE_NEWNS) == 0 &&
           ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           ::mount(directory, directory, nullptr, MS_BIND, nullptr) == 0 &&
           ::mount(nullptr, directory, nullptr, MS_BIND | MS_REMOUNT | MS_RDONLY, nullptr) == 0;
}

bool become(const char* number) {
    const auto id = static_cast<uid_t>(std::strtoul(number, nullptr, 10));
    return ::setgroups(0, nullptr) == 0 && ::setresgid(id, id, id) == 0 &&
           ::setresuid(id, id, id) == 0;
}

bool apply(std::string_view option, const char* value) {
    if (option == "--deny-io-uring") {
        return xp::deny_system_call(SYS_io_uring_setup,
                                    static_cast<uint32_t>(std::strtoul(value, nullptr, 10)));
    }
    if (option == "--memlock") return limit(RLIMIT_MEMLOCK, value);
    if (option == "--file-size") return limit(RLIMIT_FSIZE, value);
    if (option == "--read-only") return make_read_only(value);
    if (option == "--uid") return become(value);
    std::fprintf(stderr, "confined: unknown option %s\n", option.data());
    std::exit(kUsage);
}

}  // namespace

int main(int argc, char** argv) {
    int i = 1;
    for (; i < argc && std::string_view(argv[i]) != "--"; i += 2) {
        if (i + 1 == argc) return kUsage;
        if (!apply(argv[i], argv[i + 1])) {
            std::perror(argv[i]);
            return kCannot;
        }
    }
    if (i + 1 >= argc) return kUsage;
    ::execv(argv[i + 1], argv + i + 1);
    const int error = errno;
    std::perror(argv[i + 1]);
    return error == EACCES ? kCannot : kUsage;  // the user may not get there
}
