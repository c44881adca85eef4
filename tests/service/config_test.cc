// Every key, every kind of error, each with its line.
#include "daemon/service/config.h"

#include <algorithm>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace xp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kModel[] = "[[model]]\nname = \"demo\"\npack = \"/packs/demo.xpack\"\n";

Result<DaemonConfig> parse(const std::string& text) {
    return parse_config(text, "/etc/xp/test.toml");
}

// The error of `text`, put after the model section: its first line is line 4.
std::string error_of(const std::string& text) {
    const auto config = parse(kModel + text);
    return config ? "no error" : config.error().message;
}

TEST(Config, EveryKeyIsRead) {
    const auto config = parse(R"(
[daemon]
socket = "/run/x/x.sock"
state_dir = "/var/lib/x"
[[model]]
name = "big"
pack = "/packs/big.xpack"
context = 8192
cache = "21GiB"
[[model]]
name = "small"
pack = "/packs/small.xpack"
[cache]
experts = "1248KiB"
policy = "lru"
[io]
backend = "pread"
direct = false
verify = "read"
[engine]
backend = "cpu"
threads = 3
kv = "f16"
chunk_rows = 64
[limits]
clients = 20
clients_per_user = 10
queue = 12
requests_per_user = 8
requests_per_client = 4
request_bytes_per_user = "32MiB"
)");
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->socket, "/run/x/x.sock");
    EXPECT_EQ(config->state_dir, "/var/lib/x");
    ASSERT_EQ(config->host.models.size(), 2u);
    EXPECT_EQ(config->host.models[0].name, "big");
    EXPECT_EQ(config->host.models[0].pack, "/packs/big.xpack");
    EXPECT_EQ(config->host.models[0].context, 8192u);
    EXPECT_EQ(config->host.models[0].cache_bytes, uint64_t{21} << 30);
    EXPECT_EQ(config->host.models[1].name, "small");
    EXPECT_FALSE(config->host.models[1].context);
    EXPECT_FALSE(config->host.models[1].cache_bytes);
    EXPECT_EQ(config->host.cache_bytes, uint64_t{1248} << 10);
    EXPECT_EQ(config->host.policy, "lru");
    EXPECT_EQ(config->host.io.backend, IoBackendKind::kPread);
    EXPECT_FALSE(config->host.io.direct);
    EXPECT_EQ(config->host.verify, VerifyMode::kRead);
    EXPECT_EQ(config->host.backend, EngineBackend::kCpu);
    EXPECT_EQ(config->host.threads, 3u);
    EXPECT_EQ(config->host.kv, KvType::kF16);
    EXPECT_EQ(config->scheduler.task.chunk_rows, 64u);
    EXPECT_EQ(config->server.clients, 20u);
    EXPECT_EQ(config->server.user.clients, 10u);
    EXPECT_EQ(config->scheduler.queue_limit, 12u);
    EXPECT_EQ(config->server.user.requests, 8u);
    EXPECT_EQ(config->server.requests_per_client, 4u);
    EXPECT_EQ(config->server.user.request_bytes, uint64_t{32} << 20);
}

TEST(Config, DefaultsAreThoseOfTheDocumentation) {
    const auto config = parse(kModel);
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->socket, "/run/expertpackd/expertpackd.sock");
    EXPECT_EQ(config->state_dir, "/var/lib/expertpackd");
    EXPECT_FALSE(config->host.cache_bytes);
    EXPECT_EQ(config->host.policy, "lfu");
    EXPECT_EQ(config->host.io.backend, IoBackendKind::kAuto);
    EXPECT_TRUE(config->host.io.direct);
    EXPECT_EQ(config->host.verify, VerifyMode::kSample);
    EXPECT_EQ(config->host.backend, EngineBackend::kAuto);
    EXPECT_EQ(config->host.threads, 0u);
    EXPECT_EQ(config->host.kv, KvType::kF32);
    EXPECT_EQ(config->scheduler.task.chunk_rows, 512u);
    EXPECT_EQ(config->server.clients, 64u);
    EXPECT_EQ(config->server.user.clients, 16u);
    EXPECT_EQ(config->scheduler.queue_limit, 64u);
    EXPECT_EQ(config->server.user.requests, 32u);
    EXPECT_EQ(config->server.requests_per_client, 16u);
    EXPECT_EQ(config->server.user.request_bytes, uint64_t{64} << 20);
}

TEST(Config, ALimitIsNoLargerThanTheOneItIsPartOf) {
    EXPECT_THAT(error_of("[limits]\nqueue = 10\nrequests_per_user = 11\n"),
                AllOf(HasSubstr(":6: [limits] requests_per_user is 11"),
                      HasSubstr("queue, which is 10")));
    EXPECT_THAT(error_of("[limits]\nclients_per_user = 65\n"),
                AllOf(HasSubstr(":5: [limits] clients_per_user is 65"), HasSubstr("clients, ")));
    EXPECT_THAT(error_of("[limits]\nrequests_per_client = 33\n"),
                AllOf(HasSubstr(":5: [limits] requests_per_client is 33"),
                      HasSubstr("requests_per_user, which is 32")));
    // What is not set follows.
    const auto config = parse(std::string(kModel) + "[limits]\nqueue = 10\nclients = 3\n");
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->server.user.requests, 10u);
    EXPECT_EQ(config->server.requests_per_client, 10u);
    EXPECT_EQ(config->server.user.clients, 3u);
}

TEST(Config, SizesMayBeNumbersOfBytes) {
    const auto config = parse(std::string(kModel) + "cache = 1277952\n");
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->host.models[0].cache_bytes, 1277952u);
}

TEST(Config, RelativePathsCountFromTheFile) {
    const auto config = parse("[daemon]\nsocket = \"run/x.sock\"\nstate_dir = \"../state\"\n"
                              "[[model]]\nname = \"m\"\npack = \"m.xpack\"\n");
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->socket, "/etc/xp/run/x.sock");
    EXPECT_EQ(config->state_dir, "/etc/state");
    EXPECT_EQ(config->host.models[0].pack, "/etc/xp/m.xpack");
}

TEST(Config, AnUnknownKeyNamesLineSectionAndTheNearestKey) {
    EXPECT_THAT(error_of("[io]\ndirekt = true\n"),
                AllOf(HasSubstr("/etc/xp/test.toml:5: "), HasSubstr("unknown key direkt in [io]"),
                      HasSubstr("did you mean direct?")));
    EXPECT_THAT(error_of("[engine]\nzzzzzzzz = 1\n"),
                AllOf(HasSubstr(":5: "), HasSubstr("known are backend, threads, kv, chunk_rows")));
    EXPECT_THAT(error_of("kontext = 5\n"),
                AllOf(HasSubstr(":4: "), HasSubstr("did you mean context?")));
}

TEST(Config, AnUnknownSectionNamesTheNearest) {
    EXPECT_THAT(error_of("[cahce]\nexperts = 5\n"),
                AllOf(HasSubstr(":4: "), HasSubstr("unknown section cahce"),
                      HasSubstr("did you mean cache?")));
    const auto config = parse(std::string("threads = 2\n") + kModel);
    ASSERT_FALSE(config);
    EXPECT_THAT(config.error().message, HasSubstr("test.toml:1: unknown key threads"));
}

TEST(Config, WrongTypesAndValuesAreErrorsWithTheirLine) {
    const std::pair<const char*, const char*> cases[] = {
        {"[daemon]\nsocket = 5\n", ":5: [daemon] socket must be a text"},
        {"[daemon]\nstate_dir = \"\"\n", ":5: [daemon] state_dir must be a text"},
        {"[io]\ndirect = \"yes\"\n", ":5: [io] direct must be true or false"},
        {"[io]\nbackend = \"aio\"\n", ":5: [io] backend must be one of \"auto\", \"uring\", "
                                      "\"pread\""},
        {"[io]\nverify = true\n", ":5: [io] verify must be one of \"off\", \"sample\", \"read\""},
        {"[engine]\nthreads = -1\n", ":5: [engine] threads must be a whole number from 0 to 1024"},
        {"[engine]\nthreads = 1.5\n", ":5: [engine] threads must be a whole number"},
        {"[engine]\nkv = \"bf16\"\n", ":5: [engine] kv must be one of \"f32\", \"f16\""},
        {"[engine]\nchunk_rows = 0\n", ":5: [engine] chunk_rows must be a whole number from 1"},
        {"[engine]\nbackend = \"gpu\"\n", ":5: [engine] backend must be one of"},
        {"[cache]\nexperts = \"12 GB\"\n", ":5: [cache] experts must be a size above 0"},
        {"[cache]\nexperts = 0\n", ":5: [cache] experts must be a size above 0"},
        {"[cache]\nexperts = -5\n", ":5: [cache] experts must be a size above 0"},
        {"[cache]\npolicy = \"fifo\"\n", ":5: [cache] policy must be one of \"lfu\", \"lru\""},
        {"context = 5\n", ":4: [[model]] context must be a whole number from 16"},
        {"cache = true\n", ":4: [[model]] cache must be a size"},
        {"[limits]\nclients = 0\n", ":5: [limits] clients must be a whole number from 1 to 1024"},
        {"[limits]\nqueue = 4001\n", ":5: [limits] queue must be a whole number from 1 to 4000"},
        {"[limits]\nrequest_bytes_per_user = \"1MiB\"\n",
         ":5: [limits] request_bytes_per_user must be at least 16"},
        {"[[io]]\n", ":4: io must be a section: [io]"},
    };
    for (const auto& [text, message] : cases) {
        EXPECT_THAT(error_of(text), HasSubstr(message)) << text;
    }
}

// Each numeric key, with what is below, above, no number, and no whole one.
TEST(Config, ANumberOutOfPlaceIsToldWithKeyValueAndRange) {
    struct Key {
        const char* section;
        const char* key;
        const char* range;
    };
    const Key keys[] = {{"", "context", "16 to 67108864"},
                        {"[engine]\n", "threads", "0 to 1024"},
                        {"[engine]\n", "chunk_rows", "1 to 8192"},
                        {"[limits]\n", "clients", "1 to 1024"},
                        {"[limits]\n", "clients_per_user", "1 to 1024"},
                        {"[limits]\n", "queue", "1 to 4000"},
                        {"[limits]\n", "requests_per_user", "1 to 4000"},
                        {"[limits]\n", "requests_per_client", "1 to 256"}};
    const std::pair<const char*, const char*> values[] = {
        {"-1", "-1"}, {"9223372036854775807", "9223372036854775807"}, {"''", "''"},
        {"'7'", "'7'"}, {"'0x10'", "'0x10'"}, {"1.5", "1.5"}, {"true", "true"}, {"[1]", "a list"},
        {"{a = 1}", "a table"}, {"1979-05-27", "a date or time"}};
    for (const Key& key : keys) {
        for (const auto& [value, told] : values) {
            const std::string line = std::string(key.key) + " = " + value;
            EXPECT_THAT(error_of(key.section + line + "\n"),
                        AllOf(HasSubstr(*key.section ? ":5: " : ":4: "), HasSubstr(key.key),
                              HasSubstr(std::string("whole number from ") + key.range + ", not " +
                                        told)))
                << line;
        }
        // What is no number at all for TOML.
        for (const char* value : {"010", "", "99999999999999999999", "-99999999999999999999", "0x",
                                  "1_", "5MiB"}) {
            const std::string line = std::string(key.key) + " = " + value;
            EXPECT_THAT(error_of(key.section + line + "\n"),
                        AllOf(HasSubstr(*key.section ? ":5: " : ":4: "),
                              HasSubstr("(the line is '" + line + "')")))
                << line;
        }
    }
}

TEST(Config, ASizeOutOfPlaceIsToldWithKeyValueAndRange) {
    const std::pair<const char*, const char*> keys[] = {
        {"", "cache"}, {"[cache]\n", "experts"}, {"[cache]\n", "vram_limit"},
        {"[cache]\n", "ram_tier"},
        {"[limits]\n", "request_bytes_per_user"}};
    const std::pair<const char*, const char*> values[] = {
        {"0", "0"}, {"-1", "-1"}, {"''", "''"}, {"'-5MiB'", "'-5MiB'"}, {"'0GiB'", "'0GiB'"},
        {"'0x10'", "'0x10'"}, {"'1.5GiB'", "'1.5GiB'"}, {"'12 GB'", "'12 GB'"},
        {"'16777216TiB'", "'16777216TiB'"}, {"'18446744073709551616'", "'18446744073709551616'"},
        {"1.5", "1.5"}, {"\"a\\nb\"", "'a\\x0ab'"}};
    for (const auto& [section, key] : keys) {
        for (const auto& [value, told] : values) {
            const std::string line = std::string(key) + " = " + value;
            EXPECT_THAT(error_of(section + line + "\n"),
                        AllOf(HasSubstr(*section ? ":5: " : ":4: "), HasSubstr(key),
                              HasSubstr("must be a size above 0 and below 2^64 bytes"),
                              HasSubstr(std::string(", not ") + told)))
                << line;
        }
        EXPECT_THAT(error_of(section + std::string(key) + " = 010\n"),
                    HasSubstr(std::string("(the line is '") + key + " = 010')"));
    }
}

TEST(Config, ALimitOfGpuMemoryGoesWithABackendThatMayHaveSome) {
    const auto config = parse(std::string(kModel) + "[cache]\nvram_limit = \"24GiB\"\n");
    ASSERT_TRUE(config.ok()) << config.error().message;
    EXPECT_EQ(config->host.vram_limit, uint64_t{24} << 30);
    EXPECT_THAT(error_of("[engine]\nbackend = \"cpu\"\n[cache]\nvram_limit = \"24GiB\"\n"),
                AllOf(HasSubstr(":7: "), HasSubstr("vram_limit"), HasSubstr("backend is \"cpu\""),
                      HasSubstr("remove the key")));
}

TEST(Config, ARamTierGoesWithABackendThatMayHaveGpuMemory) {
    const auto config = parse(std::string(kModel) + "[cache]\nram_tier = \"16GiB\"\n");
    ASSERT_TRUE(config.ok()) << config.error().message;
    EXPECT_EQ(config->host.ram_bytes, uint64_t{16} << 30);
    EXPECT_EQ(parse(kModel)->host.ram_bytes, std::nullopt);
    EXPECT_THAT(error_of("[engine]\nbackend = \"cpu\"\n[cache]\nram_tier = \"16GiB\"\n"),
                AllOf(HasSubstr(":7: "), HasSubstr("ram_tier"), HasSubstr("backend is \"cpu\""),
                      HasSubstr("remove the key")));
}

TEST(Config, MemoryIsPlannedForTheRowsOfAPassAndForParkedRequestsAndOneMore) {
    const auto config = parse(std::string(kModel) + "[engine]\nchunk_rows = 77\n");
    ASSERT_TRUE(config.ok()) << config.error().message;
    EXPECT_EQ(config->host.chunk_rows, 77u);
    EXPECT_EQ(config->host.sequences, config->scheduler.parked_limit + 1);
}

TEST(Config, WhatThisBuildDoesNotHaveIsAnError) {
    const std::string cuda = error_of("[engine]\nbackend = \"cuda\"\n");
    if (kBuiltWithCuda) {
        EXPECT_EQ(cuda, "no error");
    } else {
        EXPECT_THAT(cuda, AllOf(HasSubstr(":5: "), HasSubstr("this build has no CUDA")));
    }
}

TEST(Config, ModelsNeedNameAndPackAndNamesAreUnique) {
    EXPECT_THAT(parse("").error().message, HasSubstr("no [[model]] section"));
    EXPECT_THAT(parse("[model]\nname = \"m\"\n").error().message, HasSubstr(":1: "));
    EXPECT_THAT(parse("[[model]]\npack = \"/p\"\n").error().message,
                HasSubstr(":1: [[model]] has no name"));
    EXPECT_THAT(parse("[[model]]\nname = \"m\"\n").error().message,
                HasSubstr(":1: [[model]] \"m\" has no pack"));
    EXPECT_THAT(error_of("[[model]]\nname = \"demo\"\npack = \"/p\"\n"),
                HasSubstr(":5: [[model]] name \"demo\" is used twice"));
    EXPECT_THAT(parse("[[model]]\nname = \"a\\nb\"\npack = \"/p\"\n").error().message,
                HasSubstr("printable"));
}

TEST(Config, AllErrorsAreReportedInTheOrderOfTheFile) {
    const std::string errors =
        error_of("[io]\ndirekt = true\nverify = 1\n[engine]\nthreads = \"many\"\n");
    EXPECT_THAT(errors, AllOf(HasSubstr(":5: "), HasSubstr(":6: "), HasSubstr(":8: ")));
    EXPECT_LT(errors.find(":5: "), errors.find(":6: "));
    EXPECT_LT(errors.find(":6: "), errors.find(":8: "));
}

TEST(Config, ASyntaxErrorHasItsLine) {
    EXPECT_THAT(error_of("[io\ndirect = true\n"), HasSubstr("/etc/xp/test.toml:4: "));
}

TEST(Config, AMissingFileIsNamed) {
    const auto config = load_config("/nonexistent/x.toml");
    ASSERT_FALSE(config);
    EXPECT_THAT(config.error().message, HasSubstr("/nonexistent/x.toml"));
}

// The example shows each key, commented out: with the comments removed it is still valid.
TEST(Config, TheExampleFileIsValidWithEveryKeyActive) {
    std::ifstream file(XP_EXAMPLE_CONFIG);
    ASSERT_TRUE(file);
    std::string active;
    for (std::string line; std::getline(file, line);) {
        if (line.starts_with("#") && !line.starts_with("# ")) line.erase(0, 1);
        active += line + "\n";
    }
    const auto config = parse(active);
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->host.models.at(0).name, "demo");
    EXPECT_THAT(active, Not(HasSubstr("#threads")));
}

// Freeing what the parser had read recursed once for each part of the key: the stack overflowed.
TEST(Config, KeysAndValuesWithoutEndAreRefused) {
    std::string key = "a";
    for (int i = 0; i < 100'000; ++i) key += ".a";
    EXPECT_THAT(parse("\n" + key + " = 1\n").error().message,
                HasSubstr("test.toml:2: more than 32 dots in one line"));
    EXPECT_THAT(parse("[" + key + "]\n").error().message, HasSubstr("test.toml:1: more than 32"));
    const std::string brackets(100'000, '[');
    EXPECT_THAT(parse("a = " + brackets).error().message, HasSubstr("maximum nested value depth"));
    EXPECT_TRUE(parse(kModel + ("  # " + std::string(100, '.'))));
}

TEST(Config, DotsInStringsAndCommentsMakeNoKeyDeeper) {
    const std::string dots(200, '.');
    for (const std::string& text :
         {kModel + ("# a " + dots), "[io] # " + dots + "\n" + kModel,
          "[daemon]\nsocket = \"/a/b" + dots + "\\\"" + dots.substr(150) + "/../../s\"\n" + kModel,
          "[daemon]\nstate_dir = '''/x/'" + dots + "'''\n" + kModel,
          "[daemon]\nstate_dir = \"\"\"\n/x/" + dots + "\n" + dots + "\"\"\" # " + dots + "\n" +
              kModel}) {
        const auto config = parse(text);
        EXPECT_TRUE(config.ok()) << config.error().message;
    }
}

// Where strings end decides what is a key.
TEST(Config, KeysTooDeepAreFoundBehindStrings) {
    std::string key = "b";
    for (int i = 0; i < 40; ++i) key += ".b";
    for (const std::string& value :
         {std::string("\"x\\\\\""), std::string("'\\'"), std::string("\"\""), std::string("''"),
          std::string("\"\"\"x\"\"\"\""), std::string("\"\"\"x\"\"\"\"\""),
          std::string("'''x'''''"),
          std::string("\"\"\"\\\"\"\"\"")}) {
        EXPECT_THAT(parse("t = { a = " + value + ", " + key + " = 1 }\n").error().message,
                    HasSubstr("more than 32 dots"))
            << value;
    }
    for (const char* end : {"\v", "\f", "\r"}) {
        EXPECT_FALSE(parse("# x" + std::string(end) + key + " = 1\n" + kModel));
        EXPECT_FALSE(parse("a = \"x" + std::string(end) + key + " = 1\n" + kModel));
    }
}

TEST(Config, NamesInMessagesAreShortAndPrintable) {
    const std::string noise = "\\u001b[31m\\u0007\\n\\u009b\\u202e" + std::string(100'000, 'x');
    for (const std::string& text :
         {"\"" + noise + "\" = 1\n", "[\"" + noise + "\"]\n",
          "[daemon]\nsocket = \"/" + noise + "\"\n",
          "[daemon]\n\"" + noise + "\" = 1\n", "[io]\nbackend = \"" + noise + "\"\n",
          "[limits]\nclients = \"" + noise + "\"\n", "[[model]]\nname = \"" + noise + "\"\n",
          "\x1b\x07 = " + std::string(100'000, 'y') + "\n"}) {
        const std::string message = parse(text).error().message;
        EXPECT_LT(message.size(), 3000u) << text.substr(0, 40);
        EXPECT_THAT(message, Not(HasSubstr("\x1b")));
        EXPECT_THAT(message, Not(HasSubstr("\x07")));
        EXPECT_THAT(message, Not(HasSubstr("\u009b")));
        EXPECT_THAT(message, Not(HasSubstr("\u202e")));
    }
}

TEST(Config, ANameOfAModelThatIsNotPrintableIsRefused) {
    for (const char* name : {"\\u001b", "\\u007f", "\\u009b", "\\u202e", "\\u2028", "\\ufeff"}) {
        EXPECT_THAT(parse("[[model]]\nname = \"a" + std::string(name) + "\"\npack = \"p\"\n")
                        .error().message, HasSubstr("must be printable"))
            << name;
    }
    EXPECT_TRUE(parse("[[model]]\nname = \"Größe 大きさ 😀\"\npack = \"p\"\n"));
}

TEST(Config, KnownKeysAreListedOnce) {
    const std::string message = parse("[daemon]\nsomething_else = 1\n").error().message;
    EXPECT_THAT(message, testing::EndsWith("known are socket, state_dir"));
}

TEST(Config, OfManyFaultsTheFirstTwentyAreTold) {
    std::string text = kModel;
    for (int i = 0; i < 1000; ++i) text += "[x" + std::to_string(i) + "]\n";
    const std::string message = parse(text).error().message;
    EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 20);
    EXPECT_THAT(message, HasSubstr("\n/etc/xp/test.toml: 980 more faults"));
}

}  // namespace
}  // namespace xp
