// The real daemon with the demo model, as the tests of the whole program run it, and what it holds
// of the operating system.
//
// A Daemon starts expertpackd with a configuration, socket and state directory of its own, and
// kills it at the end if it still runs. The pack of the demo model is built once per test program.
// Its counters come from its own statistics; its descriptors and mappings from /proc, so that what
// it forgot to close is seen as well.
#pragma once

#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "daemon/base/file.h"
#include "expertpack.hpp"
#include "tests/serve/process.h"

namespace xp::support {

// How long tests wait for what must happen: far longer than it takes on a loaded machine.
inline constexpr int kWaitMs = 100'000;

// The demo model's pack, built beside the test programs, where O_DIRECT works more often than
// under /tmp.
const Path& demo_pack();
bool direct_io_works();
// The demo model's prompts with the answers of an independent implementation.
nlohmann::json golden();

class Daemon {
public:
    // `keys` are further lines of the configuration: keys of the model first, then sections.
    // `program` takes the same arguments as the daemon's.
    explicit Daemon(const std::string& keys = "", std::vector<std::string> environment = {},
                    const Path& pack = demo_pack(), std::string program = {});

    void start(std::vector<std::string> environment = {});
    std::string socket() const { return (dir_ / "d.sock").string(); }
    std::string config() const { return (dir_ / "d.toml").string(); }
    scripted::Process& process() { return *process_; }

    // Connects as soon as the daemon is ready; a test failure when it never is.
    void connect(expertpack::Client& client);

private:
    scripted::TempDir dir_;
    std::string program_;
    std::unique_ptr<scripted::Process> process_;
};

struct Answer {
    std::vector<int32_t> prompt;
    std::vector<int32_t> ids;
    std::string text;
    std::string end;    // "stop", "length", or "CODE: MESSAGE"
    int terminals = 0;
};
// Submits a request and collects all of its events; a test failure unless exactly one ends it.
Answer ask(expertpack::Client& client, const expertpack::Generate& request);
expertpack::Generate greedy(const std::vector<int32_t>& prompt, size_t max_tokens);

nlohmann::json stats_of(expertpack::Client& client);

// What a process holds, counted by kind: "socket", "memfd:expertpack-req", "anon_inode:[eventfd]",
// or the path of a file; mappings are those of memfds.
struct Resources {
    std::map<std::string, int> descriptors;
    std::map<std::string, int> mappings;
    bool operator==(const Resources&) const = default;
};
Resources resources_of(pid_t pid);
std::ostream& operator<<(std::ostream& stream, const Resources& resources);

// What a daemon holds for its clients, by its own count and by that of the kernel: while nothing is
// in flight, the same before and after whatever happened.
struct Holdings {
    Resources resources;
    nlohmann::json now;  // clients, waiting and running requests, sequences, reads
    bool operator==(const Holdings&) const = default;
};
Holdings holdings_of(Daemon& daemon, expertpack::Client& watcher);
// Gives what was cancelled time to end: looks until there is what was `before`, or long enough.
Holdings settled_holdings(Daemon& daemon, expertpack::Client& watcher, const Holdings& before);
std::ostream& operator<<(std::ostream& stream, const Holdings& holdings);

}  // namespace xp::support
