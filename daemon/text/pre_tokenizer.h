// Pre-tokenizers: cutting text into the pieces inside which byte pairs are merged. Each family is
// a list of regular expressions, run one after the other, each on every piece the one before has
// left ("isolated": matches and what lies between them become pieces). Here a family is a list of
// hand-written matchers (pre_tokenizer_matchers.h) over the table of unicode.h, because a general
// engine with backtracking needs guarding against hostile text; every family is linear in its text.
// The tests compare them with PCRE2 running the expressions themselves.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "daemon/base/result.h"

namespace xp {

// Appends the end of every piece of `text` to `piece_ends`, which must be empty; the last is
// text.size(). `text` must be valid UTF-8 of less than 4 GiB. No piece is empty.
using PreTokenizer = void (*)(std::string_view text, std::vector<uint32_t>& piece_ends);

// What the value of tokenizer.ggml.pre decides.
struct PreTokenizerFamily {
    std::string_view name;
    PreTokenizer split;
    // A piece that is a token as a whole becomes that token, even where merging would not lead
    // to it.
    bool whole_pieces = false;
    // Pairs merge in the order of the ids of their concatenations, as in the vocabulary's origin;
    // the file's list of merges, which was derived from it, is not used.
    bool ranks_are_ids = false;
    // The default of tokenizer.ggml.add_bos_token.
    bool adds_bos = false;
};

// The result lives for ever. An unknown name is kUnsupported and lists the known ones.
Result<const PreTokenizerFamily*> find_pre_tokenizer(std::string_view name);

}  // namespace xp
