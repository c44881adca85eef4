// expertpackd --config FILE: the daemon, in the foreground.

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>
#include <system_error>

#include <CLI/CLI.hpp>
#include <sys/stat.h>

#include "daemon/base/file.h"
#include "daemon/service/config.h"
#include "daemon/service/daemon.h"
#include "daemon/service/logging.h"
#include "daemon/text/printable.h"

namespace xp {
namespace {

// An argument may have 128 KiB, and errors repeat it.
constexpr size_t kMaxShownBytes = 900;

// A result that nobody got is no success.
int printed(int code) {
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) {
        return code;
    }
    std::fprintf(stderr, "expertpackd: cannot write to standard output: %s\n",
                 std::strerror(errno));
    return code == kExitOk ? kExitFailed : code;
}

int run(int argc, char** argv) {
    CLI::App app{"Serves mixture-of-experts models from expert packs to local programs."};
    app.name("expertpackd");
    std::string config_path = kDefaultConfigPath;
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
    } catch (const CLI::CallForVersion& version) {
        std::printf("%s\n", version.what());
        return printed(kExitOk);
    } catch (const CLI::CallForHelp&) {
        std::fputs(app.help().c_str(), stdout);
        return printed(kExitOk);
    } catch (const CLI::ParseError& error) {
        std::fprintf(stderr, "expertpackd: %s (see expertpackd --help)\n",
                     printable_text(error.what(), kMaxShownBytes).c_str());
        return kExitUsage;
    }

    const auto config = load_config(config_path);
    if (!config) {
        std::fprintf(stderr, "%s\n", config.error().message.c_str());
        return kExitConfig;
    }
    if (check_only) {
        std::printf("%s: the configuration is valid\n",
                    printable_text(config_path, kMaxShownBytes).c_str());
        return printed(kExitOk);
    }
    // What the daemon creates is for its user and group, whatever started it.
    ::umask(0027);
    set_up_logging();
    return run_daemon(*config);
}

}  // namespace
}  // namespace xp

int main(int argc, char** argv) {
    if (!xp::occupy_standard_descriptors()) return xp::kExitFailed;
    // A limit on file sizes, which counts for shared memory too, is an error to be told.
    std::signal(SIGXFSZ, SIG_IGN);
    try {
        return xp::run(argc, argv);
    } catch (const std::system_error& error) {
        const bool thread = error.code() == std::errc::resource_unavailable_try_again;
        std::fprintf(stderr, "expertpackd: cannot start%s: %s%s\n", thread ? " a thread" : "",
                     error.what(),
                     thread ? " (limits on memory and tasks: ulimit -v and -u, MemoryMax= and "
                              "TasksMax= of the unit)" : "");
    } catch (const std::bad_alloc&) {
        // Nothing that would need memory itself.
        std::fputs("expertpackd: cannot start: there is not enough memory; raise the limit "
                   "(ulimit -v, MemoryMax= of the unit) or lower [cache] experts\n", stderr);
    }
    return xp::kExitFailed;
}
