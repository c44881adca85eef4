// xp-pack as scripts see it: exit codes, what goes to which stream, JSON, signals.

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include <nlohmann/json.hpp>

#include "tests/pack/pack_fixture.h"

namespace xp::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using Json = nlohmann::json;

struct Outcome {
    int status = 0;  // as a shell shows it
    std::string out;
    std::string err;
};

class Program : public testing::Test {
protected:
    pid_t start(std::vector<std::string> arguments) const {
        arguments.insert(arguments.begin(), XP_PACK_PROGRAM);
        std::vector<char*> argv;
        for (std::string& argument : arguments) argv.push_back(argument.data());
        argv.push_back(nullptr);
        const pid_t child = ::fork();
        if (child == 0) {
            ::dup2(::open((scratch_ / "out").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), 1);
            ::dup2(::open((scratch_ / "err").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), 2);
            ::execv(argv[0], argv.data());
            ::_exit(127);
        }
        return child;
    }
    Outcome finish(pid_t child) const {
        int status = 0;
        EXPECT_EQ(::waitpid(child, &status, 0), child);
        return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
                read_bytes(scratch_ / "out"), read_bytes(scratch_ / "err")};
    }
    Outcome run(std::vector<std::string> arguments) const {
        return finish(start(std::move(arguments)));
    }
    const Scratch scratch_;
    const std::string pack_ = scratch_ / "m.xpack";
};

TEST_F(Program, BuildsShowsAndVerifiesAPack) {
    Outcome outcome = run({"build", kTinyModel, pack_, "--json"});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const Json built = Json::parse(outcome.out);
    EXPECT_EQ(built["objects"], 96);
    EXPECT_EQ(built["source_bytes"], std::filesystem::file_size(kTinyModel));

    outcome = run({"info", pack_});
    EXPECT_EQ(outcome.status, 0);
    EXPECT_THAT(outcome.out, AllOf(HasSubstr("deepseek4"), HasSubstr("96 in 6 layers"),
                                   HasSubstr("MXFP4 64x256 split")));
    outcome = run({"info", pack_, "--json"});
    EXPECT_EQ(Json::parse(outcome.out)["identity"], built["identity"]);

    outcome = run({"verify", pack_});
    EXPECT_EQ(outcome.status, 0);
    EXPECT_THAT(outcome.out, HasSubstr("structure is well"));
    outcome = run({"verify", pack_, "--deep", "--against", kTinyModel, "--json"});
    EXPECT_EQ(outcome.status, 0);
    EXPECT_EQ(Json::parse(outcome.out)["ok"], true);
    EXPECT_EQ(Json::parse(outcome.out)["checked_objects"], 96);
    EXPECT_THAT(outcome.err, IsEmpty());
}

TEST_F(Program, TakesLayoutAndStripes) {
    const std::string drive = scratch_.make_directory("drive");
    const Outcome outcome =
        run({"build", kTinyModel, pack_, "--stripe", drive, "--layout", "ggml", "-q"});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const auto manifest = read_manifest(pack_);
    ASSERT_TRUE(manifest);
    EXPECT_EQ(manifest->stripes.size(), 2u);
    EXPECT_EQ(manifest->layers[0].roles[0].layout, StorageLayout::kGgml);
}

TEST_F(Program, NamesFaultsOnStderrAndFails) {
    ASSERT_EQ(run({"build", kTinyModel, pack_}).status, 0);
    flip_byte(pack_ + "/experts.000.xpk", 4096 + 28672 * 5 + 10);
    Outcome outcome = run({"verify", pack_, "--deep"});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.out, IsEmpty());
    EXPECT_THAT(outcome.err, HasSubstr("expert 5 of layer 0, gate"));
    outcome = run({"verify", pack_, "--deep", "--json"});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_EQ(Json::parse(outcome.out)["faults"].size(), 1u);
}

TEST_F(Program, FailsWithOneLineAndNoHelp) {
    const auto expect_line = [&](std::vector<std::string> arguments, int status,
                                 const std::string& text) {
        const Outcome outcome = run(std::move(arguments));
        EXPECT_EQ(outcome.status, status);
        EXPECT_THAT(outcome.out, IsEmpty());
        EXPECT_THAT(outcome.err, HasSubstr(text));
        EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
    };
    expect_line({}, 2, "xp-pack: ");
    expect_line({"pack"}, 2, "xp-pack: ");
    expect_line({"build", kTinyModel}, 2, "DST");
    expect_line({"build", kTinyModel, pack_, "--layout", "other"}, 2, "--layout");
    expect_line({"build", kTinyModel, pack_, "--reserve", "lots"}, 2, "lots");
    expect_line({"build", "/none.gguf", pack_}, 1, "/none.gguf");
    expect_line({"build", kTinyModel, pack_, "--reserve", "512TiB"}, 1, "not enough space");
    expect_line({"info", pack_}, 1, "not an expert pack");
}

TEST_F(Program, PrintsVersionAndHelpOnStdout) {
    Outcome outcome = run({"--version"});
    EXPECT_EQ(outcome.status, 0);
    EXPECT_EQ(outcome.out, "xp-pack " XP_VERSION "\n");
    outcome = run({"build", "--help"});
    EXPECT_EQ(outcome.status, 0);
    EXPECT_THAT(outcome.out, HasSubstr("--stripe"));
}

TEST_F(Program, AResultThatCannotBeWrittenIsAFailure) {
    ASSERT_EQ(run({"build", kTinyModel, pack_}).status, 0);
    std::filesystem::remove(scratch_ / "out");
    std::filesystem::create_symlink("/dev/full", scratch_ / "out");
    for (const std::vector<std::string>& command :
         {std::vector<std::string>{"info", pack_}, {"info", pack_, "--json"}, {"verify", pack_}}) {
        const pid_t child = start(command);
        int status = 0;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << command[0] << " " << status;
        EXPECT_THAT(read_bytes(scratch_ / "err"), HasSubstr("No space left on device"));
    }
    std::filesystem::remove(scratch_ / "out");
}

TEST_F(Program, StopsOnSignalsAndGoesOnLater) {
    for (const int signal_number : {SIGINT, SIGTERM}) {
        bool stopped = false;
        // A busy machine may let the build end between the journal's appearing and the signal.
        for (int attempt = 0; attempt < 20 && !stopped; ++attempt) {
            std::filesystem::remove_all(pack_);
            const pid_t child = start({"build", kDemoModel, pack_});
            while (!std::filesystem::exists(pack_ + "/build.journal") &&
                   !std::filesystem::exists(pack_ + "/manifest.json")) {
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
            ::kill(child, signal_number);
            const Outcome outcome = finish(child);
            stopped = outcome.status == 130 &&
                      outcome.err.find("run the same build again") != std::string::npos;
        }
        EXPECT_TRUE(stopped) << "signal " << signal_number;
        EXPECT_EQ(run({"info", pack_}).status, 1);
        EXPECT_EQ(run({"build", kDemoModel, pack_}).status, 0);
        EXPECT_EQ(run({"verify", pack_, "--against", kDemoModel}).status, 0);
    }
}

}  // namespace
}  // namespace xp::test
