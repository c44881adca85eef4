#include "tests/client/xpctl/program.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace xp::test {
namespace {

void check(bool ok, const char* what) {
    if (!ok) throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
}

struct Stream {
    shm::Fd ours;
    shm::Fd theirs;
};

Stream make_stream(bool terminal) {
    int fds[2];
    if (!terminal) {
        check(::pipe2(fds, O_CLOEXEC) == 0, "pipe2");
        return {shm::Fd(fds[0]), shm::Fd(fds[1])};
    }
    termios raw = {};
    ::cfmakeraw(&raw);  // no carriage returns: what the program writes is what is compared
    check(::openpty(&fds[0], &fds[1], nullptr, &raw, nullptr) == 0, "openpty");
    for (const int fd : fds) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    return {shm::Fd(fds[0]), shm::Fd(fds[1])};
}

// A file, not a pipe: a long input needs nobody to push it.
Stream make_input(const std::string& text) {
    shm::Fd file(::memfd_create("input", MFD_CLOEXEC));
    check(bool(file), "memfd_create");
    check(::pwrite(file.get(), text.data(), text.size(), 0) ==
              static_cast<ssize_t>(text.size()), "pwrite");
    return {shm::Fd(), std::move(file)};
}

std::vector<std::string> environment_of(const Streams& setup) {
    std::map<std::string, std::string> variables = {{"TERM", "xterm"}};
    for (char** entry = environ; *entry; ++entry) {
        const std::string text = *entry;
        const std::string name = text.substr(0, text.find('='));
        // What sanitizers need passes; what xpctl looks at is the test's.
        if (name == "PATH" || name.ends_with("SAN_OPTIONS")) {
            variables[name] = text.substr(name.size() + 1);
        }
    }
    for (const auto& [name, value] : setup.environment) variables[name] = value;
    std::vector<std::string> out;
    for (const auto& [name, value] : variables) out.push_back(name + "=" + value);
    return out;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
    std::vector<char*> out;
    for (std::string& text : texts) out.push_back(text.data());
    out.push_back(nullptr);
    return out;
}

// False at the end of the stream.
bool append(int fd, std::string* text) {
    char buffer[4096];
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) return true;
    if (n <= 0) return false;  // a terminal says EIO
    text->append(buffer, static_cast<size_t>(n));
    return true;
}

}  // namespace

Program::Program(const std::vector<std::string>& arguments, const Streams& setup) {
    if (setup.terminal) {
        int master, slave;
        char name[64];
        winsize size = {24, 80, 0, 0};
        check(::openpty(&master, &slave, name, nullptr, &size) == 0, "openpty");
        ::fcntl(master, F_SETFD, FD_CLOEXEC);
        ::fcntl(slave, F_SETFD, FD_CLOEXEC);
        const shm::Fd held(slave);  // a terminal that nobody has open reads as ended
        out_.reset(master);
        terminal_ = true;
        spawn(arguments, setup, nullptr, name);
        return;
    }
    Stream in = setup.input_terminal ? make_stream(true) : make_input(setup.input);
    Stream out = make_stream(setup.out_terminal);
    if (!setup.out_path.empty()) {
        out = {shm::Fd(), shm::Fd(::open(setup.out_path.c_str(), O_WRONLY | O_CLOEXEC))};
        check(bool(out.theirs), "open of the output");
    }
    Stream err = make_stream(setup.err_terminal);
    const int descriptors[] = {in.theirs.get(), out.theirs.get(), err.theirs.get()};
    spawn(arguments, setup, descriptors, nullptr);
    out_ = std::move(out.ours);
    err_ = std::move(err.ours);
    input_ = std::move(in.ours);
}

// With three descriptors, or a terminal by its name.
void Program::spawn(const std::vector<std::string>& arguments, const Streams& setup,
                    const int* descriptors, const char* terminal) {
    std::vector<std::string> argv = {"xpctl"};
    if (!setup.socket.empty()) argv.insert(argv.end(), {"--socket", setup.socket});
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    std::vector<std::string> environment = environment_of(setup);

    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
        if (descriptors) {
            ::posix_spawn_file_actions_adddup2(&actions, descriptors[fd], fd);
        } else {
            // The first terminal that the leader of a session opens becomes its controlling one.
            ::posix_spawn_file_actions_addopen(&actions, fd, terminal, O_RDWR, 0);
        }
    }
    posix_spawnattr_t attributes;
    ::posix_spawnattr_init(&attributes);
    // Test runners in the background ignore SIGINT, which a child would inherit.
    sigset_t defaults;
    ::sigemptyset(&defaults);
    ::sigaddset(&defaults, SIGINT);
    ::posix_spawnattr_setsigdefault(&attributes, &defaults);
    ::posix_spawnattr_setflags(
        &attributes, static_cast<short>(POSIX_SPAWN_SETSIGDEF |
                                        (terminal ? POSIX_SPAWN_SETSID : 0)));
    errno = ::posix_spawn(&pid_, XPCTL_PROGRAM, &actions, &attributes, pointers(argv).data(),
                          pointers(environment).data());
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
    check(errno == 0, "posix_spawn of " XPCTL_PROGRAM);
}

Program::~Program() {
    if (ended_) return;
    ::kill(pid_, SIGKILL);
    reap(0);
}

bool Program::wait_for_output(const std::string& text) { return wait_for(outcome_.out, text); }
bool Program::wait_for_new_output(const std::string& text) {
    outcome_.out.clear();
    return wait_for_output(text);
}
bool Program::wait_for_messages(const std::string& text) { return wait_for(outcome_.err, text); }

bool Program::wait_for(const std::string& stream, const std::string& text) {
    while (stream.find(text) == std::string::npos) {
        if (!read_more()) return false;
    }
    return true;
}

// Reads what comes next; false when both streams have ended.
bool Program::read_more() {
    if (!out_ && !err_) return false;
    pollfd fds[] = {{out_.get(), POLLIN, 0}, {err_.get(), POLLIN, 0}};
    // Only a program that waits for something that never comes is silent as long.
    if (::poll(fds, std::size(fds), 30'000) == 0) {
        ADD_FAILURE() << "xpctl hangs; its output was \"" << outcome_.out << "\"";
        ::kill(pid_, SIGKILL);
        return true;
    }
    if (fds[0].revents && !append(out_.get(), &outcome_.out)) out_.reset();
    // Terminals put it before newlines, and editors where they draw a line again.
    if (terminal_) std::erase(outcome_.out, '\r');
    if (fds[1].revents && !append(err_.get(), &outcome_.err)) err_.reset();
    return true;
}

void Program::reap(int options) {
    int status = 0;
    if (ended_ || ::waitpid(pid_, &status, options) != pid_) return;
    ended_ = true;
    outcome_.status = WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

bool Program::running() {
    reap(WNOHANG);
    return !ended_;
}

void Program::interrupt() { signal(SIGINT); }

void Program::signal(int number) {
    if (!ended_) ::kill(pid_, number);
}

bool Program::wait_until_stopped() {
    siginfo_t info = {};
    return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WEXITED | WNOWAIT) == 0 &&
           info.si_code == CLD_STOPPED;
}

termios Program::settings() {
    termios settings{};
    check(::tcgetattr(out_.get(), &settings) == 0, "tcgetattr");
    return settings;
}

void Program::set(const termios& settings) {
    check(::tcsetattr(out_.get(), TCSANOW, &settings) == 0, "tcsetattr");
}

bool Program::wait_for_editor() {
    for (int n = 0; running() && n < 30'000; ++n) {
        if (!(settings().c_lflag & ICANON)) return true;
        ::usleep(1000);
    }
    return false;
}

void Program::type(const std::string& keys) {
    check(::write(out_.get(), keys.data(), keys.size()) == static_cast<ssize_t>(keys.size()),
          "write to the terminal");
}

void Program::type_to_editor(const std::string& keys) {
    (void)wait_for_editor();
    type(keys);
}

void Program::close_output() { out_.reset(); }

Outcome Program::wait() {
    while (read_more()) {
    }
    reap(0);
    return outcome_;
}

Outcome run_xpctl(const std::vector<std::string>& arguments, const Streams& setup) {
    return Program(arguments, setup).wait();
}

Outcome run_limited(const std::string& limit, const std::string& socket,
                    const std::string& arguments, const std::string& input) {
    const std::string command = "( ulimit " + limit + "; exec " XPCTL_PROGRAM " --socket " +
                                socket + " " + arguments + " ) 2>&1 < " + input;
    FILE* pipe = ::popen(command.c_str(), "r");
    if (!pipe) return {};
    std::string out(4096, '\0');
    out.resize(std::fread(out.data(), 1, out.size(), pipe));
    const int status = ::pclose(pipe);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 256, out, ""};
}

}  // namespace xp::test
