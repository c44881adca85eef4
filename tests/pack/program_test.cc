// xp-pack as scripts see it: exit codes, what goes to which stream, JSON, signals.
#include <signal.h>
#include <unistd.h>

#include <thread>

#include <nlohmann/json.hpp>

#include "tests/pack/program_runner.h"

namespace xp::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;
using Json = nlohmann::json;

class Program : public testing::Test {
protected:
    // With `memory`, the most bytes of address space; with `files`, the most descriptors.
    pid_t start(std::vector<std::string> arguments, uint64_t memory = 0,
                uint64_t files = 0) const {
        return start_program(XP_PACK_PROGRAM, std::move(arguments), scratch_,
                             {.memory = memory, .files = files});
    }
    ProgramOutcome finish(pid_t child) const { return finish_program(child, scratch_); }
    ProgramOutcome run(std::vector<std::string> arguments, uint64_t memory = 0,
                uint64_t files = 0) const {
        return finish(start(std::move(arguments), memory, files));
    }
    const Scratch scratch_;
    const std::string pack_ = scratch_ / "m.xpack";
};

TEST_F(Program, BuildsShowsAndVerifiesAPack) {
    ProgramOutcome outcome = run({"build", kTinyModel, pack_, "--json"});
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
    const ProgramOutcome outcome =
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
    ProgramOutcome outcome = run({"verify", pack_, "--deep"});
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
        const ProgramOutcome outcome = run(std::move(arguments));
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
    for (const char* size : {"", "-5", "0x10", "1.5GiB", "16777216TiB", "18446744073709551616",
                             "1 ", "010", "00"}) {
        expect_line({"build", kTinyModel, pack_, "--reserve", size}, 2,
                    "--reserve: \"" + std::string(size) + "\" is not a size");
    }
    expect_line({"build", kTinyModel, pack_, "--reserve"}, 2, "--reserve");
}

TEST_F(Program, AnEmptyPathIsAUsageErrorThatNamesTheArgument) {
    const std::pair<std::vector<std::string>, const char*> cases[] = {
        {{"build", "", pack_}, "SRC"},
        {{"build", kTinyModel, ""}, "DST"},
        {{"build", kTinyModel, pack_, "--stripe", ""}, "--stripe"},
        {{"info", ""}, "PACK"},
        {{"verify", ""}, "PACK"},
        {{"verify", pack_, "--against", ""}, "--against"}};
    for (const auto& [arguments, name] : cases) {
        const ProgramOutcome outcome = run(arguments);
        EXPECT_EQ(outcome.status, 2) << outcome.err;
        EXPECT_THAT(outcome.err, HasSubstr(std::string(name) + ": the path is empty"));
    }
    EXPECT_FALSE(std::filesystem::exists(pack_));
}

// A newline, an escape sequence, a C1 control character and a byte that is no UTF-8.
constexpr char kHostile[] = "a\n\x1b[31m\xc2\x9b\xff-\xc3\xa9";
constexpr char kHostileShown[] = "a\\x0a\\x1b[31m\\xc2\\x9b\\xff-\xc3\xa9";

TEST_F(Program, NamesReachTerminalsWithoutControlCharacters) {
    const std::string pack = scratch_ / (std::string(kHostile) + ".xpack");
    const auto expect_shown = [&](const std::string& text) {
        EXPECT_THAT(text, HasSubstr(std::string(kHostileShown) + ".xpack"));
        EXPECT_EQ(text.find('\x1b'), text.npos) << text;
        EXPECT_EQ(text.find('\xff'), text.npos) << text;
    };
    expect_shown(run({"info", pack}).err);
    expect_shown(run({"verify", pack}).err);
    expect_shown(run({"build", pack, pack_}).err);
    expect_shown(run({"build", kTinyModel, pack_, "--layout", pack}).err);

    ProgramOutcome outcome = run({"build", kTinyModel, pack, "-q"});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    expect_shown(outcome.out);
    expect_shown(run({"verify", pack}).out);
    flip_byte(pack + "/experts.000.xpk", 4096 + 10);
    outcome = run({"verify", pack, "--deep"});
    EXPECT_EQ(outcome.status, 1);
    expect_shown(outcome.err);
    // JSON stays JSON, the byte replaced.
    outcome = run({"verify", pack, "--deep", "--json"});
    EXPECT_THAT(Json::parse(outcome.out)["pack"].get<std::string>(),
                HasSubstr("a\n\x1b[31m\xc2\x9b\xef\xbf\xbd-\xc3\xa9.xpack"));
}

TEST_F(Program, NamesFromFilesReachTerminalsWithoutControlCharacters) {
    GgufMetadata metadata = small_metadata();
    metadata.set("general.name", GgufValue::string("b\n\x1b]0;title\x07\xc2\x85"));
    const std::string shown = "b\\x0a\\x1b]0;title\\x07\\xc2\\x85";
    ASSERT_TRUE(write_gguf(scratch_ / "m.gguf", metadata, mixed_tensors()));
    ASSERT_EQ(run({"build", scratch_ / "m.gguf", pack_, "-q"}).status, 0);
    const ProgramOutcome outcome = run({"info", pack_});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("model         " + shown + " (mixed)\n"));
    EXPECT_EQ(outcome.out.find('\x1b'), outcome.out.npos);
    EXPECT_EQ(Json::parse(run({"info", pack_, "--json"}).out)["model_name"],
              "b\n\x1b]0;title\x07\xc2\x85");
}

// Address space from what does not even load the program to what is enough: somewhere between,
// every allocation fails once.
TEST_F(Program, TooLittleMemoryIsOneLineAndABuildGoesOnLater) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "sanitizers reserve terabytes of addresses";
#endif
    constexpr uint64_t kMiB = uint64_t{1} << 20;
    int short_of_memory = 0;
    int done = 0;
    for (uint64_t limit = 8 * kMiB; limit < 512 * kMiB && done == 0; limit += 4 * kMiB) {
        const ProgramOutcome outcome = run({"build", kTinyModel, pack_, "-q"}, limit);
        SCOPED_TRACE(fmt::format("{} bytes: {} {}", limit, outcome.status, outcome.err));
        done += outcome.status == 0;
        if (outcome.status == 0 || outcome.status == 127) continue;  // done, or not loaded
        ASSERT_EQ(outcome.status, 1);
        EXPECT_THAT(outcome.err, StartsWith("xp-pack: "));
        EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1);
        short_of_memory += outcome.err.find("memory") != std::string::npos;
    }
    EXPECT_GT(short_of_memory, 0);
    EXPECT_EQ(done, 1);
    EXPECT_EQ(run({"verify", pack_, "--against", kTinyModel}).status, 0);
}

TEST_F(Program, AHeaderLargerThanMemoryIsOneLine) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "sanitizers reserve terabytes of addresses";
#endif
    GgufMetadata metadata = small_metadata();
    const std::vector<std::string> tokens(24, std::string(1'000'000, 'x'));
    metadata.set("tokenizer.ggml.tokens", GgufValue::strings(tokens));
    ASSERT_TRUE(write_gguf(scratch_ / "large.gguf", metadata, mixed_tensors()));
    const ProgramOutcome outcome =
        run({"build", scratch_ / "large.gguf", pack_}, uint64_t{24} << 20);
    EXPECT_EQ(outcome.status, 1);
    EXPECT_EQ(outcome.err, "xp-pack: not enough memory\n");
    EXPECT_FALSE(std::filesystem::exists(pack_));
}

TEST_F(Program, TooLittleMemoryForVerifyingIsNoFaultOfThePack) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "sanitizers reserve terabytes of addresses";
#endif
    ASSERT_EQ(run({"build", kTinyModel, pack_, "-q"}).status, 0);
    constexpr uint64_t kMiB = uint64_t{1} << 20;
    int short_of_memory = 0;
    int done = 0;
    for (uint64_t limit = 8 * kMiB; limit < 512 * kMiB && done == 0; limit += kMiB) {
        const ProgramOutcome outcome = run({"verify", "--deep", "--json", pack_}, limit);
        SCOPED_TRACE(fmt::format("{} bytes: {} {}", limit, outcome.status, outcome.err));
        done += outcome.status == 0;
        if (outcome.status == 0 || outcome.status == 127) continue;  // done, or not loaded
        ASSERT_EQ(outcome.status, 1);
        EXPECT_THAT(outcome.out, IsEmpty());
        EXPECT_THAT(outcome.err, testing::Not(HasSubstr("has faults")));
        EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1);
        short_of_memory += outcome.err.find("could not be verified") != std::string::npos;
    }
    EXPECT_GT(short_of_memory, 0);
    EXPECT_EQ(done, 1);
}

TEST_F(Program, TooFewDescriptorsForVerifyingAreNoFaultOfThePack) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "the sanitizers' own checks need descriptors";
#endif
    ASSERT_EQ(run({"build", kTinyModel, pack_, "-q"}).status, 0);
    int refused = 0;
    int done = 0;
    for (uint64_t files = 4; files < 64 && done == 0; ++files) {
        const ProgramOutcome outcome = run({"verify", "--deep", "--json", pack_}, 0, files);
        SCOPED_TRACE(fmt::format("{} files: {} {}", files, outcome.status, outcome.err));
        done += outcome.status == 0;
        if (outcome.status == 0 || outcome.status == 127) continue;
        ASSERT_EQ(outcome.status, 1);
        EXPECT_THAT(outcome.out, IsEmpty());
        EXPECT_THAT(outcome.err, AllOf(HasSubstr(pack_ + " could not be verified"),
                                       HasSubstr("Too many open files")));
        EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1);
        ++refused;
    }
    EXPECT_GT(refused, 0);
    EXPECT_EQ(done, 1);
}

TEST_F(Program, ErrorsRepeatOfALongArgumentItsBeginningAndEnd) {
    const std::string argument = "begin" + std::string(100'000, 'x') + "-end";
    for (const std::vector<std::string>& command :
         {std::vector<std::string>{"build", kTinyModel, argument}, {"info", argument},
          {"build", kTinyModel, pack_, "--layout", argument},
          {"build", kTinyModel, pack_, "--reserve", argument}}) {
        const ProgramOutcome outcome = run(command);
        EXPECT_NE(outcome.status, 0);
        EXPECT_THAT(outcome.err, AllOf(HasSubstr("begin"), HasSubstr(" ... ")));
        EXPECT_LT(outcome.err.size(), 1100u);
    }
}

TEST_F(Program, PrintsVersionAndHelpOnStdout) {
    ProgramOutcome outcome = run({"--version"});
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
            const ProgramOutcome outcome = finish(child);
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
