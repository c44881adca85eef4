#include "daemon/pack/journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <span>

#include "daemon/pack/format.h"
#include "daemon/pack/hex.h"

namespace xp {

namespace {

// 240 hexadecimal digits per object for the most objects a pack may have, and room for the rest.
constexpr uint64_t kMaxJournalBytes = uint64_t{2} << 30;
constexpr std::string_view kHeaderWord = "expertpackd-build-journal";
constexpr uint32_t kJournalVersion = 2;  // 2: records of consumed files
constexpr size_t kSumDigits = 16;
// Per object in a record: the segment's sum and the slice's SHA-256.
constexpr size_t kEntryBytes = sizeof(uint64_t) + sizeof(Sha256Digest);

std::string line_sum(std::string_view payload) {
    return fmt::format("{:016x}", xxh3_64(std::as_bytes(std::span(payload))));
}

// Takes the next whole line with a correct checksum off `text`; nothing at the end or a torn one.
std::optional<std::string_view> take_line(std::string_view& text) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos || end < kSumDigits + 1 || text[kSumDigits] != ' ') {
        return std::nullopt;
    }
    const std::string_view payload = text.substr(kSumDigits + 1, end - kSumDigits - 1);
    if (text.substr(0, kSumDigits) != line_sum(payload)) return std::nullopt;
    text.remove_prefix(end + 1);
    return payload;
}

std::string_view take_word(std::string_view& payload) {
    const size_t end = std::min(payload.find(' '), payload.size());
    const std::string_view word = payload.substr(0, end);
    payload.remove_prefix(std::min(end + 1, payload.size()));
    return word;
}

Result<void> check_header(std::string_view payload, const BuildPlan& plan, const Path& path) {
    if (take_word(payload) != kHeaderWord ||
        take_word(payload) != std::to_string(kJournalVersion)) {
        return make_error(ErrorCode::kUnsupported,
                          "{} was written by another version of this program; remove the directory "
                          "to start the build again", path.native());
    }
    const std::string_view source = take_word(payload);
    const std::string_view layout = take_word(payload);
    if (source != to_hex(plan.source_key)) {
        return make_error(ErrorCode::kInvalidArgument,
                          "{} holds an unfinished build of another source ({}), or that file was "
                          "changed since; choose another destination, or remove this one to start "
                          "again", path.parent_path().native(), payload);
    }
    if (layout != to_hex(plan.layout_key)) {
        return make_error(ErrorCode::kInvalidArgument,
                          "{} holds an unfinished build with another layout or other stripe "
                          "directories; repeat the options it was started with, or remove it to "
                          "start again", path.parent_path().native());
    }
    return {};
}

size_t next_expert_step(const BuildPlan& plan, size_t step) {
    while (step < plan.steps.size() && plan.steps[step].kind != BuildStep::Kind::kExperts) ++step;
    return step;
}

std::string format_digests(const BuildState& state) {
    std::string digits;
    for (const Sha256Digest& digest : state.finished_files) digits += to_hex(digest);
    return digits;
}

std::string format_record(const BuildPlan& plan, const BuildState& state) {
    const size_t index = state.next_step - 1;
    const BuildStep& step = plan.steps[index];
    const PackLayer& layer = plan.manifest.layers[step.layer];
    std::vector<std::byte> entries(layer.n_experts * kEntryBytes);
    for (uint32_t e = 0; e < layer.n_experts; ++e) {
        std::byte* entry = entries.data() + e * kEntryBytes;
        const size_t object = layer.first_object + e;
        std::memcpy(entry, &state.sums[object][step.role], sizeof(uint64_t));
        std::memcpy(entry + sizeof(uint64_t), &state.slices[object][step.role],
                    sizeof(Sha256Digest));
    }
    return fmt::format("experts {} {} {}. {}", index, state.file_hash.save(),
                       format_digests(state), bytes_to_hex(entries));
}

// Digests up to a full stop; nothing when they are not.
std::optional<std::vector<Sha256Digest>> take_digests(std::string_view& payload) {
    std::string_view digits = take_word(payload);
    if (!digits.ends_with('.')) return std::nullopt;
    digits.remove_suffix(1);
    constexpr size_t kDigestDigits = 2 * sizeof(Sha256Digest);
    if (digits.size() % kDigestDigits != 0) return std::nullopt;
    std::vector<Sha256Digest> digests;
    for (; !digits.empty(); digits.remove_prefix(kDigestDigits)) {
        const auto digest = digest_from_hex(digits.substr(0, kDigestDigits));
        if (!digest) return std::nullopt;
        digests.push_back(*digest);
    }
    return digests;
}

// False, as apply_record().
bool apply_consumed(std::string_view payload, const BuildPlan& plan, BuildState& state) {
    const std::string_view number = take_word(payload);
    uint32_t file = 0;
    while (file < state.consumed.size() && number != std::to_string(file)) ++file;
    auto finished = take_digests(payload);
    if (file == state.consumed.size() || !finished || finished->size() <= file ||
        finished->size() > state.consumed.size() || !payload.empty()) {
        return false;
    }
    size_t behind = 0;  // the first step of a later file
    while (behind < plan.steps.size() && plan.steps[behind].file <= file) ++behind;
    if (next_expert_step(plan, state.next_step) < behind) return false;
    if (state.next_step < behind) {
        if (finished->size() != file + 1) return false;
        state.next_step = behind;
        state.file_hash = {};
        state.finished_files = *std::move(finished);
    }
    state.consumed[file] = true;
    return true;
}

// False when the record is not the one that must come next; the state is then as before.
bool apply_record(std::string_view payload, const BuildPlan& plan, BuildState& state) {
    const std::string_view kind = take_word(payload);
    if (kind == "consumed") return apply_consumed(payload, plan, state);
    if (kind != "experts") return false;
    const std::string_view number = take_word(payload);
    const size_t index = next_expert_step(plan, state.next_step);
    if (index == plan.steps.size() || number != std::to_string(index)) return false;
    ResumableSha256 file_hash;
    if (!file_hash.restore(take_word(payload))) return false;
    auto finished = take_digests(payload);
    if (!finished) return false;
    const BuildStep& step = plan.steps[index];
    const PackLayer& layer = plan.manifest.layers[step.layer];
    std::vector<std::byte> entries(layer.n_experts * kEntryBytes);
    if (!bytes_from_hex(payload, entries)) return false;
    for (uint32_t e = 0; e < layer.n_experts; ++e) {
        const std::byte* entry = entries.data() + e * kEntryBytes;
        const size_t object = layer.first_object + e;
        std::memcpy(&state.sums[object][step.role], entry, sizeof(uint64_t));
        std::memcpy(&state.slices[object][step.role], entry + sizeof(uint64_t),
                    sizeof(Sha256Digest));
    }
    state.next_step = index + 1;
    state.file_hash = file_hash;
    state.finished_files = *std::move(finished);
    return true;
}

}  // namespace

Result<Journal> Journal::create(const Path& directory, const BuildPlan& plan) {
    const Path path = directory / kJournalName;
    // A journal without a whole header is of no use, and may be another name of some file.
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
        return errno_error(errno, fmt::format("cannot remove {}", path.native()));
    }
    XP_TRY(UniqueFd fd, open_file(path, O_RDWR | O_CREAT | O_EXCL));
    Journal journal(path, std::move(fd));
    journal.add_line(fmt::format("{} {} {} {} {}", kHeaderWord, kJournalVersion,
                                 to_hex(plan.source_key), to_hex(plan.layout_key),
                                 plan.manifest.sources[0].name));
    XP_CHECK(journal.flush());
    XP_CHECK(sync_directory(directory));
    return journal;
}

Result<std::optional<Journal>> Journal::resume(const Path& directory, const BuildPlan& plan,
                                               BuildState& state) {
    const Path path = directory / kJournalName;
    Result<UniqueFd> fd = open_file(path, O_RDWR | O_NOFOLLOW);
    if (!fd) {
        if (fd.error().code == ErrorCode::kNotFound) return std::optional<Journal>();
        return std::move(fd).error();
    }
    XP_TRY(const std::string text, read_text_file(path, kMaxJournalBytes));
    std::string_view rest = text;
    const auto header = take_line(rest);
    if (!header) return std::optional<Journal>();
    XP_CHECK(check_header(*header, plan, path));
    Journal journal(path, std::move(*fd));
    journal.end_ = text.size() - rest.size();
    for (auto line = take_line(rest); line && apply_record(*line, plan, state);
         line = take_line(rest)) {
        journal.end_ = text.size() - rest.size();
    }
    if (::ftruncate(journal.fd_.get(), static_cast<off_t>(journal.end_)) != 0) {
        return errno_error(errno, fmt::format("cannot cut {} to its whole lines", path.native()));
    }
    return std::optional<Journal>(std::move(journal));
}

void Journal::record(const BuildPlan& plan, const BuildState& state) {
    add_line(format_record(plan, state));
}

void Journal::record_consumed(const BuildState& state, uint32_t file) {
    add_line(fmt::format("consumed {} {}.", file, format_digests(state)));
}

void Journal::add_line(std::string_view payload) {
    pending_ += fmt::format("{} {}\n", line_sum(payload), payload);
}

Result<void> Journal::flush() {
    XP_CHECK(write_exact(fd_.get(), end_, std::as_bytes(std::span(pending_)), path_));
    XP_CHECK(sync_file(fd_.get(), path_));
    end_ += pending_.size();
    pending_.clear();
    return {};
}

}  // namespace xp
