// Finds stop strings in a stream of text that arrives in pieces, wherever the pieces are cut. Text
// that could still begin a stop string is held back; the stop string itself is never given out.
// The match that is complete first wins, so the result does not depend on the cuts.
//
// Pieces and stop strings are valid UTF-8; then what is given out is, too, since a stop string can
// only begin where a character begins.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace xp {

class StopScanner {
public:
    // Empty strings are ignored.
    explicit StopScanner(std::vector<std::string> stops);

    struct Output {
        std::string text;      // what can be given out now
        bool stopped = false;  // a stop string is complete; nothing may be pushed after it
    };
    Output push(std::string_view piece);
    // What is still held back; call once, when no more text comes.
    std::string finish();

private:
    std::vector<std::string> stops_;
    std::string held_;
};

}  // namespace xp
