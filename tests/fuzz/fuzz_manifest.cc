// The input is a manifest.json, optionally followed by a NUL byte and an objects.idx or the header
// of a stripe file. A manifest that is accepted survives being written and read again.
#include <string>

#include "daemon/pack/format.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

void check_index(const xp::Manifest& manifest, std::string_view index) {
    if (!xp::index_header_fault(manifest, index).empty()) return;
    FUZZ_EXPECT(xp::decode_index(manifest, index).size() == manifest.n_objects);
}

void check_stripe(const xp::Manifest& manifest, std::string_view header) {
    if (header.size() != xp::kStripeHeaderBytes) return;
    for (size_t s = 0; s < manifest.stripes.size(); ++s) {
        const auto bytes = std::as_bytes(std::span(header));
        const std::string fault = xp::stripe_header_fault(manifest, s, bytes);
        FUZZ_EXPECT(fault.empty() == (header == xp::encode_stripe_header(manifest, s)));
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
    const std::string_view input = xp::fuzz::as_text({data, bytes});
    const size_t end = std::min(input.find('\0'), input.size());
    const auto manifest = xp::parse_manifest(input.substr(0, end), "manifest.json");
    if (!manifest) {
        FUZZ_EXPECT(!manifest.error().message.empty());
        return 0;
    }
    const std::string text = xp::format_manifest(*manifest);
    const auto again = xp::parse_manifest(text, "again.json");
    FUZZ_EXPECT(again.ok() && xp::format_manifest(*again) == text);
    FUZZ_EXPECT(again->identity == manifest->identity);
    const std::string_view rest = input.substr(std::min(end + 1, input.size()));
    check_index(*manifest, rest);
    check_stripe(*manifest, rest);
    return 0;
}
