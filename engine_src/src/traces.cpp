#include "traces.h"

#include "ggml.h"

#include <algorithm>
#include <cctype>
#include <cstdio>

namespace moe {

namespace {

constexpr size_t kHoldBytes = size_t{1} << 20;

// A preamble line ends where a path must not end it.
std::string one_line(std::string text) {
    std::replace_if(text.begin(), text.end(), [](unsigned char c) { return std::iscntrl(c) != 0; }, '?');
    return text;
}

// The first columns of every trace.
std::string frame(const CallInfo & call, uint64_t step) {
    return std::to_string(call.turn) + "," + std::to_string(static_cast<int>(call.phase)) + "," + std::to_string(step);
}

std::string weight_text(float weight) {
    if (std::isnan(weight)) {
        return "nan";
    }
    char text[32];
    std::snprintf(text, sizeof text, "%.6g", static_cast<double>(weight));
    return text;
}

std::string run_preamble(const char * kind, const RunTraceHead & head) {
    return std::string("# ") + kind + " v1\n# model=" + one_line(head.model) + " arch=" + head.arch +
           " n_layer=" + std::to_string(head.n_layer) + " n_threads=" + std::to_string(head.n_threads) +
           " io_threads=" + std::to_string(head.io_threads) + " o_direct=" + (head.direct_io ? "1" : "0") +
           " overlap=" + (head.overlap ? "1" : "0") + "\n";
}

// RFC 4180.
std::string csv_field(const std::string & text) {
    if (text.find_first_of(",\"\r\n") == std::string::npos) {
        return text;
    }
    std::string quoted = "\"";
    for (const char c : text) {
        quoted += c == '"' ? "\"\"" : std::string(1, c);
    }
    return quoted + "\"";
}

void write_block(LineFile & file, std::string & lines) {
    file.append(lines.data(), lines.size());
    lines.clear();
}

// What a string or a vector takes that grows to this size: three times as much while it moves to twice the room.
constexpr uint64_t grown(uint64_t bytes) { return 3 * bytes; }

// No row of numbers has as many characters; one with a node's name has fewer than twice as many.
constexpr uint64_t kRowBytes = 160;

// Of rows that are written whenever there are kHoldBytes of them.
uint64_t text_bytes(uint64_t n_rows, uint64_t row_bytes) { return grown(std::min(n_rows * row_bytes, kHoldBytes + row_bytes)); }

}  // namespace

RouteTrace::RouteTrace(const std::string & path, const RouteTraceHead & head)
    : file_(path, "route trace"), n_expert_(head.n_expert), layers_(head.layers) {
    held_ = "# route_trace v1\n# model=" + one_line(head.model) + " arch=" + head.arch +
            " n_layer=" + std::to_string(layers_.size()) + " n_expert=" + std::to_string(n_expert_) +
            " n_expert_used=" + std::to_string(head.n_expert_used) + "\n";
    for (size_t l = 0; l < layers_.size(); ++l) {
        held_ += "# layer=" + std::to_string(l) + " expert_bytes=" + std::to_string(layers_[l].expert) +
                 " dense_bytes=" + std::to_string(layers_[l].dense);
        held_ += layers_[l].expert > 0 && !head.slot_bytes.empty()
                     ? " slot_bytes=" + std::to_string(head.slot_bytes[l]) + "\n"
                     : "\n";
    }
    held_ += "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes,dropped\n";
    flush();
}

void RouteTrace::add(const CallInfo & call, uint32_t layer, const std::vector<RouteRow> & rows) {
    std::vector<bool> charged(n_expert_);
    for (const RouteRow & row : rows) {
        const bool read = row.residency == Residency::miss && !row.dropped && !charged[row.expert];
        if (read) {
            charged[row.expert] = true;
        }
        held_ += frame(call, row.step) + "," + std::to_string(layer) + "," + std::to_string(row.slot) + "," +
                 std::to_string(row.expert) + "," + weight_text(row.weight) + "," +
                 std::to_string(static_cast<int>(row.residency)) + "," +
                 std::to_string(read ? layers_[layer].expert : 0) + "," + (row.dropped ? "1" : "0") + "\n";
    }
    if (held_.size() > kHoldBytes) {  // a long prompt
        flush();
    }
}

void RouteTrace::flush() { write_block(file_, held_); }

uint64_t RouteTrace::memory_bytes(uint64_t n_rows) {
    return grown(kHoldBytes + n_rows * kRowBytes) + grown(n_rows * sizeof(RouteRow));
}

void RouteTrace::close() {
    flush();
    file_.close();
}

void IoTraceBuffer::push(const IoRecord & record) {
    const std::lock_guard<std::mutex> lock(mutex_);
    records_.push_back(record);
}

void IoTraceBuffer::take(std::vector<IoRecord> & records) {
    records.clear();
    const std::lock_guard<std::mutex> lock(mutex_);
    records.swap(records_);
}

IoTrace::IoTrace(const std::string & path, const RunTraceHead & head) : file_(path, "I/O trace") {
    file_.write(run_preamble("io_trace", head) +
                "turn,phase,step,layer,expert,proj,lane,spec,offset,req_bytes,read_bytes,latency_ns");
}

void IoTrace::write(const CallInfo & call, const std::vector<IoRecord> & records) {
    const std::string start = frame(call, call.first_position);
    std::string lines;
    for (const IoRecord & r : records) {
        lines += start;
        for (const uint64_t column : {uint64_t{r.layer}, uint64_t{r.expert}, uint64_t{r.part}, uint64_t{r.lane},
                                      uint64_t{r.speculative}, r.offset, r.req_bytes, r.read_bytes, r.latency_ns}) {
            lines += "," + std::to_string(column);
        }
        lines += "\n";
        if (lines.size() > kHoldBytes) {
            write_block(file_, lines);
        }
    }
    write_block(file_, lines);
}

// Records come in while those of the last decode are still held.
uint64_t IoTrace::memory_bytes(uint64_t n_reads) {
    return 2 * grown(n_reads * sizeof(IoRecord)) + text_bytes(n_reads, kRowBytes);
}

ComputeTrace::ComputeTrace(const std::string & path, const RunTraceHead & head) : file_(path, "compute trace") {
    file_.write(run_preamble("compute_trace", head) + "turn,phase,step,seq,layer,op,name,wall_ns,majflt");
}

void ComputeTrace::write(const CallInfo & call, const std::vector<ComputeRecord> & records) {
    const std::string start = frame(call, call.first_position);
    std::string lines;
    for (size_t seq = 0; seq < records.size(); ++seq) {
        const ComputeRecord & r = records[seq];
        lines += start + "," + std::to_string(seq) + "," + std::to_string(r.layer) + "," + csv_field(r.op) + "," +
                 csv_field(r.name) + "," + std::to_string(r.wall_ns) + "," + std::to_string(r.majflt) + "\n";
        if (lines.size() > kHoldBytes) {
            write_block(file_, lines);
        }
    }
    write_block(file_, lines);
}

uint64_t ComputeTrace::memory_bytes(uint64_t n_nodes) {
    return grown(n_nodes * sizeof(ComputeRecord)) + n_nodes * 2 * GGML_MAX_NAME + text_bytes(n_nodes, 2 * kRowBytes);
}

}  // namespace moe
