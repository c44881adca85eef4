#include "daemon/service/config.h"

#include <sys/un.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <numeric>
#include <span>
#include <vector>

#include <toml++/toml.h>

#include "daemon/base/size.h"
#include "daemon/text/printable.h"

namespace xp {
namespace {

// A file of this size holds thousands of models; more is no configuration.
constexpr uint64_t kMaxConfigBytes = uint64_t{1} << 20;
// Each part of a dotted key is a level of tables, and these are freed by recursion, until the stack
// ends; the parser's limit of 256 levels counts brackets only. Both together are some 4,000 levels,
// for which a stack of 8 MiB is enough. Keys end with their line.
constexpr size_t kMaxDotsPerLine = 32;
// What a message repeats of a name, key or value, and of a path.
constexpr size_t kMaxShownBytes = 100;
constexpr size_t kMaxShownPathBytes = 900;
// More would only bury the first ones.
constexpr size_t kMaxComplaints = 20;
constexpr size_t kMaxSocketPathBytes = sizeof(sockaddr_un::sun_path) - 1;
// As many as a list of models may carry on the wire.
constexpr size_t kMaxModels = 64;
// No known model goes beyond 1 Mi tokens; 64 Mi keeps all arithmetic on positions in 32 bits.
constexpr int64_t kMaxContext = int64_t{64} << 20;
constexpr int64_t kMinContext = 16;
constexpr int64_t kMaxThreads = 1024;
// More rows than this would only make the workspace larger: every expert is read once per chunk
// already.
constexpr int64_t kMaxChunkRows = 8192;
// Each costs memory and descriptors (accounts.h); of 1024 a list still fits into one reply.
constexpr int64_t kMaxClients = 1024;
// Requests are listed in one reply as well.
constexpr int64_t kMaxQueue = 4000;
// Each may hold a descriptor until its turn comes.
constexpr int64_t kMaxRequestsPerClient = 256;

// Edits (insert, delete, replace) between two short words.
size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<size_t> row(b.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 1; i <= a.size(); ++i) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b.size(); ++j) {
            const size_t replace = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = std::min({replace, row[j] + 1, row[j - 1] + 1});
        }
    }
    return row.back();
}

std::string join(std::span<const std::string_view> words, std::string_view quote) {
    std::string text;
    for (const std::string_view word : words) {
        text += fmt::format("{}{}{}{}", text.empty() ? "" : ", ", quote, word, quote);
    }
    return text;
}

std::string shown(std::string_view name) { return printable_text(name, kMaxShownBytes); }

std::string shown_path(const Path& path) {
    return printable_text(path.native(), kMaxShownPathBytes);
}

// A value as a message tells it.
std::string shown(const toml::node& node) {
    if (const auto* number = node.as_integer()) {
        return fmt::format("{}", number->get());
    }
    if (const auto* number = node.as_floating_point()) {
        return fmt::format("{}", number->get());
    }
    if (const auto* value = node.as_boolean()) {
        return value->get() ? "true" : "false";
    }
    if (const auto* string = node.as_string()) {
        return fmt::format("'{}'", shown(string->get()));
    }
    return node.is_array() ? "a list" : node.is_table() ? "a table" : "a date or time";
}

// The line of a syntax error, whose description names no key.
std::string_view line_of(std::string_view text, size_t number) {
    for (; number > 1; --number) {
        const size_t end = text.find('\n');
        text.remove_prefix(end == text.npos ? text.size() : end + 1);
    }
    text = text.substr(0, text.find_first_of("\r\n"));
    return text.substr(std::min(text.find_first_not_of(" \t"), text.size()));
}

class Reader {
public:
    explicit Reader(const Path& path) : path_(path), shown_path_(shown_path(path)) {}

    Result<DaemonConfig> read(const toml::table& root);

private:
    // One section and the keys asked of it so far; unknown ones are what is left at the end.
    struct Section {
        std::string title;  // "[io]"
        const toml::table* table = nullptr;
        std::vector<std::string_view> known;
    };

    template <class... Args>
    void complain(const toml::node& at, fmt::format_string<Args...> format, Args&&... args) {
        errors_.push_back({at.source().begin.line,
                           fmt::format("{}:{}: {}", shown_path_, at.source().begin.line,
                                       fmt::format(format, std::forward<Args>(args)...))});
    }
    void complain_unknown(const toml::node& at, std::string_view kind, std::string_view name,
                          std::span<const std::string_view> known, std::string_view where);
    Section section(const toml::table& root, std::string_view name);
    void finish(const Section& section);

    const toml::node* find(Section& section, std::string_view key);
    std::optional<std::string> text(Section& section, std::string_view key);
    std::optional<bool> boolean(Section& section, std::string_view key);
    std::optional<int64_t> integer(Section& section, std::string_view key, int64_t least,
                                   int64_t most);
    std::optional<uint64_t> size(Section& section, std::string_view key);
    template <class T, size_t N>
    void choice(Section& section, std::string_view key, T* value,
                const std::array<std::pair<std::string_view, T>, N>& choices);
    void path(Section& section, std::string_view key, Path* value);

    void read_daemon(const toml::table& root, DaemonConfig& config);
    void read_cache(const toml::table& root, DaemonConfig& config);
    void read_io(const toml::table& root, DaemonConfig& config);
    void read_engine(const toml::table& root, DaemonConfig& config);
    void read_limits(const toml::table& root, DaemonConfig& config);
    void read_models(const toml::table& root, DaemonConfig& config);
    void read_model(const toml::table& table, DaemonConfig& config);

    const Path& path_;
    const std::string shown_path_;
    std::vector<std::pair<toml::source_index, std::string>> errors_;
};

Result<DaemonConfig> Reader::read(const toml::table& root) {
    DaemonConfig config;
    static constexpr std::string_view kSections[] = {"daemon", "model", "cache", "io", "engine",
                                                    "limits"};
    for (const auto& [key, node] : root) {
        if (std::find(std::begin(kSections), std::end(kSections), key.str()) ==
            std::end(kSections)) {
            complain_unknown(node, node.is_table() ? "section" : "key", key.str(), kSections, "");
        }
    }
    read_daemon(root, config);
    read_engine(root, config);
    read_cache(root, config);
    read_io(root, config);
    read_limits(root, config);
    read_models(root, config);
    if (errors_.empty()) {
        return config;
    }
    std::stable_sort(errors_.begin(), errors_.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    Error error{ErrorCode::kInvalidArgument, {}};
    for (size_t i = 0; i < std::min(errors_.size(), kMaxComplaints); ++i) {
        error.message += (i == 0 ? "" : "\n") + errors_[i].second;
    }
    if (errors_.size() > kMaxComplaints) {
        error.message += fmt::format("\n{}: {} more faults", shown_path_,
                                     errors_.size() - kMaxComplaints);
    }
    return error;
}

void Reader::complain_unknown(const toml::node& at, std::string_view kind, std::string_view name,
                              std::span<const std::string_view> known, std::string_view where) {
    // The distance takes time by the product of both lengths, and no known word is so long.
    const std::string_view begin = name.substr(0, kMaxShownBytes);
    const auto nearest = std::min_element(known.begin(), known.end(), [&](auto a, auto b) {
        return edit_distance(begin, a) < edit_distance(begin, b);
    });
    // Half of the word may differ; beyond that the hint would be a guess.
    const bool hint = edit_distance(begin, *nearest) * 2 <=
                      std::max(begin.size(), nearest->size());
    complain(at, "unknown {} {}{}; {}", kind, shown(name), where,
             hint ? fmt::format("did you mean {}?", *nearest)
                  : fmt::format("known are {}", join(known, "")));
}

Reader::Section Reader::section(const toml::table& root, std::string_view name) {
    Section section{fmt::format("[{}]", name), nullptr, {}};
    if (const toml::node* node = root.get(name)) {
        section.table = node->as_table();
        if (!section.table) {
            complain(*node, "{} must be a section: {}", name, section.title);
        }
    }
    return section;
}

void Reader::finish(const Section& section) {
    if (!section.table) {
        return;
    }
    for (const auto& [key, node] : *section.table) {
        if (std::find(section.known.begin(), section.known.end(), key.str()) ==
            section.known.end()) {
            complain_unknown(node, "key", key.str(), section.known, " in " + section.title);
        }
    }
}

const toml::node* Reader::find(Section& section, std::string_view key) {
    if (std::find(section.known.begin(), section.known.end(), key) == section.known.end()) {
        section.known.push_back(key);
    }
    return section.table ? section.table->get(key) : nullptr;
}

std::optional<std::string> Reader::text(Section& section, std::string_view key) {
    const toml::node* node = find(section, key);
    if (!node) {
        return std::nullopt;
    }
    if (const auto* string = node->as_string(); string && !string->get().empty()) {
        return string->get();
    }
    complain(*node, "{} {} must be a text in quotes that is not empty", section.title, key);
    return std::nullopt;
}

std::optional<bool> Reader::boolean(Section& section, std::string_view key) {
    const toml::node* node = find(section, key);
    if (!node) {
        return std::nullopt;
    }
    if (const auto* value = node->as_boolean()) {
        return value->get();
    }
    complain(*node, "{} {} must be true or false", section.title, key);
    return std::nullopt;
}

std::optional<int64_t> Reader::integer(Section& section, std::string_view key, int64_t least,
                                       int64_t most) {
    const toml::node* node = find(section, key);
    if (!node) {
        return std::nullopt;
    }
    const auto* value = node->as_integer();
    if (value && value->get() >= least && value->get() <= most) {
        return value->get();
    }
    complain(*node, "{} {} must be a whole number from {} to {}, not {}", section.title, key, least,
             most, shown(*node));
    return std::nullopt;
}

std::optional<uint64_t> Reader::size(Section& section, std::string_view key) {
    const toml::node* node = find(section, key);
    if (!node) {
        return std::nullopt;
    }
    if (const auto* number = node->as_integer()) {
        if (number->get() > 0) {
            return static_cast<uint64_t>(number->get());
        }
    } else if (const auto* string = node->as_string()) {
        if (const auto bytes = parse_size(string->get()); bytes && *bytes > 0) {
            return *bytes;
        }
    }
    complain(*node, "{} {} must be a size above 0 and below 2^64 bytes, as \"64MiB\", \"21GiB\" or "
             "a number of bytes, not {}", section.title, key, shown(*node));
    return std::nullopt;
}

template <class T, size_t N>
void Reader::choice(Section& section, std::string_view key, T* value,
                    const std::array<std::pair<std::string_view, T>, N>& choices) {
    const toml::node* node = find(section, key);
    if (!node) {
        return;
    }
    std::array<std::string_view, N> names;
    for (size_t i = 0; i < N; ++i) {
        names[i] = choices[i].first;
        if (const auto* string = node->as_string(); string && string->get() == names[i]) {
            *value = choices[i].second;
            return;
        }
    }
    complain(*node, "{} {} must be one of {}", section.title, key, join(names, "\""));
}

void Reader::path(Section& section, std::string_view key, Path* value) {
    const auto string = text(section, key);
    if (!string) {
        return;
    }
    if (string->find('\0') != std::string::npos) {
        complain(*find(section, key), "{} {} has a NUL byte", section.title, key);
        return;
    }
    if (Path(*string).is_relative()) {
        // The daemon's working directory is no place that a reader of the file can see.
        *value = std::filesystem::absolute(path_).parent_path() / *string;
    } else {
        *value = *string;
    }
    *value = value->lexically_normal();
}

void Reader::read_daemon(const toml::table& root, DaemonConfig& config) {
    Section daemon = section(root, "daemon");
    path(daemon, "socket", &config.socket);
    const toml::node* socket = find(daemon, "socket");
    if (socket && config.socket.native().size() > kMaxSocketPathBytes) {
        complain(*socket, "[daemon] socket {} has {} bytes; the path of a Unix socket has at most "
                 "{}", shown_path(config.socket), config.socket.native().size(),
                 kMaxSocketPathBytes);
    }
    path(daemon, "state_dir", &config.state_dir);
    finish(daemon);
}

void Reader::read_cache(const toml::table& root, DaemonConfig& config) {
    Section cache = section(root, "cache");
    config.host.cache_bytes = size(cache, "experts");
    config.host.vram_limit = size(cache, "vram_limit");
    if (config.host.vram_limit && config.host.backend == EngineBackend::kCpu) {
        complain(*cache.table->get("vram_limit"), "[cache] vram_limit limits GPU memory, and "
                 "[engine] backend is \"cpu\": remove the key; experts limits the slots in RAM");
    }
    config.host.ram_bytes = size(cache, "ram_tier");
    if (config.host.ram_bytes && config.host.backend == EngineBackend::kCpu) {
        complain(*cache.table->get("ram_tier"), "[cache] ram_tier is behind GPU memory, and "
                 "[engine] backend is \"cpu\", where all slots are in RAM: remove the key");
    }
    static constexpr std::array<std::pair<std::string_view, const char*>, 2> kPolicies = {
        {{"lfu", "lfu"}, {"lru", "lru"}}};
    const char* policy = config.host.policy == "lru" ? "lru" : "lfu";
    choice(cache, "policy", &policy, kPolicies);
    config.host.policy = policy;
    finish(cache);
}

void Reader::read_io(const toml::table& root, DaemonConfig& config) {
    Section io = section(root, "io");
    static constexpr std::array<std::pair<std::string_view, IoBackendKind>, 3> kBackends = {
        {{"auto", IoBackendKind::kAuto},
         {"uring", IoBackendKind::kUring},
         {"pread", IoBackendKind::kPread}}};
    static constexpr std::array<std::pair<std::string_view, VerifyMode>, 3> kModes = {
        {{"off", VerifyMode::kOff}, {"sample", VerifyMode::kSample}, {"read", VerifyMode::kRead}}};
    choice(io, "backend", &config.host.io.backend, kBackends);
    config.host.io.direct = boolean(io, "direct").value_or(config.host.io.direct);
    choice(io, "verify", &config.host.verify, kModes);
    finish(io);
}

void Reader::read_engine(const toml::table& root, DaemonConfig& config) {
    Section engine = section(root, "engine");
    static constexpr std::array<std::pair<std::string_view, EngineBackend>, 3> kBackends = {
        {{"auto", EngineBackend::kAuto},
         {"cpu", EngineBackend::kCpu},
         {"cuda", EngineBackend::kCuda}}};
    static constexpr std::array<std::pair<std::string_view, KvType>, 2> kKvTypes = {
        {{"f32", KvType::kF32}, {"f16", KvType::kF16}}};
    choice(engine, "backend", &config.host.backend, kBackends);
    if (config.host.backend == EngineBackend::kCuda && !kBuiltWithCuda) {
        complain(*engine.table->get("backend"),
                 "[engine] backend: this build has no CUDA; use \"cpu\" or \"auto\"");
    }
    config.host.threads =
        static_cast<unsigned>(integer(engine, "threads", 0, kMaxThreads).value_or(0));
    choice(engine, "kv", &config.host.kv, kKvTypes);
    uint32_t& chunk_rows = config.scheduler.task.chunk_rows;
    chunk_rows = static_cast<uint32_t>(
        integer(engine, "chunk_rows", 1, kMaxChunkRows).value_or(chunk_rows));
    config.host.chunk_rows = chunk_rows;
    // Those that are parked, and one that runs.
    config.host.sequences = static_cast<uint32_t>(config.scheduler.parked_limit + 1);
    finish(engine);
}

void Reader::read_limits(const toml::table& root, DaemonConfig& config) {
    Section limits = section(root, "limits");
    RingServerOptions& server = config.server;
    // What is not set, and would be above the limit that it is part of, is as large as that.
    const auto part = [&](std::string_view key, int64_t most, uint64_t whole,
                          std::string_view whole_key, uint64_t preset) {
        const auto value = integer(limits, key, 1, most);
        if (value && static_cast<uint64_t>(*value) > whole) {
            complain(*limits.table->get(key), "[limits] {} is {}, above {}, which is {}: lower "
                     "the one or raise the other", key, *value, whole_key, whole);
        }
        return value ? static_cast<uint64_t>(*value) : std::min(preset, whole);
    };
    server.clients = static_cast<size_t>(
        integer(limits, "clients", 1, kMaxClients).value_or(static_cast<int64_t>(server.clients)));
    server.user.clients =
        part("clients_per_user", kMaxClients, server.clients, "clients", server.user.clients);
    size_t& queue = config.scheduler.queue_limit;
    queue = static_cast<size_t>(
        integer(limits, "queue", 1, kMaxQueue).value_or(static_cast<int64_t>(queue)));
    server.user.requests =
        part("requests_per_user", kMaxQueue, queue, "queue", server.user.requests);
    server.requests_per_client = static_cast<uint32_t>(
        part("requests_per_client", kMaxRequestsPerClient, server.user.requests,
             "requests_per_user", server.requests_per_client));
    if (const auto bytes = size(limits, "request_bytes_per_user")) {
        server.user.request_bytes = *bytes;
        if (*bytes < kMaxRequestBytes) {
            complain(*limits.table->get("request_bytes_per_user"),
                     "[limits] request_bytes_per_user must be at least {}, the largest request",
                     format_size(kMaxRequestBytes));
        }
    }
    finish(limits);
}

void Reader::read_models(const toml::table& root, DaemonConfig& config) {
    const toml::node* node = root.get("model");
    if (!node) {
        errors_.push_back({0, fmt::format("{}: there is no [[model]] section; the daemon needs at "
                                          "least one, with name and pack", shown_path_)});
        return;
    }
    const toml::array* models = node->as_array();
    if (!models || models->empty() || !models->is_array_of_tables()) {
        complain(*node, "models are written as [[model]], in double brackets, one for each");
        return;
    }
    if (models->size() > kMaxModels) {
        complain(*node, "{} [[model]] sections; at most {} are served", models->size(), kMaxModels);
        return;
    }
    for (const toml::node& model : *models) {
        read_model(*model.as_table(), config);
    }
}

void Reader::read_model(const toml::table& table, DaemonConfig& config) {
    Section model{"[[model]]", &table, {}};
    ModelSource source;
    const auto name = text(model, "name");
    if (!table.contains("name")) {
        complain(table, "[[model]] has no name");
    } else if (name) {
        source.name = *name;
        if (name->size() > kMaxModelNameBytes || !is_printable_text(*name)) {
            complain(*table.get("name"), "[[model]] name must be printable and of at most {} "
                     "bytes, not '{}'", kMaxModelNameBytes, shown(*name));
        }
        for (const ModelSource& other : config.host.models) {
            if (other.name == source.name) {
                complain(*table.get("name"), "[[model]] name \"{}\" is used twice",
                         shown(source.name));
            }
        }
    }
    path(model, "pack", &source.pack);
    if (!table.contains("pack")) {
        complain(table, "[[model]] \"{}\" has no pack: the directory NAME.xpack that `xp-pack "
                 "build` made", shown(source.name));
    }
    if (const auto context = integer(model, "context", kMinContext, kMaxContext)) {
        source.context = static_cast<uint64_t>(*context);
    }
    source.cache_bytes = size(model, "cache");
    finish(model);
    config.host.models.push_back(std::move(source));
}

// Behind the string that begins at `at`. One that has no end ends with its line, or with the text:
// the parser refuses it there.
size_t end_of_string(std::string_view toml, size_t at) {
    const char quote = toml[at];
    const std::string triple(3, quote);
    const bool multi_line = toml.substr(at, 3) == triple;
    at += multi_line ? 3 : 1;
    while (at < toml.size()) {
        const char c = toml[at];
        if (!multi_line && (c == '\n' || c == '\r')) {
            return at;
        }
        if (quote == '"' && c == '\\') {
            at += 2;
        } else if (multi_line && toml.substr(at, 3) == triple) {
            at += 3;
            // Up to two quotes before the closing three belong to the string.
            for (int i = 0; i < 2 && at < toml.size() && toml[at] == quote; ++i) {
                ++at;
            }
            return at;
        } else if (!multi_line && c == quote) {
            return at + 1;
        } else {
            ++at;
        }
    }
    return toml.size();
}

// Dots in strings and comments make no key deeper.
Result<void> check_depth(std::string_view toml, const Path& path) {
    size_t line = 1, dots = 0;
    for (size_t at = 0; at < toml.size();) {
        const char c = toml[at];
        if (c == '"' || c == '\'') {
            const size_t end = end_of_string(toml, at);
            line += static_cast<size_t>(
                std::ranges::count(toml.substr(at, end - at), '\n'));
            at = end;
            continue;
        }
        if (c == '#') {
            // Other control characters, which the parser may take for line ends, end it here too.
            while (at < toml.size() && (toml[at] == '\t' ||
                                        static_cast<unsigned char>(toml[at]) >= 0x20)) {
                ++at;
            }
            continue;
        }
        if (c == '\n') {
            ++line;
            dots = 0;
        } else if (c == '.' && ++dots > kMaxDotsPerLine) {
            return make_error(ErrorCode::kInvalidArgument,
                              "{}:{}: more than {} dots in one line; no key is that deep",
                              shown_path(path), line, kMaxDotsPerLine);
        }
        ++at;
    }
    return {};
}

}  // namespace

Result<DaemonConfig> parse_config(std::string_view toml, const Path& path) {
    XP_CHECK(check_depth(toml, path));
    try {
        const toml::table root = toml::parse(toml);
        return Reader(path).read(root);
    } catch (const toml::parse_error& error) {
        const auto line = error.source().begin.line;
        return make_error(ErrorCode::kInvalidArgument, "{}:{}: {} (the line is '{}')",
                          shown_path(path), line, shown(error.description()),
                          shown(line_of(toml, line)));
    }
}

Result<DaemonConfig> load_config(const Path& path) {
    auto text = read_text_file(path, kMaxConfigBytes);
    if (!text) {
        Error error = std::move(text).error().with_context("configuration file");
        error.message = printable_text(error.message, kMaxShownPathBytes);
        return error;
    }
    return parse_config(*text, path);
}

}  // namespace xp
