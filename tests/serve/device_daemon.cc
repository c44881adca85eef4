// expertpackd with a device made of the CPU's operators. The environment says when it is lost:
// XP_LOST_AFTER, a number of matrix products.
#include <cstdio>
#include <cstdlib>

#include "daemon/service/config.h"
#include "daemon/service/daemon.h"
#include "daemon/service/logging.h"
#include "tests/support/fake_device.h"

int main(int argc, char** argv) {
    if (argc != 3) return xp::kExitUsage;
    auto config = xp::load_config(argv[2]);
    if (!config) {
        std::fprintf(stderr, "%s\n", config.error().message.c_str());
        return xp::kExitConfig;
    }
    const char* lost_after = std::getenv("XP_LOST_AFTER");
    config->host.open_device = [lost_after] {
        return xp::support::open_fake_device(lost_after ? std::strtoull(lost_after, nullptr, 10)
                                                        : UINT64_MAX);
    };
    xp::set_up_logging();
    return xp::run_daemon(*config);
}
