/*
 * libexpertpack: talk to a running expertpackd from C or any language that can call C.
 *
 * A program creates an xp_client, connects it to the daemon's socket, submits requests described by
 * xp_generate objects, and collects events: Accepted, Progress, Tokens, and exactly one terminal
 * event (Done, Cancelled or Failed) for every request that xp_submit() took. Several requests may
 * be in flight on one client; their events interleave and carry the request's id.
 *
 * Ownership: objects made by xp_..._new() are freed by xp_..._free(), which accept NULL. Everything
 * else that a function hands out (events, texts, lists) belongs to the client and stays valid until
 * the next call that takes the same client, xp_client_error(), xp_error_code() and xp_connection()
 * excepted.
 * Functions copy what they are given; the caller's memory may be reused at once.
 *
 * Threads: a client, and likewise an xp_generate, may be used by one thread at a time. Different
 * objects are independent. The library starts no threads, installs no signal handlers and prints
 * nothing. SIGPIPE is never raised. EINTR does not end a wait early.
 *
 * fork: in the child the parent's clients are dead: every call on them returns XP_GONE and touches
 * nothing of the parent's; xp_client_free() is safe there. Make a new client in the child.
 *
 * Errors: functions return xp_status; a text for a person is at xp_client_error() or
 * xp_generate_error(), a code for a program at xp_error_code(). Nothing aborts, whatever the daemon
 * sends.
 *
 * Blocking: only functions with a timeout_ms wait, without spinning: a negative value waits without
 * limit, 0 does not wait.
 *
 * Growing: structs are only handed out by pointer and grow at their end; enums get new values:
 * treat unknown event types and status codes as "something else", not as errors of the program.
 */
#ifndef EXPERTPACK_H
#define EXPERTPACK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define XP_API __attribute__((visibility("default")))
#else
#define XP_API
#endif

/* For `length` parameters: the text ends at its first NUL. */
#define XP_NUL_TERMINATED ((size_t)-1)

typedef struct xp_client xp_client;
typedef struct xp_generate xp_generate;

typedef enum xp_status {
    XP_OK = 0,
    XP_TIMEOUT = 1,     /* nothing came within timeout_ms */
    XP_IDLE = 2,        /* xp_next_event: no request is in flight, so nothing can come */
    XP_INVALID = 3,     /* an argument is wrong or out of range; nothing was changed or sent */
    XP_UNAVAILABLE = 4, /* no daemon listens at the socket path, or access to it was denied */
    XP_REFUSED = 5,     /* the daemon answered, and declined the connection */
    XP_BAD_VERSION = 6, /* daemon and library speak different major versions */
    XP_GONE = 7,        /* the connection is dead: daemon gone, never connected, or after fork */
    XP_BUSY = 8,        /* ring full or too many requests in flight: try again later */
    XP_TOO_LARGE = 9,   /* the request can never fit into the ring; the error text has the limit */
    XP_PROTOCOL = 10,   /* the daemon sent something invalid; the connection was closed */
    XP_FAILED = 11,     /* the daemon answered a synchronous call with an error */
    XP_NO_MEMORY = 12,
    XP_SYSTEM = 13      /* the operating system refused something; the error text says what */
} xp_status;

/* Stable lower-case name ("timeout"); "unknown" for values this library does not know. */
XP_API const char* xp_status_name(xp_status status);

/* Version of this library, such as "0.1.0". */
XP_API const char* xp_version(void);

/* ---- connection ----------------------------------------------------------------------------- */

/*
 * A new, unconnected client. `name` tells the daemon's log who this is (at most 31 bytes are kept;
 * NULL: the program's short name). NULL when out of memory.
 */
XP_API xp_client* xp_client_new(const char* name);

/* Closes the connection, which cancels what is in flight, and frees the client. */
XP_API void xp_client_free(xp_client* client);

/*
 * Connects. `socket_path` NULL means $EXPERTPACK_SOCKET, or where that is unset or empty
 * /run/expertpackd/expertpackd.sock. Waits up to timeout_ms for the daemon's welcome (a daemon that
 * is just starting through systemd accepts connections before it answers).
 * A client whose connection died may be connected again: events not yet collected are dropped.
 * XP_OK; XP_UNAVAILABLE, XP_REFUSED, XP_BAD_VERSION, XP_TIMEOUT, XP_PROTOCOL, XP_SYSTEM;
 * XP_INVALID when the client is connected already or the path is too long.
 */
XP_API xp_status xp_connect(xp_client* client, const char* socket_path, int timeout_ms);

/* Closes the connection; the daemon cancels what is in flight, and no more events come of it. */
XP_API void xp_disconnect(xp_client* client);

/*
 * What went wrong in the last call on this client that did not return XP_OK, XP_TIMEOUT or XP_IDLE;
 * "" when there was none. Never NULL. Valid until the next call that fails.
 */
XP_API const char* xp_client_error(const xp_client* client);

/*
 * The same for programs: a stable lower-case code. Where the daemon declined it is the daemon's, of
 * a connection (XP_REFUSED) "too_many_clients", "shutting_down", "not_allowed", "bad_hello" or
 * "internal", of a question (XP_FAILED) such as "not_found" (see xp_event.code); otherwise the
 * xp_status_name() of what the call returned. "" when no call failed; never NULL. Valid as long as
 * xp_client_error(). Treat unknown codes as the status alone.
 */
XP_API const char* xp_error_code(const xp_client* client);

/*
 * A descriptor for poll/epoll/select that becomes readable when xp_next_event() may have something,
 * or -1 when not connected. It belongs to the client: do not read or close it. Protocol: call
 * xp_next_event(client, 0, &event) until it returns something else than XP_OK, then wait for
 * POLLIN, and repeat. Any other call on the client in between (xp_cancel(), xp_submit() ...) takes
 * the wake-up back: call xp_next_event() again before waiting. A wake-up without an event
 * (XP_TIMEOUT) is possible. The value changes with every xp_connect().
 */
XP_API int xp_client_fd(const xp_client* client);

/* What the daemon said when the connection was made. */
typedef struct xp_connection_info {
    uint8_t boot_id[16];          /* changes when the daemon started with an empty expert cache */
    uint32_t protocol_major;
    uint32_t protocol_minor;      /* the lower one of both sides */
    uint64_t max_request_bytes;   /* largest encoded request; longer prompts are XP_TOO_LARGE */
    uint32_t max_in_flight;       /* requests at a time on this connection */
    int draining;                 /* 1: the daemon is shutting down and takes no new requests */
} xp_connection_info;

/* NULL when not connected. Valid until xp_connect(), xp_disconnect() or xp_client_free(). */
XP_API const xp_connection_info* xp_connection(const xp_client* client);

/* ---- describing a request ------------------------------------------------------------------- */

typedef enum xp_role {
    XP_ROLE_SYSTEM = 0,
    XP_ROLE_DEVELOPER = 1,
    XP_ROLE_USER = 2,
    XP_ROLE_ASSISTANT = 3,
    XP_ROLE_TOOL = 4
} xp_role;

typedef enum xp_effort { XP_EFFORT_LOW = 0, XP_EFFORT_HIGH = 1, XP_EFFORT_MAX = 2 } xp_effort;

/*
 * An empty request: the daemon's default model, temperature 1, top_k off, top_p 1, min_p 0, seed
 * 0, tokens up to the model's context, streaming, no deadline. NULL when out of memory. A prompt
 * (text, tokens, or at least one message) must be set before it is submitted. May be submitted many
 * times.
 */
XP_API xp_generate* xp_generate_new(void);
XP_API void xp_generate_free(xp_generate* request);

/* What was wrong with the last xp_generate_... call that did not return XP_OK; never NULL. */
XP_API const char* xp_generate_error(const xp_generate* request);

/*
 * All functions below return XP_OK, XP_INVALID (text is not UTF-8, value out of range, too many) or
 * XP_NO_MEMORY, and leave the request unchanged unless they return XP_OK. All texts are UTF-8.
 */

/* At most 256 bytes; NULL or "": the daemon's default model. */
XP_API xp_status xp_generate_set_model(xp_generate* request, const char* name);

/* The prompt. The last kind that was set counts: text, tokens and messages replace one another. */

/* A raw prompt: the model's special tokens are recognised. BOS is put in front where the model's
 * file asks for it and the text does not begin with it; nothing else is added. */
XP_API xp_status xp_generate_set_text(xp_generate* request, const char* text, size_t length);
/* A prompt of token ids, each ≥ 0. */
XP_API xp_status xp_generate_set_tokens(xp_generate* request, const int32_t* ids, size_t count);
/* Appends a chat message (at most 4096). The daemon renders the chat in the model's own format; its
 * content can never become a special token. */
XP_API xp_status xp_generate_add_message(xp_generate* request, xp_role role, const char* content,
                                         size_t length);
/* Belong to the message added last, which must have the role named. */
XP_API xp_status xp_generate_set_reasoning(xp_generate* request, const char* text,
                                           size_t length);              /* assistant */
XP_API xp_status xp_generate_add_tool_call(xp_generate* request, const char* id, const char* name,
                                           const char* arguments_json); /* assistant */
XP_API xp_status xp_generate_set_tool_call_id(xp_generate* request, const char* id); /* tool */
/* A JSON array of function objects; NULL or "": none. Chat only. The request fails with
 * "unsupported" where the model's chat format has no tools. */
XP_API xp_status xp_generate_set_tools(xp_generate* request, const char* json, size_t length);
/* Lets the model think before it answers. Off by default. Chat only. What the effort means is the
 * model's: to DeepSeek-V4 low says nothing, to Kimi-K3 it is one of three levels. */
XP_API xp_status xp_generate_set_thinking(xp_generate* request, int on, xp_effort effort);

/* Sampling. Temperature 0 is greedy: always the most likely token. */
XP_API xp_status xp_generate_set_temperature(xp_generate* request, float temperature); /* 0..100 */
XP_API xp_status xp_generate_set_top_k(xp_generate* request, uint32_t top_k);  /* 0: off */
XP_API xp_status xp_generate_set_top_p(xp_generate* request, float top_p);     /* 0 < p ≤ 1 */
XP_API xp_status xp_generate_set_min_p(xp_generate* request, float min_p);     /* 0 ≤ p ≤ 1 */
/* The same prompt, settings and seed give the same output. */
XP_API xp_status xp_generate_set_seed(xp_generate* request, uint64_t seed);

/* Tokens to generate at most; 0: as many as the context holds. */
XP_API xp_status xp_generate_set_max_tokens(xp_generate* request, uint32_t max_tokens);
/* Adds a text at which generation stops (at most 16, of 1..256 bytes); it is not in the output. */
XP_API xp_status xp_generate_add_stop(xp_generate* request, const char* text, size_t length);
/* 1: go on after the model's end-of-text token. */
XP_API xp_status xp_generate_set_ignore_eos(xp_generate* request, int on);
/* Log-probabilities of this many alternatives per generated token (at most 20); 0: none. */
XP_API xp_status xp_generate_set_top_logprobs(xp_generate* request, uint32_t count);
/* 0: the daemon may send all tokens in one event. On by default. */
XP_API xp_status xp_generate_set_stream(xp_generate* request, int on);
/* Higher goes first among waiting requests. 0 by default. */
XP_API xp_status xp_generate_set_priority(xp_generate* request, int32_t priority);
/* The request is cancelled when it is not done this long after it was accepted; 0: never. */
XP_API xp_status xp_generate_set_deadline_ms(xp_generate* request, uint32_t deadline_ms);
/* Who the request is for, when one client serves many users (at most 256 bytes). */
XP_API xp_status xp_generate_set_end_user(xp_generate* request, const char* name);

/* What is wanted of the prompt. */
typedef enum xp_task {
    XP_TASK_GENERATE = 0, /* text after it; the default */
    XP_TASK_SCORE = 1,    /* how likely its tokens are: XP_EVENT_SCORES; nothing is generated, and
                             settings of sampling mean nothing */
    XP_TASK_TOKENIZE = 2  /* its token ids: XP_EVENT_TOKENS without text; no limit by the context */
} xp_task;
XP_API xp_status xp_generate_set_task(xp_generate* request, xp_task task);
/* 1: XP_TASK_SCORE also gives the logits after the last token, as XP_EVENT_LOGITS. */
XP_API xp_status xp_generate_set_last_logits(xp_generate* request, int on);

/* ---- requests and events -------------------------------------------------------------------- */

/*
 * Sends the request, waiting up to timeout_ms for room in the ring. On XP_OK *request_id (never 0)
 * names it and exactly one terminal event will come for it. Otherwise nothing was sent: XP_BUSY (no
 * room in time, or max_in_flight reached), XP_TOO_LARGE, XP_INVALID (no prompt), XP_GONE.
 */
XP_API xp_status xp_submit(xp_client* client, const xp_generate* request, int timeout_ms,
                           uint64_t* request_id);

/*
 * Asks the daemon to stop a request; does not wait. Its terminal event still comes: usually
 * Cancelled, or Done when that crossed the cancel. XP_OK also when the request is already over.
 * XP_BUSY when the ring is full: try again.
 */
XP_API xp_status xp_cancel(xp_client* client, uint64_t request_id);

typedef enum xp_event_type {
    XP_EVENT_ACCEPTED = 1,  /* model, prompt_tokens (none when they are too many to send) */
    XP_EVENT_PROGRESS = 2,  /* prefill_done, prefill_total */
    XP_EVENT_TOKENS = 3,    /* channel, text, token_ids, logprobs */
    XP_EVENT_DONE = 4,      /* terminal: finish_reason, timings */
    XP_EVENT_CANCELLED = 5, /* terminal: code says why, timings */
    XP_EVENT_FAILED = 6,    /* terminal: code, message */
    XP_EVENT_SCORES = 7,    /* first, scores: of the next positions of the prompt */
    XP_EVENT_LOGITS = 8     /* first, logits: of the next token ids, after the prompt */
} xp_event_type;

typedef enum xp_channel {
    XP_CHANNEL_CONTENT = 0,
    XP_CHANNEL_REASONING = 1,
    XP_CHANNEL_TOOL_CALL = 2 /* one line per call: {"name": NAME, "arguments": TEXT}, where TEXT is
                                what xp_generate_add_tool_call() takes as arguments_json */
} xp_channel;

typedef enum xp_finish_reason {
    XP_FINISH_STOP = 0,      /* end-of-text token or a stop text */
    XP_FINISH_LENGTH = 1,    /* max_tokens or the context was reached */
    XP_FINISH_TOOL_CALLS = 2 /* like stop, and there was text on XP_CHANNEL_TOOL_CALL */
} xp_finish_reason;

typedef struct xp_logprob {
    int32_t token_id;
    float logprob;
} xp_logprob;

typedef struct xp_token_logprobs {
    float chosen;            /* of the generated token */
    uint32_t top_count;
    const xp_logprob* top;   /* the most likely tokens, best first */
} xp_token_logprobs;

typedef struct xp_timings {
    uint64_t queued_us;
    uint64_t prefill_us;
    uint64_t decode_us;
    uint32_t prompt_tokens;
    uint32_t generated_tokens;
    uint64_t expert_hits;
    uint64_t expert_misses;
    uint64_t read_bytes;     /* from the drive, for this request */
} xp_timings;

/* Of one position of the prompt. */
typedef struct xp_score {
    float logprob;           /* ln of the probability of its token, given those before it; 0 for the
                                first token, which nothing predicts */
    int32_t argmax;          /* the likeliest token after it */
} xp_score;

/* Which members are set depends on `type`, see xp_event_type; the others are 0 or NULL, except that
 * texts are never NULL. Texts are valid UTF-8 and end with a NUL. */
typedef struct xp_event {
    xp_event_type type;
    int terminal;                 /* 1: the last event of this request */
    uint64_t request_id;

    const char* model;
    const int32_t* prompt_tokens;
    size_t prompt_token_count;

    uint32_t prefill_done;
    uint32_t prefill_total;

    xp_channel channel;
    const char* text;             /* may be empty: text is held back until it is complete */
    size_t text_length;
    const int32_t* token_ids;
    size_t token_count;
    const xp_token_logprobs* logprobs;  /* token_count entries, or NULL when not asked for */

    xp_finish_reason finish_reason;
    xp_timings timings;

    /* CANCELLED: "client", "shutdown", "deadline", "client_stalled".
     * FAILED: stable code such as "invalid_argument", "not_found", "limit", "busy", "shutdown",
     * "malformed", "io", "corrupt", "device_lost", "internal", and from this library
     * "daemon_gone". */
    const char* code;
    const char* message;

    uint32_t first;               /* SCORES: position; LOGITS: token id */
    const xp_score* scores;
    size_t score_count;
    const float* logits;
    size_t logit_count;
} xp_event;

/*
 * The next event of any request. XP_OK sets *event, valid until the next call on this client.
 * XP_TIMEOUT: none came in time. XP_IDLE: no request is in flight. When the daemon dies, every
 * request in flight first yields one XP_EVENT_FAILED with code "daemon_gone" (what had arrived
 * before is delivered first); then XP_GONE, or XP_PROTOCOL when the library closed the connection
 * because the daemon's data was invalid.
 */
XP_API xp_status xp_next_event(xp_client* client, int timeout_ms, const xp_event** event);

/* ---- synchronous questions ------------------------------------------------------------------ */

/*
 * These send one request and wait for its answer; events that arrive meanwhile are kept for
 * xp_next_event(), up to 4096 of them, then XP_BUSY. XP_FAILED: the daemon answered with an error,
 * see xp_client_error(). After XP_TIMEOUT a late answer is ignored.
 */

typedef struct xp_pong {
    const char* version;   /* the daemon's */
    const char* backend;   /* "cpu", or the device's name */
} xp_pong;

typedef struct xp_model {
    const char* name;
    const char* architecture;
    const char* description;
    uint64_t context;
    uint32_t n_vocab;
} xp_model;

typedef struct xp_model_list {
    size_t count;
    const xp_model* const* models;  /* the first is the default */
} xp_model_list;

XP_API xp_status xp_ping(xp_client* client, int timeout_ms, const xp_pong** pong);
XP_API xp_status xp_models(xp_client* client, int timeout_ms, const xp_model_list** list);
/* One JSON object with the daemon's counters. */
XP_API xp_status xp_stats_json(xp_client* client, int timeout_ms, const char** json);

typedef enum xp_request_state {
    XP_REQUEST_QUEUED = 0,
    XP_REQUEST_PREFILL = 1,
    XP_REQUEST_DECODE = 2,
    XP_REQUEST_PARKED = 3          /* its client does not take its replies */
} xp_request_state;

typedef struct xp_request_info {
    uint64_t id;                   /* unique within its client */
    xp_task task;
    xp_request_state state;
    const char* model;
    uint64_t age_ms;
    uint32_t prompt_tokens;        /* 0 while queued */
    uint32_t prompt_done;
    uint32_t generated_tokens;
} xp_request_info;

typedef struct xp_client_info {
    uint64_t id;                   /* never reused while the daemon runs */
    const char* name;
    int32_t pid;
    uint32_t uid;
    uint64_t age_ms;               /* since it connected */
    size_t request_count;
    const xp_request_info* const* requests;
} xp_client_info;

typedef struct xp_client_list {
    size_t count;
    const xp_client_info* const* clients;
    uint32_t hidden;               /* connected clients of other users, which are not listed */
} xp_client_list;

/* The clients of this user; of all users, for root and the user that the daemon runs as. */
XP_API xp_status xp_clients(xp_client* client, int timeout_ms, const xp_client_list** list);

/* Cancels a request that xp_clients() lists, or with request_id 0 all of its client. It gets a
 * Cancelled event as if its own client had cancelled it. XP_FAILED: there is no such request. */
XP_API xp_status xp_cancel_request(xp_client* client, uint64_t client_id, uint64_t request_id,
                                   int timeout_ms);

#ifdef __cplusplus
}
#endif

#endif /* EXPERTPACK_H */
