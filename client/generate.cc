#include "client/generate.h"

#include <cstring>
#include <exception>
#include <new>
#include <string_view>
#include <utility>

namespace {

using xp::shm::Chat;
using xp::shm::Message;

// Runs a setter: nothing escapes into C, and a NULL request is an error like any other.
template <class Function>
xp_status set(xp_generate* request, Function function) noexcept {
    if (!request) return XP_INVALID;
    try {
        return function();
    } catch (const std::exception&) {
        // bad_alloc, or length_error for a size that no memory holds. So short a text needs none.
        request->error.assign("out of memory");
        return XP_NO_MEMORY;
    }
}

xp_status invalid(xp_generate* request, std::string why) {
    request->error = std::move(why);
    return XP_INVALID;
}

// The text of a (pointer, length) pair. False when it is none or not UTF-8.
bool get_text(xp_generate* request, const char* what, const char* text, size_t length,
              std::string_view* view) {
    if (!text && length != 0) {
        invalid(request, std::string(what) + " is NULL");
        return false;
    }
    *view = length == XP_NUL_TERMINATED ? std::string_view(text) : std::string_view(text, length);
    if (xp::shm::is_valid_utf8(*view)) return true;
    invalid(request, std::string(what) + " is not valid UTF-8");
    return false;
}

// A short C string; NULL counts as empty.
bool get_name(xp_generate* request, const char* what, const char* text, std::string_view* view) {
    if (!get_text(request, what, text ? text : "", XP_NUL_TERMINATED, view)) return false;
    if (view->size() <= xp::shm::kMaxNameBytes) return true;
    invalid(request, std::string(what) + " has " + std::to_string(view->size()) +
                         " bytes, at most " + std::to_string(xp::shm::kMaxNameBytes) +
                         " are allowed");
    return false;
}

// The chat of the request, or nullptr when the prompt is of another kind.
Chat* get_chat(xp_generate* request) {
    return request->has_prompt ? std::get_if<Chat>(&request->value.prompt) : nullptr;
}

// The message added last when it has the role that `what` belongs to.
Message* last_message(xp_generate* request, xp::shm::Role role, const char* what) {
    Chat* chat = get_chat(request);
    if (chat && !chat->messages.empty() && chat->messages.back().role == role) {
        return &chat->messages.back();
    }
    invalid(request, std::string(what) + " belongs to a message of another role than the last");
    return nullptr;
}

}  // namespace

extern "C" {

xp_generate* xp_generate_new(void) {
    return new (std::nothrow) xp_generate;
}

void xp_generate_free(xp_generate* request) {
    delete request;
}

const char* xp_generate_error(const xp_generate* request) {
    return request ? request->error.c_str() : "the request is NULL";
}

xp_status xp_generate_set_model(xp_generate* request, const char* name) {
    return set(request, [&] {
        std::string_view view;
        if (!get_name(request, "the model's name", name, &view)) return XP_INVALID;
        request->value.model = view;
        return XP_OK;
    });
}

xp_status xp_generate_set_text(xp_generate* request, const char* text, size_t length) {
    return set(request, [&] {
        std::string_view view;
        if (!get_text(request, "the prompt", text, length, &view)) return XP_INVALID;
        request->value.prompt = xp::shm::RawText{std::string(view)};
        request->has_prompt = true;
        return XP_OK;
    });
}

xp_status xp_generate_set_tokens(xp_generate* request, const int32_t* ids, size_t count) {
    return set(request, [&] {
        if (!ids && count != 0) return invalid(request, "the token ids are NULL");
        for (size_t i = 0; i < count; ++i) {
            if (ids[i] < 0) {
                return invalid(request, "token id " + std::to_string(ids[i]) + " at position " +
                                            std::to_string(i) + " is negative");
            }
        }
        request->value.prompt = xp::shm::RawTokens{{ids, ids + count}};
        request->has_prompt = true;
        return XP_OK;
    });
}

xp_status xp_generate_add_message(xp_generate* request, xp_role role, const char* content,
                                  size_t length) {
    return set(request, [&] {
        std::string_view view;
        if (role < XP_ROLE_SYSTEM || role > XP_ROLE_TOOL) {
            return invalid(request, "the role " + std::to_string(role) + " is unknown");
        }
        if (!get_text(request, "the content", content, length, &view)) return XP_INVALID;
        Message message;
        message.role = static_cast<xp::shm::Role>(role);
        message.content = view;

        Chat* chat = get_chat(request);
        if (!chat) {
            Chat fresh;
            fresh.tools_json = request->tools_json;
            fresh.thinking = request->thinking;
            fresh.effort = request->effort;
            fresh.messages.push_back(std::move(message));
            request->value.prompt = std::move(fresh);
            request->has_prompt = true;
            request->tool_calls = 0;
            return XP_OK;
        }
        if (chat->messages.size() >= xp::shm::kMaxMessages) {
            return invalid(request, "a chat has at most " +
                                        std::to_string(xp::shm::kMaxMessages) + " messages");
        }
        chat->messages.push_back(std::move(message));
        return XP_OK;
    });
}

xp_status xp_generate_set_reasoning(xp_generate* request, const char* text, size_t length) {
    return set(request, [&] {
        std::string_view view;
        if (!get_text(request, "the reasoning", text, length, &view)) return XP_INVALID;
        Message* message = last_message(request, xp::shm::Role::kAssistant, "reasoning");
        if (!message) return XP_INVALID;
        message->reasoning = view;
        return XP_OK;
    });
}

xp_status xp_generate_add_tool_call(xp_generate* request, const char* id, const char* name,
                                    const char* arguments_json) {
    return set(request, [&] {
        std::string_view id_view;
        std::string_view name_view;
        std::string_view arguments;
        if (!get_name(request, "the tool call's id", id, &id_view) ||
            !get_name(request, "the tool's name", name, &name_view) ||
            !get_text(request, "the arguments", arguments_json ? arguments_json : "",
                      XP_NUL_TERMINATED, &arguments)) {
            return XP_INVALID;
        }
        Message* message = last_message(request, xp::shm::Role::kAssistant, "a tool call");
        if (!message) return XP_INVALID;
        if (request->tool_calls >= xp::shm::kMaxToolCalls) {
            return invalid(request, "a chat has at most " +
                                        std::to_string(xp::shm::kMaxToolCalls) + " tool calls");
        }
        message->tool_calls.push_back(
            {std::string(id_view), std::string(name_view), std::string(arguments)});
        ++request->tool_calls;
        return XP_OK;
    });
}

xp_status xp_generate_set_tool_call_id(xp_generate* request, const char* id) {
    return set(request, [&] {
        std::string_view view;
        if (!get_name(request, "the tool call's id", id, &view)) return XP_INVALID;
        Message* message = last_message(request, xp::shm::Role::kTool, "a tool call's id");
        if (!message) return XP_INVALID;
        message->tool_call_id = view;
        return XP_OK;
    });
}

xp_status xp_generate_set_tools(xp_generate* request, const char* json, size_t length) {
    return set(request, [&] {
        std::string_view view;
        if (!json) length = 0;
        if (!get_text(request, "the tools", json, length, &view)) return XP_INVALID;
        request->tools_json = view;
        if (Chat* chat = get_chat(request)) chat->tools_json = request->tools_json;
        return XP_OK;
    });
}

xp_status xp_generate_set_thinking(xp_generate* request, int on, xp_effort effort) {
    return set(request, [&] {
        if (effort < XP_EFFORT_LOW || effort > XP_EFFORT_MAX) {
            return invalid(request, "the effort " + std::to_string(effort) + " is unknown");
        }
        request->thinking = on != 0;
        request->effort = static_cast<xp::shm::Effort>(effort);
        if (Chat* chat = get_chat(request)) {
            chat->thinking = request->thinking;
            chat->effort = request->effort;
        }
        return XP_OK;
    });
}

// Ranges are written so that NaN is out of all of them.

xp_status xp_generate_set_temperature(xp_generate* request, float temperature) {
    return set(request, [&] {
        if (!(temperature >= 0 && temperature <= xp::shm::kMaxTemperature)) {
            return invalid(request, "the temperature must be within 0 and 100");
        }
        request->value.sampling.temperature = temperature;
        return XP_OK;
    });
}

xp_status xp_generate_set_top_k(xp_generate* request, uint32_t top_k) {
    return set(request, [&] {
        request->value.sampling.top_k = top_k;
        return XP_OK;
    });
}

xp_status xp_generate_set_top_p(xp_generate* request, float top_p) {
    return set(request, [&] {
        if (!(top_p > 0 && top_p <= 1)) {
            return invalid(request, "top_p must be above 0 and at most 1");
        }
        request->value.sampling.top_p = top_p;
        return XP_OK;
    });
}

xp_status xp_generate_set_min_p(xp_generate* request, float min_p) {
    return set(request, [&] {
        if (!(min_p >= 0 && min_p <= 1)) return invalid(request, "min_p must be within 0 and 1");
        request->value.sampling.min_p = min_p;
        return XP_OK;
    });
}

xp_status xp_generate_set_seed(xp_generate* request, uint64_t seed) {
    return set(request, [&] {
        request->value.sampling.seed = seed;
        return XP_OK;
    });
}

xp_status xp_generate_set_max_tokens(xp_generate* request, uint32_t max_tokens) {
    return set(request, [&] {
        request->value.max_tokens = max_tokens;
        return XP_OK;
    });
}

xp_status xp_generate_add_stop(xp_generate* request, const char* text, size_t length) {
    return set(request, [&] {
        std::string_view view;
        if (!get_text(request, "the stop text", text, length, &view)) return XP_INVALID;
        if (view.empty() || view.size() > xp::shm::kMaxStopBytes) {
            return invalid(request, "the stop text has " + std::to_string(view.size()) +
                                        " bytes, 1 to " + std::to_string(xp::shm::kMaxStopBytes) +
                                        " are allowed");
        }
        if (request->value.stop.size() >= xp::shm::kMaxStops) {
            return invalid(request, "at most " + std::to_string(xp::shm::kMaxStops) +
                                        " stop texts are allowed");
        }
        request->value.stop.emplace_back(view);
        return XP_OK;
    });
}

xp_status xp_generate_set_ignore_eos(xp_generate* request, int on) {
    return set(request, [&] {
        request->value.ignore_eos = on != 0;
        return XP_OK;
    });
}

xp_status xp_generate_set_top_logprobs(xp_generate* request, uint32_t count) {
    return set(request, [&] {
        if (count > xp::shm::kMaxLogprobs) {
            return invalid(request, "at most " + std::to_string(xp::shm::kMaxLogprobs) +
                                        " log-probabilities per token are allowed");
        }
        request->value.top_logprobs = count;
        return XP_OK;
    });
}

xp_status xp_generate_set_stream(xp_generate* request, int on) {
    return set(request, [&] {
        request->value.stream = on != 0;
        return XP_OK;
    });
}

xp_status xp_generate_set_priority(xp_generate* request, int32_t priority) {
    return set(request, [&] {
        request->value.priority = priority;
        return XP_OK;
    });
}

xp_status xp_generate_set_deadline_ms(xp_generate* request, uint32_t deadline_ms) {
    return set(request, [&] {
        request->value.deadline_ms = deadline_ms;
        return XP_OK;
    });
}

xp_status xp_generate_set_end_user(xp_generate* request, const char* name) {
    return set(request, [&] {
        std::string_view view;
        if (!get_name(request, "the end user's name", name, &view)) return XP_INVALID;
        request->value.end_user = view;
        return XP_OK;
    });
}

xp_status xp_generate_set_task(xp_generate* request, xp_task task) {
    return set(request, [&] {
        if (task < XP_TASK_GENERATE || task > XP_TASK_TOKENIZE) {
            return invalid(request, "there is no task " + std::to_string(task));
        }
        request->value.task = static_cast<xp::shm::Task>(task);
        return XP_OK;
    });
}

xp_status xp_generate_set_last_logits(xp_generate* request, int on) {
    return set(request, [&] {
        request->value.last_logits = on != 0;
        return XP_OK;
    });
}

}  // extern "C"
