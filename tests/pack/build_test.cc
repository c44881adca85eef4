// What a finished pack holds: every byte of the source, each in its place.

#include <fcntl.h>
#include <sys/stat.h>

#include "daemon/base/memory.h"
#include "tests/pack/pack_fixture.h"

namespace xp::test {
namespace {

std::string expert_name(uint32_t layer, size_t role) {
    return fmt::format("blk.{}.ffn_{}_exps.weight", layer,
                       role_name(static_cast<ExpertRole>(role)));
}

std::vector<std::byte> read_object(const Pack& pack, const PackLayer& layer, uint32_t expert) {
    const Pack::ObjectPlace place = pack.place(layer, expert);
    std::vector<std::byte> object(place.bytes);
    const auto read = read_exact(place.fd, place.offset, object, "object");
    EXPECT_TRUE(read) << read.error().message;
    return object;
}

// Each role of the object, its layout undone, is the expert's slice of the source tensor, and both
// digests are those of the bytes.
void expect_object_is_source(const Pack& pack, const PackLayer& layer, uint32_t expert,
                             const GgufFile& source) {
    SCOPED_TRACE(pack.describe(layer, expert));
    const std::vector<std::byte> object = read_object(pack, layer, expert);
    std::array<Sha256Digest, kExpertRoles> digests;
    for (size_t r = 0; r < kExpertRoles; ++r) {
        const RoleLayout& role = layer.roles[r];
        const TensorInfo* tensor = source.find_tensor(expert_name(layer.layer, r));
        ASSERT_NE(tensor, nullptr);
        ASSERT_EQ(tensor->bytes, role.bytes * layer.n_experts);
        std::vector<std::byte> slice(role.bytes);
        ASSERT_TRUE(source.read_tensor(*tensor, expert * role.bytes, slice));
        digests[r] = sha256(slice);
        std::vector<std::byte> restored(role.bytes);
        const uint64_t row = row_bytes(role.type, role.cols);
        for (uint64_t i = 0; i < role.rows; ++i) {
            row_from_layout(role.type, role.layout, object.data() + role.offset + i * row,
                            restored.data() + i * row, role.cols);
        }
        EXPECT_TRUE(restored == slice) << role_name(static_cast<ExpertRole>(r));
        EXPECT_EQ(role.offset % 64, 0u);
    }
    EXPECT_EQ(stored_checksum(layer, object), pack.digest(layer, expert).stored_xxh3);
    EXPECT_EQ(combine_source_digests(digests), pack.digest(layer, expert).source);
}

void expect_pack_is_source(const Pack& pack, const Path& source_path) {
    const auto source = GgufFile::open(source_path);
    ASSERT_TRUE(source) << source.error().message;
    size_t n_experts_tensors = 0;
    for (const PackLayer& layer : pack.manifest().layers) {
        n_experts_tensors += kExpertRoles;
        for (uint32_t e = 0; e < layer.n_experts; ++e) {
            expect_object_is_source(pack, layer, e, *source);
        }
    }
    EXPECT_EQ(pack.resident().tensors().size(), source->tensors().size() - n_experts_tensors);
    for (const TensorInfo& resident : pack.resident().tensors()) {
        SCOPED_TRACE(resident.name);
        const TensorInfo* tensor = source->find_tensor(resident.name);
        ASSERT_NE(tensor, nullptr);
        EXPECT_EQ(tensor->type, resident.type);
        EXPECT_EQ(tensor->ne, resident.ne);
        EXPECT_EQ(tensor->n_dims, resident.n_dims);
        std::vector<std::byte> a(tensor->bytes);
        std::vector<std::byte> b(tensor->bytes);
        ASSERT_TRUE(source->read_tensor(*tensor, 0, a));
        ASSERT_TRUE(pack.resident().read_tensor(resident, 0, b));
        EXPECT_TRUE(a == b);
    }
    const Path& last = source->files().back().path;
    EXPECT_EQ(to_hex(pack.manifest().sources.back().digest), hex_digest_of(last));
}

struct Case {
    const char* name;
    const char* model;  // "tiny", "demo" or "mixed"
    int stripes;
    StorageLayout layout;
};

class BuiltPack : public testing::TestWithParam<Case> {};

TEST_P(BuiltPack, HoldsEveryByteOfItsSource) {
    const Case& param = GetParam();
    const Scratch scratch;
    Path source = param.model == std::string("tiny") ? kTinyModel : kDemoModel;
    if (param.model == std::string("mixed")) source = write_mixed_model(scratch / "mixed.gguf");
    BuildOptions options;
    options.mxfp4_layout = param.layout;
    for (int s = 1; s < param.stripes; ++s) {
        options.stripe_directories.push_back(scratch.make_directory(fmt::format("drive{}", s)));
    }
    const Path destination = scratch / "model.xpack";
    build_or_fail(source, destination, options);

    const auto pack = open_or_fail(destination);
    ASSERT_NE(pack, nullptr);
    EXPECT_EQ(pack->manifest().stripes.size(), static_cast<size_t>(param.stripes));
    expect_pack_is_source(*pack, source);
    EXPECT_THAT(faults_of(destination, {.deep = true, .against = source}), testing::IsEmpty());
    EXPECT_FALSE(std::filesystem::exists(destination / "build.journal"));
}

INSTANTIATE_TEST_SUITE_P(
    All, BuiltPack,
    testing::Values(Case{"TinySplit1", "tiny", 1, StorageLayout::kSplit},
                    Case{"TinySplit3", "tiny", 3, StorageLayout::kSplit},
                    Case{"TinyGgml1", "tiny", 1, StorageLayout::kGgml},
                    Case{"TinyGgml3", "tiny", 3, StorageLayout::kGgml},
                    Case{"DemoSplit1", "demo", 1, StorageLayout::kSplit},
                    Case{"DemoSplit3", "demo", 3, StorageLayout::kSplit},
                    Case{"DemoGgml1", "demo", 1, StorageLayout::kGgml},
                    Case{"DemoGgml3", "demo", 3, StorageLayout::kGgml},
                    Case{"MixedSplit1", "mixed", 1, StorageLayout::kSplit},
                    Case{"MixedSplit3", "mixed", 3, StorageLayout::kSplit},
                    Case{"MixedGgml1", "mixed", 1, StorageLayout::kGgml},
                    Case{"MixedGgml3", "mixed", 3, StorageLayout::kGgml}),
    [](const auto& info) { return info.param.name; });

TEST(Build, KeepsMetadataAndWhatOnlyLooksLikeExperts) {
    const Scratch scratch;
    build_or_fail(write_mixed_model(scratch / "mixed.gguf"), scratch / "m.xpack");
    const auto pack = open_or_fail(scratch / "m.xpack");
    ASSERT_NE(pack, nullptr);
    EXPECT_EQ(pack->manifest().architecture, "mixed");
    EXPECT_EQ(pack->manifest().model_name, "Mixed layers");
    EXPECT_EQ(pack->resident().metadata().entries().size(), small_metadata().entries().size());
    EXPECT_EQ(pack->resident().metadata().get_strings("tokenizer.ggml.tokens")->size(), 3u);
    EXPECT_NE(pack->resident().find_tensor("blk.2.ffn_gate_exps.bias"), nullptr);
    EXPECT_NE(pack->resident().find_tensor("blk.2.ffn_up_shexp.weight"), nullptr);
    EXPECT_EQ(pack->resident().find_tensor("blk.2.ffn_up_exps.weight"), nullptr);
}

TEST(Build, GivesLayersTheirOwnTypesSizesAndNumbers) {
    const Scratch scratch;
    build_or_fail(write_mixed_model(scratch / "mixed.gguf"), scratch / "m.xpack");
    const auto pack = open_or_fail(scratch / "m.xpack");
    ASSERT_NE(pack, nullptr);
    ASSERT_EQ(pack->manifest().layers.size(), 3u);
    EXPECT_EQ(pack->find_layer(0), nullptr);
    EXPECT_EQ(pack->find_layer(3), nullptr);
    EXPECT_EQ(pack->find_layer(5), nullptr);
    const PackLayer* layer = pack->find_layer(2);
    ASSERT_NE(layer, nullptr);
    EXPECT_EQ(layer->n_experts, 3u);
    EXPECT_EQ(layer->first_object, 7u);
    EXPECT_EQ(layer->roles[0].type, GgmlType::kMXFP4);
    EXPECT_EQ(layer->roles[0].layout, StorageLayout::kSplit);
    EXPECT_EQ(layer->roles[1].type, GgmlType::kQ8_0);
    EXPECT_EQ(layer->roles[1].layout, StorageLayout::kGgml);
    EXPECT_EQ(layer->roles[2].type, GgmlType::kF16);
    EXPECT_EQ(layer->roles[2].rows, 64u);
    EXPECT_EQ(layer->roles[2].cols, 96u);
    EXPECT_NE(layer->object_bytes % kPageBytes, 0u);
    EXPECT_EQ(layer->stride % kPageBytes, 0u);
    EXPECT_EQ(pack->find_layer(4)->stride, kPageBytes);
}

TEST(Build, PadsObjectsWithZeros) {
    const Scratch scratch;
    build_or_fail(write_mixed_model(scratch / "mixed.gguf"), scratch / "m.xpack");
    const auto pack = open_or_fail(scratch / "m.xpack");
    ASSERT_NE(pack, nullptr);
    for (const PackLayer& layer : pack->manifest().layers) {
        const auto object = read_object(*pack, layer, layer.n_experts - 1);
        EXPECT_THAT(std::vector(object.begin() + static_cast<ptrdiff_t>(layer.object_bytes),
                                object.end()),
                    testing::Each(std::byte{0}));
    }
}

TEST(Build, LeavesNoNeedForTheSource) {
    const Scratch scratch;
    const Path source = scratch / "copy.gguf";
    std::filesystem::copy_file(kTinyModel, source);
    build_or_fail(source, scratch / "m.xpack");
    std::filesystem::remove(source);
    EXPECT_NE(open_or_fail(scratch / "m.xpack"), nullptr);
    EXPECT_THAT(faults_of(scratch / "m.xpack", {.deep = true}), testing::IsEmpty());
}

TEST(Build, GivesTheSameIdentityWhateverTheStripes) {
    const Scratch scratch;
    const Path source = write_mixed_model(scratch / "mixed.gguf");
    build_or_fail(source, scratch / "a.xpack");
    build_or_fail(source, scratch / "b.xpack",
                  {.stripe_directories = {scratch.make_directory("drive")}});
    build_or_fail(source, scratch / "c.xpack", {.mxfp4_layout = StorageLayout::kGgml});
    const auto a = read_manifest(scratch / "a.xpack");
    const auto b = read_manifest(scratch / "b.xpack");
    const auto c = read_manifest(scratch / "c.xpack");
    ASSERT_TRUE(a && b && c);
    EXPECT_EQ(to_hex(a->identity), to_hex(b->identity));
    EXPECT_NE(to_hex(a->identity), to_hex(c->identity));
}

TEST(Build, ReadsShardsOfASplitModel) {
    const Scratch scratch;
    std::vector<TensorToWrite> all = mixed_tensors();
    const size_t cuts[] = {0, 4, 9, all.size()};
    for (uint32_t i = 0; i < 3; ++i) {
        GgufMetadata metadata = i == 0 ? small_metadata() : GgufMetadata();
        metadata.set("general.architecture", GgufValue::string("mixed"));
        GgufValue number = GgufValue::u32(i);
        number.type = GgufValueType::kU16;
        metadata.set("split.no", number);
        number = GgufValue::u32(3);
        number.type = GgufValueType::kU16;
        metadata.set("split.count", number);
        metadata.set("split.tensors.count", GgufValue::i32(static_cast<int32_t>(all.size())));
        const auto written =
            write_gguf(scratch / fmt::format("m-{:05}-of-00003.gguf", i + 1), metadata,
                       std::span(all).subspan(cuts[i], cuts[i + 1] - cuts[i]));
        ASSERT_TRUE(written) << written.error().message;
    }
    const Path second = scratch / "m-00002-of-00003.gguf";
    build_or_fail(second, scratch / "m.xpack");
    const auto pack = open_or_fail(scratch / "m.xpack");
    ASSERT_NE(pack, nullptr);
    ASSERT_EQ(pack->manifest().sources.size(), 3u);
    expect_pack_is_source(*pack, second);
    for (size_t i = 0; i < 3; ++i) {
        const PackSourceFile& file = pack->manifest().sources[i];
        EXPECT_EQ(file.name, fmt::format("m-{:05}-of-00003.gguf", i + 1));
        EXPECT_EQ(to_hex(file.digest), hex_digest_of(scratch / file.name));
    }
    EXPECT_THAT(faults_of(scratch / "m.xpack", {.deep = true, .against = second}),
                testing::IsEmpty());
    // The same tensors in one file: same objects, another source.
    write_mixed_model(scratch / "whole.gguf");
    EXPECT_THAT(faults_of(scratch / "m.xpack", {.against = scratch / "whole.gguf"}),
                testing::IsEmpty());
}

TEST(Build, ReportsProgressOverTheWholeSource) {
    const Scratch scratch;
    BuildProgress last;
    bool monotonic = true;
    BuildOptions options;
    options.progress = [&](const BuildProgress& progress) {
        monotonic &= progress.done_bytes >= last.done_bytes;
        last = progress;
    };
    build_or_fail(kTinyModel, scratch / "m.xpack", options);
    EXPECT_TRUE(monotonic);
    EXPECT_EQ(last.total_bytes, std::filesystem::file_size(kTinyModel));
    EXPECT_EQ(last.done_bytes, last.total_bytes);
    EXPECT_EQ(last.resumed_bytes, 0u);
}

}  // namespace
}  // namespace xp::test
