// The backends that a program of the operators' conformance suite runs on. Each program defines
// backends_under_test() in a source of its own; every suite is instantiated with all of them.
//
// The list is made before any test runs and also where tests are only listed, so that making it
// touches no device; open() does. Where that says kNotFound or kUnsupported (no device, a processor
// without the instructions), the test is skipped with its message; any other error fails it.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/engine/backend.h"

namespace xp::test {

struct BackendUnderTest {
    std::string name;  // letters and digits: it becomes part of the tests' names
    std::function<Result<std::unique_ptr<Operators>>()> open;
};

std::vector<BackendUnderTest> backends_under_test();

// The architectures that it runs whole models of, as GGUF names them.
std::vector<std::string> architectures_under_test();

// The backend that the program runs whole models on; `threads` where that means something.
Result<Backend> open_model_backend(unsigned threads);

inline void PrintTo(const BackendUnderTest& backend, std::ostream* out) { *out << backend.name; }

}  // namespace xp::test
