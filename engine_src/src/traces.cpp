#include "traces.h"

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

// LineFile ends the last line itself.
void write_block(LineFile & file, std::string & lines) {
    if (!lines.empty()) {
        lines.pop_back();
        file.write(lines);
        lines.clear();
    }
}

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
    }
    write_block(file_, lines);
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
    }
    write_block(file_, lines);
}

}  // namespace moe
