// xp-bench as scripts see it.
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

#include <nlohmann/json.hpp>

#include "tests/bench/bench_fixture.h"
#include "tests/pack/program_runner.h"

namespace xp::test {
namespace {

using testing::HasSubstr;
using Json = nlohmann::json;

class BenchProgram : public testing::Test {
protected:
    ProgramOutcome run(std::vector<std::string> arguments) const {
        return run_program(XP_BENCH_PROGRAM, std::move(arguments), scratch_);
    }
    // With the options of a small run.
    ProgramOutcome measure(const std::string& verb, std::vector<std::string> more) const {
        std::vector<std::string> arguments = {verb, small_pack().string(), "--backend", "cpu",
                                              "--threads", "1", "--buffered", "--io", "pread"};
        arguments.insert(arguments.end(), more.begin(), more.end());
        return run(arguments);
    }
    const Scratch scratch_;
};

TEST_F(BenchProgram, DecodeWithATraceTellsTimesBoundAndBytes) {
    const ProgramOutcome outcome =
        measure("decode", {"--trace", kTrace, "--cache", "15%", "--prompt", "8", "--warm", "16",
                           "--tokens", "4", "--samples", "3", "--json"});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const Json json = Json::parse(outcome.out);
    EXPECT_EQ(json["unit"], "token");
    EXPECT_EQ(json["samples"], 3);
    EXPECT_EQ(json["objects"], 256);
    EXPECT_EQ(json["slots"], 38);
    EXPECT_EQ(json["io"], "pread");
    EXPECT_FALSE(json["direct"]);
    EXPECT_EQ(json["hits"].get<int>() + json["misses"].get<int>(), 3 * 4 * 4 * 6);
    for (const char* key : {"time_ms", "compute_ms", "read_ms", "ratio", "predicted_bytes",
                            "read_bytes", "read_bandwidth", "tokens_per_second"}) {
        EXPECT_GT(json[key].get<double>(), 0) << key;
    }
    const double longest =
        std::max(json["compute_ms"].get<double>(), json["read_ms"].get<double>());
    EXPECT_EQ(json["bound_by"], longest == json["read_ms"].get<double>() ? "reads" : "compute");
    EXPECT_EQ(json["upload_ms"], 0);
    EXPECT_NEAR(json["bytes_ratio"].get<double>(), 1, 0.1);
    EXPECT_NEAR(json["mapped_lru_hits"].get<double>(), json["trace_lru_hits"].get<double>(), 0.03);
}

TEST_F(BenchProgram, ATimelineHasALineForEachLayerInTheOrderOfThings) {
    const Path file = scratch_ / "timeline.jsonl";
    const ProgramOutcome outcome =
        measure("decode", {"--trace", kTrace, "--cache", "15%", "--prompt", "8", "--warm", "16",
                           "--tokens", "4", "--samples", "3", "--timeline", file.string()});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("until the last piece"));
    std::ifstream lines(file);
    uint64_t n = 0, reads = 0, hinted = 0;
    for (std::string line; std::getline(lines, line); ++n) {
        const Json json = Json::parse(line);
        EXPECT_EQ(json["pass"], n / 4);
        EXPECT_EQ(json["layer"], n % 4);
        EXPECT_EQ(json["experts"], 6);
        reads += json["reads"].get<uint64_t>();
        hinted += json["hinted"].get<uint64_t>();
        EXPECT_EQ(json["arrivals"].size(), json["reads"].get<size_t>());
        EXPECT_GT(json["groups"].size(), 0u);
        EXPECT_LT(json["acquired"], json["groups"].front());
        EXPECT_LT(json["groups"].back(), json["released"]);
        EXPECT_LT(json["released"], json["pass_ended"]);
        if (json["reads"] == 0) continue;
        EXPECT_GT(json["submitted"], 0);
        EXPECT_LE(json["first_piece"], json["last_piece"]);
        EXPECT_LT(json["last_piece"], json["arrivals"].back());
        EXPECT_TRUE(json["hinted"] > 0 || json["acquired"] < json["first_piece"]);
        EXPECT_TRUE(n % 4 < 3 || json["hinted"] == 0) << "this layer is not hash-routed";
    }
    EXPECT_EQ(n, 3 * 4 * 4u);
    EXPECT_GT(reads, hinted);
    EXPECT_GT(hinted, 0u);
    EXPECT_NE(measure("decode", {"--timeline", file.string()}).status, 0);
}

TEST_F(BenchProgram, PrefillReadsEachExpertOnceInAPass) {
    for (const bool traced : {true, false}) {
        std::vector<std::string> more = {"--cache", "15%", "--prompt", "40", "--chunk", "20",
                                         "--samples", "2", "--json"};
        if (traced) more.insert(more.end(), {"--trace", kTrace});
        const ProgramOutcome outcome = measure("prefill", more);
        ASSERT_EQ(outcome.status, 0) << outcome.err;
        const Json json = Json::parse(outcome.out);
        EXPECT_EQ(json["unit"], "prompt");
        EXPECT_EQ(json["reads_repeated"], 0);
        EXPECT_GT(json["reads"], 38);
        EXPECT_NEAR(json["bytes_ratio"].get<double>(), 1, 0.05);
        EXPECT_NEAR(json["tokens_per_second"].get<double>(), 40e3 / json["time_ms"].get<double>(),
                    1e-3 * json["tokens_per_second"].get<double>());
    }
}

TEST_F(BenchProgram, TablesForPeopleSayTheSame) {
    const ProgramOutcome outcome =
        measure("prefill", {"--cache", "50%", "--prompt", "8", "--samples", "1"});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    for (const char* row : {"128 of 256 experts", "ms a prompt", "all experts resident", "buffered",
                            "of the longest", "of the bytes predicted",
                            "reads, 0 of them again in a pass"}) {
        EXPECT_THAT(outcome.out, HasSubstr(row));
    }
    EXPECT_THAT(measure("decode", {"--tokens", "2", "--prompt", "2"}).out,
                HasSubstr("256 of 256 experts in slots"));
}

TEST_F(BenchProgram, ARamTierThatThereCannotBeIsSaid) {
    const ProgramOutcome outcome = measure("prefill", {"--cache", "50%", "--ram", "10%", "--json",
                                                       "--prompt", "8", "--samples", "1"});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("a RAM tier of"));
    const Json json = Json::parse(outcome.out);
    for (const char* key : {"ram_slots", "ram_hits", "predicted_ram_hits", "saved_bytes"}) {
        EXPECT_EQ(json[key], 0) << key;
    }
    EXPECT_NEAR(json["bytes_ratio"].get<double>(), 1, 0.05);
}

TEST_F(BenchProgram, MatvecTellsTheFractionOfMemorysBandwidthForEveryCommonType) {
    std::vector<std::string> arguments = {"matvec", "--backend", "cpu", "--threads", "1", "--rows",
                                          "40", "--cols", "512", "--bytes", "1MiB"};
    arguments.push_back("--json");
    const ProgramOutcome outcome = run(arguments);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    std::map<std::string, uint64_t> bytes;
    std::istringstream lines(outcome.out);
    for (std::string line; std::getline(lines, line);) {
        const Json json = Json::parse(line);
        bytes[json["type"]] = json["matrix_bytes"];
        const auto each = json["matrix_bytes"].get<double>();
        EXPECT_EQ(json["matrices"], std::ceil((1 << 20) / each)) << line;
        EXPECT_NEAR(json["bandwidth"].get<double>() * json["us"].get<double>() / 1e6, each, 1);
        EXPECT_NEAR(json["fraction_of_memory"].get<double>() *
                    json["read_bandwidth"].get<double>(), json["bandwidth"].get<double>(), 1e3);
    }
    // 40 · 512 weights in blocks of 1, 32 and 256.
    EXPECT_EQ(bytes, (std::map<std::string, uint64_t>{
                         {"F16", 40960}, {"BF16", 40960}, {"MXFP4", 640 * 17}, {"Q8_0", 640 * 34},
                         {"Q2_K", 80 * 84}, {"Q3_K", 80 * 110}, {"Q4_K", 80 * 144},
                         {"Q6_K", 80 * 210}}));
    arguments.back() = "--type=Q4_K";
    EXPECT_THAT(run(arguments).out, HasSubstr("Q4_K    ggml"));
    arguments.back() = "--type=Q5_9";
    EXPECT_THAT(run(arguments).err, HasSubstr("--type Q5_9"));
}

TEST_F(BenchProgram, ReplayComparesPoliciesOnTraces) {
    const std::string trace = kTrace;
    const ProgramOutcome outcome = run({"replay", trace, "--percent", "3", "--percent", "15",
                                        "--policy", "lru", "--policy", "lfu", "--json"});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const Json json = Json::parse(outcome.out);
    ASSERT_EQ(json.size(), 4u);
    EXPECT_EQ(json[0]["policy"], "lru");
    EXPECT_EQ(json[0]["slots"], 199);  // of 6,656
    EXPECT_EQ(json[0]["requests"], 300 * 26 * 8);
    EXPECT_EQ(json[0]["misses"], json[0]["requests"]);
    EXPECT_GT(json[2]["hits"], 0.3);
    EXPECT_EQ(json[3]["percent"], 15);
    EXPECT_GT(json[3]["hits"], json[1]["hits"]);
    EXPECT_THAT(run({"replay", trace, "--shape", "4:16:2", "--tokens", "20"}).out,
                HasSubstr("4 layers of 16 experts, 2 a token, 20 tokens"));
    for (const char* shape : {"4:16", "4:16:2:1", "4:16:17", "0:16:2", "a:b:c"}) {
        const ProgramOutcome refused = run({"replay", trace, "--shape", shape});
        EXPECT_EQ(refused.status, 2) << shape;
        EXPECT_THAT(refused.err, HasSubstr(shape));
    }
}

TEST_F(BenchProgram, WhatIsWrongIsToldInALine) {
    const std::tuple<std::vector<std::string>, int, const char*> cases[] = {
        {{"--cache", "0%"}, 2, "--cache 0%"},
        {{"--cache", "101%"}, 2, "--cache 101%"},
        {{"--cache", "1.5%"}, 2, "--cache 1.5%"},
        {{"--cache", "much"}, 2, "much"},
        {{"--cache", "1"}, 1, "below the hard floor"},
        {{"--ram", "0%"}, 2, "--ram 0%"},
        {{"--ram", "101%"}, 2, "--ram 101%"},
        {{"--trace", "/nowhere/at.all"}, 1, "/nowhere/at.all"},
        {{"--policy", "best"}, 1, "best"},
    };
    for (auto [arguments, status, text] : cases) {
        arguments.insert(arguments.end(), {"--prompt", "4"});
        const ProgramOutcome outcome = measure("prefill", arguments);
        EXPECT_EQ(outcome.status, status) << text;
        EXPECT_THAT(outcome.err, HasSubstr(text));
        EXPECT_EQ(outcome.out, "");
    }
}

}  // namespace
}  // namespace xp::test
