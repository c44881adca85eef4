#include "daemon/text/answer.h"

namespace xp {

namespace {

class PlainReader final : public AnswerReader {
public:
    PlainReader(const Tokenizer& tokenizer, std::optional<TokenId> end_of_reasoning)
        : detokenizer_(tokenizer), end_of_reasoning_(end_of_reasoning) {}

    std::string push(TokenId id) override {
        if (id != end_of_reasoning_) return detokenizer_.push(id);
        end_of_reasoning_.reset();
        return detokenizer_.finish();
    }
    std::string finish() override { return detokenizer_.finish(); }
    OutputChannel channel() const override {
        return end_of_reasoning_ ? OutputChannel::kReasoning : OutputChannel::kContent;
    }

private:
    Detokenizer detokenizer_;
    std::optional<TokenId> end_of_reasoning_;  // while it has not come
};

}  // namespace

std::unique_ptr<AnswerReader> read_plain_answer(const Tokenizer& tokenizer) {
    return std::make_unique<PlainReader>(tokenizer, std::nullopt);
}

std::unique_ptr<AnswerReader> read_reasoned_answer(const Tokenizer& tokenizer,
                                                   TokenId end_of_reasoning) {
    return std::make_unique<PlainReader>(tokenizer, end_of_reasoning);
}

}  // namespace xp
