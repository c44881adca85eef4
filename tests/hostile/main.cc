// hostile_client NAME SOCKET [UID]: misbehaves in one way towards the daemon at SOCKET, as user UID
// if root runs it. Exit status: 0, the daemon answered as it should; 1, it did not; 2, wrong usage;
// 3, this machine does not allow the misbehaviour.
// hostile_client --list: names, what they cost, and what they do.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <unistd.h>

#include "tests/hostile/behaviours.h"
#include "tests/hostile/raw_client.h"

namespace xp::hostile {
namespace {

std::string count(int n, const char* what) {
    return n == 0 ? "" : n == kAny ? std::string("any ") + what : std::to_string(n) + " " + what;
}

template <class Function>
void for_all(Function function) {
    for (const auto& group :
         {handshake_behaviours(), ring_behaviours(), socket_behaviours(), enclosure_behaviours(),
          message_behaviours(), request_behaviours(), process_behaviours()}) {
        for (const Behaviour& behaviour : group) {
            function(behaviour);
        }
    }
}

void become(const char* uid_text) {
    const auto uid = static_cast<uid_t>(std::strtoul(uid_text, nullptr, 10));
    checked(::setresgid(uid, uid, uid), "setresgid");
    checked(::setresuid(uid, uid, uid), "setresuid");
}

int main(int argc, char** argv) {
    if (argc == 2 && std::strcmp(argv[1], "--list") == 0) {
        for_all([](const Behaviour& b) {
            const std::string cost = count(b.violations, "closed") + count(b.refusals, "refused");
            std::printf("%-32s %-12s %s\n", b.name, cost.empty() ? "nothing" : cost.c_str(),
                        b.what);
        });
        return 0;
    }
    if (argc < 3 || argc > 4) {
        std::fprintf(stderr, "usage: hostile_client NAME SOCKET [UID] | --list\n");
        return 2;
    }
    ::signal(SIGPIPE, SIG_IGN);
    if (argc == 4) {
        become(argv[3]);
    }
    int status = 2;
    for_all([&](const Behaviour& b) {
        if (std::strcmp(b.name, argv[1]) == 0) {
            status = b.run(argv[2]) ? 0 : 1;
        }
    });
    if (status == 2) {
        std::fprintf(stderr, "there is no misbehaviour %s, see --list\n", argv[1]);
    }
    return status;
}

}  // namespace

}  // namespace xp::hostile

int main(int argc, char** argv) {
    return xp::hostile::main(argc, argv);
}
