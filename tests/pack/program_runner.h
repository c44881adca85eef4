// Runs a program as scripts do: its exit status as a shell shows it, and what it wrote.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <string>
#include <vector>

#include "tests/pack/pack_fixture.h"

namespace xp::test {

struct ProgramOutcome {
    int status = 0;
    std::string out;
    std::string err;
};

// The most that it may have; 0: no limit.
struct ProgramLimits {
    uint64_t memory = 0;      // of address space
    uint64_t files = 0;       // descriptors
    uint64_t file_bytes = 0;  // of one file
};

// Its output goes to files in `scratch`.
inline pid_t start_program(const char* program, std::vector<std::string> arguments,
                           const Scratch& scratch, const ProgramLimits& limits = {}) {
    arguments.insert(arguments.begin(), program);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    const pid_t child = ::fork();
    if (child != 0) return child;
    ::dup2(::open((scratch / "out").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), 1);
    ::dup2(::open((scratch / "err").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), 2);
    const auto limit = [](auto resource, uint64_t most) {
        const rlimit both{most, most};
        if (most > 0) ::setrlimit(resource, &both);
    };
    limit(RLIMIT_AS, limits.memory);
    limit(RLIMIT_NOFILE, limits.files);
    limit(RLIMIT_FSIZE, limits.file_bytes);
    ::execv(argv[0], argv.data());
    ::_exit(127);
}

inline ProgramOutcome finish_program(pid_t child, const Scratch& scratch) {
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
            read_bytes(scratch / "out"), read_bytes(scratch / "err")};
}

inline ProgramOutcome run_program(const char* program, std::vector<std::string> arguments,
                                  const Scratch& scratch, const ProgramLimits& limits = {}) {
    return finish_program(start_program(program, std::move(arguments), scratch, limits), scratch);
}

}  // namespace xp::test
