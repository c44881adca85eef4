// Ctrl-C as something to poll: the first SIGINT is noted and wakes poll(), a second one ends the
// process at once with status 130. Process-wide; installed once, by the command that needs it.
#pragma once

namespace xp::ctl {

// False when the operating system refuses. A SIGINT that was ignored when the program started (a
// background job of a script) stays ignored.
bool install_interrupt();

bool interrupted();

// For commands that go on after a Ctrl-C, such as chat: the next SIGINT counts as the first again.
void forget_interrupt();

// Readable for as long as interrupted() is true; -1 before install_interrupt().
int interrupt_fd();

}  // namespace xp::ctl
