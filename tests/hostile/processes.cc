// Misbehaviour that takes a process: death in the middle, standing still, sharing after a fork.
#include <csignal>
#include <cstdlib>

#include <sys/wait.h>
#include <unistd.h>

#include "tests/hostile/behaviours.h"
#include "tests/hostile/raw_client.h"

namespace xp::hostile {
namespace {

// A child that runs `body` and then ends with 0 if it returned true.
template <class Body>
pid_t child(Body body) {
    const pid_t pid = checked(::fork(), "fork");
    if (pid == 0) std::_Exit(body() ? 0 : 1);
    return pid;
}

int end_of(pid_t pid) {
    int status = 0;
    checked(::waitpid(pid, &status, 0), "waitpid");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

[[noreturn]] void die() {
    ::kill(::getpid(), SIGKILL);
    std::abort();
}

bool killed_before_the_tail(const std::string& path) {
    const pid_t pid = child([&] {
        RawClient client = connected(path);
        client.write(1, shm::Request(endless_request()));
        client.put_header(client.tail(), {128, 2, 0, 2});
        die();
        return true;
    });
    return holds(end_of(pid) == 128 + SIGKILL) && holds(connected(path).served());
}

// The tail is out, the record is not: what was there before is what the daemon reads, zeros.
bool killed_after_the_tail(const std::string& path) {
    const pid_t pid = child([&] {
        RawClient client = connected(path);
        client.write(1, shm::Request(endless_request()));
        client.publish(client.tail() + 128);
        die();
        return true;
    });
    return holds(end_of(pid) == 128 + SIGKILL) && holds(connected(path).served());
}

bool killed_while_reading(const std::string& path) {
    for (int round = 0; round < 10; ++round) {
        const pid_t pid = child([&] {
            RawClient client = connected(path);
            client.write(1, shm::Request(endless_request()));
            for (int i = 0; i <= round; ++i) client.next();
            die();
            return true;
        });
        if (!holds(end_of(pid) == 128 + SIGKILL)) return false;
    }
    return holds(connected(path).served());
}

bool stopped_then_killed(const std::string& path) {
    const pid_t pid = child([&] {
        RawClient client = connected(path);
        for (uint64_t id = 1; id <= 4; ++id) client.write(id, shm::Request(endless_request()));
        client.next();
        ::raise(SIGSTOP);
        return true;
    });
    int status = 0;
    checked(::waitpid(pid, &status, WUNTRACED), "waitpid");
    ::usleep(500'000);
    const bool others_served = connected(path).served();
    ::kill(pid, SIGKILL);
    return holds(WIFSTOPPED(status)) && holds(end_of(pid) == 128 + SIGKILL) &&
           holds(others_served);
}

// Two processes write into one ring, each with a tail of its own.
bool fork_shares_the_ring(const std::string& path) {
    RawClient client = connected(path);
    const auto write = [&] {
        for (uint64_t id = 1; id <= 300 && !client.closed(0); ++id) {
            client.write(static_cast<uint64_t>(::getpid()) << 20 | id,
                         shm::Request(shm::Ping()));
        }
        return true;
    };
    const pid_t pid = child(write);
    write();
    end_of(pid);
    client.hang_up();
    return holds(connected(path).served());
}

// The connection lasts as long as anybody holds the socket, and no longer.
bool fork_keeps_the_socket(const std::string& path) {
    RawClient client = connected(path);
    const pid_t pid = child([&] {
        ::usleep(300'000);
        return client.served();
    });
    client.hang_up();
    return holds(end_of(pid) == 0) && holds(connected(path).served());
}

constexpr Behaviour kProcessBehaviours[] = {
    {"killed_before_the_tail", "in the middle of a record", 0, 0, killed_before_the_tail},
    {"killed_after_the_tail", "with a record announced and not written", kAny, 0,
     killed_after_the_tail},
    {"killed_while_reading", "ten times, later each time", 0, 0, killed_while_reading},
    {"stopped_then_killed", "SIGSTOP with four answers running", 0, 0, stopped_then_killed},
    {"fork_shares_the_ring", "two writers", kAny, 0, fork_shares_the_ring},
    {"fork_keeps_the_socket", "a child goes on", 0, 0, fork_keeps_the_socket},
};

}  // namespace

std::span<const Behaviour> process_behaviours() {
    return kProcessBehaviours;
}

}  // namespace xp::hostile
