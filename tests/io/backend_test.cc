// One suite for every read backend: what the interface promises, on real files.
#include <gmock/gmock.h>

#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <thread>

#include "daemon/io/read_backend.h"
#include "tests/io/test_file.h"

namespace xp {
namespace {

using testing::HasSubstr;

constexpr uint64_t kFileBytes = 4 << 20;
constexpr uint64_t kPieceBytes = 64 << 10;

class BackendTest : public testing::TestWithParam<IoBackendKind> {
protected:
    void SetUp() override {
        if (GetParam() == IoBackendKind::kUring && !io_uring_allowed()) {
            GTEST_SKIP() << "io_uring is forbidden here";
        }
    }
    std::unique_ptr<ReadBackend> make(bool direct, uint32_t depth = 4) {
        IoOptions options;
        options.backend = GetParam();
        options.direct = direct;
        options.piece_bytes = kPieceBytes;
        options.depth = depth;
        Result<std::unique_ptr<ReadBackend>> backend = make_read_backend(options);
        if (!backend) {
            ADD_FAILURE() << backend.error().message;
            return nullptr;
        }
        return std::move(*backend);
    }
    // Reads one range and returns the outcome.
    Result<void> read(ReadBackend& backend, int fd, uint64_t offset, std::byte* buffer,
                      uint64_t bytes) {
        const ReadRequest request{fd, offset, buffer, bytes, &done_, 42};
        backend.submit({&request, 1});
        auto completions = done_.take(true);
        EXPECT_EQ(completions.size(), 1u);
        EXPECT_EQ(completions.at(0).tag, 42u);
        return std::move(completions.at(0).result);
    }
    static bool equal(std::span<const std::byte> want, const std::byte* got) {
        return std::equal(want.begin(), want.end(), got);
    }

    CompletionQueue done_;
    TestFile file_{kFileBytes, 5};
    Result<UniqueFd> fd_ = open_file(file_.path(), O_RDONLY);
};

std::string kind_name(const testing::TestParamInfo<IoBackendKind>& info) {
    return info.param == IoBackendKind::kUring ? "Uring" : "Pread";
}
INSTANTIATE_TEST_SUITE_P(Backends, BackendTest,
                         testing::Values(IoBackendKind::kUring, IoBackendKind::kPread), kind_name);

TEST_P(BackendTest, StatsSayWhatRuns) {
    const auto backend = make(true);
    EXPECT_EQ(backend->stats().backend,
              GetParam() == IoBackendKind::kUring ? "io_uring" : "pread");
    EXPECT_EQ(backend->stats().fallback_reason, "");
    EXPECT_TRUE(backend->stats().direct);
    EXPECT_EQ(backend->alignment(), kPageBytes);
    EXPECT_FALSE(make(false)->stats().direct);
}

TEST_P(BackendTest, BufferedReadsDeliverTheRightBytesAtOddOffsetsAndSizes) {
    const auto backend = make(false);
    PageBuffer buffer = test_buffer(kFileBytes + kPageBytes);
    const std::pair<uint64_t, uint64_t> ranges[] = {
        {0, 1}, {1, 1}, {4095, 2}, {12345, kPieceBytes}, {777, 3 * kPieceBytes + 5},
        {kFileBytes - 1, 1}, {0, kFileBytes}, {kPieceBytes - 1, kPieceBytes + 2}};
    for (const auto& [offset, bytes] : ranges) {
        std::byte* const into = buffer.data() + offset % 13;
        std::fill_n(into, bytes + 1, std::byte{0xAB});
        const auto result = read(*backend, fd_->get(), offset, into, bytes);
        ASSERT_TRUE(result) << result.error().message;
        EXPECT_TRUE(equal(file_.slice(offset, bytes), into)) << offset << " " << bytes;
        EXPECT_EQ(into[bytes], std::byte{0xAB}) << "wrote behind the end";
    }
}

TEST_P(BackendTest, DirectReadsDeliverTheRightBytes) {
    Result<UniqueFd> direct = open_file(file_.path(), O_RDONLY | O_DIRECT);
    if (!direct) GTEST_SKIP() << "O_DIRECT is refused here: " << direct.error().message;
    const auto backend = make(true);
    PageBuffer buffer = test_buffer(kFileBytes);
    for (const auto& [offset, bytes] : std::initializer_list<std::pair<uint64_t, uint64_t>>{
             {0, 4096}, {8192, kPieceBytes}, {4096, 5 * kPieceBytes + 4096}, {0, kFileBytes}}) {
        const auto result = read(*backend, direct->get(), offset, buffer.data(), bytes);
        ASSERT_TRUE(result) << result.error().message;
        EXPECT_TRUE(equal(file_.slice(offset, bytes), buffer.data())) << offset << " " << bytes;
    }
}

// Compares what it is told of with the file, which is at `buffer` as a whole.
class Comparing final : public PieceSink {
public:
    Comparing(std::span<const std::byte> want, const std::byte* buffer)
        : want_(want), buffer_(buffer) {}
    void on_piece(const std::byte* data, uint64_t bytes) override {
        const auto at = static_cast<uint64_t>(data - buffer_);
        const auto want = want_.subspan(at, bytes);
        const bool equal = std::equal(want.begin(), want.end(), data);
        std::lock_guard lock(mutex_);
        EXPECT_TRUE(equal) << at;
        EXPECT_TRUE(pieces_.emplace(at, bytes).second);
    }
    // The bytes from the start on that it was told of without a gap, none of them twice.
    uint64_t told() {
        std::lock_guard lock(mutex_);
        uint64_t end = 0;
        for (const auto& [at, bytes] : pieces_) {
            if (at != end) break;
            end += bytes;
        }
        return end;
    }

private:
    const std::span<const std::byte> want_;
    const std::byte* const buffer_;
    std::mutex mutex_;
    std::map<uint64_t, uint64_t> pieces_;
};

TEST_P(BackendTest, ASinkIsToldOfAllThatArrivedBeforeTheCompletionIsThere) {
    const auto backend = make(false);
    for (const uint64_t bytes : {kFileBytes, kFileBytes - 4321, uint64_t{1}}) {
        PageBuffer buffer = test_buffer(kFileBytes);
        Comparing sink(file_.contents(), buffer.data());
        const ReadRequest request{fd_->get(), 0, buffer.data(), bytes, &done_, 1, &sink};
        backend->submit({&request, 1});
        auto completions = done_.take(true);
        while (completions.empty()) completions = done_.take(true);  // poked
        ASSERT_TRUE(completions.at(0).result) << completions[0].result.error().message;
        EXPECT_EQ(sink.told(), bytes);
    }
}

TEST_P(BackendTest, ManyRequestsOfSeveralThreadsCompleteExactlyOnceEach) {
    const auto backend = make(false);
    constexpr uint64_t kRequests = 200, kThreads = 4;
    const auto client = [&](uint64_t seed) {
        SCOPED_TRACE(seed);
        std::mt19937_64 random(seed);
        CompletionQueue done;
        PageBuffer buffer = test_buffer(kRequests * kPieceBytes * 2);
        std::vector<ReadRequest> requests;
        uint64_t used = 0;
        for (uint64_t i = 0; i < kRequests; ++i) {
            const uint64_t bytes = random() % (2 * kPieceBytes);
            requests.push_back({fd_->get(), random() % (kFileBytes - bytes), buffer.data() + used,
                                bytes, &done, i});
            used += bytes;
        }
        for (size_t i = 0; i < kRequests; i += 25) {
            backend->submit(std::span(requests).subspan(i, 25));
        }
        std::vector<int> seen(kRequests);
        for (uint64_t n = 0; n < kRequests;) {
            for (const auto& completion : done.take(true)) {
                ASSERT_TRUE(completion.result) << completion.result.error().message;
                const ReadRequest& request = requests.at(completion.tag);
                EXPECT_EQ(++seen[completion.tag], 1);
                EXPECT_TRUE(equal(file_.slice(request.offset, request.bytes), request.buffer));
                ++n;
            }
        }
        EXPECT_TRUE(done.take(false).empty());
    };
    std::vector<std::thread> threads;
    for (uint64_t i = 0; i < kThreads; ++i) threads.emplace_back(client, 100 + i);
    for (std::thread& thread : threads) thread.join();
    const IoStats stats = backend->stats();
    EXPECT_EQ(stats.reads, kRequests * kThreads);
    EXPECT_EQ(stats.errors, 0u);
    EXPECT_EQ(stats.in_flight, 0u);
    EXPECT_GE(stats.pieces, stats.reads - stats.reads / 50);  // few are empty, many need two
}

TEST_P(BackendTest, NothingToSubmitAndNothingToReadAreFine) {
    const auto backend = make(true);
    backend->submit({});
    EXPECT_TRUE(done_.take(false).empty());
    EXPECT_TRUE(read(*backend, fd_->get(), 0, nullptr, 0));
}

TEST_P(BackendTest, ATruncatedFileIsNamedWithWhereItEndsAndWhatIsMissing) {
    for (const bool direct : {false, true}) {
        const auto backend = make(direct);
        Result<UniqueFd> fd = open_file(file_.path(), O_RDONLY | (direct ? O_DIRECT : 0));
        if (!fd) GTEST_SKIP() << "O_DIRECT is refused here: " << fd.error().message;
        // Once cut at a page, once in the middle of one, once before the request's first byte.
        const uint64_t offset = 2 * kPieceBytes, bytes = 3 * kPieceBytes;
        for (const uint64_t size : {offset + kPieceBytes, offset + 12345, offset - 100}) {
            ASSERT_EQ(::truncate(file_.path().c_str(), static_cast<off_t>(size)), 0);
            PageBuffer buffer = test_buffer(bytes);
            const auto result = read(*backend, fd->get(), offset, buffer.data(), bytes);
            ASSERT_FALSE(result);
            EXPECT_EQ(result.error().code, ErrorCode::kCorrupt) << result.error().message;
            EXPECT_EQ(result.error().message,
                      fmt::format("{} is truncated: it ends at offset {}, {} of the {} bytes "
                                  "wanted at offset {} are missing",
                                  file_.path().native(), size,
                                  offset + bytes - std::max(size, offset), bytes, offset));
        }
        EXPECT_EQ(backend->stats().errors, 3u);
        ASSERT_EQ(::truncate(file_.path().c_str(), kFileBytes), 0);
    }
}

TEST_P(BackendTest, ABadDescriptorIsAnErrorAndTheBackendLivesOn) {
    const auto backend = make(false);
    PageBuffer buffer = test_buffer(kPageBytes);
    const auto bad = read(*backend, 987654, 0, buffer.data(), kPageBytes);
    ASSERT_FALSE(bad);
    EXPECT_THAT(bad.error().message, HasSubstr("descriptor 987654"));
    EXPECT_THAT(bad.error().message, HasSubstr("Bad file descriptor"));
    EXPECT_TRUE(read(*backend, fd_->get(), 0, buffer.data(), kPageBytes));
}

TEST_P(BackendTest, WhatCannotBeReadIsAnErrorThatNamesIt) {
    const auto backend = make(false);
    PageBuffer buffer = test_buffer(kPageBytes);
    Result<UniqueFd> directory = open_file(file_.path().parent_path(), O_RDONLY | O_DIRECTORY);
    ASSERT_TRUE(directory);
    const auto result = read(*backend, directory->get(), 0, buffer.data(), kPageBytes);
    ASSERT_FALSE(result);
    EXPECT_THAT(result.error().message, HasSubstr("Is a directory"));
    EXPECT_THAT(result.error().message, HasSubstr(file_.path().parent_path().native()));
}

TEST_P(BackendTest, MisalignedDirectRequestsAreRefusedWithTheNumbers) {
    const auto backend = make(true);
    PageBuffer buffer = test_buffer(4 * kPageBytes);
    struct Case { uint64_t offset, shift, bytes; };
    for (const Case& c : {Case{512, 0, 4096}, Case{0, 512, 4096}, Case{0, 0, 4608}}) {
        const auto result =
            read(*backend, fd_->get(), c.offset, buffer.data() + c.shift, c.bytes);
        ASSERT_FALSE(result);
        EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
        EXPECT_THAT(result.error().message,
                    HasSubstr(fmt::format("offset {}, length {} and address {:#x}", c.offset,
                                          c.bytes,
                                          reinterpret_cast<uintptr_t>(buffer.data() + c.shift))));
        EXPECT_THAT(result.error().message, HasSubstr("multiples of 4096"));
    }
    EXPECT_EQ(backend->stats().errors, 3u);
    EXPECT_EQ(backend->stats().pieces, 0u);
}

TEST_P(BackendTest, DestructionWithRequestsInFlightCompletesEachOnce) {
    constexpr uint64_t kRequests = 64;
    for (int round = 0; round < 10; ++round) {
        auto backend = make(false, 2);
        PageBuffer buffer = test_buffer(kRequests * kPieceBytes);
        std::vector<ReadRequest> requests;
        for (uint64_t i = 0; i < kRequests; ++i) {
            requests.push_back({fd_->get(), i * 1000, buffer.data() + i * kPieceBytes, kPieceBytes,
                                &done_, i});
        }
        backend->submit(requests);
        backend.reset();
        std::vector<int> seen(kRequests);
        for (const auto& completion : done_.take(false)) {
            ++seen.at(completion.tag);
            if (completion.result) {
                const ReadRequest& request = requests[completion.tag];
                EXPECT_TRUE(equal(file_.slice(request.offset, request.bytes), request.buffer));
            } else {
                EXPECT_EQ(completion.result.error().code, ErrorCode::kShutdown);
            }
        }
        EXPECT_THAT(seen, testing::Each(1));
    }
}

TEST_P(BackendTest, OptionsOutOfRangeAreRefusedWithTheNumbers) {
    IoOptions options;
    options.backend = GetParam();
    options.depth = 0;
    EXPECT_THAT(make_read_backend(options).error().message, HasSubstr("0 pieces"));
    options.depth = 257;
    EXPECT_THAT(make_read_backend(options).error().message, HasSubstr("257 pieces"));
    options.depth = 256;
    EXPECT_TRUE(make_read_backend(options));
    options.piece_bytes = 5000;
    EXPECT_THAT(make_read_backend(options).error().message, HasSubstr("5000 bytes"));
    options.piece_bytes = 0;
    EXPECT_FALSE(make_read_backend(options));
}

}  // namespace
}  // namespace xp
