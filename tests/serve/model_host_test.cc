#include "daemon/serve/model_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/serve/scripted_model.h"
#include "tests/serve/temp_dir.h"

namespace xp {
namespace {

using ::testing::HasSubstr;

TEST(ModelHost, FindsModelsByNameAndTheFirstByDefault) {
    std::vector<std::unique_ptr<ServedModel>> models;
    models.push_back(scripted::make_served("a", {}));
    models.push_back(scripted::make_served("b", {}));
    const ModelHost host(std::move(models), "test");
    EXPECT_EQ(host.find("")->name, "a");
    EXPECT_EQ(host.find("b")->name, "b");
    EXPECT_EQ(host.find("c"), nullptr);
}

TEST(ModelHost, APackThatIsNotThereNamesTheModelAndThePath) {
    const scripted::TempDir dir;
    HostOptions options;
    options.models.push_back({"demo", dir / "none.xpack", std::nullopt, std::nullopt});
    const auto host = ModelHost::open(options, [](const std::string&) {});
    ASSERT_FALSE(host);
    EXPECT_THAT(host.error().message, HasSubstr("model \"demo\""));
    EXPECT_THAT(host.error().message, HasSubstr("none.xpack"));
}

}  // namespace
}  // namespace xp
