// What the ring server writes to the log: about clients, only so much; about its socket, once.
#include "tests/serve/ring_server_fixture.h"

#include <fstream>
#include <sys/socket.h>
#include <sys/un.h>

#include <spdlog/sinks/ringbuffer_sink.h>

namespace xp {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

// Takes the place of the default logger as long as it lives.
class RingServerLog : public RingServerTest {
protected:
    static constexpr size_t kMostLines = 1000;
    RingServerLog() {
        spdlog::set_default_logger(std::make_shared<spdlog::logger>("log_test", sink_));
        spdlog::set_level(spdlog::level::warn);
    }
    ~RingServerLog() override {
        if (server_) {  // whose threads write to the log
            scheduler_->stop();
            server_->stop();
        }
        spdlog::set_default_logger(before_);
        spdlog::set_level(spdlog::level::off);
    }
    std::vector<std::string> lines_with(std::string_view text) {
        std::vector<std::string> found;
        for (std::string& line : sink_->last_formatted(kMostLines)) {
            while (line.ends_with('\n')) {
                line.pop_back();
            }
            if (line.find(text) != std::string::npos) {
                found.push_back(std::move(line));
            }
        }
        return found;
    }
    std::vector<std::string> wait_for_line(std::string_view text) {
        for (int n = 0; n < 4000 && lines_with(text).empty(); ++n) {
            std::this_thread::sleep_for(5ms);
        }
        return lines_with(text);
    }
    // Returns once the daemon has refused it.
    void send_bad_hello() {
        const UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        socket_.string().copy(address.sun_path, sizeof address.sun_path - 1);
        ASSERT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
        ASSERT_EQ(::send(fd.get(), "what?", 5, MSG_NOSIGNAL), 5);
        shm::Welcome welcome;
        ASSERT_EQ(::recv(fd.get(), &welcome, sizeof welcome, 0),
                  static_cast<ssize_t>(sizeof welcome));
        EXPECT_EQ(welcome.status, static_cast<uint32_t>(shm::WelcomeStatus::kBadHello));
    }

    const std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
    const std::shared_ptr<spdlog::sinks::ringbuffer_sink_mt> sink_ =
        std::make_shared<spdlog::sinks::ringbuffer_sink_mt>(kMostLines);
};

TEST_F(RingServerLog, OfManyComplaintsInOneLookAHundredAreLoggedAndTheOthersCounted) {
    RingServerOptions options;
    options.housekeeping = 1h;  // none comes in between
    make({}, options);
    for (int n = 0; n < 137; ++n) {
        ASSERT_NO_FATAL_FAILURE(send_bad_hello());
    }
    EXPECT_EQ(lines_with("refused ").size(), 100u);
    EXPECT_EQ(lines_with("were not logged").size(), 0u);
    server_->stop();
    EXPECT_EQ(lines_with("refused ").size(), 100u);
    EXPECT_THAT(lines_with("were not logged"),
                ElementsAre(EndsWith(
                    "37 more complaints about clients in one second were not logged")));
}

TEST_F(RingServerLog, AHundredComplaintsNeedNoSummary) {
    RingServerOptions options;
    options.housekeeping = 1h;
    make({}, options);
    for (int n = 0; n < 100; ++n) {
        ASSERT_NO_FATAL_FAILURE(send_bad_hello());
    }
    server_->stop();
    EXPECT_EQ(lines_with("refused ").size(), 100u);
    EXPECT_EQ(lines_with("were not logged").size(), 0u);
}

TEST_F(RingServerLog, TheNextLookAllowsComplaintsAgain) {
    RingServerOptions options;
    options.housekeeping = 10ms;
    make({}, options);
    for (int n = 0; n < 4000 && lines_with("refused ").size() <= 100; ++n) {
        ASSERT_NO_FATAL_FAILURE(send_bad_hello());
    }
    EXPECT_GT(lines_with("refused ").size(), 100u);
}

TEST_F(RingServerLog, ASocketRemovedFromOutsideIsToldOnceAndNotBoundAgain) {
    RingServerOptions options;
    options.housekeeping = 10ms;
    make({}, options);
    expertpack::Client client = connect();
    ASSERT_TRUE(std::filesystem::remove(socket_));
    const auto lines = wait_for_line("cannot reach");
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_THAT(lines[0], AllOf(HasSubstr("warning"), HasSubstr(socket_.string()),
                                HasSubstr("restart")));
    std::this_thread::sleep_for(100ms);  // ten looks
    EXPECT_EQ(lines_with("cannot reach").size(), 1u);
    EXPECT_FALSE(std::filesystem::exists(socket_));
    EXPECT_EQ(stats_of(client).at("clients").at("connected"), 1);
}

TEST_F(RingServerLog, ASocketReplacedFromOutsideIsToldAndTheOtherFileIsLeftAlone) {
    RingServerOptions options;
    options.housekeeping = 10ms;
    make({}, options);
    std::ofstream(dir_ / "other") << "precious";
    std::filesystem::rename(dir_ / "other", socket_);
    EXPECT_EQ(wait_for_line("cannot reach").size(), 1u);
    server_->stop();
    EXPECT_EQ(std::filesystem::file_size(socket_), 8u);
}

TEST_F(RingServerLog, AnOrdinaryEndIsNoWarning) {
    RingServerOptions options;
    options.housekeeping = 10ms;
    make({}, options);
    server_->begin_drain();
    for (int n = 0; n < 4000 && std::filesystem::exists(socket_); ++n) {
        std::this_thread::sleep_for(5ms);
    }
    EXPECT_FALSE(std::filesystem::exists(socket_));
    std::this_thread::sleep_for(50ms);
    server_->stop();
    EXPECT_EQ(lines_with("cannot reach").size(), 0u);
}

}  // namespace
}  // namespace xp
