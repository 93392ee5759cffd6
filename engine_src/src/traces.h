// The trace files of a run: what was routed, what was read, what was computed (docs/engine.md). Long CSV tables with
// a preamble, columns by name. A trace is a diagnosis: writing one costs time that the per-token costs then contain.
#pragma once

#include "call_info.h"
#include "catalog.h"
#include "residency.h"
#include "telemetry.h"

#include <cmath>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace moe {

struct RouteRow {
    uint64_t step = 0;  // absolute position of the token
    uint32_t slot = 0;  // rank in the token's top-k
    uint32_t expert = 0;
    float weight = NAN;  // as the router gave it; NaN: unknown
    Residency residency = Residency::miss;
    bool dropped = false;
};

// Facts of the run that the rows do not carry.
struct RouteTraceHead {
    std::string model;
    std::string arch;
    uint32_t n_expert = 0;
    uint32_t n_expert_used = 0;  // effective
    std::vector<LayerBytes> layers;
    std::vector<uint64_t> slot_bytes;  // of each layer; empty: the cache counts the bytes of another model's experts
};

class RouteTrace {
public:
    RouteTrace(const std::string & path, const RouteTraceHead & head);

    // The routings of one layer in one batch. Every expert that some row missed and did not drop is charged with its
    // bytes once, on the first such row: it was read once. Rows are held back until flush() or until they are many.
    void add(const CallInfo & call, uint32_t layer, const std::vector<RouteRow> & rows);

    // Hands all rows to the system in one piece: a killed run leaves whole tokens.
    void flush();

    void close();

    // Memory that it takes at most for batches of `n_rows` routings.
    static uint64_t memory_bytes(uint64_t n_rows);

private:
    LineFile file_;
    uint32_t n_expert_ = 0;
    std::vector<LayerBytes> layers_;
    std::string held_;
};

// Facts of the run for the two traces below.
struct RunTraceHead {
    std::string model;
    std::string arch;
    uint32_t n_layer = 0;
    int n_threads = 0;
    int io_threads = 0;  // 0: no read lanes
    bool direct_io = false;
    bool overlap = false;
};

// One read from storage.
struct IoRecord {
    uint32_t layer = 0;
    uint32_t expert = 0;
    uint32_t part = 0;  // index into the block's parts: gate, up, down or gate_up, down. Column `proj`.
    uint32_t lane = 0;
    bool speculative = false;
    uint64_t offset = 0;      // of the slice in its file
    uint64_t req_bytes = 0;   // slice
    uint64_t read_bytes = 0;  // aligned window
    uint64_t latency_ns = 0;
};

// Where the read lanes leave their records until the main thread fetches them.
class IoTraceBuffer {
public:
    void push(const IoRecord & record);

    // Replaces the content of `records` by what has come in since the last call.
    void take(std::vector<IoRecord> & records);

private:
    std::mutex mutex_;
    std::vector<IoRecord> records_;
};

class IoTrace {
public:
    IoTrace(const std::string & path, const RunTraceHead & head);

    // Reads belong to the decode after which they were fetched: a lane does not know whose token it serves.
    void write(const CallInfo & call, const std::vector<IoRecord> & records);

    void close() { file_.close(); }

    // Memory that a decode's reads take at most, their records included.
    static uint64_t memory_bytes(uint64_t n_reads);

private:
    LineFile file_;
};

// One graph node, or one layer's stretch of nodes.
struct ComputeRecord {
    int32_t layer = -1;  // -1: belongs to none
    std::string op;
    std::string name;
    uint64_t wall_ns = 0;
    uint64_t majflt = 0;
};

class ComputeTrace {
public:
    ComputeTrace(const std::string & path, const RunTraceHead & head);

    // The records of one decode in the order of execution.
    void write(const CallInfo & call, const std::vector<ComputeRecord> & records);

    void close() { file_.close(); }

    // Memory that a decode's nodes take at most, their records included.
    static uint64_t memory_bytes(uint64_t n_nodes);

private:
    LineFile file_;
};

}  // namespace moe
