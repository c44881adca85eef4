// expertpackd with a device made of the CPU's operators. The environment says when it is lost,
// after XP_LOST_AFTER matrix products, and by how much its memory shrinks: XP_TAKEN_LATER.
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
    xp::support::FakeDeviceOptions device;
    if (const char* number = std::getenv("XP_LOST_AFTER")) {
        device.lost_after = std::strtoull(number, nullptr, 10);
    }
    if (const char* bytes = std::getenv("XP_TAKEN_LATER")) {
        device.taken_later = std::strtoull(bytes, nullptr, 10);
    }
    config->host.open_device = [device] { return xp::support::open_fake_device(device); };
    xp::set_up_logging();
    return xp::run_daemon(*config);
}
