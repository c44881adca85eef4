// The parts of xpctl that need no process: token ids, tables, statistics, terminal text.
#include <gmock/gmock.h>

#include "client/xpctl/numbers.h"
#include "client/xpctl/options.h"
#include "client/xpctl/output.h"
#include "client/xpctl/progress.h"
#include "client/xpctl/stats_rates.h"
#include "client/xpctl/stats_view.h"
#include "client/xpctl/suggest.h"
#include "client/xpctl/table.h"

namespace xp::ctl {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// What the daemon sends, with values that can be told apart.
constexpr char kStats[] = R"({
    "version": "0.1.0", "uptime_ms": 11520000, "backend": "cpu",
    "io": {"backend": "io_uring", "fallback_reason": "", "direct": true, "read_bytes": 3145728,
           "reads": 17, "errors": 0},
    "models": [
        {"name": "demo", "architecture": "deepseek4", "layers": 8, "experts": 64, "top_k": 6,
         "context": 4096, "weight_bytes": 47185920, "sequences": 2,
         "cache": {"policy": "lfu", "slots": 256, "slots_used": 200, "slot_bytes": 53248,
                   "objects": 512, "hits": 900, "misses": 100, "evictions": 3,
                   "read_bytes": 5324800, "stalls": 4, "stall_us": 2500, "io_errors": 0}},
        {"name": "dense", "cache": null}],
    "requests": {"submitted": 12, "stopped": 10},
    "queue": {"waiting": 1, "waiting_replies": 0}})";

TEST(IdsTest, items_are_whole_numbers_of_31_bits) {
    std::string error;
    EXPECT_THAT(*parse_ids("0", &error), ElementsAre(0));
    EXPECT_THAT(*parse_ids(" 1 ,2147483647", &error), ElementsAre(1, 2147483647));
    const std::pair<const char*, const char*> cases[] = {
        {"", "item 1"}, {"1,", "item 2"}, {",1", "item 1"}, {"1,,2", "item 2"},
        {"1,-2", "item 2 (\"-2\")"}, {"1,2147483648", "item 2"}, {"1.5", "item 1"},
        {"1 2", "item 1"}, {"0x10", "item 1"}, {"7,010", "item 2 (\"010\")"},
        {"+1", "item 1"}, {"1,2,\u0663", "item 3"}};
    for (const auto& [text, where] : cases) {
        EXPECT_FALSE(parse_ids(text, &error)) << text;
        EXPECT_THAT(error, HasSubstr(where)) << text;
    }
}

TEST(TargetTest, a_client_or_one_of_its_requests) {
    std::string error;
    EXPECT_EQ(parse_target("3", &error)->client, 3u);
    EXPECT_EQ(parse_target("3", &error)->request, 0u);
    EXPECT_EQ(parse_target("18446744073709551615.17", &error)->client, UINT64_MAX);
    EXPECT_EQ(parse_target("3.17", &error)->request, 17u);
}

TEST(SuggestTest, the_nearest_name_when_one_is_near) {
    const std::vector<std::string> names = {"generate", "chat", "score", "stats", "cancel"};
    const std::pair<const char*, const char*> cases[] = {
        {"generte", "generate"}, {"genreate", "generate"}, {"chta", "chat"}, {"stat", "stats"},
        {"gen", "generate"}, {"s", ""}, {"c", ""}, {"help", ""}, {"", ""}, {"xyzzy", ""}};
    for (const auto& [typed, name] : cases) EXPECT_EQ(nearest_name(typed, names), name) << typed;
    EXPECT_EQ(nearest_name(std::string(100'000, 'a'), names), "");
}

TEST(ProgressTest, tells_rate_and_rest_when_there_is_something_to_tell_them_from) {
    EXPECT_EQ(prefill_text(0, 1400, 3), "prompt: 0 of 1400 tokens (0 %)");
    EXPECT_EQ(prefill_text(700, 1400, 2),
              "prompt: 700 of 1400 tokens (50 %), 350.0 tokens/s, 2 s left");
    EXPECT_EQ(prefill_text(1400, 1400, 2), "prompt: 1400 of 1400 tokens (100 %), 700.0 tokens/s");
    EXPECT_EQ(format_rest(0.2), "1 s");
    EXPECT_EQ(format_rest(150), "3 min");
    EXPECT_EQ(format_rest(7'000), "1 h 57 min");
}

TEST(RatesTest, counters_of_another_daemon_are_not_compared) {
    const Json before = Json::parse(R"({"uptime_ms": 9000, "tokens": {"prompt": 10}})");
    const Json after = Json::parse(R"({"uptime_ms": 1000, "tokens": {"prompt": 20}})");
    EXPECT_FALSE(stats_rates(before, after));
    EXPECT_FALSE(stats_rates(Json(nullptr), after));
    EXPECT_FALSE(stats_rates(after, after));
    const std::optional<StatsRates> rates = stats_rates(after, Json::parse(
        R"({"uptime_ms": 3000, "tokens": {"prompt": 30, "generated": "many"}, "io": [],
            "models": [null, {"cache": null}]})"));
    ASSERT_TRUE(rates);
    EXPECT_EQ(rates->prompt_tokens, 5);
    EXPECT_EQ(rates->generated_tokens, 0);
    EXPECT_FALSE(rates->hit_rate);
}

TEST(StatsViewTest, shows_models_caches_and_counters) {
    const std::string text = stats_tables(kStats).value();
    EXPECT_EQ(text,
        "expertpackd 0.1.0, backend cpu, up 3 h 12 min\n"
        "\n"
        "model  architecture  layers  experts  top-k  context  sequences   weights\n"
        "demo   deepseek4          8       64      6     4096          2  45.0 MiB\n"
        "dense  -                  -        -      -        -          -         -\n"
        "\n"
        "cache  policy  slots  used  of experts  slot size  hits  misses  hit rate  evictions\n"
        "demo   lfu       256   200         512   52.0 KiB   900     100    90.0 %          3\n"
        "\n"
        "cache     read  waves  stalls  stalled for  prefetches  verified  verify failures  "
        "I/O errors\n"
        "demo   5.1 MiB      -       4       2.5 ms           -         -                -  "
        "         0\n"
        "\n"
        "io        backend io_uring, direct yes, read 3.0 MiB, reads 17, errors 0\n"
        "requests  submitted 12, stopped 10\n"
        "queue     waiting 1, waiting replies 0\n");
}

TEST(StatsViewTest, shows_ram_tiers_where_there_are_some) {
    const std::string text = stats_tables(R"({"models": [
        {"name": "small", "cache": {"ram_slots": 0}},
        {"name": "large", "cache": {"ram_slots": 665, "ram_slots_used": 661,
                                    "ram_slot_bytes": 3145728, "ram_hits": 70, "ram_evictions": 9,
                                    "h2d_bytes": 5324800, "d2h_bytes": 53248}}]})").value();
    EXPECT_THAT(text, HasSubstr(
        "RAM tier  slots  used  slot size  hits  evictions  to device  from device\n"
        "large       665   661    3.0 MiB    70          9    5.1 MiB     52.0 KiB\n"));
    EXPECT_THAT(stats_tables(kStats).value(), Not(HasSubstr("RAM tier")));
}

TEST(StatsViewTest, missing_members_and_wrong_types_do_no_harm) {
    for (const char* json :
         {"{}", R"({"models": []})", R"({"models": {}})", R"({"models": [1, null, "x", []]})",
          R"({"models": [{"name": 7, "cache": [1]}, {"cache": {"hits": "many", "slots": {}}}]})",
          R"({"uptime_ms": "long", "version": {}, "io": null, "queue": [1, 2], "tokens": 3})",
          R"({"uptime_ms": -5, "requests": {}})", R"({"uptime_ms": 1e300})"}) {
        const std::optional<std::string> text = stats_tables(json);
        ASSERT_TRUE(text) << json;
        EXPECT_THAT(*text, HasSubstr("expertpackd")) << json;
    }
    EXPECT_FALSE(stats_tables("[]"));
    EXPECT_FALSE(stats_tables("{"));
    EXPECT_FALSE(stats_tables(""));
}

TEST(StatsViewTest, counters_of_newer_daemons_are_shown_as_they_are_named) {
    const std::string text = stats_tables(
        R"({"gpu": {"vram_bytes": 2048, "name": "X", "ok": false, "parts": [1]}, "level": 3})")
        .value();
    EXPECT_THAT(text, AllOf(HasSubstr("gpu       vram 2.0 KiB, name X, ok no, parts [1]\n"),
                            HasSubstr("level     3\n")));
}

TEST(StatsViewTest, the_memory_plan_and_what_a_token_costs_are_readable) {
    const std::string text = stats_tables(
        R"({"memory": {"weights_bytes": 2048, "sequences": 5, "limit_bytes": null},
            "decode": {"tokens": 3, "launches": 7, "launches_per_token": 2.3333333333333335,
                       "host_per_token_us": 2500.25}})").value();
    EXPECT_THAT(text, HasSubstr("memory    weights 2.0 KiB, sequences 5, limit -\n"));
    EXPECT_THAT(text, HasSubstr("decode    tokens 3, launches 7, launches per token 2.3, "
                                "host per token 2.5 ms\n"));
}

TEST(StatsViewTest, long_lines_of_counters_are_broken) {
    const std::string text = stats_tables(
        R"({"clients": {"a_rather_long_name": 1, "another_rather_long_name": 2,
                        "and_one_that_does_not_fit": 3}})").value();
    EXPECT_THAT(text, HasSubstr("clients   a rather long name 1, another rather long name 2,\n"
                                "          and one that does not fit 3\n"));
}

TEST(StatsViewTest, names_cannot_move_the_cursor) {
    const std::string text = stats_tables(
        R"({"version": "\u001b[2J", "models": [{"name": "a\nb\u009b"}], "x\u0007": {"y\r": "\t"}})")
        .value();
    for (const char* control : {"\033", "\x07", "\r", "\t", "a\nb", "\u009b"}) {
        EXPECT_THAT(text, Not(HasSubstr(control)));
    }
}

TEST(TableTest, columns_are_as_wide_as_their_widest_field_in_characters) {
    Table table({"name", ">n"});
    table.add_row({"\u00e9\u00e9", "1"});
    table.add_row({"long name", "1000"});
    EXPECT_EQ(table.text(), "name          n\n"
                            "\u00e9\u00e9            1\n"
                            "long name  1000\n");
}

TEST(TableTest, sizes_and_times_have_fitting_units) {
    EXPECT_EQ(format_bytes(0), "0 B");
    EXPECT_EQ(format_bytes(1023), "1023 B");
    EXPECT_EQ(format_bytes(1024), "1.0 KiB");
    EXPECT_EQ(format_bytes(1048575), "1.0 MiB");
    EXPECT_EQ(format_bytes(1.5 * (1 << 30)), "1.5 GiB");
    EXPECT_EQ(format_duration(0.00035), "350 us");
    EXPECT_EQ(format_duration(0.0125), "12.5 ms");
    EXPECT_EQ(format_duration(3.2), "3.2 s");
    EXPECT_EQ(format_duration(310), "5 min 10 s");
    EXPECT_EQ(format_duration(3 * 3600 + 12 * 60), "3 h 12 min");
    EXPECT_EQ(format_duration(52 * 3600), "2 d 4 h");
}

TEST(TerminalTextTest, keeps_text_and_drops_control_characters) {
    EXPECT_EQ(terminal_text("a\tb\nc"), "a\tb\nc");
    EXPECT_EQ(terminal_text(std::string("\0\x01\r\033[1mx\x7f", 9)), "[1mx");
    EXPECT_EQ(terminal_text("\u0080\u009f\u00a0\u00e9"), "\u00a0\u00e9");
    EXPECT_EQ(terminal_text("\xc2"), "\xc2");
    EXPECT_EQ(one_line("a\tb\nc\u0085"), "a?b?c?");
}

TEST(EchoTest, shows_control_characters_and_the_ends_of_long_texts) {
    EXPECT_EQ(echoed("caf\u00e9 \u6f22"), "caf\u00e9 \u6f22");
    EXPECT_EQ(echoed(std::string("a\n\t\r\0\x1b[1m\x7f\u009b", 12)),
              "a\\n\\t\\r\\x00\\x1b[1m\\x7f\\xc2\\x9b");
    EXPECT_EQ(echoed("\xe9\xc3"), "\\xe9\\xc3");
    EXPECT_EQ(echoed(std::string(180, 'a')), std::string(180, 'a'));
    EXPECT_EQ(echoed("begin" + std::string(130'000, 'a') + "end"),
              "begin" + std::string(115, 'a') + "..." + std::string(57, 'a') + "end");
}

TEST(NumbersTest, are_what_is_written_or_an_error) {
    uint32_t whole = 7;
    for (const char* bad : {"", " ", " 1", "1 ", "+1", "-1", "-0", "010", "00", "0x10", "1e3",
                            "1.0", "4294967296", "99999999999999999999999", "one", "1\n", "{}",
                            "[1]"}) {
        const std::string error = take_number(bad, kCountRange, &whole);
        EXPECT_THAT(error, HasSubstr("is not a whole number from 0 to 4294967295")) << bad;
        EXPECT_EQ(whole, 7u);
    }
    EXPECT_EQ(take_number("4294967295", kCountRange, &whole), "");
    EXPECT_EQ(whole, UINT32_MAX);
    EXPECT_EQ(take_number("0", kCountRange, &whole), "");
    EXPECT_EQ(whole, 0u);
    EXPECT_EQ(take_number("1", kWindowRange, &whole),
              "\"1\" is not a whole number from 2 to 4294967295");
    float real = 7;
    for (const char* bad : {"", "+1", "-1", "-0", "nan", "inf", "1e99", "01", "0x1p3", "1,5",
                            "100.1", " 1", "1 ", "100.000000001", "1e999", ".", ".e1",
                            "-.5", "1e", "5e"}) {
        EXPECT_EQ(take_number(bad, kTemperatureRange, &real),
                  "\"" + std::string(bad) + "\" is not a number from 0 to 100");
        EXPECT_EQ(real, 7);
    }
    EXPECT_EQ(take_number("0.1", kTemperatureRange, &real), "");
    EXPECT_EQ(real, 0.1f);
    EXPECT_EQ(take_number("5e-1", kMinPRange, &real), "");
    EXPECT_EQ(real, 0.5f);
    EXPECT_EQ(take_number(".25", kTemperatureRange, &real), "");
    EXPECT_EQ(real, 0.25f);
    for (const char* tiny : {"1e-50", "1e-5000"}) {  // too small for a float, and for a double
        EXPECT_EQ(take_number(tiny, kTemperatureRange, &real), "");
        EXPECT_EQ(real, 0.0f);
    }
    for (const char* bad : {"0.0", "1.00000001"}) {
        EXPECT_EQ(take_number(bad, kTopPRange, &real),
                  "\"" + std::string(bad) + "\" is not a number above 0, at most 1");
    }
    EXPECT_EQ(take_number("1e-50", kTopPRange, &real), "");
    EXPECT_GT(real, 0.0f);
    EXPECT_NE(take_number(".5", kCountRange, &whole), "");
}

}  // namespace
}  // namespace xp::ctl
