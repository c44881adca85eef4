// The real xpctl as a child process, with its standard streams in the hands of a test: as pipes, as
// terminals, or all as one terminal that a test types on.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <sys/types.h>
#include <termios.h>

#include "shm/fd.h"

namespace xp::test {

struct Streams {
    std::string socket = {};      // --socket is put in front of the arguments
    std::string input = {};       // standard input
    bool input_terminal = false;
    bool out_terminal = false;
    std::string out_path = {};    // standard output is this file instead
    bool err_terminal = false;
    // One terminal for all three, which also is the controlling one: Ctrl-C works. What the program
    // writes to either stream is in Outcome::out, without carriage returns.
    bool terminal = false;
    std::map<std::string, std::string> environment = {};
};

struct Outcome {
    int status = -1;                           // exit status; 256 + signal when a signal ended it
    std::string out;
    std::string err;
};

class Program {
public:
    Program(const std::vector<std::string>& arguments, const Streams& setup);
    ~Program();  // kills what still runs

    // Waits until standard output or error contain a text; false when the program ended before.
    bool wait_for_output(const std::string& text);
    // The same for what comes from now on; what was there before is forgotten.
    bool wait_for_new_output(const std::string& text);
    bool wait_for_messages(const std::string& text);

    bool running();
    void interrupt();        // as Ctrl-C does
    void signal(int number);
    // Waits until it is stopped (SIGSTOP).
    bool wait_until_stopped();
    // The settings of the terminal, also after the program has ended.
    termios settings();
    void set(const termios& settings);
    // Waits until a line editor reads.
    bool wait_for_editor();
    void type(const std::string& keys);  // on the terminal; "\x03" is Ctrl-C, "\x04" Ctrl-D
    // The same once a line editor reads: what is typed while it takes over can get lost.
    void type_to_editor(const std::string& keys);
    void close_output();     // the reader of standard output goes away
    Outcome wait();

private:
    void spawn(const std::vector<std::string>& arguments, const Streams& setup,
               const int* descriptors, const char* terminal);
    bool wait_for(const std::string& stream, const std::string& text);
    bool read_more();
    void reap(int options);

    pid_t pid_ = -1;
    bool ended_ = false;
    bool terminal_ = false;  // Streams::terminal
    shm::Fd out_;
    shm::Fd err_;
    shm::Fd input_;          // the other end of a terminal
    Outcome outcome_;
};

Outcome run_xpctl(const std::vector<std::string>& arguments, const Streams& setup);
// In a shell under its limits, as in "-v 60000", with the file `input`; all that it writes is in
// Outcome::out.
Outcome run_limited(const std::string& limit, const std::string& socket,
                    const std::string& arguments, const std::string& input);

}  // namespace xp::test
