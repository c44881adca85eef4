// storm_client SOCKET SEED COUNT LOG: sends COUNT requests of all kinds, a few at a time, cancels
// some, and may kill itself in the middle; all of it follows from SEED. What is answered with
// "busy" is sent again under another id. It reads the raw rings, as libexpertpack would hide a
// second terminal reply. Each line of LOG is one fact, written at once:
// "sent ID KIND", "end ID KIND OUTCOME", "cancel ID". Exit status: 0, all requests ended exactly
// once; 1, they did not.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>

#include <fcntl.h>
#include <unistd.h>

#include "shm/enclosure.h"
#include "tests/hostile/raw_client.h"

namespace xp::hostile {
namespace {

constexpr size_t kAtOnce = 6;
// Of a hundred requests: those cancelled, and those at which the process kills itself.
constexpr uint32_t kCancelled = 30;
constexpr uint32_t kDeadly = 4;

const char* const kKinds[] = {"generate", "score", "tokenize", "stats", "enclosed"};

class Storm {
public:
    Storm(const std::string& path, uint64_t seed, int log) : random_(seed), log_(log),
                                                             client_(path) {
        shm::Hello greeting = hello();
        greeting.resp_ring_bytes = shm::kResponseRingBytes;
        if (!client_.greet(greeting)) give_up(std::string("refused: ") + client_.welcome().text);
    }

    bool run(uint64_t count) {
        uint64_t sent = 0;
        while (sent < count + busy_ || !in_flight_.empty()) {
            while (sent < count + busy_ && in_flight_.size() < kAtOnce) {
                send(++sent);
            }
            const auto answer = client_.next(100'000);
            if (!answer) {
                std::fprintf(stderr, "no reply, %zu requests in flight\n", in_flight_.size());
                return false;
            }
            if (!take(*answer)) return false;
        }
        return ended_ == sent;
    }

private:
    struct Sent {
        const char* kind = nullptr;
        uint32_t cancel_after = 0;  // replies; 0: never
        uint32_t replies = 0;
    };

    uint32_t below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }

    void note(const std::string& line) {
        if (::write(log_, line.data(), line.size()) < 0) give_up("the log");
    }

    std::vector<int32_t> prompt(uint32_t n) {
        std::vector<int32_t> ids(1 + below(n));
        for (int32_t& id : ids) id = static_cast<int32_t>(3 + below(200));
        return ids;
    }

    void send(uint64_t id) {
        const uint32_t kinds = client_.welcome().max_enclosed_bytes != 0 ? 5 : 4;
        Sent sent{kKinds[below(kinds)]};
        const std::string kind = sent.kind;
        shm::Request request = shm::GetStats();
        if (kind != "stats") {
            shm::Generate generate;
            generate.prompt = shm::RawTokens{prompt(24)};
            generate.max_tokens = 1 + below(5);
            generate.ignore_eos = true;
            generate.sampling.seed = id;
            if (kind == "score") generate.task = shm::Task::kScore;
            if (kind == "tokenize" || kind == "enclosed") {
                generate.task = shm::Task::kTokenize;
                generate.prompt = shm::RawText{std::string(kind == "enclosed" ? 40'000 : 300, 'a')};
            }
            if (below(100) < kCancelled) {
                sent.cancel_after = 1 + below(4);
                // So that there is something to cancel.
                if (kind == "generate") generate.max_tokens = 200;
            }
            request = std::move(generate);
        }
        deadly_ = below(100) < kDeadly;
        note("sent " + std::to_string(id) + " " + sent.kind + "\n");
        in_flight_.emplace(id, sent);
        if (kind == "enclosed") {
            std::string error;
            const Bytes message = shm::encode_request(request);
            const shm::Fd memfd = shm::enclose(message, &error);
            if (!memfd || !shm::send_notice(client_.socket(), shm::NoticeKind::kEnclosed,
                                            message.size(), memfd.get())) {
                give_up("an enclosure " + error);
            }
            client_.write(id, shm::Request(shm::Enclosed{message.size()}));
        } else {
            client_.write(id, request);
        }
        if (sent.cancel_after == 1) cancel(id);
        if (deadly_ && below(2) == 0) die();
    }

    void cancel(uint64_t id) {
        note("cancel " + std::to_string(id) + "\n");
        client_.write(kCancelIds + id, shm::Request(shm::Cancel{id}));
    }

    bool take(const Answer& answer) {
        if (deadly_) die();
        if (answer.id >= kCancelIds) {
            return std::holds_alternative<shm::Done>(answer.reply);
        }
        const auto found = in_flight_.find(answer.id);
        if (found == in_flight_.end()) {
            std::fprintf(stderr, "request %lu was answered after its end\n",
                         static_cast<unsigned long>(answer.id));
            return false;
        }
        Sent& sent = found->second;
        if (!shm::is_terminal(answer.reply)) {
            if (++sent.replies + 1 == sent.cancel_after) cancel(answer.id);
            return true;
        }
        std::string outcome = "answered";
        if (std::holds_alternative<shm::Done>(answer.reply)) outcome = "done";
        if (std::holds_alternative<shm::Cancelled>(answer.reply)) outcome = "cancelled";
        if (const auto* failed = std::get_if<shm::Failed>(&answer.reply)) {
            outcome = failed->code;
        }
        if (outcome == "busy") {
            ++busy_;
            ::usleep(5000);
        }
        note("end " + std::to_string(answer.id) + " " + sent.kind + " " + outcome + "\n");
        in_flight_.erase(found);
        ++ended_;
        return true;
    }

    [[noreturn]] void die() {
        ::kill(::getpid(), SIGKILL);
        std::abort();
    }

    static constexpr uint64_t kCancelIds = uint64_t{1} << 32;

    std::mt19937_64 random_;
    int log_;
    RawClient client_;
    std::map<uint64_t, Sent> in_flight_;
    uint64_t ended_ = 0;
    uint64_t busy_ = 0;
    bool deadly_ = false;
};

}  // namespace
}  // namespace xp::hostile

int main(int argc, char** argv) {
    using namespace xp::hostile;
    if (argc != 5) {
        std::fprintf(stderr, "usage: storm_client SOCKET SEED COUNT LOG\n");
        return 2;
    }
    constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
    const int log = checked(::open(argv[4], kFlags, 0600), "log");
    Storm storm(argv[1], std::strtoull(argv[2], nullptr, 10), log);
    return storm.run(std::strtoull(argv[3], nullptr, 10)) ? 0 : 1;
}
