// Both real backends on a drive that misbehaves below the kernel. Needs the right to mount.
#include <gmock/gmock.h>

#include "daemon/io/read_backend.h"
#include "tests/io/fuse_file.h"
#include "tests/io/test_file.h"

namespace xp {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr uint64_t kFaultyFileBytes = 2 << 20;
constexpr uint64_t kFaultyPieceBytes = 64 << 10;
constexpr uint64_t kSeed = 20'241;

std::vector<std::byte> random_bytes() {
    std::mt19937_64 random(kSeed);
    std::vector<std::byte> bytes(kFaultyFileBytes);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
}

class DriveFaultTest : public testing::TestWithParam<IoBackendKind> {
protected:
    void SetUp() override {
        if (!file_.why_not().empty()) GTEST_SKIP() << "no FUSE mount here: " << file_.why_not();
        if (GetParam() == IoBackendKind::kUring && !io_uring_allowed()) {
            GTEST_SKIP() << "io_uring is forbidden here";
        }
    }
    // Not with io_uring: on FUSE the kernel (6.18 at least) goes on by itself after a cut read, and
    // with the wrong bytes. What a backend does with a short read is the piece queue's and the same
    // for both.
    uint32_t short_percent() const { return GetParam() == IoBackendKind::kPread ? 60 : 0; }

    std::unique_ptr<ReadBackend> make() {
        auto fd = open_file(file_.path(), O_RDONLY | O_DIRECT);
        EXPECT_TRUE(fd) << fd.error().message;
        fd_ = *std::move(fd);
        auto backend = make_read_backend(
            {.backend = GetParam(), .piece_bytes = kFaultyPieceBytes, .depth = 8});
        EXPECT_TRUE(backend) << backend.error().message;
        return *std::move(backend);
    }
    // Sixteen requests of several pieces each; by tag, what became of them.
    std::vector<Result<void>> read_all(ReadBackend& backend) {
        constexpr uint64_t kRequests = 16, kBytes = kFaultyFileBytes / kRequests;
        std::memset(buffer_.data(), 0xEE, kFaultyFileBytes);
        std::vector<ReadRequest> requests;
        for (uint64_t i = 0; i < kRequests; ++i) {
            requests.push_back({fd_.get(), i * kBytes, buffer_.data() + i * kBytes, kBytes, &done_,
                                i});
        }
        backend.submit(requests);
        std::vector<Result<void>> results(kRequests);
        for (uint64_t n = 0; n < kRequests;) {
            for (auto& completion : done_.take(true)) {
                results.at(completion.tag) = std::move(completion.result);
                ++n;
            }
        }
        return results;
    }
    testing::AssertionResult all_right() const {
        const auto& want = file_.contents();
        const auto [w, got] = std::mismatch(want.begin(), want.end(), buffer_.data());
        if (w == want.end()) return testing::AssertionSuccess();
        const auto at = static_cast<uint64_t>(w - want.begin());
        // Where else what came would be right tells what went wrong.
        const auto from = std::search(want.begin(), want.end(), got, got + 16);
        return testing::AssertionFailure()
               << "wrong from offset " << at << " (" << at % kFaultyPieceBytes << " in its piece): "
               << (from == want.end() ? std::string("bytes that are nowhere in the file")
                                      : fmt::format("the bytes of offset {}", from - want.begin()));
    }

    FuseFile file_{random_bytes(), kSeed};
    PageBuffer buffer_ = test_buffer(kFaultyFileBytes);
    CompletionQueue done_;
    UniqueFd fd_;
};

INSTANTIATE_TEST_SUITE_P(Backends, DriveFaultTest,
                         testing::Values(IoBackendKind::kUring, IoBackendKind::kPread),
                         [](const auto& info) {
                             return info.param == IoBackendKind::kUring ? "Uring" : "Pread";
                         });

TEST_P(DriveFaultTest, LateReorderedAndCutReadsGiveTheRightBytes) {
    const auto backend = make();
    file_.set_faults({.short_percent = short_percent(), .delay_percent = 10});
    for (const Result<void>& result : read_all(*backend)) {
        EXPECT_TRUE(result) << result.error().message;
    }
    EXPECT_TRUE(all_right());
    EXPECT_EQ(file_.cut_short() > 10, GetParam() == IoBackendKind::kPread);
    EXPECT_EQ(backend->stats().short_reads, file_.cut_short());
}

TEST_P(DriveFaultTest, AFailingPlaceFailsItsRequestOnlyAndIsNamed) {
    const auto backend = make();
    file_.set_faults({.short_percent = short_percent(), .error_at = 700'000});
    const std::vector<Result<void>> results = read_all(*backend);
    for (size_t i = 0; i < results.size(); ++i) {
        if (i == 700'000 / (kFaultyFileBytes / results.size())) {
            ASSERT_FALSE(results[i]);
            EXPECT_EQ(results[i].error().code, ErrorCode::kIo);
            EXPECT_THAT(results[i].error().message,
                        AllOf(HasSubstr("Input/output error"), HasSubstr(file_.path().native())));
        } else {
            EXPECT_TRUE(results[i]) << results[i].error().message;
        }
    }
    EXPECT_EQ(backend->stats().errors, 1u);
    file_.set_faults({});
    for (const Result<void>& result : read_all(*backend)) EXPECT_TRUE(result);
    EXPECT_TRUE(all_right());
}

}  // namespace
}  // namespace xp
