#include "tests/serve/scripted_model.h"

#include "daemon/gguf/gguf.h"

namespace xp::scripted {
namespace {

class ScriptedSequence final : public Sequence {
public:
    uint64_t position() const override { return tokens.size(); }
    std::vector<std::byte> snapshot() const override { return {}; }
    Result<void> restore(std::span<const std::byte>) override { return {}; }

    std::vector<TokenId> tokens;
};

class ScriptedPass final : public ForwardPass {
public:
    ScriptedPass(const Script& script, uint32_t n_vocab, std::span<const Row> rows)
        : script_(script), n_vocab_(n_vocab), rows_(rows.begin(), rows.end()) {}

    Result<bool> step() override {
        if (script_.on_step) {
            XP_CHECK(script_.on_step());
        }
        if (++steps_ < script_.steps_per_pass) {
            return false;
        }
        for (const Row& row : rows_) {
            auto& sequence = static_cast<ScriptedSequence&>(*row.sequence);
            sequence.tokens.push_back(row.token);
            logits_.push_back(row.logits ? logits_after(sequence.tokens) : std::vector<float>());
        }
        return true;
    }
    std::span<const float> logits(size_t row) const override {
        XP_ASSERT(!logits_.at(row).empty());
        return logits_[row];
    }

private:
    std::vector<float> logits_after(std::span<const TokenId> tokens) const {
        if (script_.logits) {
            return script_.logits(tokens);
        }
        std::vector<float> logits(n_vocab_, 0.0f);
        logits[static_cast<size_t>(script_.next ? script_.next(tokens) : kEos)] = 20.0f;
        return logits;
    }

    const Script& script_;
    const uint32_t n_vocab_;
    const std::vector<Row> rows_;
    size_t steps_ = 0;
    std::vector<std::vector<float>> logits_;
};

class ScriptedModel final : public Model {
public:
    ScriptedModel(Script script, uint32_t n_vocab) : script_(std::move(script)) {
        info_.architecture = "scripted";
        info_.name = "Scripted";
        info_.n_vocab = n_vocab;
        info_.context = script_.context;
        info_.context_max = script_.context;
    }
    const ModelInfo& info() const override { return info_; }
    void set_cache(ExpertCache&) override {}
    Result<void> reserve(uint32_t, uint32_t) override { return {}; }
    Result<std::unique_ptr<Sequence>> create_hollow_sequence(uint64_t) override {
        return create_sequence();
    }
    Result<std::unique_ptr<Sequence>> create_sequence() override {
        return std::unique_ptr<Sequence>(std::make_unique<ScriptedSequence>());
    }
    Result<std::unique_ptr<ForwardPass>> forward(std::span<const Row> rows,
                                                 const PassObserver*) override {
        XP_ASSERT(rows.front().sequence->position() + rows.size() <= info_.context);
        if (script_.on_pass) {
            script_.on_pass(rows);
        }
        return std::unique_ptr<ForwardPass>(
            std::make_unique<ScriptedPass>(script_, info_.n_vocab, rows));
    }

private:
    const Script script_;
    ModelInfo info_;
};

GgufFile open_model(const char* name) {
    auto opened = GgufFile::open(Path(XP_MODELS) / name);
    XP_ASSERT(opened.ok());
    return *std::move(opened);
}

const Tokenizer& demo_tokenizer() {
    static const Tokenizer tokenizer = [] {
        auto made = Tokenizer::from_gguf(demo_metadata());
        XP_ASSERT(made.ok());
        return *std::move(made);
    }();
    return tokenizer;
}

}  // namespace

const GgufMetadata& demo_metadata() {
    static const GgufFile file = open_model("xp-demo.gguf");
    return file.metadata();
}

const GgufMetadata& kimi_metadata() {
    static const GgufFile file = open_model("xp-demo-k3.gguf");
    return file.metadata();
}

std::unique_ptr<ServedModel> make_served(const std::string& name, Script script,
                                         const GgufMetadata& metadata) {
    auto tokenizer = Tokenizer::from_gguf(metadata);
    XP_ASSERT(tokenizer.ok());
    auto served = std::make_unique<ServedModel>(name, *std::move(tokenizer));
    auto chat = ChatFormat::create(metadata, served->tokenizer);
    XP_ASSERT(chat.ok());
    served->chat = *std::move(chat);
    served->model =
        std::make_unique<ScriptedModel>(std::move(script), served->tokenizer.n_vocab());
    return served;
}

std::unique_ptr<ModelHost> make_host(Script script) {
    std::vector<std::unique_ptr<ServedModel>> models;
    models.push_back(make_served("scripted", std::move(script)));
    return std::make_unique<ModelHost>(std::move(models), "test");
}

Script say(std::vector<TokenId> tokens, size_t n_prompt) {
    Script script;
    script.next = [tokens = std::move(tokens), n_prompt](std::span<const TokenId> so_far) {
        const size_t n = so_far.size() - n_prompt;
        return n < tokens.size() ? tokens[n] : kEos;
    };
    return script;
}

Outcome run_task(ServedModel& model, const shm::Generate& request, const TaskOptions& options) {
    Outcome outcome;
    auto task = make_task(model, request, options);
    if (!task) {
        outcome.error = task.error();
        return outcome;
    }
    for (int n = 0; n < 100'000 && !outcome.reason; ++n) {
        auto reason = (*task)->step(&outcome.replies);
        if (!reason) {
            outcome.error = reason.error();
            break;
        }
        outcome.reason = *reason;
    }
    outcome.timings = (*task)->timings();
    return outcome;
}

std::vector<TokenId> tokens_of(const std::string& text) {
    return demo_tokenizer().encode(text, SpecialTokens::kAll);
}

TokenId token_of_bytes(std::string_view bytes) {
    const Tokenizer& tokenizer = demo_tokenizer();
    for (TokenId id = 0; id < static_cast<TokenId>(tokenizer.n_vocab()); ++id) {
        if (tokenizer.token_bytes(id) == bytes) {
            return id;
        }
    }
    XP_ASSERT(!"no such token");
    return -1;
}

uint32_t n_vocab() { return demo_tokenizer().n_vocab(); }

}  // namespace xp::scripted
