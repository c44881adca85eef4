// The real daemon where something is taken away from it: io_uring, locked memory, root, a writable
// state directory. It gives the same tokens, or says in one line what is missing.
#include <fstream>

#include <gmock/gmock.h>

#include "tests/support/demo_daemon.h"

namespace xp::support {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using scripted::Process;
using scripted::TempDir;

constexpr int kCannot = 77;
const std::string kNobody = "65534";

// expertpackd with the demo model, started through `confined`.
class ConfinedDaemon {
public:
    explicit ConfinedDaemon(const std::vector<std::string>& options) {
        // Also others than root must get to the socket and to the pack.
        const auto open_to_all = std::filesystem::perms::all;
        std::filesystem::permissions(dir_ / "", open_to_all);
        std::filesystem::permissions(demo_pack().parent_path(), open_to_all);
        std::filesystem::create_directory(dir_ / "state");
        std::filesystem::permissions(dir_ / "state", open_to_all);
        std::ofstream(dir_ / "d.toml")
            << "[daemon]\nsocket = \"" << socket() << "\"\nstate_dir = \"" << state().string()
            << "\"\n[[model]]\nname = \"demo\"\npack = \"" << demo_pack().string()
            << "\"\n[io]\ndirect = " << (direct_io_works() ? "true" : "false")
            << "\nverify = \"read\"\n";
        std::vector<std::string> arguments = {XP_CONFINED};
        arguments.insert(arguments.end(), options.begin(), options.end());
        // What the options call STATE is this daemon's.
        std::replace(arguments.begin(), arguments.end(), std::string("STATE"), state().string());
        const std::string config = (dir_ / "d.toml").string();
        for (const std::string& argument : {std::string("--"), std::string(XP_DAEMON),
                                            std::string("--config"), config}) {
            arguments.push_back(argument);
        }
        process_ = std::make_unique<Process>(std::move(arguments));
    }

    std::string socket() const { return (dir_ / "d.sock").string(); }
    Path state() const { return dir_ / "state"; }
    Process& process() { return *process_; }

    // False where this system does not allow to confine.
    bool connect(expertpack::Client& client) {
        while (process_->running()) {
            if (client.connect(socket().c_str(), kWaitMs) == XP_OK) return true;
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        EXPECT_EQ(process_->wait(), kCannot) << process_->output();
        return false;
    }
    size_t lines_with(const std::string& text) const {
        std::istringstream log(process_->output());
        size_t n = 0;
        for (std::string line; std::getline(log, line);) n += line.find(text) != line.npos;
        return n;
    }

private:
    TempDir dir_;
    std::unique_ptr<Process> process_;
};

void expect_golden(expertpack::Client& client) {
    for (const size_t i : {0u, 1u, 5u}) {
        const auto entry = golden().at(i);
        const auto expected = entry.at("greedy").get<std::vector<int32_t>>();
        const auto ids = entry.at("ids").get<std::vector<int32_t>>();
        EXPECT_EQ(ask(client, greedy(ids, expected.size())).ids, expected);
    }
}

TEST(ConfinedTest, WithoutIoUringItReadsWithPreadSaysSoOnceAndGivesTheSameTokens) {
    const std::pair<int, const char*> errors[] = {{EPERM, "Operation not permitted"},
                                                  {ENOSYS, "Function not implemented"}};
    for (const auto& [error, text] : errors) {
        SCOPED_TRACE(text);
        ConfinedDaemon daemon({"--deny-io-uring", std::to_string(error)});
        expertpack::Client client("confined");
        if (!daemon.connect(client)) GTEST_SKIP() << daemon.process().output();
        expect_golden(client);
        const auto io = stats_of(client).at("io");
        EXPECT_EQ(io.at("backend"), "pread");
        EXPECT_THAT(io.at("fallback_reason").get<std::string>(), HasSubstr(text));
        EXPECT_EQ(daemon.lines_with("io_uring"), 1u) << daemon.process().output();
        EXPECT_EQ(daemon.lines_with(text), 1u) << daemon.process().output();
    }
}

// The usual limit of a service. Nothing of ours may depend on locking more.
TEST(ConfinedTest, EightMebibytesOfLockedMemoryAreEnoughForAnybody) {
    ConfinedDaemon daemon({"--memlock", std::to_string(8 << 20), "--uid", kNobody});
    expertpack::Client client("confined");
    if (!daemon.connect(client)) GTEST_SKIP() << daemon.process().output();
    expect_golden(client);
    const std::string backend = stats_of(client).at("io").at("backend");
    std::printf("reads with %s\n", backend.c_str());
}

TEST(ConfinedTest, NoLockedMemoryAtAllIsEnoughToo) {
    ConfinedDaemon daemon({"--memlock", "0", "--uid", kNobody});
    expertpack::Client client("confined");
    if (!daemon.connect(client)) GTEST_SKIP() << daemon.process().output();
    expect_golden(client);
}

// The limit counts for shared memory, too.
TEST(ConfinedTest, ALimitOnFileSizesIsToldToClientsAndDoesNotEndTheDaemon) {
    ConfinedDaemon daemon({"--file-size", "100"});
    expertpack::Client client("confined");
    xp_status status = XP_UNAVAILABLE;
    while (status == XP_UNAVAILABLE && daemon.process().running()) {
        status = client.connect(daemon.socket().c_str(), kWaitMs);
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_EQ(status, XP_REFUSED) << daemon.process().output();
    EXPECT_THAT(client.error(), HasSubstr("File too large"));
    EXPECT_TRUE(daemon.process().running());
}

TEST(ConfinedTest, AReadOnlyStateDirectoryIsNamedWithItsKey) {
    ConfinedDaemon daemon({"--read-only", "STATE"});
    const int code = daemon.process().wait();
    if (code == kCannot) GTEST_SKIP() << daemon.process().output();
    EXPECT_EQ(code, 1);
    EXPECT_THAT(daemon.process().output(),
                AllOf(HasSubstr(daemon.state().string()), HasSubstr("Read-only file system"),
                      HasSubstr("[daemon] state_dir")));
}

}  // namespace
}  // namespace xp::support
