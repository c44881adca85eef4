// A child process of a test: its output is collected in a file, and it never outlives the test.
#pragma once

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <iterator>
#include <optional>
#include <spawn.h>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "tests/serve/temp_dir.h"

namespace xp::scripted {

class Process {
public:
    // `environment` is added to that of the test ("NAME=value").
    explicit Process(std::vector<std::string> arguments,
                     const std::vector<std::string>& environment = {}) {
        std::vector<char*> argv;
        for (std::string& argument : arguments) {
            argv.push_back(argument.data());
        }
        argv.push_back(nullptr);
        std::vector<std::string> variables = environment;
        for (char** variable = environ; *variable; ++variable) {
            variables.emplace_back(*variable);
        }
        std::vector<char*> envp;
        for (std::string& variable : variables) {
            envp.push_back(variable.data());
        }
        envp.push_back(nullptr);
        posix_spawn_file_actions_t actions;
        ::posix_spawn_file_actions_init(&actions);
        ::posix_spawn_file_actions_addopen(&actions, 1, log().c_str(),
                                           O_WRONLY | O_CREAT | O_APPEND, 0600);
        ::posix_spawn_file_actions_adddup2(&actions, 1, 2);
        if (::posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), envp.data()) != 0) {
            pid_ = -1;
        }
        ::posix_spawn_file_actions_destroy(&actions);
    }
    ~Process() {
        if (pid_ > 0) {
            ::kill(pid_, SIGKILL);
            wait();
        }
    }
    Process(const Process&) = delete;
    Process& operator=(const Process&) = delete;

    bool running() {
        if (pid_ > 0 && ::waitpid(pid_, &status_, WNOHANG) == pid_) {
            pid_ = -1;
        }
        return pid_ > 0;
    }
    void signal(int number) const {
        if (pid_ > 0) ::kill(pid_, number);  // -1 would be every process there is
    }
    // -1 once it has ended and that was noticed.
    pid_t pid() const { return pid_; }
    // Returns when it has ended, or stopped itself: true for the latter.
    bool wait_for_stop() {
        if (pid_ > 0 && ::waitpid(pid_, &status_, WUNTRACED) == pid_ && !WIFSTOPPED(status_)) {
            pid_ = -1;
        }
        return pid_ > 0;
    }
    // The exit code, or 128 + signal.
    int wait() {
        if (pid_ > 0) {
            ::waitpid(pid_, &status_, 0);
            pid_ = -1;
        }
        return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
    }
    std::string output() const {
        std::ifstream file(log());
        return {std::istreambuf_iterator<char>(file), {}};
    }

private:
    std::string log() const { return (dir_ / "output").string(); }

    TempDir dir_;
    pid_t pid_ = -1;
    int status_ = 0;
};

}  // namespace xp::scripted
