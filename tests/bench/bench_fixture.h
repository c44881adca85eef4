// A small model of random weights as a pack, for measurements of it.
#pragma once

#include "tests/pack/pack_fixture.h"
#include "tools/synth/preset.h"
#include "tools/synth/write.h"

namespace xp::test {

inline const Path kTrace = Path(XP_TRACES) / "kimi-linear-48b-300.jsonl";

// Made once per process. All kinds of layers, 64 experts in each of 4.
inline const Path& small_pack() {
    static const Scratch scratch;
    static const Path path = [] {
        const auto preset = parse_preset("flash:4:64", {.vocab = 512, .scale = 32});
        EXPECT_TRUE(preset) << preset.error().message;
        const Path to = scratch / "small.xpack";
        const auto written = write_synth_pack(*preset, to, {});
        EXPECT_TRUE(written) << written.error().message;
        return to;
    }();
    return path;
}

}  // namespace xp::test
