// The program's command line and exit codes, and its unit.
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/serve/process.h"

namespace xp {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using scripted::Process;
using scripted::TempDir;

struct Outcome {
    int code = 0;
    std::string output;
};

Outcome run(std::vector<std::string> arguments) {
    Process process(std::move(arguments));
    const int code = process.wait();
    return {code, process.output()};
}

class ProgramTest : public ::testing::Test {
protected:
    std::string config(const std::string& text) {
        std::ofstream(dir_ / "d.toml") << text;
        return (dir_ / "d.toml").string();
    }
    std::string valid() {
        return config("[daemon]\nsocket = \"d.sock\"\nstate_dir = \"state\"\n"
                      "[[model]]\nname = \"demo\"\npack = \"none.xpack\"\n");
    }
    TempDir dir_;
};

TEST_F(ProgramTest, SaysItsVersion) {
    const Outcome outcome = run({XP_DAEMON, "--version"});
    EXPECT_EQ(outcome.code, 0);
    EXPECT_EQ(outcome.output, "expertpackd " XP_VERSION "\n");
}

TEST_F(ProgramTest, AWrongOptionIsAUsageError) {
    EXPECT_EQ(run({XP_DAEMON, "--confg", "x"}).code, 2);
}

TEST_F(ProgramTest, CheckConfigAcceptsAValidFile) {
    const Outcome outcome = run({XP_DAEMON, "--config", valid(), "--check-config"});
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("d.toml: the configuration is valid"));
}

TEST_F(ProgramTest, ABadConfigurationExitsWith78AndTheLine) {
    const std::string path = config("[daemon]\nsokket = \"x\"\n[[model]]\n"
                                    "name = \"m\"\npack = \"p\"\n");
    for (const bool check : {true, false}) {
        std::vector<std::string> arguments = {XP_DAEMON, "--config", path};
        if (check) {
            arguments.push_back("--check-config");
        }
        const Outcome outcome = run(arguments);
        EXPECT_EQ(outcome.code, 78);
        EXPECT_THAT(outcome.output, HasSubstr(path + ":2: unknown key sokket"));
    }
    EXPECT_EQ(run({XP_DAEMON, "--config", "/nonexistent.toml"}).code, 78);
}

TEST_F(ProgramTest, APackThatIsNotThereIsNamed) {
    const Outcome outcome = run({XP_DAEMON, "--config", valid()});
    EXPECT_EQ(outcome.code, 1) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("model \"demo\""));
    EXPECT_THAT(outcome.output, HasSubstr("none.xpack"));
    EXPECT_TRUE(std::filesystem::is_directory(dir_ / "state"));
}

// The pack is not there either, so that an error about the socket shows that it came first.
TEST_F(ProgramTest, WhatCannotBecomeASocketIsFoundBeforeModelsAreLoaded) {
    const std::string path = valid();
    std::ofstream(dir_ / "d.sock") << "precious";
    Outcome outcome = run({XP_DAEMON, "--config", path});
    EXPECT_EQ(outcome.code, 78) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr((dir_ / "d.sock").string() +
                                          " exists and is another kind of file, not a socket"));
    EXPECT_THAT(outcome.output, Not(HasSubstr("none.xpack")));
    EXPECT_EQ(std::filesystem::file_size(dir_ / "d.sock"), 8u);

    outcome = run({XP_DAEMON, "--config",
                   config("[daemon]\nsocket = \"d.sock/x.sock\"\nstate_dir = \"state\"\n"
                          "[[model]]\nname = \"demo\"\npack = \"none.xpack\"\n")});
    EXPECT_EQ(outcome.code, 1) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("[daemon] socket"));
    EXPECT_THAT(outcome.output, Not(HasSubstr("none.xpack")));
}

TEST_F(ProgramTest, ARefusedSocketPathLeavesNoLockFile) {
    std::ofstream(dir_ / "d.sock") << "precious";
    EXPECT_EQ(run({XP_DAEMON, "--config", valid()}).code, 78);
    EXPECT_FALSE(std::filesystem::exists(dir_ / "d.sock.lock"));
}

TEST_F(ProgramTest, OutputThatNobodyGetsIsAnError) {
    const std::string path = valid();
    for (const std::string& arguments :
         {std::string("--version"), std::string("--help"), "--check-config --config " + path}) {
        for (const char* to : {">/dev/full", ">&-"}) {
            const Outcome outcome =
                run({"/bin/sh", "-c", "exec " XP_DAEMON " " + arguments + " " + to});
            EXPECT_EQ(outcome.code, 1) << arguments << to;
            EXPECT_THAT(outcome.output, HasSubstr("cannot write to standard output"));
        }
    }
}

TEST_F(ProgramTest, ArgumentsInMessagesAreShortAndPrintable) {
    const std::string noise = "\x1b[31m\a\n" + std::string(100'000, 'x');
    for (const std::vector<std::string>& arguments :
         {std::vector<std::string>{XP_DAEMON, noise}, {XP_DAEMON, "--config", noise},
          {XP_DAEMON, "--config", noise.substr(0, 200), "--check-config"}}) {
        const Outcome outcome = run(arguments);
        EXPECT_NE(outcome.code, 0);
        EXPECT_LT(outcome.output.size(), 2000u);
        EXPECT_THAT(outcome.output, HasSubstr("\\x1b[31m\\x07\\x0a"));
        EXPECT_THAT(outcome.output, Not(HasSubstr("\x1b")));
        EXPECT_EQ(std::count(outcome.output.begin(), outcome.output.end(), '\n'), 1);
    }
}

#if !defined(__SANITIZE_ADDRESS__)  // which reserves address space without end
TEST_F(ProgramTest, TooLittleMemoryToStartIsOneLineAndNotAnAbort) {
    const std::string path = valid();
    for (int kib = 20'000; kib <= 80'000; kib += 4'000) {
        const Outcome outcome =
            run({"/bin/sh", "-c", "ulimit -v " + std::to_string(kib) + "; exec " XP_DAEMON
                 " --config " + path});
        // Below some limit the dynamic loader itself fails, above another the pack is missing.
        EXPECT_TRUE(outcome.code == 1 || outcome.code == 127) << kib << " " << outcome.output;
        EXPECT_NE(outcome.output, "") << kib;
    }
}
#endif

TEST_F(ProgramTest, AnEmptyConfigurationPathNamesTheOption) {
    const Outcome outcome = run({XP_DAEMON, "--config", "", "--check-config"});
    EXPECT_EQ(outcome.code, 2) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("--config"));
}

// The unit with a program that exists anywhere in place of the installed one.
class UnitTest : public ::testing::Test {
protected:
    UnitTest() {
        if (!std::filesystem::exists("/usr/bin/systemd-analyze")) {
            return;
        }
        std::ifstream file(XP_UNIT);
        std::ofstream unit(dir_ / "expertpackd.service");
        for (std::string line; std::getline(file, line);) {
            unit << (line.starts_with("ExecStart=") ? "ExecStart=" XP_DAEMON : line) << "\n";
        }
        ready_ = true;
    }
    void SetUp() override {
        if (!ready_) {
            GTEST_SKIP() << "systemd-analyze is not installed";
        }
    }
    TempDir dir_;
    bool ready_ = false;
};

TEST_F(UnitTest, HasNoUnknownKeys) {
    const Outcome outcome =
        run({"/usr/bin/systemd-analyze", "verify", "--man=no", "--recursive-errors=no",
             (dir_ / "expertpackd.service").string()});
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    EXPECT_EQ(outcome.output, "");
}

TEST_F(UnitTest, IsHardened) {
    const Outcome outcome =
        run({"/usr/bin/systemd-analyze", "security", "--offline=true", "--threshold=10",
             "--no-pager", (dir_ / "expertpackd.service").string()});
    EXPECT_EQ(outcome.code, 0) << outcome.output;
}

TEST_F(UnitTest, StartsTheInstalledProgramWithTheInstalledConfiguration) {
    std::ifstream file(XP_UNIT);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    EXPECT_THAT(text, HasSubstr("\nExecStart=" XP_INSTALLED_DAEMON " --config "));
    EXPECT_THAT(text, HasSubstr("\nType=notify\n"));
    EXPECT_THAT(text, HasSubstr("\nRestart=on-failure\n"));
    EXPECT_THAT(text, HasSubstr("\nRestartPreventExitStatus=78\n"));
}

}  // namespace
}  // namespace xp
