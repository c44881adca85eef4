// The misbehaviours by name. Each one is a function that breaks the protocol in one way and then
// says whether the daemon answered, from where the offender stands, as it should: refused, hung up,
// told "busy", or not impressed. What it must cost nobody else is for hostile_test.cc to see.
#pragma once

#include <source_location>
#include <span>
#include <string>

namespace xp::hostile {

// Any number, where it depends on who is faster.
inline constexpr int kAny = -1;

struct Behaviour {
    const char* name;
    const char* what;
    int violations;  // connections that the daemon closes for breaking the protocol
    int refusals;    // connections that it answers with a refusal instead of a channel
    bool (*run)(const std::string& socket_path);
    bool as_other_user = false;  // means nothing, or harm, when the others are the same user
};

std::span<const Behaviour> handshake_behaviours();
std::span<const Behaviour> ring_behaviours();
std::span<const Behaviour> socket_behaviours();
std::span<const Behaviour> enclosure_behaviours();
std::span<const Behaviour> message_behaviours();
std::span<const Behaviour> request_behaviours();
std::span<const Behaviour> process_behaviours();

// `condition`; where it does not hold, the line is printed, so that chains of them can be debugged.
bool holds(bool condition, std::source_location where = std::source_location::current());

}  // namespace xp::hostile
