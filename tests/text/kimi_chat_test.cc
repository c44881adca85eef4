// Prompts in Kimi-K3's XTML, byte by byte and id by id. What a prompt should be is written here as
// text with its structure tokens spelled out; pieces() cuts that as the format does.
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/text/chat.h"
#include "tests/text/text_data.h"

namespace xp::kimi_test {
namespace {

using testing::HasSubstr;
using Messages = std::vector<ChatMessage>;

constexpr ChatRole kSystem = ChatRole::kSystem, kUser = ChatRole::kUser,
                   kDeveloper = ChatRole::kDeveloper, kAssistant = ChatRole::kAssistant,
                   kTool = ChatRole::kTool;
constexpr std::string_view kStructure[] = {"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"};

const ChatFormat& format() {
    static const auto made = *ChatFormat::create(kimi_metadata(), kimi_tokenizer());
    return *made;
}

// A tag's name, keys and values each on its own.
void cut_tag(std::string_view tag, std::vector<std::string>& pieces) {
    size_t at = tag.find(' ');
    pieces.emplace_back(tag.substr(0, at));
    while (at < tag.size()) {
        const size_t equals = tag.find("=\"", at), end = tag.find('"', equals + 2);
        pieces.emplace_back(tag.substr(at, equals - at));
        pieces.emplace_back("=\"");
        pieces.emplace_back(tag.substr(equals + 2, end - equals - 2));
        pieces.emplace_back("\"");
        at = end + 1;
    }
}

std::vector<std::string> pieces(std::string_view text) {
    std::vector<std::string> result;
    bool in_tag = false;
    while (!text.empty()) {
        size_t next = text.size();
        std::string_view token;
        for (const std::string_view candidate : kStructure) {
            if (const size_t at = text.find(candidate); at < next) {
                next = at;
                token = candidate;
            }
        }
        if (in_tag) {
            cut_tag(text.substr(0, next), result);
        } else if (next > 0) {
            result.emplace_back(text.substr(0, next));
        }
        if (!token.empty()) result.emplace_back(token);
        in_tag = token == "<|open|>" || token == "<|close|>";
        text.remove_prefix(next + token.size());
    }
    return result;
}

std::vector<TokenId> ids_of(const std::vector<std::string>& segments) {
    std::vector<TokenId> ids;
    for (const std::string& segment : segments) {
        const bool structure = std::ranges::find(kStructure, segment) != std::end(kStructure);
        const auto part = kimi_tokenizer().encode(
            segment, structure ? SpecialTokens::kAll : SpecialTokens::kNone);
        ids.insert(ids.end(), part.begin(), part.end());
    }
    return ids;
}

std::string text_of(const std::vector<TokenId>& ids) {
    std::string text;
    for (const TokenId id : ids) text += kimi_tokenizer().token_text(id);
    return text;
}

constexpr char kEnd[] = "<|close|>message<|sep|><|end_of_msg|>";
constexpr char kAnswer[] = "<|open|>message role=\"assistant\"<|sep|><|open|>response<|sep|>";
constexpr char kThink[] = "<|open|>message role=\"assistant\"<|sep|><|open|>think<|sep|>";

std::string message(const std::string& attributes, const std::string& content) {
    return "<|open|>message role=\"" + attributes + "\"<|sep|>" + content + kEnd;
}

std::string effort_message(const std::string& effort) {
    return message("system\" type=\"thinking-effort",
                   "`thinking_effort` guides on how much to think in your thinking channel (not "
                   "including the response channel), supported values include `low`, `medium`, "
                   "`high`, and `max`.\nNow the system is invoked with `thinking_effort=" +
                       effort + "`.");
}

void expect_prompt(const Messages& messages, const ChatOptions& options,
                   const std::string& expected) {
    const auto prompt = format().render(messages, options);
    ASSERT_TRUE(prompt) << prompt.error().message;
    EXPECT_EQ(text_of(prompt->tokens), expected);
    EXPECT_EQ(prompt->tokens, ids_of(pieces(expected)));
    EXPECT_EQ(prompt->first_channel, options.thinking ? OutputChannel::kReasoning
                                                      : OutputChannel::kContent);
}

std::string error_of(const Messages& messages, const ChatOptions& options = {}) {
    const auto prompt = format().render(messages, options);
    if (prompt) return "none";
    EXPECT_EQ(prompt.error().code, ErrorCode::kInvalidArgument);
    return prompt.error().message;
}

TEST(KimiChat, TheWorkedExampleHasTheIdsOfTheReference) {
    GgufMetadata metadata = kimi_tiny_metadata();
    metadata.set("general.architecture", GgufValue::string("kimi-k3"));
    const Tokenizer tokenizer = make_tokenizer(metadata);
    const auto tiny_format = ChatFormat::create(metadata, tokenizer);
    ASSERT_TRUE(tiny_format) << tiny_format.error().message;
    const auto prompt = (*tiny_format)->render({{kUser, "Hello.", ""}}, {.thinking = true});
    ASSERT_TRUE(prompt);
    // The example asks for no effort; the last part of this prompt is the same.
    const std::vector<TokenId> expected = {509, 307, 317, 308, 313, 1, 511, 377, 13, 510, 307, 511,
                                           508, 509, 307, 317, 308, 348, 1, 511, 509, 300, 511};
    ASSERT_GT(prompt->tokens.size(), expected.size());
    EXPECT_EQ(std::vector<TokenId>(prompt->tokens.end() - static_cast<int>(expected.size()),
                                   prompt->tokens.end()), expected);
}

TEST(KimiChat, QuestionsOfTheGoldenPromptsHaveTheGoldenIds) {
    const std::string before = "<|open|>message role=\"user\"<|sep|>";
    size_t questions = 0, thoughts = 0;
    for (const auto& entry : kimi_golden()) {
        const auto prompt = entry["prompt"].get<std::string>();
        const auto ids = entry["ids"].get<std::vector<TokenId>>();
        if (!prompt.starts_with(before)) continue;
        const bool thinking = prompt.ends_with("think<|sep|>");
        const std::string question =
            prompt.substr(before.size(), prompt.find("<|close|>") - before.size());
        const auto rendered = format().render({{kUser, question, ""}}, {.thinking = thinking});
        ASSERT_TRUE(rendered);
        if (thinking) {
            EXPECT_EQ(text_of(rendered->tokens), effort_message("low") + prompt);
            EXPECT_TRUE(std::equal(ids.rbegin(), ids.rend(), rendered->tokens.rbegin()));
            ++thoughts;
        } else {
            EXPECT_EQ(rendered->tokens, ids) << question;
            ++questions;
        }
    }
    EXPECT_EQ(questions, 9u);
    EXPECT_EQ(thoughts, 1u);
}

TEST(KimiChat, MessagesStandInTheirOrderWithTheirNames) {
    expect_prompt({{kSystem, "You are terse.", "", "policy"}, {kUser, "Hi", "", "He \"&\" <she>"},
                   {kAssistant, "Hello", "", "bot"}, {kDeveloper, "Be kind.", ""},
                   {kUser, "a", ""}, {kUser, " b\n", ""}, {kSystem, "late", ""}}, {},
                  message("system\" name=\"policy", "You are terse.") +
                      message("user\" name=\"He &quot;&amp;&quot; <she>", "Hi") +
                      message("assistant\" name=\"bot",
                              "<|open|>response<|sep|>Hello<|close|>response<|sep|>") +
                      message("system", "Be kind.") + message("user", "a") +
                      message("user", " b\n") + message("system", "late") + kAnswer);
}

TEST(KimiChat, ThinkingKeepsReasoningAndNamesTheEffort) {
    const Messages messages = {{kUser, "q", ""}, {kAssistant, "a", "because"}, {kUser, "r", ""},
                               {kAssistant, "", " \n\u00a0\u3000\x1f"}, {kUser, "s", ""}};
    const auto answer = [](const std::string& think, const std::string& response) {
        return message("assistant", "<|open|>think<|sep|>" + think + "<|close|>think<|sep|>"
                                    "<|open|>response<|sep|>" + response +
                                    "<|close|>response<|sep|>");
    };
    const std::string turns = message("user", "q") + answer("because", "a") +
                              message("user", "r") + answer("", "") + message("user", "s");
    for (const bool drop : {true, false}) {  // DeepSeek's habit
        ChatOptions options{.thinking = true, .drop_past_reasoning = drop};
        expect_prompt(messages, options, effort_message("low") + turns + kThink);
        options.effort = ReasoningEffort::kHigh;
        expect_prompt(messages, options, effort_message("high") + turns + kThink);
        options.effort = ReasoningEffort::kMax;
        expect_prompt(messages, options, effort_message("max") + turns + kThink);
    }
    const auto silent = [](const std::string& response) {
        return message("assistant", "<|open|>response<|sep|>" + response +
                                    "<|close|>response<|sep|>");
    };
    expect_prompt(messages, {.effort = ReasoningEffort::kMax},
                  message("user", "q") + silent("a") + message("user", "r") + silent("") +
                      message("user", "s") + kAnswer);
}

constexpr char kToolsHeading[] =
    "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n";

TEST(KimiChat, ToolsAreDeclaredFirstAsCompactSortedJson) {
    ChatOptions options{.thinking = true};
    options.tools_json = R"([ {"type": "function", "function": {"name": "f", "z": [1, 2.50, null],
        "description": "天气 — \u00e9 \"q\" \/ \u0001", "a": {"b": {}, "B": 1e3}}} ])";
    expect_prompt({{kUser, "q", ""}}, options,
                  message("system\" type=\"tool-declare",
                          std::string(kToolsHeading) +
                              R"([{"function":{"a":{"B":1000.0,"b":{}},)"
                              R"("description":"天气 — é \"q\" / \u0001","name":"f",)"
                              R"("z":[1,2.5,null]},"type":"function"}])" "\n```") +
                      effort_message("low") + message("user", "q") + kThink);
    options = {};
    options.tools_json = " [] ";
    expect_prompt({{kUser, "q", ""}}, options, message("user", "q") + kAnswer);
}

TEST(KimiChat, SystemMessagesDeclareFurtherTools) {
    ChatMessage more{kSystem, "", ""};
    more.tools_json = R"([{"b":1,"a":2}])";
    expect_prompt({{kUser, "q", ""}, more, {kUser, "r", ""}}, {},
                  message("user", "q") +
                      message("system\" type=\"tool-declare",
                              "## New Tools Available\nThe system dynamically extends the toolset "
                              "via lazy-loading.\nYou have access to all existing and extended "
                              "tools.\nHere are the specs for the extended tools.\n\n"
                              "```json\n[{\"a\":2,\"b\":1}]\n```") +
                      message("user", "r") + kAnswer);
    more.content = "text";
    EXPECT_THAT(error_of({{kUser, "q", ""}, more}), HasSubstr("messages[1] declares tools"));
}

ChatMessage calling(std::vector<ChatToolCall> calls) {
    ChatMessage calls_tools{kAssistant, "", ""};
    calls_tools.tool_calls = std::move(calls);
    return calls_tools;
}

ChatMessage result_of(const std::string& id, const std::string& content) {
    ChatMessage result{kTool, content, ""};
    result.tool_call_id = id;
    return result;
}

// The calls as text, with one result each.
std::string rendered_call(const std::string& arguments) {
    const auto prompt = format().render(
        {{kUser, "q", ""}, calling({{"1", "f", arguments}}), result_of("1", "r")}, {});
    if (!prompt) return "error: " + prompt.error().message;
    std::string text = text_of(prompt->tokens);
    EXPECT_EQ(prompt->tokens, ids_of(pieces(text)));
    const std::string begin = "<|open|>call tool=\"f\" index=\"1\"<|sep|>";
    const size_t at = text.find(begin) + begin.size();
    return text.substr(at, text.find("<|close|>call<|sep|>") - at);
}

std::string argument(const std::string& key, const std::string& type, const std::string& value) {
    return "<|open|>argument key=\"" + key + "\" type=\"" + type + "\"<|sep|>" + value +
           "<|close|>argument<|sep|>";
}

TEST(KimiChat, ArgumentsHaveTheirTypesAndOrder) {
    EXPECT_EQ(rendered_call(R"({"z": "Zürich \"x\"\n", "a": 3, "t": true, "f": false, "n": null,
                               "l": [1,"a",{"k":"ü"}], "o": {"y":1, "x":[]}, "q\"&": ""})"),
              argument("z", "string", "Zürich \"x\"\n") + argument("a", "number", "3") +
                  argument("t", "boolean", "true") + argument("f", "boolean", "false") +
                  argument("n", "null", "null") +
                  argument("l", "array", R"([1, "a", {"k": "ü"}])") +
                  argument("o", "object", R"({"y": 1, "x": []})") +
                  argument("q&quot;&amp;", "string", ""));
    // Numbers as Python writes them; of equal keys the last value in the first one's place.
    EXPECT_EQ(rendered_call(R"({"a": 1.0, "b": 1e15, "c": 1e16, "d": 0.0001, "e": 1E-5, "f": -0.0,
                               "g": 123456789012345678901234567890, "h": -7, "i": 0.1, "a": 2})"),
              argument("a", "number", "2") + argument("b", "number", "1000000000000000.0") +
                  argument("c", "number", "1e+16") + argument("d", "number", "0.0001") +
                  argument("e", "number", "1e-05") + argument("f", "number", "-0.0") +
                  argument("g", "number", "123456789012345678901234567890") +
                  argument("h", "number", "-7") + argument("i", "number", "0.1"));
    EXPECT_EQ(rendered_call(""), "");
    EXPECT_EQ(rendered_call(" \n"), "");
    EXPECT_EQ(rendered_call("{}"), "");
}

TEST(KimiChat, ArgumentsThatAreNoJsonAreShownAsTheyAre) {
    const auto raw = [](const std::string& text) {
        return "<|open|>json type=\"object\"<|sep|>" + text + "<|close|>json<|sep|>";
    };
    EXPECT_EQ(rendered_call("{\"a\": "), raw("{\"a\": "));
    EXPECT_EQ(rendered_call("city=Oslo"), raw("city=Oslo"));
    const std::string deep(5000, '[');
    EXPECT_EQ(rendered_call(deep), raw(deep));
    EXPECT_THAT(rendered_call("[1]"), HasSubstr("arguments of tool call 0 are of the JSON type "
                                                "array, not object"));
    EXPECT_THAT(rendered_call("null"), HasSubstr("JSON type null"));
}

TEST(KimiChat, ResultsComeInTheOrderOfTheCalls) {
    const ChatMessage calls = calling({{"a", "f", ""}, {"b", "g\"", ""}});
    const std::string before =
        message("user", "q") +
        message("assistant", "<|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|>"
                             "<|open|>call tool=\"f\" index=\"1\"<|sep|><|close|>call<|sep|>"
                             "<|open|>call tool=\"g&quot;\" index=\"2\"<|sep|><|close|>call<|sep|>"
                             "<|close|>tools<|sep|>");
    const auto result = [](const std::string& tool, int index, const std::string& content) {
        return message("tool\" tool=\"" + tool + "\" index=\"" + std::to_string(index), content);
    };
    const ChatMessage q{kUser, "q", ""};
    expect_prompt({q, calls, result_of("b", "B"), result_of("a", "A")}, {},
                  before + result("f", 1, "A") + result("g&quot;", 2, "B") + kAnswer);
    // An id that no call has: as they stand, with the names of the calls at their places.
    expect_prompt({q, calls, result_of("b", "B"), result_of("?", "A")}, {},
                  before + result("f", 1, "B") + result("g&quot;", 2, "A") + kAnswer);
    ChatMessage named = result_of("", "N");
    named.name = "h";
    expect_prompt({q, calls, named, result_of("", "M")}, {},
                  before + result("h", 1, "N") + result("g&quot;", 2, "M") + kAnswer);
    // Counted from 1 after every assistant message, on through other messages.
    expect_prompt({q, calls, result_of("a", "A"), {kUser, "and", ""}, result_of("b", "B"), calls,
                   result_of("b", "B")}, {},
                  before + result("f", 1, "A") + message("user", "and") +
                      result("g&quot;", 2, "B") + before.substr(message("user", "q").size()) +
                      result("g&quot;", 1, "B") + kAnswer);
    EXPECT_THAT(error_of({q, calls, result_of("?", "1"), result_of("?", "2"),
                          result_of("?", "3")}), HasSubstr("messages[4] is a tool's result"));
    EXPECT_THAT(error_of({q, result_of("1", "r")}), HasSubstr("messages[1] is a tool's result"));
}

TEST(KimiChat, ChoicesStandBehindTheMessages) {
    const Messages q = {{kUser, "q", ""}};
    const std::string user = message("user", "q");
    expect_prompt(q, {.tool_choice = ToolChoice::kRequired},
                  user + message("system\" type=\"tool-choice",
                                 "The system is invoked with `tool_choice=required`.\nYou MUST "
                                 "call tools in the next message.") + kAnswer);
    const std::string none = message("system\" type=\"tool-choice",
                                     "The system is invoked with `tool_choice=none`.\nYou MUST NOT "
                                     "call any tools in the next message.");
    expect_prompt(q, {.tool_choice = ToolChoice::kNone}, user + none + kAnswer);
    const std::string form = "Your response must be raw JSON data without markdown code blocks "
                             "(```json) or any additional formatting.";
    const std::string type = "system\" type=\"response-format";
    expect_prompt(q, {.json_object = true},
                  user + message(type, "The system is invoked with `response_format=json_object`.\n"
                                       + form) + kAnswer);
    expect_prompt(q, {.tool_choice = ToolChoice::kNone, .json_schema = R"({"b":1, "a": ["ü"]})"},
                  user + none +
                      message(type, "The system is invoked with `response_format=json_schema`.\n" +
                                        form + "\nThe JSON data must match the following schema:\n"
                                               "```json\n{\"a\":[\"ü\"],\"b\":1}\n```") + kAnswer);
}

TEST(KimiChat, WhatCannotBeRenderedIsRefusedByName) {
    const ChatMessage q{kUser, "q", ""};
    EXPECT_THAT(error_of({}), HasSubstr("no user message"));
    EXPECT_THAT(error_of({{kSystem, "s", ""}}), HasSubstr("no user message"));
    EXPECT_THAT(error_of({q, {kAssistant, "a", ""}}), HasSubstr("messages[1]"));
    EXPECT_THAT(error_of({{kUser, "q", "why"}}), HasSubstr("carries reasoning"));
    ChatMessage wrong = q;
    wrong.tool_calls = {{"1", "f", ""}};
    EXPECT_THAT(error_of({wrong}), HasSubstr("carries tool calls"));
    wrong = q;
    wrong.tool_call_id = "1";
    EXPECT_THAT(error_of({wrong}), HasSubstr("carries a tool call's id"));
    wrong = q;
    wrong.tools_json = "[]";
    EXPECT_THAT(error_of({wrong}), HasSubstr("carries tools"));
    EXPECT_THAT(error_of({q, calling({{"1", "", "{}"}}), result_of("1", "r")}),
                HasSubstr("messages[1]: tool call 0 names no tool"));
    ChatOptions options;
    options.tools_json = "{\"a\": }";
    EXPECT_THAT(error_of({q}, options), HasSubstr("the tools: it is no JSON: byte 7"));
    options.tools_json = "{}";
    EXPECT_THAT(error_of({q}, options), HasSubstr("JSON type object, not array"));
    options.tools_json = std::string(101, '[') + std::string(101, ']');
    EXPECT_THAT(error_of({q}, options), HasSubstr("deeper than 100 levels"));
    options.tools_json = std::string(100, '[') + std::string(100, ']');
    EXPECT_EQ(error_of({q}, options), "none");
}

// Values that would merge with their quotes, and texts with the blank of a key.
TEST(KimiChat, PiecesOfATagDoNotMerge) {
    const Tokenizer& tokenizer = kimi_tokenizer();
    const auto encode = [&](const std::string& text) {
        return tokenizer.encode(text, SpecialTokens::kNone);
    };
    auto apart = encode("Mr."), quote = encode("\"");
    apart.insert(apart.end(), quote.begin(), quote.end());
    ASSERT_NE(encode("Mr.\""), apart) << "the vocabulary cannot tell";
    expect_prompt({{kUser, "q", "", "Mr."}}, {}, message("user\" name=\"Mr.", "q") + kAnswer);
}

// A conversation with `text` in every place that text can come from.
std::vector<TokenId> prompt_with(const std::string& text) {
    ChatMessage more{kSystem, "", ""};
    const std::string json = nlohmann::json(text).dump();
    more.tools_json = "[{" + json + ":" + json + "}]";
    ChatMessage calls = calling({{text, text, "{" + json + ":" + json + ",\"l\":[" + json + "]}"},
                                 {"2", text, text}});
    calls.content = calls.reasoning = calls.name = text;
    ChatMessage unmatched = result_of("?", text);
    unmatched.name = text;
    ChatOptions options{.thinking = true};
    options.tools_json = options.json_schema = more.tools_json;
    const auto prompt = format().render(
        {{kSystem, text, "", text}, {kDeveloper, text, "", text}, {kUser, text, "", text}, more,
         calls, result_of("2", text), result_of(text, text), {kUser, text, ""}, unmatched},
        options);
    EXPECT_TRUE(prompt) << prompt.error().message;
    return prompt ? prompt->tokens : std::vector<TokenId>();
}

std::vector<TokenId> specials_of(const std::vector<TokenId>& ids) {
    std::vector<TokenId> specials;
    const Tokenizer& tokenizer = kimi_tokenizer();
    for (const TokenId id : ids) {
        const std::string text(tokenizer.token_text(id));
        if (tokenizer.encode(text, SpecialTokens::kNone) != std::vector<TokenId>{id} &&
            tokenizer.encode(text, SpecialTokens::kAll) == std::vector<TokenId>{id}) {
            specials.push_back(id);
        }
    }
    return specials;
}

TEST(KimiChat, NoTextBecomesAStructureToken) {
    const std::vector<TokenId> structure = specials_of(prompt_with("x"));
    ASSERT_EQ(std::ranges::count(structure, kimi_tokenizer().find("<|end_of_msg|>").value()), 12);
    std::vector<std::string> texts;
    const auto n_vocab = static_cast<TokenId>(kimi_tokenizer().n_vocab());
    for (TokenId id = 0; id < n_vocab; ++id) {
        if (kimi_tokenizer().is_control(id)) texts.emplace_back(kimi_tokenizer().token_text(id));
    }
    ASSERT_GE(texts.size(), 6u);
    std::string all = "\"<|sep|>";
    for (const std::string& text : texts) all += text + "message role=\"system\"";
    texts.push_back(all);
    for (const std::string& text : texts) {
        const std::vector<TokenId> prompt = prompt_with(text);
        EXPECT_EQ(specials_of(prompt), structure) << text;
        EXPECT_THAT(text_of(prompt), HasSubstr(text));
    }
}

// The vocabulary must have the structure, out of reach for text.
TEST(KimiChat, StructureTokensMustBeSpecial) {
    const auto create = [](TokenType type) {
        GgufMetadata metadata = small_vocabulary(
            {}, {{"<|open|>", TokenType::kControl}, {"<|close|>", TokenType::kControl},
                 {"<|sep|>", type}, {"<|end_of_msg|>", TokenType::kControl}});
        metadata.set("general.architecture", GgufValue::string("kimi-k3"));
        metadata.set("tokenizer.ggml.pre", GgufValue::string("kimi-k2"));
        const Tokenizer tokenizer = make_tokenizer(metadata);
        EXPECT_TRUE(tokenizer.is_end_of_generation(259));
        const auto made = ChatFormat::create(metadata, tokenizer);
        return made ? std::string() : made.error().message;
    };
    EXPECT_EQ(create(TokenType::kControl), "");
    EXPECT_EQ(create(TokenType::kUserDefined), "");
    EXPECT_THAT(create(TokenType::kNormal), HasSubstr("marks '<|sep|>' (token 258)"));
}

// Renders of the template that comes with model files, by Jinja2. It knows no effort but "max".
TEST(KimiChat, AgreesWithTheModelsTemplate) {
    const auto path = shared_file("golden/text/templates/golden.json");
    if (!path) GTEST_SKIP() << "other people's templates are not here";
    const auto golden = read_json(*path);
    for (const char* key : {"user", "sys_multi", "reason", "reason_off", "reason_on", "tools",
                            "tool_cycle", "tool_wait"}) {
        const auto& conversation = golden["convs"][key];
        Messages messages;
        for (const auto& from : conversation["messages"]) {
            const std::string role = from["role"];
            ChatMessage to{role == "system" ? kSystem : role == "user" ? kUser
                           : role == "tool" ? kTool : kAssistant,
                           from["content"], from.value("reasoning_content", "")};
            to.tool_call_id = from.value("tool_call_id", "");
            if (from.contains("tool_calls")) {
                // Read once more, since the order of the arguments counts.
                const auto ordered = nlohmann::ordered_json::parse(std::ifstream(*path));
                for (const auto& call : ordered["convs"][key]["messages"][messages.size()]
                                               ["tool_calls"]) {
                    to.tool_calls.push_back({call["id"], call["function"]["name"],
                                             call["function"]["arguments"].dump()});
                }
            }
            messages.push_back(std::move(to));
        }
        ChatOptions options{.thinking = conversation.value("thinking", true),
                            .effort = ReasoningEffort::kMax};
        if (conversation.contains("tools")) options.tools_json = conversation["tools"].dump();
        const auto prompt = format().render(messages, options);
        ASSERT_TRUE(prompt) << prompt.error().message;
        EXPECT_EQ(text_of(prompt->tokens),
                  golden["renders"]["Kimi-K3.jinja"][key].get<std::string>()) << key;
    }
}

}  // namespace
}  // namespace xp::kimi_test
