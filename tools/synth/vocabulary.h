// A byte-level BPE vocabulary of any size, which encodes every text: the special tokens of
// DeepSeek's chat format, the 256 bytes, then made-up words that begin with a blank, so that
// generated tokens read like text. Only one-letter words are ever made from text.
#pragma once

#include <cstdint>

#include "daemon/gguf/gguf.h"

namespace xp {

// Sets the tokenizer.* keys. `n_vocab` is at least kMinVocab.
void add_vocabulary(uint32_t n_vocab, GgufMetadata& metadata);

}  // namespace xp
