// write_abi_golden DIR: writes what samples.h describes into files of DIR. Run once for each minor
// version, when it is finished; files that exist are never written again.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <span>

#include "tests/golden/abi/samples.h"

namespace {

bool write_file(const std::filesystem::path& file, std::span<const std::byte> bytes) {
    if (std::filesystem::exists(file)) {
        std::fprintf(stderr, "%s exists, and stays as it is\n", file.c_str());
        return false;
    }
    std::ofstream stream(file, std::ios::binary);
    stream.write(reinterpret_cast<const char*>(bytes.data()),
                 static_cast<std::streamsize>(bytes.size()));
    return stream.good();
}

template <class T>
bool write_value(const std::filesystem::path& file, const T& value) {
    return write_file(file, std::as_bytes(std::span(&value, 1)));
}

}  // namespace

int main(int argc, char** argv) {
    using namespace xp::shm;
    if (argc != 2) {
        std::fprintf(stderr, "usage: write_abi_golden DIR\n");
        return 2;
    }
    const std::filesystem::path dir = argv[1];
    bool ok = write_value(dir / "hello.bin", abi::hello());
    ok &= write_value(dir / "welcome.bin", abi::welcome());
    ok &= write_value(dir / "refusal.bin", abi::refusal());
    ok &= write_value(dir / "notice_drain.bin", abi::drain());
    ok &= write_value(dir / "notice_enclosed.bin", abi::enclosed());
    ok &= write_value(dir / "segment_req.bin", abi::segment(kRequestMagic));
    ok &= write_value(dir / "segment_resp.bin", abi::segment(kResponseMagic));
    abi::PlainSegment client;
    abi::PlainSegment daemon;
    abi::write_ring(&client, &daemon);
    ok &= write_value(dir / "ring.bin", client.bytes);
    for (const auto& [name, request] : abi::requests()) {
        ok &= write_file(dir / (name + ".bin"), encode_request(request));
    }
    for (const auto& [name, reply] : abi::replies()) {
        ok &= write_file(dir / (name + ".bin"), encode_reply(reply));
    }
    return ok ? 0 : 1;
}
