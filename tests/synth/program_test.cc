// xp-synth as scripts see it: exit codes, what goes to which stream, JSON, a drive that fails.
#include <nlohmann/json.hpp>

#include "tests/pack/program_runner.h"

namespace xp::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;
using Json = nlohmann::json;

class SynthProgram : public testing::Test {
protected:
    // With `limit`, the most bytes a file may have.
    ProgramOutcome run(std::vector<std::string> arguments, uint64_t limit = 0) const {
        return run_program(XP_SYNTH_PROGRAM, std::move(arguments), scratch_,
                           {.file_bytes = limit});
    }
    ProgramOutcome run_small(std::vector<std::string> arguments, uint64_t limit = 0) const {
        const char* const small[] = {"flash:5:8", "--scale", "16", "--vocab", "512"};
        arguments.insert(arguments.begin(), std::begin(small), std::end(small));
        return run(std::move(arguments), limit);
    }
    const Scratch scratch_;
    const std::string pack_ = scratch_ / "m.xpack";
    const std::string gguf_ = scratch_ / "m.gguf";
};

TEST_F(SynthProgram, ADryRunTellsSizesAndWritesNothing) {
    ProgramOutcome outcome = run({"flash:43", "--dry-run", "--json", "--pack", pack_});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const Json json = Json::parse(outcome.out);
    EXPECT_EQ(json["recipe"], "xp-synth 1: flash:43:256 vocab 129280 scale 1 seed 1");
    EXPECT_EQ(json["objects"], 11008);
    EXPECT_EQ(json["object_bytes"], 13369344);
    EXPECT_EQ(json["expert_bytes"], 147169738752 + 4096);
    outcome = run({"flash:43", "--dry-run"});
    EXPECT_EQ(outcome.status, 0);
    EXPECT_THAT(outcome.out, AllOf(HasSubstr("11008 in 43 layers"), HasSubstr("145 GiB")));
    EXPECT_FALSE(std::filesystem::exists(pack_));
}

TEST_F(SynthProgram, MakesPackAndGgufAndTellsTheOutcome) {
    ProgramOutcome outcome = run_small({"--pack", pack_, "--json", "--seed", "7"});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_THAT(outcome.err, IsEmpty());
    const Json json = Json::parse(outcome.out);
    EXPECT_EQ(json["seed"], 7);
    EXPECT_EQ(json["identity"], to_hex(open_or_fail(pack_)->manifest().identity));
    outcome = run_small({"--gguf", gguf_, "--seed", "7"});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_THAT(outcome.out, AllOf(HasSubstr("seed 7"), HasSubstr(gguf_)));
    EXPECT_THAT(faults_of(pack_, {.against = gguf_}), IsEmpty());
    EXPECT_EQ(run_small({"--pack", pack_}).status, 1);
    EXPECT_EQ(run_small({"--pack", pack_, "--force"}).status, 0);
}

TEST_F(SynthProgram, WrongUsageIsOneLineAndExitCodeTwo) {
    const std::vector<std::vector<std::string>> wrong = {
        {}, {"demo"}, {"demo", "--pack", pack_, "--gguf", gguf_}, {"dem", "--pack", pack_},
        {"demo", "--scale", "2", "--pack", pack_}, {"demo", "--vocab", "9", "--pack", pack_},
        {"demo", "--threads", "0", "--pack", pack_}, {"demo", "--layout", "x", "--pack", pack_}};
    for (const auto& arguments : wrong) {
        const ProgramOutcome outcome = run(arguments);
        EXPECT_EQ(outcome.status, 2) << testing::PrintToString(arguments);
        EXPECT_THAT(outcome.out, IsEmpty());
        EXPECT_THAT(outcome.err, StartsWith("xp-synth: "));
        EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
    }
}

TEST_F(SynthProgram, AWriteThatFailsLeavesNothingBehind) {
    // Above what the stripe needs and below resident.gguf, and below both.
    for (const uint64_t limit : {uint64_t{4} << 20, uint64_t{1} << 20}) {
        ProgramOutcome outcome = run_small({"--pack", pack_, "-q"}, limit);
        EXPECT_EQ(outcome.status, 1);
        EXPECT_THAT(outcome.err, HasSubstr(limit > (2u << 20) ? "resident.gguf" : "experts.000"));
        outcome = run_small({"--gguf", gguf_, "-q"}, limit);
        EXPECT_EQ(outcome.status, 1);
        EXPECT_THAT(outcome.err, HasSubstr("m.gguf.tmp"));
        EXPECT_THAT(contents_of(scratch_.path()), testing::SizeIs(2));  // out, err
    }
}

}  // namespace
}  // namespace xp::test
