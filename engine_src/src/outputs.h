// The files that a run writes for machines while it goes on, and the line of progress: everything but the text itself.
#pragma once

#include "options.h"
#include "telemetry.h"

#include "llama.h"

#include <cstdint>
#include <optional>
#include <string>

namespace moe {

class Outputs {
public:
    // Opens them, but for traces and a dump. No output may be another or one of the run's inputs, under whatever name:
    // throws Error(usage) then.
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
