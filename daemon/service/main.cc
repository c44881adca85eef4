// expertpackd --config FILE: the daemon, in the foreground.

#include <csignal>
#include <cstdio>
#include <system_error>

#include <CLI/CLI.hpp>
#include <sys/stat.h>

#include "daemon/base/file.h"
#include "daemon/service/config.h"
#include "daemon/service/daemon.h"
#include "daemon/service/logging.h"

int main(int argc, char** argv) {
    if (!xp::occupy_standard_descriptors()) return xp::kExitFailed;
    // A limit on file sizes, which counts for shared memory too, is an error to be told.
    std::signal(SIGXFSZ, SIG_IGN);
    CLI::App app{"Serves mixture-of-experts models from expert packs to local programs."};
    app.name("expertpackd");
    std::string config_path = xp::kDefaultConfigPath;
    bool check_only = false;
    app.add_option("--config", config_path, "Configuration file")
        ->check([](const std::string& text) {
            return text.empty() ? "the path is empty" : std::string();
        })
        ->capture_default_str();
    app.add_flag("--check-config", check_only, "Check the configuration file, and exit");
    app.set_version_flag("--version", std::string("expertpackd ") + XP_VERSION);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        const int code = app.exit(error);
        return code == 0 ? xp::kExitOk : xp::kExitUsage;
    }

    const auto config = xp::load_config(config_path);
    if (!config) {
        std::fprintf(stderr, "%s\n", config.error().message.c_str());
        return xp::kExitConfig;
    }
    if (check_only) {
        std::printf("%s: the configuration is valid\n", config_path.c_str());
        return xp::kExitOk;
    }
    // What the daemon creates is for its user and group, whatever started it.
    ::umask(0027);
    xp::set_up_logging();
    try {
        return xp::run_daemon(*config);
    } catch (const std::system_error& error) {  // a thread could not be started
        std::fprintf(stderr, "expertpackd: cannot start: %s\n", error.what());
        return xp::kExitFailed;
    }
}
