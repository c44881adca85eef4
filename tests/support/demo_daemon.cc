#include "tests/support/demo_daemon.h"

#include <fstream>

#include <fcntl.h>
#include <gtest/gtest.h>

#include "daemon/pack/build.h"

namespace xp::support {
namespace {

// What a link of /proc/PID/fd points to, without what is different every time: "socket:[4711]",
// "anon_inode:[eventfd]", "/memfd:expertpack-req (deleted)", or a path.
std::string kind_of(const std::string& target) {
    if (target.starts_with("/memfd:")) {
        return target.substr(1, target.find(' ') - 1);
    }
    if (target.starts_with("socket:") || target.starts_with("pipe:")) {
        return target.substr(0, target.find(':'));
    }
    return target;
}

}  // namespace

const Path& demo_pack() {
    static const scripted::TempDir dir(Path(XP_TEST_WORK));
    static const Path pack = [] {
        const auto built =
            build_pack(Path(XP_MODELS) / "xp-demo.gguf", dir / "demo.xpack", BuildOptions());
        EXPECT_TRUE(built.ok()) << built.error().message;
        return dir / "demo.xpack";
    }();
    return pack;
}

bool direct_io_works() {
    for (const auto& file : std::filesystem::directory_iterator(demo_pack())) {
        if (file.path().extension() == ".xpk") {
            return UniqueFd(::open(file.path().c_str(), O_RDONLY | O_DIRECT)).get() >= 0;
        }
    }
    return false;
}

nlohmann::json golden() {
    std::ifstream file(Path(XP_TEST_DATA) / "xp-demo" / "golden.json");
    return nlohmann::json::parse(file);
}

Daemon::Daemon(const std::string& keys, std::vector<std::string> environment, const Path& pack,
               std::string program)
    : program_(program.empty() ? XP_DAEMON : std::move(program)) {
    std::ofstream(config()) << "[daemon]\nsocket = \"" << socket() << "\"\nstate_dir = \""
                            << (dir_ / "state").string() << "\"\n[[model]]\nname = \"demo\"\n"
                            << "pack = \"" << pack.string() << "\"\n" << keys
                            << (keys.find("[io]") == std::string::npos ? "\n[io]" : "")
                            << "\ndirect = " << (direct_io_works() ? "true" : "false") << "\n";
    start(std::move(environment));
}

void Daemon::start(std::vector<std::string> environment) {
    process_ = std::make_unique<scripted::Process>(
        std::vector<std::string>{program_, "--config", config()}, environment);
}

void Daemon::connect(expertpack::Client& client) {
    for (int n = 0; n < 5000 && process_->running(); ++n) {
        if (client.connect(socket().c_str(), kWaitMs) == XP_OK) {
            return;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    FAIL() << "no daemon: " << client.error() << "\n" << process_->output();
}

Answer ask(expertpack::Client& client, const expertpack::Generate& request) {
    Answer answer;
    uint64_t id = 0;
    EXPECT_EQ(client.submit(request, &id, kWaitMs), XP_OK) << client.error();
    const xp_event* event = nullptr;
    while (client.next_event(&event, kWaitMs) == XP_OK) {
        switch (event->type) {
            case XP_EVENT_ACCEPTED:
                answer.prompt.assign(event->prompt_tokens,
                                     event->prompt_tokens + event->prompt_token_count);
                break;
            case XP_EVENT_TOKENS:
                answer.ids.insert(answer.ids.end(), event->token_ids,
                                  event->token_ids + event->token_count);
                answer.text.append(event->text, event->text_length);
                break;
            case XP_EVENT_DONE:
                answer.end = event->finish_reason == XP_FINISH_STOP ? "stop" : "length";
                break;
            case XP_EVENT_CANCELLED:
            case XP_EVENT_FAILED:
                answer.end = std::string(event->code) + ": " + event->message;
                break;
            default: break;
        }
        answer.terminals += event->terminal;
    }
    EXPECT_EQ(answer.terminals, 1);
    return answer;
}

expertpack::Generate greedy(const std::vector<int32_t>& prompt, size_t max_tokens) {
    expertpack::Generate request;
    request.tokens(prompt).temperature(0).max_tokens(static_cast<uint32_t>(max_tokens));
    return request;
}

nlohmann::json stats_of(expertpack::Client& client) {
    const char* json = nullptr;
    EXPECT_EQ(client.stats_json(&json, kWaitMs), XP_OK) << client.error();
    return json ? nlohmann::json::parse(json) : nlohmann::json();
}

Resources resources_of(pid_t pid) {
    Resources resources;
    const Path proc = Path("/proc") / std::to_string(pid);
    std::error_code gone;
    for (const auto& entry : std::filesystem::directory_iterator(proc / "fd", gone)) {
        const Path target = std::filesystem::read_symlink(entry.path(), gone);
        if (!gone) {
            ++resources.descriptors[kind_of(target.string())];
        }
    }
    std::ifstream maps(proc / "maps");
    for (std::string line; std::getline(maps, line);) {
        if (const size_t at = line.find("/memfd:"); at != std::string::npos) {
            ++resources.mappings[kind_of(line.substr(at))];
        }
    }
    return resources;
}

std::ostream& operator<<(std::ostream& stream, const Resources& resources) {
    for (const auto& [kind, count] : resources.descriptors) {
        stream << count << " × " << kind << "; ";
    }
    for (const auto& [kind, count] : resources.mappings) {
        stream << "mapped " << count << " × " << kind << "; ";
    }
    return stream;
}

Holdings holdings_of(Daemon& daemon, expertpack::Client& watcher) {
    const auto stats = stats_of(watcher);
    Holdings holdings{resources_of(daemon.process().pid()), {}};
    for (const char* member : {"connected", "half_open", "waiting_replies"}) {
        holdings.now[member] = stats.at("clients").at(member);
    }
    for (const char* member : {"waiting", "running", "parked"}) {
        holdings.now[member] = stats.at("queue").at(member);
    }
    holdings.now["sequences"] = stats.at("models").at(0).at("sequences");
    holdings.now["reads"] = stats.at("io").at("in_flight");
    return holdings;
}

Holdings settled_holdings(Daemon& daemon, expertpack::Client& watcher, const Holdings& before) {
    Holdings now = holdings_of(daemon, watcher);
    for (int n = 0; n < 2000 && !(now == before); ++n) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        now = holdings_of(daemon, watcher);
    }
    return now;
}

std::ostream& operator<<(std::ostream& stream, const Holdings& holdings) {
    return stream << holdings.resources << holdings.now.dump();
}

}  // namespace xp::support
