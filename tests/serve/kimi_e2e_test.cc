// Kimi-K3's demo model beside DeepSeek-V4's in one daemon. The expected ids are those of an
// independent implementation on the same weights.
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "daemon/pack/build.h"
#include "tests/support/demo_daemon.h"

namespace xp {
namespace {

using support::ask;

const Path& kimi_pack() {
    static const scripted::TempDir dir(Path(XP_TEST_WORK));
    static const Path pack = [] {
        const auto built =
            build_pack(Path(XP_MODELS) / "xp-demo-k3.gguf", dir / "k3.xpack", BuildOptions());
        EXPECT_TRUE(built.ok()) << built.error().message;
        return dir / "k3.xpack";
    }();
    return pack;
}

std::string second_model() {
    return "[[model]]\nname = \"demo-k3\"\npack = \"" + kimi_pack().string() + "\"\n";
}

// A continuation may differ from where the implementations' likeliest two tokens are this near.
constexpr double kNearTie = 0.01;

TEST(KimiEndToEnd, AllGoldenPromptsGiveTheGoldenTokens) {
    support::Daemon daemon(second_model());
    expertpack::Client client("e2e");
    daemon.connect(client);
    std::ifstream file(Path(XP_TEST_DATA) / "xp-demo-k3" / "golden.json");
    const auto golden = nlohmann::json::parse(file);
    ASSERT_EQ(golden.size(), 13u);
    for (const auto& entry : golden) {
        const auto ids = entry.at("ids").get<std::vector<int32_t>>();
        auto expected = entry.at("greedy").get<std::vector<int32_t>>();
        const auto gaps = entry.at("greedy_gap").get<std::vector<double>>();
        auto request = support::greedy(ids, expected.size());
        request.model("demo-k3").ignore_eos(true);
        auto answer = ask(client, request);
        EXPECT_EQ(answer.prompt, ids);
        const auto near = std::ranges::find_if(gaps, [](double gap) { return gap < kNearTie; });
        const size_t n = std::min(expected.size(), static_cast<size_t>(near - gaps.begin()));
        ASSERT_GE(answer.ids.size(), n);
        expected.resize(n);
        answer.ids.resize(n);
        EXPECT_EQ(answer.ids, expected) << entry.at("prompt");
    }
}

TEST(KimiEndToEnd, ChatsOfBothModelsAreAnsweredWithoutMarkup) {
    support::Daemon daemon(second_model());
    expertpack::Client client("e2e");
    daemon.connect(client);
    expertpack::Generate france;
    france.message(XP_ROLE_USER, "What is the capital of France?").temperature(0).model("demo-k3");
    const auto answer = ask(client, france);
    EXPECT_EQ(answer.text, "The capital of France is Paris.");
    EXPECT_EQ(answer.end, "stop");
    expertpack::Generate sum;
    sum.message(XP_ROLE_USER, "What is 17 + 25?").temperature(0);
    EXPECT_EQ(ask(client, sum).text, "42");
}

}  // namespace
}  // namespace xp
