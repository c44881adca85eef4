// Messages between clients and the daemon as plain structs, and their flatbuffers form.
//
// decode_* copies everything out of the given bytes, after verifying them with tight limits, and
// checks meaning (finite floats, ranges, UTF-8): what it returns is safe to use. The bytes must be
// private memory, never the ring itself. Flatbuffers types never leave shm/.
//
// Rules of the protocol: a client may have several requests in flight, told apart by request_id
// (chosen by the client, non-zero, unique among its requests in flight). Every request that was
// accepted ends in exactly one terminal reply: Done, Failed or Cancelled. Pong, ModelsReply,
// StatsReply and ClientsReply are terminal for their requests. Reference: docs/protocol.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace xp::shm {

// ---- requests ---------------------------------------------------------------------------------

enum class Role : uint8_t { kSystem = 0, kDeveloper = 1, kUser = 2, kAssistant = 3, kTool = 4 };

struct ToolCall {
    std::string id;
    std::string name;
    std::string arguments_json;
};

struct Message {
    Role role = Role::kUser;
    std::string content;
    std::string reasoning;              // assistant
    std::vector<ToolCall> tool_calls;   // assistant
    std::string tool_call_id;           // tool
};

enum class Effort : uint8_t { kLow = 0, kHigh = 1, kMax = 2 };

struct Chat {
    std::vector<Message> messages;
    std::string tools_json;             // JSON array of function objects; empty: none
    bool thinking = false;
    Effort effort = Effort::kLow;
};
struct RawText { std::string text; };             // special tokens recognised
struct RawTokens { std::vector<int32_t> ids; };

struct Sampling {
    float temperature = 1.0f;
    uint32_t top_k = 0;
    float top_p = 1.0f;
    float min_p = 0.0f;
    uint64_t seed = 0;
};

// What is wanted of a prompt.
//   kGenerate  text after it: Tokens replies
//   kScore     how likely each of its tokens is: Scores replies and, if asked for, Logits; its
//              tokens must fit into the context, nothing is generated
//   kTokenize  its token ids, in Tokens replies without text; may be longer than the context
enum class Task : uint8_t { kGenerate = 0, kScore = 1, kTokenize = 2 };

struct Generate {
    std::string model;                  // empty: the daemon's first
    std::variant<RawText, RawTokens, Chat> prompt;
    Sampling sampling;
    uint32_t max_tokens = 0;            // 0: up to the context
    std::vector<std::string> stop;      // at most kMaxStops of kMaxStopBytes
    bool ignore_eos = false;
    uint32_t top_logprobs = 0;          // per generated token, at most kMaxLogprobs; 0: none
    bool stream = true;                 // false: one Tokens reply before Done is enough
    int32_t priority = 0;               // higher first
    uint32_t deadline_ms = 0;           // from acceptance; 0: none
    std::string end_user;               // fairness key behind a shared client; empty: the client
    Task task = Task::kGenerate;
    bool last_logits = false;           // kScore: also the logits after the last token
};

// With client 0, a request of the same connection: ends in Done in any case. Otherwise a request of
// another client of the same user (any user, for root and the daemon's own), or with target 0 all
// requests of that client: ends in Done, or in Failed "not_found".
struct Cancel {
    uint64_t target = 0;
    uint64_t client = 0;                // a ClientEntry::id
};
struct Ping {};
struct ListModels {};
struct GetStats {};
struct ListClients {};
// The request itself is the message in the sealed memfd that was sent over the socket before this
// record (shm/enclosure.h): for requests larger than a record.
struct Enclosed { uint64_t bytes = 0; };

using Request = std::variant<Generate, Cancel, Ping, ListModels, GetStats, ListClients, Enclosed>;

// ---- replies ----------------------------------------------------------------------------------

struct Accepted {
    std::string model;
    std::vector<int32_t> prompt_tokens;  // empty when a record could not hold them
};
// Prompt tokens computed so far; sent at most a few times a second.
struct Progress {
    uint32_t done = 0;
    uint32_t total = 0;
};

// kToolCall has one line per call: {"name": NAME, "arguments": TEXT}, both JSON strings, with TEXT
// as in ToolCall::arguments_json.
enum class Channel : uint8_t { kContent = 0, kReasoning = 1, kToolCall = 2 };

struct Logprob {
    int32_t id = 0;
    float logprob = 0;
};
struct TokenLogprobs {
    float chosen = 0;
    std::vector<Logprob> top;
};
// Newly generated tokens and the text that became complete with them. A token whose text is held
// back (half a character, a possible stop string) comes with the ids at once, the text later.
struct Tokens {
    std::vector<int32_t> ids;
    Channel channel = Channel::kContent;
    std::string text;                   // valid UTF-8
    std::vector<TokenLogprobs> logprobs;  // one per id, when asked for
};

enum class FinishReason : uint8_t { kStop = 0, kLength = 1, kToolCalls = 2 };

struct Timings {
    uint64_t queued_us = 0;
    uint64_t prefill_us = 0;
    uint64_t decode_us = 0;
    uint32_t prompt_tokens = 0;
    uint32_t generated_tokens = 0;
    uint64_t expert_hits = 0;
    uint64_t expert_misses = 0;
    uint64_t read_bytes = 0;
};

struct Done {
    FinishReason reason = FinishReason::kStop;
    Timings timings;
};
struct Cancelled {
    std::string why;                    // "client", "shutdown", "deadline", "client_stalled"
    Timings timings;
};
struct Failed {
    std::string code;                   // stable: xp::error_code_name, or "malformed"
    std::string message;                // for a person
};
struct Pong {
    std::string version;
    std::string backend;                // "cpu", or the device's name
};
struct ModelEntry {
    std::string name;
    std::string architecture;
    std::string description;
    uint64_t context = 0;
    uint32_t n_vocab = 0;
};
struct ModelsReply { std::vector<ModelEntry> models; };
// One JSON object; its members are described in docs/stats.md.
struct StatsReply { std::string json; };

// Of the prompt's positions first, first + 1, ...; both vectors have the same length.
struct Scores {
    uint32_t first = 0;
    // ln of the probability of the token at this position, given those before it; 0 for position
    // 0, which nothing predicts.
    std::vector<float> logprobs;
    std::vector<int32_t> argmax;        // the likeliest token after this position
};
// A part of the logits after the prompt's last token: of the ids first, first + 1, ...
struct Logits {
    uint32_t first = 0;
    std::vector<float> values;
};

enum class RequestState : uint8_t { kQueued = 0, kPrefill = 1, kDecode = 2, kParked = 3 };
struct RequestEntry {
    uint64_t id = 0;                    // as its client calls it
    Task task = Task::kGenerate;
    RequestState state = RequestState::kQueued;
    std::string model;
    uint64_t age_ms = 0;
    uint32_t prompt_tokens = 0;         // 0 while queued
    uint32_t prompt_done = 0;
    uint32_t generated_tokens = 0;
};
struct ClientEntry {
    uint64_t id = 0;                    // never reused while the daemon runs
    std::string name;
    int32_t pid = 0;
    uint32_t uid = 0;
    uint64_t age_ms = 0;
    std::vector<RequestEntry> requests;
};
struct ClientsReply {
    std::vector<ClientEntry> clients;   // those of the asking user; all, for root and the daemon's
    uint32_t hidden = 0;                // connected clients of other users
};

using Reply = std::variant<Accepted, Progress, Tokens, Done, Cancelled, Failed, Pong, ModelsReply,
                           StatsReply, Scores, Logits, ClientsReply>;
bool is_terminal(const Reply& reply);

// ---- wire form --------------------------------------------------------------------------------

inline constexpr size_t kMaxStops = 16;
inline constexpr size_t kMaxStopBytes = 256;
inline constexpr uint32_t kMaxLogprobs = 20;
inline constexpr size_t kMaxNameBytes = 256;
inline constexpr size_t kMaxMessages = 4096;
inline constexpr size_t kMaxToolCalls = 4096;  // of all messages of a chat together
inline constexpr size_t kMaxModels = 256;
inline constexpr size_t kMaxClients = 4096;        // in a ClientsReply
inline constexpr size_t kMaxClientRequests = 4096; // of all clients of a reply together
inline constexpr float kMaxTemperature = 100.0f;

// Never fail for structs within the limits above whose texts are UTF-8. A log-probability that is
// not finite is sent as the lowest float.
std::vector<std::byte> encode_request(const Request& request);
std::vector<std::byte> encode_reply(const Reply& reply);

// Nothing when the bytes are no valid message; `why` then says what is wrong.
std::optional<Request> decode_request(std::span<const std::byte> bytes, std::string* why);
std::optional<Reply> decode_reply(std::span<const std::byte> bytes, std::string* why);

bool is_valid_utf8(std::string_view text);

}  // namespace xp::shm
