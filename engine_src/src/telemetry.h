// What a run leaves behind for machines: the per-token CSV and the JSON lines (docs/engine.md).
#pragma once

#include "json.h"
#include "paging_counters.h"

#include <cstdint>
#include <optional>
#include <string>

namespace moe {

// What the pager did during a call. Absent in plain mode, where none of it is measured.
struct PagingCost {
    double io_ms = 0;
    double stall_ms = 0;
    double manage_ms = 0;
    uint64_t read_bytes = 0;
    uint64_t requests = 0;
    uint64_t hits = 0;
    uint64_t misses = 0;
    uint64_t evictions = 0;
    EvictionCounts eviction_groups;
    std::optional<PagerCounters::Foresight> foresight;
    std::optional<PagerCounters::Drops> drops;
};

// Cost of one llama_decode call, or a sum of several.
struct CallCost {
    double wall_ms = 0;
    std::optional<PagingCost> paging;
    uint64_t majflt = 0;
    uint64_t minflt = 0;
    double cpu_ms = 0;
    uint64_t invol_ctx = 0;

    double compute_ms() const;
    CallCost & operator+=(const CallCost & other);
};

std::string csv_header();
std::string csv_row(uint64_t token, const CallCost & cost);

// The CSV's columns except `token`, under the same names.
void add_cost(JsonObject & object, const CallCost & cost);
std::string cost_json(const CallCost & cost);

// A file that receives whole lines, each handed to the system before write() returns: what a killed run has
// written is complete up to its last line. Throws Error(io) with the file's name and the system's reason.
class LineFile {
public:
    LineFile(std::string path, std::string what);
    ~LineFile();
    LineFile(const LineFile &) = delete;
    LineFile & operator=(const LineFile &) = delete;

    void write(const std::string & line);

    // Bytes as they are, for files that have no lines.
    void append(const void * data, size_t bytes);

    // Reports errors that a file system delivers only on close.
    void close();

private:
    [[noreturn]] void fail(const char * action) const;

    std::string path_;
    std::string what_;
    int fd_ = -1;
};

}  // namespace moe
