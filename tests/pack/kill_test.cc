// kill -9 of the builder at moments that a seed chooses, until every build is complete: the bytes
// are those of a build that was left alone. XP_TEST_SEED repeats another run than the usual one.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "tests/pack/pack_fixture.h"

namespace xp::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kKills = 60;
constexpr uint64_t kUsualSeed = 4'711;
// Where one takes longer, kills come early on the average; the test shall end there, too.
constexpr std::chrono::milliseconds kLongestBuild{250};

class KillBuilder : public testing::Test {
protected:
    void SetUp() override {
        // Progress is durable after each tensor, or there would be nothing to go on from; and the
        // stripe on another drive takes part.
        options_.sync_bytes = 0;
        options_.stripe_directories = {drive_};
        const auto before = Clock::now();
        build_or_fail(kDemoModel, pack_, options_);
        whole_ = std::min<Clock::duration>(Clock::now() - before, kLongestBuild);
        // The stripe's path is in the manifest, so the reference is built in the same place.
        std::filesystem::rename(pack_, reference_);
        std::filesystem::rename(stripe_, reference_stripe_);
    }
    // Odd runs are by the program, which makes nothing durable within this small model.
    pid_t start(bool program) const {
        const pid_t child = ::fork();
        if (child != 0) return child;
        if (program) {
            ::execl(XP_PACK_PROGRAM, XP_PACK_PROGRAM, "build", kDemoModel.c_str(), pack_.c_str(),
                    "--stripe", drive_.c_str(), "-q", nullptr);
        }
        ::_exit(build_pack(kDemoModel, pack_, options_) ? 0 : 1);
    }
    bool is_complete() const { return std::filesystem::exists(pack_ / "manifest.json"); }
    void check_and_remove() const {
        std::filesystem::remove(pack_ / "build.journal");  // may outlive the last kill
        expect_same_files(pack_, reference_);
        EXPECT_TRUE(read_bytes(stripe_) == read_bytes(reference_stripe_));
        EXPECT_THAT(faults_of(pack_, {.deep = true, .against = kDemoModel}), testing::IsEmpty());
        std::filesystem::remove_all(pack_);
        std::filesystem::remove(stripe_);
    }

    const Scratch scratch_;
    const Path drive_ = scratch_.make_directory("drive");
    const Path pack_ = scratch_ / "m.xpack";
    const Path stripe_ = drive_ / "m.xpack.experts.001.xpk";
    const Path reference_ = scratch_ / "reference.xpack";
    const Path reference_stripe_ = scratch_ / "reference.stripe";
    BuildOptions options_;
    Clock::duration whole_{};
};

TEST_F(KillBuilder, AtAnyMomentCostsNothingButTime) {
    const char* given = std::getenv("XP_TEST_SEED");
    const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : kUsualSeed;
    std::printf("XP_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
    std::fflush(stdout);
    std::mt19937_64 random(seed);
    int kills = 0, complete = 0;
    for (int run = 0; kills < kKills; ++run) {
        SCOPED_TRACE(fmt::format("run {}, after {} kills", run, kills));
        const pid_t child = start(run % 4 == 3);
        ASSERT_GE(child, 0);
        std::this_thread::sleep_for(whole_ * (static_cast<double>(random() % 1000) / 1000.0 * 0.6));
        ::kill(child, SIGKILL);
        int status = 0;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        if (WIFSIGNALED(status)) {
            ++kills;
        } else {
            ASSERT_EQ(WEXITSTATUS(status), 0);
        }
        if (!is_complete()) continue;
        ++complete;
        ASSERT_NO_FATAL_FAILURE(check_and_remove());
    }
    if (std::filesystem::exists(pack_) && !is_complete()) {
        build_or_fail(kDemoModel, pack_, options_);
        check_and_remove();
    }
    std::printf("%d kills, %d builds became complete in spite of them\n", kills, complete);
}

}  // namespace
}  // namespace xp::test
