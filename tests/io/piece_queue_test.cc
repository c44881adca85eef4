#include "daemon/io/piece_queue.h"

#include <gmock/gmock.h>

#include <cerrno>

#include "tests/io/test_file.h"

namespace xp {
namespace {

using testing::HasSubstr;

// Plays the kernel: takes pieces by hand and says what became of them.
class PieceQueueTest : public testing::Test {
protected:
    static constexpr uint64_t kPiece = 2 * kPageBytes;

    static IoOptions options() {
        IoOptions options;
        options.piece_bytes = kPiece;
        return options;
    }
    PieceQueue::Piece take() {
        std::optional<PieceQueue::Piece> piece = queue_.take(false);
        EXPECT_TRUE(piece);
        return std::move(*piece);
    }
    void add(uint64_t offset, uint64_t bytes, uint64_t tag) {
        const ReadRequest request{fd_->get(), offset, buffer_.data(), bytes, &done_, tag};
        queue_.add({&request, 1});
    }
    Error only_error() {
        auto completions = done_.take(false);
        EXPECT_EQ(completions.size(), 1u);
        EXPECT_FALSE(completions.at(0).result.ok());
        return completions.at(0).result.error();
    }

    TestFile file_{8 * kPageBytes, 1};
    Result<UniqueFd> fd_ = open_file(file_.path(), O_RDONLY);
    PageBuffer buffer_ = test_buffer(16 * kPageBytes);
    CompletionQueue done_;
    PieceQueue queue_{options(), "test", ""};
};

TEST_F(PieceQueueTest, ARequestIsCutIntoPiecesAndCompletesWithTheLastOfThem) {
    add(kPageBytes, 5 * kPageBytes, 7);
    auto a = take(), b = take(), c = take();
    EXPECT_FALSE(queue_.take(false));
    EXPECT_EQ(a.offset, kPageBytes);
    EXPECT_EQ(b.offset, 3 * kPageBytes);
    EXPECT_EQ(c.offset, 5 * kPageBytes);
    EXPECT_EQ(c.bytes, kPageBytes);
    EXPECT_EQ(c.buffer, buffer_.data() + 4 * kPageBytes);
    EXPECT_FALSE(queue_.advance(c, static_cast<int64_t>(c.bytes)));
    EXPECT_FALSE(queue_.advance(a, static_cast<int64_t>(a.bytes)));
    EXPECT_TRUE(done_.take(false).empty());
    EXPECT_EQ(queue_.stats().in_flight, 1u);
    EXPECT_FALSE(queue_.advance(b, static_cast<int64_t>(b.bytes)));
    auto completions = done_.take(false);
    ASSERT_EQ(completions.size(), 1u);
    EXPECT_EQ(completions[0].tag, 7u);
    EXPECT_TRUE(completions[0].result);
    EXPECT_EQ(queue_.stats().in_flight, 0u);
    EXPECT_EQ(queue_.stats().pieces, 3u);
    EXPECT_EQ(queue_.stats().read_bytes, 5 * kPageBytes);
}

TEST_F(PieceQueueTest, AfterAShortReadTheRestIsAskedFor) {
    add(0, 2 * kPageBytes, 1);
    auto piece = take();
    EXPECT_TRUE(queue_.advance(piece, kPageBytes));
    EXPECT_EQ(piece.offset, kPageBytes);
    EXPECT_EQ(piece.bytes, kPageBytes);
    EXPECT_EQ(piece.buffer, buffer_.data() + kPageBytes);
    EXPECT_FALSE(queue_.advance(piece, kPageBytes));
    EXPECT_TRUE(done_.take(false).at(0).result);
    EXPECT_EQ(queue_.stats().short_reads, 1u);
}

TEST_F(PieceQueueTest, AnUnalignedShortReadInsideTheFileIsAnErrorWithTheNumbers) {
    add(kPageBytes, 2 * kPageBytes, 1);
    auto piece = take();
    EXPECT_FALSE(queue_.advance(piece, 1000));
    const Error error = only_error();
    EXPECT_EQ(error.code, ErrorCode::kIo);
    EXPECT_THAT(error.message, HasSubstr("only 1000 of 8192 bytes at offset 4096"));
    EXPECT_THAT(error.message, HasSubstr(file_.path().native()));
}

TEST_F(PieceQueueTest, InterruptionsAreRetriedAndCountedUpToTheLimit) {
    add(0, kPageBytes, 1);
    auto piece = take();
    for (uint32_t i = 0; i < kMaxPieceRetries; ++i) {
        EXPECT_TRUE(queue_.advance(piece, i % 2 == 0 ? -EINTR : -EAGAIN)) << i;
    }
    EXPECT_EQ(queue_.stats().retries, kMaxPieceRetries);
    EXPECT_FALSE(queue_.advance(piece, -EAGAIN));
    EXPECT_THAT(only_error().message, HasSubstr("temporarily unavailable"));
}

TEST_F(PieceQueueTest, AfterTheFirstErrorNoFurtherPieceIsHandedOutAndTheErrorIsTheResult) {
    add(0, 8 * kPageBytes, 3);
    auto a = take(), b = take();
    EXPECT_FALSE(queue_.advance(a, -EIO));
    EXPECT_FALSE(queue_.take(false)) << "the third piece is pointless";
    EXPECT_TRUE(done_.take(false).empty()) << "the second is still in flight";
    EXPECT_FALSE(queue_.advance(b, -ENOMEM));
    const Error error = only_error();
    EXPECT_EQ(error.code, ErrorCode::kIo);
    EXPECT_THAT(error.message, HasSubstr("reading 8192 bytes at offset 0 of"));
    EXPECT_THAT(error.message, HasSubstr("Input/output error"));
    EXPECT_EQ(queue_.stats().errors, 1u);
}

TEST_F(PieceQueueTest, ShuttingDownCompletesWhatWasNotHandedOut) {
    add(0, 4 * kPageBytes, 1);
    add(0, kPageBytes, 2);
    auto piece = take();
    queue_.shut_down();
    EXPECT_FALSE(queue_.take(true));
    auto first = done_.take(false);
    ASSERT_EQ(first.size(), 1u);
    EXPECT_EQ(first[0].tag, 2u);
    EXPECT_EQ(first[0].result.error().code, ErrorCode::kShutdown);
    EXPECT_FALSE(queue_.advance(piece, static_cast<int64_t>(piece.bytes)));
    auto second = done_.take(false);
    ASSERT_EQ(second.size(), 1u);
    EXPECT_EQ(second[0].tag, 1u);
    EXPECT_EQ(second[0].result.error().code, ErrorCode::kShutdown);
    add(0, kPageBytes, 3);
    EXPECT_EQ(only_error().code, ErrorCode::kShutdown);
    EXPECT_EQ(queue_.stats().in_flight, 0u);
}

// What its request's sink is told of.
class Told final : public PieceSink {
public:
    explicit Told(const std::byte* buffer) : buffer_(buffer) {}
    void on_piece(const std::byte* data, uint64_t bytes) override {
        pieces.emplace_back(static_cast<uint64_t>(data - buffer_), bytes);
    }
    std::vector<std::pair<uint64_t, uint64_t>> pieces;  // place in the buffer, size

private:
    const std::byte* buffer_;
};

TEST_F(PieceQueueTest, ASinkIsToldOfEveryByteOnceInTheOrderOfArrivalAndOfNothingElse) {
    Told told(buffer_.data());
    const ReadRequest request{fd_->get(), kPageBytes, buffer_.data(), 5 * kPageBytes, &done_, 1,
                              &told};
    queue_.add({&request, 1});
    auto a = take(), b = take(), c = take();
    using Pieces = std::vector<std::pair<uint64_t, uint64_t>>;
    EXPECT_TRUE(queue_.advance(b, -EAGAIN));
    EXPECT_EQ(told.pieces, Pieces{});
    EXPECT_TRUE(queue_.advance(b, kPageBytes));
    EXPECT_EQ(told.pieces, (Pieces{{2 * kPageBytes, kPageBytes}})) << "what a short read brought";
    EXPECT_FALSE(queue_.advance(c, kPageBytes));
    EXPECT_FALSE(queue_.advance(b, kPageBytes));
    EXPECT_TRUE(done_.take(false).empty());
    EXPECT_FALSE(queue_.advance(a, 2 * kPageBytes));
    EXPECT_EQ(told.pieces, (Pieces{{2 * kPageBytes, kPageBytes},
                                   {4 * kPageBytes, kPageBytes},
                                   {3 * kPageBytes, kPageBytes},
                                   {0, 2 * kPageBytes}}));
    EXPECT_TRUE(done_.take(false).at(0).result);

    told.pieces.clear();
    queue_.add({&request, 1});
    a = take(), b = take();
    EXPECT_FALSE(queue_.advance(a, -EIO));
    EXPECT_EQ(told.pieces, Pieces{}) << "nothing came";
    EXPECT_FALSE(queue_.advance(b, 2 * kPageBytes));
    EXPECT_EQ(told.pieces, (Pieces{{2 * kPageBytes, 2 * kPageBytes}})) << "though in vain";
    EXPECT_FALSE(done_.take(false).at(0).result);
    queue_.add({&request, 1});
    a = take();
    told.pieces.clear();
    EXPECT_FALSE(queue_.advance(a, 1000));
    EXPECT_EQ(told.pieces, Pieces{}) << "no part that cannot be gone on from";
}

TEST_F(PieceQueueTest, WhoWaitsForTheRequestIsWokenByEveryPiece) {
    Told told(buffer_.data());
    const ReadRequest request{fd_->get(), 0, buffer_.data(), 2 * kPiece, &done_, 1, &told};
    queue_.add({&request, 1});
    auto a = take(), b = take();
    EXPECT_FALSE(queue_.advance(b, kPiece));
    EXPECT_TRUE(done_.take(true).empty()) << "does not block";
    EXPECT_FALSE(queue_.advance(a, kPiece));
    EXPECT_EQ(done_.take(true).size(), 1u);
}

TEST_F(PieceQueueTest, WhileFewRequestsWaitPiecesAreSmall) {
    IoOptions small = options();
    small.few_piece_bytes = kPageBytes;
    PieceQueue queue(small, "test", "");
    const ReadRequest request{fd_->get(), 0, buffer_.data(), 4 * kPageBytes, &done_, 1};
    const auto size_of_next = [&] {
        std::optional<PieceQueue::Piece> piece = queue.take(false);
        const uint64_t bytes = piece ? piece->bytes : 0;
        if (piece) {
            EXPECT_FALSE(queue.advance(*piece, static_cast<int64_t>(bytes)));
        }
        return bytes;
    };
    queue.add({&request, 1});
    for (int i = 0; i < 4; ++i) EXPECT_EQ(size_of_next(), kPageBytes);
    EXPECT_EQ(size_of_next(), 0u);
    const std::vector<ReadRequest> many(100, request);
    queue.add(many);
    EXPECT_EQ(size_of_next(), kPiece);
    uint64_t last = 0;
    while (const uint64_t bytes = size_of_next()) last = bytes;
    EXPECT_EQ(last, kPageBytes);
    EXPECT_EQ(done_.take(false).size(), 101u);
}

TEST_F(PieceQueueTest, ARangeBeyondWhatAFileCanHoldIsRefused) {
    add(uint64_t{1} << 63, kPageBytes, 1);
    EXPECT_EQ(only_error().code, ErrorCode::kInvalidArgument);
    add((uint64_t{1} << 63) - kPageBytes, 2 * kPageBytes, 1);
    EXPECT_EQ(only_error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace xp
