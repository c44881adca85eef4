// Reads answers in Kimi-K3's XTML (chat_kimi.cc): <think> is reasoning, <response> content, each
// <call> in <tools> a tool call.
//
// Structure is known by its tokens alone: a tag goes from OPEN or CLOSE to SEP, and neither it nor
// the beginning of one has text. Models, above all strongly quantised ones, do not always keep to
// the format. So these are taken as they are meant:
//   * <message> and <think> opened once more before anything was said;
//   * <response> or <tools> opened in <think> without closing it;
//   * text between </think> and <response>, if it is not blank: content;
//   * a new message opened after something was said, without the end of this one: the end.
// Unknown tags, and text where none belongs, are left out. Nothing comes after </message>.
#pragma once

#include <memory>

#include "daemon/text/answer.h"

namespace xp {

struct KimiTokens {
    TokenId open = 0, close = 0, sep = 0, end = 0;
};

// After a prompt that ends in <think> (kReasoning) or <response>.
std::unique_ptr<AnswerReader> read_kimi_answer(const Tokenizer& tokenizer,
                                               const KimiTokens& structure,
                                               OutputChannel first_channel);

}  // namespace xp
