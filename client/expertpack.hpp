// C++ face of libexpertpack: the two owning handles, with the C functions as members. Header only,
// no exceptions of its own; statuses, events, threads and life times are those of expertpack.h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "expertpack.h"

namespace expertpack {

// A request under construction. Setters can be called in any order; the first failure is kept in
// status(), so that a program may check once at the end.
class Generate {
public:
    Generate() : handle_(xp_generate_new()) {
        if (!handle_) note(XP_NO_MEMORY);
    }

    Generate& model(const char* name) { return set(xp_generate_set_model, name); }
    Generate& text(std::string_view prompt) {
        return set(xp_generate_set_text, prompt.data(), prompt.size());
    }
    Generate& tokens(std::span<const int32_t> ids) {
        return set(xp_generate_set_tokens, ids.data(), ids.size());
    }
    Generate& message(xp_role role, std::string_view content) {
        return set(xp_generate_add_message, role, content.data(), content.size());
    }
    Generate& reasoning(std::string_view content) {
        return set(xp_generate_set_reasoning, content.data(), content.size());
    }
    Generate& tool_call(const char* id, const char* name, const char* arguments_json) {
        return set(xp_generate_add_tool_call, id, name, arguments_json);
    }
    Generate& tool_call_id(const char* id) { return set(xp_generate_set_tool_call_id, id); }
    Generate& tools(std::string_view json) {
        return set(xp_generate_set_tools, json.data(), json.size());
    }
    Generate& thinking(bool on, xp_effort effort = XP_EFFORT_LOW) {
        return set(xp_generate_set_thinking, on ? 1 : 0, effort);
    }
    Generate& temperature(float value) { return set(xp_generate_set_temperature, value); }
    Generate& top_k(uint32_t value) { return set(xp_generate_set_top_k, value); }
    Generate& top_p(float value) { return set(xp_generate_set_top_p, value); }
    Generate& min_p(float value) { return set(xp_generate_set_min_p, value); }
    Generate& seed(uint64_t value) { return set(xp_generate_set_seed, value); }
    Generate& max_tokens(uint32_t value) { return set(xp_generate_set_max_tokens, value); }
    Generate& stop(std::string_view value) {
        return set(xp_generate_add_stop, value.data(), value.size());
    }
    Generate& ignore_eos(bool on) { return set(xp_generate_set_ignore_eos, on ? 1 : 0); }
    Generate& top_logprobs(uint32_t value) { return set(xp_generate_set_top_logprobs, value); }
    Generate& stream(bool on) { return set(xp_generate_set_stream, on ? 1 : 0); }
    Generate& priority(int32_t value) { return set(xp_generate_set_priority, value); }
    Generate& deadline_ms(uint32_t value) { return set(xp_generate_set_deadline_ms, value); }
    Generate& end_user(const char* name) { return set(xp_generate_set_end_user, name); }
    Generate& task(xp_task value) { return set(xp_generate_set_task, value); }
    Generate& last_logits(bool on) { return set(xp_generate_set_last_logits, on ? 1 : 0); }

    // The first setter that failed, or XP_OK; error() is its text.
    xp_status status() const { return status_; }
    const char* error() const {
        return handle_ ? xp_generate_error(handle_.get()) : "out of memory";
    }
    const xp_generate* get() const { return handle_.get(); }

private:
    struct Free {
        void operator()(xp_generate* request) const { xp_generate_free(request); }
    };

    // After a failure further setters do nothing, so that error() stays the first one's.
    template <class Function, class... Args>
    Generate& set(Function function, Args... args) {
        if (status_ == XP_OK) note(function(handle_.get(), args...));
        return *this;
    }
    void note(xp_status status) {
        if (status_ == XP_OK) status_ = status;
    }

    std::unique_ptr<xp_generate, Free> handle_;
    xp_status status_ = XP_OK;
};

// A connection. Move-only.
class Client {
public:
    explicit Client(const char* name = nullptr) : handle_(xp_client_new(name)) {}

    xp_status connect(const char* socket_path = nullptr, int timeout_ms = 5000) {
        return handle_ ? xp_connect(handle_.get(), socket_path, timeout_ms) : XP_NO_MEMORY;
    }
    void disconnect() { xp_disconnect(handle_.get()); }

    // A request whose setters failed is not sent: its status is returned.
    xp_status submit(const Generate& request, uint64_t* request_id, int timeout_ms = 5000) {
        if (request.status() != XP_OK) return request.status();
        return xp_submit(handle_.get(), request.get(), timeout_ms, request_id);
    }
    xp_status cancel(uint64_t request_id) { return xp_cancel(handle_.get(), request_id); }
    xp_status next_event(const xp_event** event, int timeout_ms = -1) {
        return xp_next_event(handle_.get(), timeout_ms, event);
    }

    xp_status ping(const xp_pong** pong, int timeout_ms = 5000) {
        return xp_ping(handle_.get(), timeout_ms, pong);
    }
    xp_status models(const xp_model_list** list, int timeout_ms = 5000) {
        return xp_models(handle_.get(), timeout_ms, list);
    }
    xp_status stats_json(const char** json, int timeout_ms = 5000) {
        return xp_stats_json(handle_.get(), timeout_ms, json);
    }
    xp_status clients(const xp_client_list** list, int timeout_ms = 5000) {
        return xp_clients(handle_.get(), timeout_ms, list);
    }
    xp_status cancel_request(uint64_t client_id, uint64_t request_id, int timeout_ms = 5000) {
        return xp_cancel_request(handle_.get(), client_id, request_id, timeout_ms);
    }

    const char* error() const { return handle_ ? xp_client_error(handle_.get()) : "out of memory"; }
    // A stable code of the same failure.
    const char* error_code() const {
        return handle_ ? xp_error_code(handle_.get()) : xp_status_name(XP_NO_MEMORY);
    }
    const xp_connection_info* connection() const { return xp_connection(handle_.get()); }
    int fd() const { return xp_client_fd(handle_.get()); }
    xp_client* get() { return handle_.get(); }

private:
    struct Free {
        void operator()(xp_client* client) const { xp_client_free(client); }
    };
    std::unique_ptr<xp_client, Free> handle_;
};

}  // namespace expertpack
