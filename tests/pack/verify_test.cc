// What verify says about damaged packs: the right object, and no other.

#include <fcntl.h>

#include "daemon/pack/format.h"
#include "tests/pack/pack_fixture.h"

namespace xp::test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

const VerifyOptions kDeep{.deep = true};

class Verify : public testing::Test {
protected:
    void SetUp() override {
        source_ = write_mixed_model(scratch_ / "mixed.gguf");
        build_or_fail(source_, pack_, {.stripe_directories = {scratch_.make_directory("d1"),
                                                              scratch_.make_directory("d2")}});
        stripes_ = {pack_ / "experts.000.xpk", scratch_ / "d1/m.xpack.experts.001.xpk",
                    scratch_ / "d2/m.xpack.experts.002.xpk"};
    }
    std::string open_error() const {
        const auto pack = Pack::open(pack_, {.direct = false});
        EXPECT_FALSE(pack);
        return pack ? "" : pack.error().message;
    }
    const Scratch scratch_;
    Path source_;
    const Path pack_ = scratch_ / "m.xpack";
    std::vector<Path> stripes_;
};

TEST_F(Verify, FindsNothingInAGoodPack) {
    EXPECT_THAT(faults_of(pack_, {}), IsEmpty());
    EXPECT_THAT(faults_of(pack_, {.deep = true, .against = source_}), IsEmpty());
    const auto report = verify_pack(pack_, kDeep);
    ASSERT_TRUE(report);
    EXPECT_EQ(report->checked_objects, 11u);
}

TEST_F(Verify, NamesExactlyTheFlippedRoleOfTheFlippedObject) {
    std::mt19937_64 random(random_seed());
    const auto manifest = read_manifest(pack_);
    ASSERT_TRUE(manifest);
    for (int round = 0; round < 25; ++round) {
        const PackLayer& layer = manifest->layers[random() % manifest->layers.size()];
        const uint32_t expert = static_cast<uint32_t>(random() % layer.n_experts);
        const uint64_t byte = random() % layer.stride;
        size_t role = kExpertRoles - 1;
        while (byte < layer.roles[role].offset) --role;
        const uint32_t stripe = expert % 3;
        const uint64_t offset = layer.base[stripe] + expert / 3 * layer.stride + byte;
        flip_byte(stripes_[stripe], offset);
        const std::string object = fmt::format("expert {} of layer {}, {} (", expert, layer.layer,
                                               role_name(static_cast<ExpertRole>(role)));
        EXPECT_THAT(faults_of(pack_, {}), IsEmpty());
        EXPECT_THAT(faults_of(pack_, kDeep), ElementsAre(HasSubstr(object)));
        const bool in_role = byte < layer.roles[role].offset + layer.roles[role].bytes;
        if (in_role) {
            EXPECT_THAT(faults_of(pack_, {.against = source_}),
                        ElementsAre(AllOf(HasSubstr(object), HasSubstr("differs from"))));
        }
        flip_byte(stripes_[stripe], offset);
    }
    EXPECT_THAT(faults_of(pack_, kDeep), IsEmpty());
}

TEST_F(Verify, NamesTheFirstObjectLostFromACutStripe) {
    const auto manifest = read_manifest(pack_);
    ASSERT_TRUE(manifest);
    const PackLayer& layer = manifest->layers[0];
    // Experts 1 and 4 of the first layer stay whole, as the third object is expert 7's place.
    std::filesystem::resize_file(stripes_[1], layer.base[1] + layer.stride + 5);
    EXPECT_THAT(faults_of(pack_, {}),
                ElementsAre(AllOf(HasSubstr("m.xpack.experts.001.xpk"), HasSubstr("it was cut"),
                                  HasSubstr("from expert 4 of layer 1 on"))));
    EXPECT_THAT(open_error(), HasSubstr("from expert 4 of layer 1 on"));
    std::filesystem::resize_file(stripes_[1], 100);
    EXPECT_THAT(open_error(), HasSubstr("from expert 1 of layer 1 on"));
}

TEST_F(Verify, TellsSwappedForeignAndMissingStripesApart) {
    // Same number of experts on stripes 1 and 2, so that sizes do not give it away.
    std::filesystem::rename(stripes_[1], scratch_ / "aside");
    std::filesystem::rename(stripes_[2], stripes_[1]);
    std::filesystem::rename(scratch_ / "aside", stripes_[2]);
    EXPECT_THAT(faults_of(pack_, kDeep),
                ElementsAre(AllOf(HasSubstr("experts.001.xpk is stripe 2 of 3"),
                                  HasSubstr("swapped")),
                            HasSubstr("experts.002.xpk is stripe 1 of 3")));
    std::filesystem::remove(stripes_[1]);
    EXPECT_THAT(faults_of(pack_, {}), Contains(AllOf(HasSubstr("cannot open"),
                                                     HasSubstr("experts.001.xpk"))));
    EXPECT_THAT(open_error(), HasSubstr("experts.001.xpk"));

    auto tensors = mixed_tensors();
    tensors[2] = tensor("blk.1.ffn_down_exps.weight", GgmlType::kMXFP4, {32, 64, 7}, 99);
    build_or_fail(write_model(scratch_ / "other.gguf", tensors), scratch_ / "o.xpack",
                  {.stripe_directories = {scratch_ / "d1", scratch_ / "d2"}});
    std::filesystem::rename(scratch_ / "d1/o.xpack.experts.001.xpk", stripes_[1]);
    EXPECT_THAT(open_error(), AllOf(HasSubstr("experts.001.xpk"), HasSubstr("another pack")));
}

TEST_F(Verify, NamesADamagedStripeHeader) {
    flip_byte(stripes_[0], 0);
    EXPECT_THAT(open_error(), HasSubstr("experts.000.xpk is not a stripe file"));
    flip_byte(stripes_[0], 0);
    flip_byte(stripes_[0], 4000);
    EXPECT_THAT(open_error(), HasSubstr("experts.000.xpk has a damaged header"));
}

TEST_F(Verify, NamesMissingChangedAndForeignResidentFiles) {
    const Path resident = pack_ / "resident.gguf";
    const std::string good = read_bytes(resident);
    flip_byte(resident, good.size() - 100);  // in output.weight, the last tensor
    EXPECT_THAT(faults_of(pack_, {}), IsEmpty());
    EXPECT_THAT(faults_of(pack_, kDeep),
                ElementsAre(AllOf(HasSubstr("resident.gguf was changed"))));
    EXPECT_THAT(faults_of(pack_, {.against = source_}),
                ElementsAre(AllOf(HasSubstr("tensor output.weight"), HasSubstr("differs"))));
    std::filesystem::remove(resident);
    EXPECT_THAT(faults_of(pack_, kDeep), ElementsAre(HasSubstr("resident.gguf")));
    EXPECT_THAT(open_error(), HasSubstr("resident.gguf"));
    std::filesystem::copy_file(kTinyModel, resident);
    EXPECT_THAT(open_error(), HasSubstr("of architecture \"deepseek4\""));
}

TEST_F(Verify, NamesMetadataAndTensorsThatTheSourceDoesNotHave) {
    GgufMetadata metadata = small_metadata();
    metadata.erase("mixed.scale");
    metadata.set("mixed.block_count", GgufValue::u32(6));
    metadata.set("mixed.extra", GgufValue::boolean(true));
    auto tensors = mixed_tensors();
    std::erase_if(tensors, [](const TensorToWrite& t) { return t.name.ends_with("_exps.weight"); });
    tensors.pop_back();
    tensors.push_back(tensor("stranger.weight", GgmlType::kF32, {2}, 1));
    tensors[0] = tensor("token_embd.weight", GgmlType::kF32, {64, 7}, 1);
    ASSERT_TRUE(write_gguf(pack_ / "resident.gguf", metadata, tensors));
    EXPECT_THAT(faults_of(pack_, {.against = source_}),
                testing::UnorderedElementsAre(
                    HasSubstr("key mixed.scale is missing"),
                    HasSubstr("key mixed.block_count differs"),
                    HasSubstr("key mixed.extra is not in the source"),
                    HasSubstr("tensor output.weight of"), HasSubstr("tensor stranger.weight of"),
                    HasSubstr("tensor token_embd.weight is F32")));
}

TEST_F(Verify, NamesObjectsWhoseIndexEntriesWereSwappedOrChanged) {
    const Path index = pack_ / "objects.idx";
    const std::string good = read_bytes(index);
    std::string swapped = good;
    const size_t a = kIndexHeaderBytes + 2 * kIndexEntryBytes;   // expert 2 of layer 1
    const size_t b = kIndexHeaderBytes + 9 * kIndexEntryBytes;   // expert 2 of layer 2
    swapped.replace(a, kIndexEntryBytes, good, b, kIndexEntryBytes);
    swapped.replace(b, kIndexEntryBytes, good, a, kIndexEntryBytes);
    write_bytes(index, swapped);
    EXPECT_THAT(open_error(), HasSubstr("objects.idx was changed"));
    EXPECT_THAT(faults_of(pack_, {}), ElementsAre(HasSubstr("objects.idx was changed")));
    const auto faults = faults_of(pack_, kDeep);
    EXPECT_THAT(faults, SizeIs(1 + 2 * kExpertRoles));
    EXPECT_THAT(faults, Contains(HasSubstr("expert 2 of layer 1, gate")));
    EXPECT_THAT(faults, Contains(HasSubstr("expert 2 of layer 2, down")));
    EXPECT_THAT(faults_of(pack_, {.against = source_}),
                Contains(AllOf(HasSubstr("expert 2 of layer 1"),
                               HasSubstr("source digest in objects.idx"))));

    write_bytes(index, good.substr(0, good.size() - 1));
    EXPECT_THAT(open_error(), AllOf(HasSubstr("objects.idx has"), HasSubstr("bytes, not")));
    std::string foreign = good;
    foreign[30] = static_cast<char>(foreign[30] ^ 1);
    write_bytes(index, foreign);
    EXPECT_THAT(open_error(), HasSubstr("objects.idx belongs to another pack"));
}

TEST_F(Verify, TellsWhenTheSourceIsAnotherModel) {
    auto tensors = mixed_tensors();
    tensors[6] = tensor("blk.2.ffn_up_exps.weight", GgmlType::kF16, {64, 96, 3}, 7);
    tensors[4] = tensor("blk.1.ffn_up_exps.weight", GgmlType::kMXFP4, {64, 32, 7}, 1234);
    const Path other = write_model(scratch_ / "other.gguf", tensors);
    const auto faults = faults_of(pack_, {.against = other});
    EXPECT_THAT(faults, Contains(AllOf(HasSubstr("blk.2.ffn_up_exps.weight as F16"),
                                       HasSubstr("the pack as Q8_0"))));
    EXPECT_THAT(faults, Contains(HasSubstr("expert 6 of layer 1, up")));
    const auto none = verify_pack(pack_, {.against = scratch_ / "none.gguf"});
    ASSERT_FALSE(none);
    EXPECT_THAT(none.error().message, HasSubstr("none.gguf"));
}

TEST_F(Verify, CanBeCancelled) {
    VerifyOptions options = kDeep;
    int polls = 0;
    options.cancelled = [&] { return ++polls == 3; };
    const auto report = verify_pack(pack_, options);
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().code, ErrorCode::kCancelled);
}

TEST_F(Verify, SaysWhatIsNotAPack) {
    EXPECT_THAT(faults_of(scratch_ / "nowhere", {}), ElementsAre(HasSubstr("not an expert pack")));
    write_bytes(pack_ / "manifest.json", "{");
    EXPECT_THAT(faults_of(pack_, kDeep), ElementsAre(HasSubstr("not valid JSON")));
}

TEST(PackOpen, ReadsDirectlyOrFailsClosedWithTheWayOut) {
    for (const std::string& parent : {testing::TempDir(), memory_directory()}) {
        const Scratch scratch(parent);
        build_or_fail(write_mixed_model(scratch / "mixed.gguf"), scratch / "m.xpack");
        const auto probe = open_file(scratch / "m.xpack/experts.000.xpk", O_RDONLY | O_DIRECT);
        const auto pack = Pack::open(scratch / "m.xpack", {.direct = true});
        if (pack) {
            EXPECT_TRUE(probe);
            const PackLayer& layer = (*pack)->manifest().layers[0];
            EXPECT_NE(::fcntl((*pack)->place(layer, 0).fd, F_GETFL) & O_DIRECT, 0);
        } else {
            EXPECT_EQ(pack.error().code, ErrorCode::kUnsupported);
            EXPECT_THAT(pack.error().message, AllOf(HasSubstr("experts.000.xpk"),
                                                    HasSubstr("[io] direct = false")));
        }
        EXPECT_NE(open_or_fail(scratch / "m.xpack"), nullptr);
    }
}

TEST(PackOpen, DescribesObjectsByPlace) {
    const Scratch scratch;
    build_or_fail(write_mixed_model(scratch / "mixed.gguf"), scratch / "m.xpack");
    const auto pack = open_or_fail(scratch / "m.xpack");
    ASSERT_NE(pack, nullptr);
    const PackLayer& layer = pack->manifest().layers[0];
    EXPECT_EQ(pack->describe(layer, 2),
              fmt::format("expert 2 of layer 1 (experts.000.xpk, offset {}, {} bytes)",
                          4096 + 2 * layer.stride, layer.stride));
}

}  // namespace
}  // namespace xp::test
