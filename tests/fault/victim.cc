// A client that is there to be killed: victim SOCKET SEED. It uses the daemon without end, in a way
// that the seed chooses, so that a kill finds it before the handshake, in it, writing or reading.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

#include "expertpack.hpp"
#include "shm/handshake.h"

namespace {

constexpr int kWaitMs = 100'000;

void connect_only(const std::string& path, bool say_hello) {
    const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return;
    const xp::shm::Hello hello;
    if (say_hello) (void)!::send(fd, &hello, sizeof hello, MSG_NOSIGNAL);
    ::pause();
}

expertpack::Generate request_of(std::mt19937_64& random, bool large) {
    expertpack::Generate request;
    const std::string text = large ? std::string(1 << 20, 'x') : "Once upon a time there was a ";
    request.text(text).temperature(1).seed(random()).max_tokens(1 + random() % 200);
    request.ignore_eos(true).stream(random() % 2 == 0);
    return request;
}

// Large requests do not fit the model and are refused; writing and reading them is the work.
void talk(const std::string& path, std::mt19937_64& random, bool large, bool read) {
    expertpack::Client client("victim");
    if (client.connect(path.c_str(), kWaitMs) != XP_OK) return;
    for (;;) {
        uint64_t id = 0;
        const xp_status status = client.submit(request_of(random, large), &id, kWaitMs);
        if (status != XP_OK && status != XP_BUSY) return;
        if (!read) continue;
        const xp_event* event = nullptr;
        const uint64_t events = random() % 20;
        for (uint64_t i = 0; i < events; ++i) {
            if (client.next_event(&event, kWaitMs) != XP_OK) break;
        }
        if (random() % 3 == 0) (void)client.cancel(id);
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) return 2;
    const std::string path = argv[1];
    std::mt19937_64 random(std::strtoull(argv[2], nullptr, 10));
    switch (random() % 6) {
        case 0: connect_only(path, false); break;
        case 1: connect_only(path, true); break;
        case 2: talk(path, random, true, false); break;
        case 3: talk(path, random, false, false); break;
        default: talk(path, random, false, true); break;
    }
    return 0;
}
