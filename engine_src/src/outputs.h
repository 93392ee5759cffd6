// The files that a run writes for machines while it goes on, and the line of progress: everything but the text itself.
#pragma once

#include "options.h"
#include "telemetry.h"

#include "llama.h"

#include <cstdint>
#include <optional>
#include <string>

namespace moe {

// No output may be another or one of the run's inputs, under whatever name: throws Error(usage) then.
void check_outputs(const Options & options);

class Outputs {
public:
    // Checks all outputs, and opens those that are neither the pager's nor a dump.
    explicit Outputs(const Options & options);

    // A line of telemetry.
    void event(const std::string & line);

    void token(uint64_t index, llama_token id, const std::string & bytes, const CallCost & cost);

    void close();

private:
    bool progress_;
    int32_t n_predict_;
    std::optional<LineFile> csv_;
    std::optional<LineFile> telemetry_;
};

}  // namespace moe
