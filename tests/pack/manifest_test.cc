// manifest.json against hostile and damaged text.

#include <nlohmann/json.hpp>

#include "daemon/pack/format.h"
#include "tests/pack/pack_fixture.h"

namespace xp::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using OrderedJson = nlohmann::ordered_json;

// A manifest of three layers and two stripes, without files behind it.
Manifest sample() {
    Manifest manifest;
    manifest.architecture = "mixed";
    manifest.model_name = "Mixed layers";
    manifest.sources = {{"a.gguf", 1000, {}}, {"b.gguf", 2000, {}}};
    manifest.sources[1].digest[0] = 7;
    manifest.stripes = {{"experts.000.xpk", 0}, {"/drive/m.xpack.experts.001.xpk", 0}};
    for (const uint32_t number : {1u, 2u, 40u}) {
        PackLayer layer;
        layer.layer = number;
        layer.n_experts = 3 * number;
        for (RoleLayout& role : layer.roles) {
            role.type = number == 2 ? GgmlType::kQ8_0 : GgmlType::kMXFP4;
            role.layout = number == 1 ? StorageLayout::kSplit : StorageLayout::kGgml;
            role.rows = role.cols = 64;
        }
        manifest.layers.push_back(layer);
    }
    EXPECT_TRUE(lay_out(manifest));
    manifest.identity = compute_identity(manifest);
    return manifest;
}

std::string error_of(const OrderedJson& json) {
    const auto parsed = parse_manifest(json.dump(), "m/manifest.json");
    if (parsed) return "";
    EXPECT_TRUE(parsed.error().code == ErrorCode::kCorrupt ||
                parsed.error().code == ErrorCode::kUnsupported)
        << parsed.error().message;
    EXPECT_THAT(parsed.error().message, HasSubstr("m/manifest.json"));
    return parsed.error().message;
}

TEST(Manifest, SurvivesFormattingAndParsing) {
    const Manifest manifest = sample();
    const std::string text = format_manifest(manifest);
    const auto parsed = parse_manifest(text, "m/manifest.json");
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_EQ(format_manifest(*parsed), text);
    EXPECT_EQ(parsed->layers[2].first_object, 9u);
    EXPECT_EQ(parsed->stripes[1].bytes, manifest.stripes[1].bytes);
}

TEST(Manifest, IsUtf8WhateverTheModelIsCalled) {
    Manifest manifest = sample();
    manifest.model_name = "broken \xff name";
    EXPECT_TRUE(parse_manifest(format_manifest(manifest), "m/manifest.json"));
    EXPECT_TRUE(is_utf8("gr\xc3\xbc\xc3\x9f"));
    EXPECT_FALSE(is_utf8("\xff"));
}

// Every value of the document in turn, replaced by values that cannot be right there.
TEST(Manifest, IsRefusedWithAnyFieldWrong) {
    const OrderedJson good = OrderedJson::parse(format_manifest(sample()));
    const OrderedJson flat = good.flatten();
    const std::vector<OrderedJson> wrong = {
        nullptr, -1, 1.5, UINT64_MAX, "zzz", OrderedJson::array(), OrderedJson::object(), false};
    // Nothing follows from these: a name for people, and digests of files that are checked when
    // those are read.
    const auto is_free_text = [](const std::string& pointer) {
        return pointer == "/model_name" || pointer == "/architecture" ||
               pointer.ends_with("/name") || pointer.ends_with("/path");
    };
    for (const auto& item : flat.items()) {
        const OrderedJson::json_pointer pointer(item.key());
        for (const OrderedJson& value : wrong) {
            if (is_free_text(item.key()) && value.is_string()) continue;
            OrderedJson bad = good;
            bad[pointer] = value;
            EXPECT_NE(error_of(bad), "") << item.key() << " = " << value.dump();
        }
        if (item.value().is_number()) {
            for (const int64_t delta : {-1, 1, 4096}) {
                OrderedJson bad = good;
                bad[pointer] = item.value().get<int64_t>() + delta;
                EXPECT_NE(error_of(bad), "") << item.key() << " changed by " << delta;
            }
        }
    }
}

TEST(Manifest, IsRefusedWithAnyFieldMissing) {
    const OrderedJson good = OrderedJson::parse(format_manifest(sample()));
    const auto without_each_key = [&](const OrderedJson::json_pointer& object) {
        for (const auto& item : good.at(object).items()) {
            OrderedJson bad = good;
            bad[object].erase(item.key());
            EXPECT_THAT(error_of(bad), HasSubstr("is missing")) << object << " " << item.key();
        }
    };
    for (const char* object : {"", "/sources/0", "/stripes/1", "/layers/2", "/layers/1/roles",
                               "/layers/0/roles/up"}) {
        without_each_key(OrderedJson::json_pointer(object));
    }
}

TEST(Manifest, NamesTheFieldThatIsWrong) {
    const OrderedJson good = OrderedJson::parse(format_manifest(sample()));
    OrderedJson bad = good;
    bad["layers"][1]["roles"]["up"]["rows"] = 65;
    EXPECT_THAT(error_of(bad), HasSubstr("layers[1]."));
    bad = good;
    bad["layers"][2]["base"][1] = good["layers"][1]["base"][1];
    EXPECT_THAT(error_of(bad), HasSubstr("layers[2].base[1] is"));
    bad = good;
    bad["layers"][0]["roles"]["down"]["type"] = "Q9_Z";
    EXPECT_THAT(error_of(bad), AllOf(HasSubstr("layers[0].roles.down.type"), HasSubstr("Q9_Z")));
    bad = good;
    bad["version"] = 2;
    EXPECT_THAT(error_of(bad), HasSubstr("version 2; this build reads version 1"));
    bad = good;
    bad["complete"] = false;
    EXPECT_THAT(error_of(bad), HasSubstr("was not finished"));
    bad = good;
    bad["layers"][1]["roles"]["gate"]["layout"] = "split";  // Q8_0 has no such layout
    EXPECT_THAT(error_of(bad), AllOf(HasSubstr("layer 2, gate"), HasSubstr("cannot be stored")));
    bad = good;
    bad["sources"][0]["bytes"] = 1001;
    EXPECT_THAT(error_of(bad), HasSubstr("identity"));
}

TEST(Manifest, IsRefusedWithLayersTwiceOrOutOfOrder) {
    const OrderedJson good = OrderedJson::parse(format_manifest(sample()));
    OrderedJson bad = good;
    bad["layers"].push_back(good["layers"][2]);
    EXPECT_THAT(error_of(bad), HasSubstr("layer 40 is out of order"));
    bad = good;
    std::swap(bad["layers"][0], bad["layers"][1]);
    EXPECT_THAT(error_of(bad), HasSubstr("out of order"));
}

TEST(Manifest, IsRefusedWithStripePathsThatEscapeOrRepeat) {
    const OrderedJson good = OrderedJson::parse(format_manifest(sample()));
    for (const char* path : {"", ".", "..", "../experts.000.xpk", "a/b.xpk", "/a/../b.xpk",
                             "/a//b.xpk", "/a/", "/"}) {
        OrderedJson bad = good;
        bad["stripes"][0]["path"] = path;
        EXPECT_THAT(error_of(bad), HasSubstr("stripes[0].path")) << path;
    }
    OrderedJson bad = good;
    bad["stripes"][0]["path"] = std::string("a\0b", 3);
    EXPECT_THAT(error_of(bad), HasSubstr("zero byte"));
    bad = good;
    bad["stripes"][0]["path"] = std::string(5000, 'a');
    EXPECT_THAT(error_of(bad), HasSubstr("longer than"));
    bad = good;
    bad["stripes"][1]["path"] = "experts.000.xpk";
    EXPECT_THAT(error_of(bad), HasSubstr("same file"));
    for (const char* name : {"", "../a.gguf", "/a.gguf"}) {
        bad = good;
        bad["sources"][0]["name"] = name;
        EXPECT_THAT(error_of(bad), HasSubstr("sources[0].name")) << name;
    }
}

TEST(Manifest, IsRefusedWithTooManyOfAnything) {
    const OrderedJson good = OrderedJson::parse(format_manifest(sample()));
    for (const char* list : {"layers", "stripes", "sources"}) {
        OrderedJson bad = good;
        const OrderedJson element = bad[list][0];
        while (bad[list].size() <= 5000) bad[list].push_back(element);
        EXPECT_THAT(error_of(bad), HasSubstr(list));
        bad[list] = OrderedJson::array();
        EXPECT_THAT(error_of(bad), HasSubstr("has 0 elements"));
    }
}

TEST(Manifest, IsRefusedWhenTheTextIsNoManifest) {
    const std::string good = format_manifest(sample());
    const auto error = [](std::string_view text) {
        const auto parsed = parse_manifest(text, "m/manifest.json");
        return parsed ? std::string() : parsed.error().message;
    };
    for (size_t cut = 0; cut + 1 < good.size(); cut += 97) {
        EXPECT_NE(error(std::string_view(good).substr(0, cut)), "") << "cut at " << cut;
    }
    EXPECT_NE(error(good + "x"), "");
    EXPECT_NE(error("[]"), "");
    EXPECT_NE(error("\xff\xfe"), "");
    EXPECT_THAT(error(std::string(1 << 20, '[')), HasSubstr("m/manifest.json"));
    EXPECT_THAT(error(std::string(kMaxManifestBytes + 1, ' ')), HasSubstr("above the limit"));
    std::string twice = good;
    twice.insert(1, "\"format\": \"something else\",");
    EXPECT_THAT(error(twice), HasSubstr("key \"format\" appears twice"));
}

TEST(Manifest, SurvivesRandomDamage) {
    std::mt19937_64 random(random_seed());
    const std::string good = format_manifest(sample());
    for (int round = 0; round < 3000; ++round) {
        std::string bad = good;
        for (uint64_t n = 1 + random() % 4; n > 0; --n) {
            bad[random() % bad.size()] = static_cast<char>(random());
        }
        // Either refused or still a manifest that says the same about places.
        const auto parsed = parse_manifest(bad, "m/manifest.json");
        if (parsed) {
            EXPECT_EQ(parsed->n_objects, sample().n_objects);
        }
    }
}

TEST(Layout, SpreadsExpertsOverStripesWithoutHolesOrOverlap) {
    const Manifest manifest = sample();
    for (size_t s = 0; s < 2; ++s) {
        uint64_t end = kStripeHeaderBytes;
        for (const PackLayer& layer : manifest.layers) {
            EXPECT_EQ(layer.base[s], end);
            end += objects_in_stripe(layer.n_experts, 2, s) * layer.stride;
        }
        EXPECT_EQ(manifest.stripes[s].bytes, end);
    }
    for (uint32_t n = 1; n < 20; ++n) {
        for (size_t stripes = 1; stripes < 8; ++stripes) {
            uint64_t sum = 0;
            for (size_t s = 0; s < stripes; ++s) sum += objects_in_stripe(n, stripes, s);
            EXPECT_EQ(sum, n);
        }
    }
}

TEST(Layout, RefusesAbsurdSizes) {
    Manifest manifest = sample();
    for (RoleLayout& role : manifest.layers[0].roles) role.rows = kMaxDimension;
    auto laid_out = lay_out(manifest);
    ASSERT_FALSE(laid_out);
    EXPECT_THAT(laid_out.error().message, AllOf(HasSubstr("layer 1"), HasSubstr("at most")));
    manifest = sample();
    manifest.layers[0].roles[1].cols = 65;
    laid_out = lay_out(manifest);
    ASSERT_FALSE(laid_out);
    EXPECT_THAT(laid_out.error().message, HasSubstr("layer 1, up: 65 columns are not whole"));
}

}  // namespace
}  // namespace xp::test
