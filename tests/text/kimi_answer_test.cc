// Answers in Kimi-K3's XTML, read token by token. Streams are written as text with structure tokens
// spelled out; between those the text is cut into tokens in several ways, which must not matter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/text/chat.h"
#include "daemon/text/utf8.h"
#include "tests/text/text_data.h"

namespace xp::kimi_answer_test {
namespace {

struct Read {
    std::string reasoning, content, calls;
    bool ended = false;
    bool operator==(const Read&) const = default;
};

std::ostream& operator<<(std::ostream& stream, const Read& read) {
    return stream << "reasoning '" << read.reasoning << "' content '" << read.content
                  << "' calls '" << read.calls << "' ended " << read.ended;
}

const ChatFormat& format() {
    static const auto made = *ChatFormat::create(kimi_metadata(), kimi_tokenizer());
    return *made;
}

Read read_ids(const std::vector<TokenId>& ids, OutputChannel first) {
    Read read;
    const auto reader = format().read_answer(first);
    const auto add = [&](OutputChannel channel, const std::string& text) {
        EXPECT_TRUE(is_valid_utf8(text));
        (channel == OutputChannel::kReasoning  ? read.reasoning
         : channel == OutputChannel::kToolCall ? read.calls
                                               : read.content) += text;
    };
    for (const TokenId id : ids) {
        const OutputChannel channel = reader->channel();
        add(channel, reader->push(id));
    }
    add(reader->channel(), reader->finish());
    read.ended = reader->ended();
    EXPECT_EQ(reader->called_tools(), !read.calls.empty());
    return read;
}

// Ordinary text in pieces of `piece_bytes` at most, each encoded on its own; 0: as a whole.
std::vector<TokenId> ids_of(std::string_view stream, std::mt19937* random, size_t piece_bytes) {
    static constexpr std::string_view kStructure[] = {"<|open|>", "<|close|>", "<|sep|>",
                                                      "<|end_of_msg|>", "[EOS]"};
    const Tokenizer& tokenizer = kimi_tokenizer();
    std::vector<TokenId> ids;
    while (!stream.empty()) {
        const auto token = std::ranges::find_if(
            kStructure, [&](std::string_view text) { return stream.starts_with(text); });
        if (token != std::end(kStructure)) {
            ids.push_back(tokenizer.find(*token).value());
            stream.remove_prefix(token->size());
            continue;
        }
        size_t n = stream.size();
        for (const std::string_view text : kStructure) n = std::min(n, stream.find(text));
        if (piece_bytes > 0) n = std::min(n, 1 + (random ? (*random)() % piece_bytes : 0));
        // Bytes that are no whole character have tokens too.
        const std::string_view piece = stream.substr(0, n);
        if (is_valid_utf8(piece)) {
            const auto part = tokenizer.encode(piece, SpecialTokens::kNone);
            ids.insert(ids.end(), part.begin(), part.end());
        } else {
            for (const char c : piece) ids.push_back(kimi_byte_token(static_cast<uint8_t>(c)));
        }
        stream.remove_prefix(n);
    }
    return ids;
}

// However the text is cut into tokens.
Read read_stream(std::string_view stream, OutputChannel first) {
    const uint32_t seed = test_seed();
    SCOPED_TRACE("XP_TEST_SEED=" + std::to_string(seed));
    std::mt19937 random(seed);
    const Read read = read_ids(ids_of(stream, nullptr, 0), first);
    EXPECT_EQ(read_ids(ids_of(stream, nullptr, 1), first), read) << stream;
    for (int round = 0; round < 20; ++round) {
        EXPECT_EQ(read_ids(ids_of(stream, &random, 7), first), read) << stream;
    }
    return read;
}

Read thinking(std::string_view stream) {
    return read_stream(stream, OutputChannel::kReasoning);
}
Read answering(std::string_view stream) { return read_stream(stream, OutputChannel::kContent); }

constexpr char kThinkEnd[] = "<|close|>think<|sep|>", kResponse[] = "<|open|>response<|sep|>",
               kResponseEnd[] = "<|close|>response<|sep|>", kEnd[] = "<|close|>message<|sep|>";

TEST(KimiAnswer, ThinkIsReasoningAndResponseContent) {
    const std::string answer = std::string("Let me see: 2 < 3 & \"ü\".\n") + kThinkEnd + kResponse +
                               "The answer — 天气 😊 — is 4.\n" + kResponseEnd + kEnd +
                               "<|end_of_msg|>";
    EXPECT_EQ(thinking(answer), (Read{"Let me see: 2 < 3 & \"ü\".\n",
                                      "The answer — 天气 😊 — is 4.\n", "", true}));
    EXPECT_EQ(answering(std::string("Paris.") + kResponseEnd + kEnd),
              (Read{"", "Paris.", "", true}));
    EXPECT_EQ(answering("Paris.<|end_of_msg|>"), (Read{"", "Paris.", "", false}));
    EXPECT_EQ(answering("Paris.[EOS]"), (Read{"", "Paris.", "", false}));
    EXPECT_EQ(answering(""), Read());
}

TEST(KimiAnswer, TheGoldenAnswersShowNothingOfTheMarkup) {
    size_t n = 0;
    for (const auto& entry : kimi_golden()) {
        const auto prompt = entry["prompt"].get<std::string>();
        if (prompt.starts_with("[BOS]")) continue;
        const bool think = prompt.ends_with("think<|sep|>");
        const auto text = entry["greedy_text"].get<std::string>();
        const Read read = read_ids(entry["greedy"].get<std::vector<TokenId>>(),
                                   think ? OutputChannel::kReasoning : OutputChannel::kContent);
        EXPECT_TRUE(read.ended);
        std::string expected = text.substr(0, text.find("<|close|>"));
        if (think) {
            EXPECT_EQ(read.reasoning, expected);
            expected = text.substr(text.find(kResponse) + std::string_view(kResponse).size());
            expected = expected.substr(0, expected.find("<|close|>"));
        }
        EXPECT_EQ(read.content, expected);
        ++n;
    }
    EXPECT_EQ(n, 10u);
}

std::string call(const std::string& name, const std::string& arguments) {
    return "{\"name\": " + nlohmann::json(name).dump() +
           ", \"arguments\": " + nlohmann::json(arguments).dump() + "}\n";
}

TEST(KimiAnswer, CallsAreLinesOfJson) {
    const std::string stream =
        std::string("hm<|open|>response<|sep|>One moment.") + kResponseEnd +
        "<|open|>tools<|sep|>\n<|open|>call tool=\"get &quot;&amp;amp;\" index=\"1\"<|sep|>"
        "<|open|>argument key=\"c&quot;\" type=\"string\"<|sep|>Zürich \"x\"\n"
        "<|close|>argument<|sep|> <|open|>argument key=\"n\" type=\"number\"<|sep|>3.50"
        "<|close|>argument<|sep|><|open|>argument key=\"o\" type=\"object\"<|sep|>{\"b\":[1,\"ü\"]}"
        "<|close|>argument<|sep|><|open|>argument key=\"bad\" type=\"array\"<|sep|>[1,"
        "<|close|>argument<|sep|><|close|>call<|sep|>"
        "<|open|>call tool=\"f\" index=\"2\"<|sep|><|close|>call<|sep|>"
        "<|open|>call tool=\"g\" index=\"3\"<|sep|><|open|>json type=\"object\"<|sep|>{\"a\": "
        "<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>" + kEnd;
    EXPECT_EQ(thinking(stream),
              (Read{"hm", "One moment.",
                    call("get \"&amp;", R"({"c\"": "Zürich \"x\"\n", "n": 3.5, )"
                                        R"("o": {"b": [1, "ü"]}, "bad": "[1,"})") +
                        call("f", "{}") + call("g", "{\"a\": "),
                    true}));
}

// What is rendered and what is read agree: calls come back as they were.
TEST(KimiAnswer, RenderedAnswersReadAsWhatTheyWere) {
    ChatMessage answer{ChatRole::kAssistant, "content & <b>", "reasoning"};
    const std::string arguments =
        R"({"s": "a\"b", "n": 1.5, "t": true, "z": null, "l": [1, {"k": "v"}], "": "&quot;"})";
    answer.tool_calls = {{"1", "na\"me&", arguments}, {"2", "g", "{}"}};
    const auto with = format().render({{ChatRole::kUser, "q", ""}, answer,
                                       {ChatRole::kUser, "r", ""}}, {.thinking = true});
    const auto prompt = format().render({{ChatRole::kUser, "q", ""}}, {.thinking = true});
    ASSERT_TRUE(with && prompt);
    const std::vector<TokenId> ids(
        with->tokens.begin() + static_cast<ptrdiff_t>(prompt->tokens.size()), with->tokens.end());
    EXPECT_EQ(read_ids(ids, OutputChannel::kReasoning),
              (Read{"reasoning", "content & <b>", call("na\"me&", arguments) + call("g", "{}"),
                    true}));
}

TEST(KimiAnswer, StructureThatIsCutShortHasNoText) {
    const std::string whole =
        std::string("why") + kThinkEnd + kResponse + "text" + kResponseEnd +
        "<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"k\" "
        "type=\"string\"<|sep|>v<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>" +
        kEnd;
    const std::vector<TokenId> ids = ids_of(whole, nullptr, 1);
    const Read all = read_ids(ids, OutputChannel::kReasoning);
    EXPECT_EQ(all, (Read{"why", "text", call("f", "{\"k\": \"v\"}"), true}));
    for (size_t n = 0; n < ids.size(); ++n) {
        const Read part = read_ids({ids.begin(), ids.begin() + static_cast<ptrdiff_t>(n)},
                                   OutputChannel::kReasoning);
        EXPECT_TRUE(all.reasoning.starts_with(part.reasoning)) << part;
        EXPECT_TRUE(all.content.starts_with(part.content)) << part;
        EXPECT_TRUE(part.calls.empty() || part.calls == all.calls) << part;
        EXPECT_FALSE(part.ended);
    }
}

TEST(KimiAnswer, IncompleteCharactersAreHeldAndEndWithTheirChannel) {
    const TokenId e2 = kimi_byte_token(0xE2), ac = kimi_byte_token(0xAC),
                  x82 = kimi_byte_token(0x82);
    const auto reader = format().read_answer(OutputChannel::kContent);
    EXPECT_EQ(reader->push(e2), "");
    EXPECT_EQ(reader->push(x82), "");
    EXPECT_EQ(reader->push(ac), "€");
    EXPECT_EQ(reader->push(e2), "");
    EXPECT_EQ(reader->push(kimi_tokenizer().find("<|close|>").value()), "\uFFFD");
    EXPECT_EQ(reader->push(ac), "");
    EXPECT_EQ(reader->finish(), "");
}

TEST(KimiAnswer, StraysFromTheFormatAreTakenAsTheyAreMeant) {
    const std::string again = "<|open|>message role=\"assistant\"<|sep|>";
    // The beginning once more.
    EXPECT_EQ(thinking(again + "<|open|>think<|sep|>a" + kThinkEnd + kResponse + "b" + kResponseEnd
                       + kEnd), (Read{"a", "b", "", true}));
    EXPECT_EQ(answering("\n" + again + kResponse + "b" + kResponseEnd),
              (Read{"", "\nb", "", false}));
    EXPECT_EQ(answering("<|open|>think<|sep|>a" + std::string(kThinkEnd) + kResponse + "b"),
              (Read{"a", "b", "", false}));
    // </think> left out, or <response>.
    EXPECT_EQ(thinking(std::string("a") + kResponse + "b" + kResponseEnd + kEnd),
              (Read{"a", "b", "", true}));
    EXPECT_EQ(thinking("a<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|>"
                       "<|close|>call<|sep|>"), (Read{"a", "", call("f", "{}"), false}));
    EXPECT_EQ(thinking(std::string("a") + kThinkEnd + " \n b c" + kEnd),
              (Read{"a", "b c", "", true}));
    // A new message instead of the end of this one.
    EXPECT_EQ(answering(std::string("a") + kResponseEnd + "<|open|>message role=\"user\"<|sep|>b"),
              (Read{"", "a", "", true}));
    EXPECT_EQ(answering("a<|open|>message role=\"user\"<|sep|>b"), (Read{"", "a", "", true}));
    // Noise between and after elements, unknown tags, a tag in a tag, SEP alone.
    EXPECT_EQ(answering(std::string("a") + kResponseEnd + "noise" + kEnd + "more" + kResponse +
                        "b"), (Read{"", "a", "", true}));
    EXPECT_EQ(answering("a<|open|>b c=\"d\"<|sep|>e<|close|>b<|sep|>f<|sep|>g"),
              (Read{"", "aefg", "", false}));
    EXPECT_EQ(answering("a<|open|>thi<|close|>response<|sep|>b"), (Read{"", "a", "", false}));
    EXPECT_EQ(answering("a<|open|>" + std::string(10'000, 'x') + "<|sep|>b"),
              (Read{"", "ab", "", false}));
    EXPECT_EQ(answering("<|open|>tools<|sep|><|open|>call index=\"1\"<|sep|><|close|>call<|sep|>"),
              Read());
}

TEST(KimiAnswer, TextThatLooksLikeStructureIsText) {
    const auto reader = format().read_answer(OutputChannel::kContent);
    const std::string text = "write <|close|>response<|sep|> at the end<|end_of_msg|>";
    std::string read;
    for (const TokenId id : kimi_tokenizer().encode(text, SpecialTokens::kNone)) {
        read += reader->push(id);
    }
    EXPECT_EQ(read + reader->finish(), text);
    EXPECT_FALSE(reader->ended());
}

// Whatever a model writes: valid text, no structure, and the same however it is cut.
TEST(KimiAnswer, AnyStreamReadsTheSameInAnyCuts) {
    const uint32_t seed = test_seed();
    SCOPED_TRACE("XP_TEST_SEED=" + std::to_string(seed));
    std::mt19937 random(seed);
    static constexpr std::string_view kParts[] = {
        "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>", "think", "response", "message",
        "tools", "call", "argument", "json", " key=\"", "\"", " tool=\"f\"", " type=\"number\"",
        "&quot;", "ü", "天", " ", "\n", "12", "{\"a\":1}", kThinkEnd, kResponse, kResponseEnd,
        "<|open|>tools<|sep|>", "<|open|>call tool=\"f\"<|sep|>",
        "<|open|>argument key=\"k\" type=\"number\"<|sep|>", "<|close|>argument<|sep|>",
        "<|close|>call<|sep|>",
    };
    for (int round = 0; round < 300; ++round) {
        std::string stream;
        for (size_t n = random() % 30; n > 0; --n) stream += kParts[random() % std::size(kParts)];
        const OutputChannel first =
            random() % 2 == 0 ? OutputChannel::kReasoning : OutputChannel::kContent;
        const Read read = read_ids(ids_of(stream, nullptr, 0), first);
        ASSERT_EQ(read_ids(ids_of(stream, nullptr, 1), first), read) << stream;
        ASSERT_EQ(read_ids(ids_of(stream, &random, 5), first), read) << stream;
        ASSERT_EQ((read.reasoning + read.content + read.calls).find("<|"), std::string::npos);
    }
}

}  // namespace
}  // namespace xp::kimi_answer_test
