// Errors that end the process with a code of their own (docs/engine.md, exit codes).
#pragma once

#include <stdexcept>
#include <string>

namespace moe {

enum class ExitCode : int { ok = 0, other = 1, usage = 2, model = 3, memory = 4, io = 5 };

// One line for the user: what is wrong, where, what to do.
class Error : public std::runtime_error {
public:
    Error(ExitCode code, const std::string & message) : std::runtime_error(message), code_(code) {}
    ExitCode code() const { return code_; }

private:
    ExitCode code_;
};

}  // namespace moe
