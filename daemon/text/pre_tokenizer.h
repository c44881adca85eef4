// Pre-tokenizers: cutting text into the pieces inside which byte pairs are merged. Each family is
// a list of regular expressions, run one after the other, each on every piece the one before has
// left ("isolated": matches and what lies between them become pieces). Here a family is one
// hand-written function over the table of unicode.h, because a general engine with backtracking
// is an order of magnitude slower and needs guarding against hostile text; every function is
// linear in its text. The tests compare them with PCRE2 running the expressions themselves.
#pragma once

#include <string_view>
#include <vector>

#include "daemon/base/result.h"

namespace xp {

// Appends the end of every piece of `text`, in order; the last is text.size(). `text` must be
// valid UTF-8. No piece is empty.
using PreTokenizer = void (*)(std::string_view text, std::vector<size_t>& piece_ends);

// By the value of tokenizer.ggml.pre; an unknown name is kUnsupported and lists the known ones.
Result<PreTokenizer> find_pre_tokenizer(std::string_view name);

}  // namespace xp
