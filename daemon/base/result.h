// Errors as values. Every fallible function of the daemon returns Result<T>; exceptions do not
// cross a module border. A message is written for a person: what went wrong, with which object
// (file, key, tensor, expert), which limit, and what to do next where that is known.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "daemon/base/assert.h"

namespace xp {

enum class ErrorCode : uint8_t {
    kInvalidArgument,  // the caller, a config file or a request asks for something impossible
    kNotFound,         // a file, key, tensor or model that should be there is not
    kCorrupt,          // bytes on disk or from a peer contradict themselves
    kUnsupported,      // well-formed, but of a kind this build does not know
    kIo,               // the operating system refused or failed an operation
    kNoSpace,          // a disk is full or would become so
    kNoMemory,         // host or device memory is too small for what was asked
    kLimit,            // a configured or built-in limit was reached
    kBusy,             // try again later
    kCancelled,
    kShutdown,
    kDeviceLost,       // the device failed, and only a new process can use it again
    kInternal,         // a fault of this program
};

// Stable lower-case name ("corrupt"), as shown in JSON output and on the wire.
const char* error_code_name(ErrorCode code);

struct Error {
    ErrorCode code = ErrorCode::kInternal;
    std::string message;

    // The same error with `context` and ": " put in front, for the caller that knows more.
    Error with_context(std::string_view context) && {
        message = fmt::format("{}: {}", context, message);
        return std::move(*this);
    }
};

template <class... Args>
Error make_error(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
    return Error{code, fmt::format(format, std::forward<Args>(args)...)};
}

// "TEXT: strerror(saved_errno)"; ENOSPC and EDQUOT become kNoSpace, ENOENT kNotFound, ENOMEM
// kNoMemory, EMFILE and ENFILE kBusy (they say nothing about the file), all else kIo.
Error errno_error(int saved_errno, std::string text);

template <class T>
class [[nodiscard]] Result {
public:
    Result(T value) : state_(std::move(value)) {}
    Result(Error error) : state_(std::move(error)) {}

    explicit operator bool() const { return state_.index() == 0; }
    bool ok() const { return state_.index() == 0; }

    T& value() & { XP_ASSERT(ok()); return std::get<0>(state_); }
    const T& value() const& { XP_ASSERT(ok()); return std::get<0>(state_); }
    T&& value() && { XP_ASSERT(ok()); return std::get<0>(std::move(state_)); }
    T& operator*() & { return value(); }
    const T& operator*() const& { return value(); }
    T&& operator*() && { return std::move(*this).value(); }
    T* operator->() { return &value(); }
    const T* operator->() const { return &value(); }

    Error& error() & { XP_ASSERT(!ok()); return std::get<1>(state_); }
    const Error& error() const& { XP_ASSERT(!ok()); return std::get<1>(state_); }
    Error&& error() && { XP_ASSERT(!ok()); return std::get<1>(std::move(state_)); }

private:
    std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
public:
    Result() = default;
    Result(Error error) : error_(std::move(error)), ok_(false) {}

    explicit operator bool() const { return ok_; }
    bool ok() const { return ok_; }

    Error& error() & { XP_ASSERT(!ok_); return error_; }
    const Error& error() const& { XP_ASSERT(!ok_); return error_; }
    Error&& error() && { XP_ASSERT(!ok_); return std::move(error_); }

private:
    Error error_;
    bool ok_ = true;
};

#define XP_CONCAT_INNER(a, b) a##b
#define XP_CONCAT(a, b) XP_CONCAT_INNER(a, b)

// XP_TRY(auto x, f());  declares x with the value of f(), or returns f's error.
#define XP_TRY(lhs, expr) XP_TRY_INNER(XP_CONCAT(xp_result_, __LINE__), lhs, expr)
#define XP_TRY_INNER(result, lhs, expr)                                                            \
    auto result = (expr);                                                                          \
    if (!result) return std::move(result).error();                                                 \
    lhs = *std::move(result)

// XP_CHECK(f());  for Result<void>.
#define XP_CHECK(expr)                                                                             \
    do {                                                                                           \
        if (auto xp_checked = (expr); !xp_checked) return std::move(xp_checked).error();           \
    } while (false)

}  // namespace xp
