#include "daemon/serve/model_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/serve/scripted_model.h"
#include "tests/serve/temp_dir.h"

namespace xp {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kGiB = uint64_t{1} << 30;

TEST(PlanCacheBytes, UsesWhatWasAskedForWhereItFits) {
    EXPECT_EQ(plan_cache_bytes(2 * kGiB, 10 * kGiB, 8 * kGiB, 1), 2 * kGiB);
}

TEST(PlanCacheBytes, NothingUsableIsNotTakenForAllExperts) {
    EXPECT_EQ(plan_cache_bytes(std::nullopt, 10 * kGiB, 0, 1), 1u);
}

TEST(PlanCacheBytes, MoreThanAllExpertsIsAllExperts) {
    EXPECT_EQ(plan_cache_bytes(3 * kGiB, 2 * kGiB, 8 * kGiB, 1), 0u);
    EXPECT_EQ(plan_cache_bytes(std::nullopt, kGiB, 8 * kGiB, 2), 0u);
}

TEST(PlanCacheBytes, WithoutAWishModelsShareHalfOfWhatIsAvailable) {
    EXPECT_EQ(plan_cache_bytes(std::nullopt, 100 * kGiB, 8 * kGiB, 2), 2 * kGiB);
}

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
