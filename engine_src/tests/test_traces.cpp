// What the trace writers put into their files, to the byte.
#include "error.h"
#include "traces.h"

#include "check.h"
#include "temp_dir.h"

#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

using namespace moe;

namespace {

std::string contents(const std::string & path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

const RouteTraceHead kRouteHead = {"/models/a b.gguf", "laguna", 4, 2, {{0, 70}, {300, 50}, {200, 60}}, {0, 304, 204}};
const std::string kRoutePreamble =
    "# route_trace v1\n"
    "# model=/models/a b.gguf arch=laguna n_layer=3 n_expert=4 n_expert_used=2\n"
    "# layer=0 expert_bytes=0 dense_bytes=70\n"
    "# layer=1 expert_bytes=300 dense_bytes=50 slot_bytes=304\n"
    "# layer=2 expert_bytes=200 dense_bytes=60 slot_bytes=204\n"
    "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes,dropped\n";

void a_route_trace_has_its_preamble_before_any_row() {
    const TempDir dir;
    RouteTrace trace(dir.file("r"), kRouteHead);
    CHECK(contents(dir.file("r")) == kRoutePreamble);
    trace.flush();
    trace.close();
    CHECK(contents(dir.file("r")) == kRoutePreamble);
}

void an_expert_is_charged_once_per_batch_that_reads_it() {
    const TempDir dir;
    RouteTrace trace(dir.file("r"), kRouteHead);
    // Two tokens of a prompt share expert 3; it is read once.
    trace.add({Phase::prefill}, 1, {{0, 0, 3, 0.7f, Residency::miss, false},
                                    {0, 1, 1, 0.3f, Residency::hit, false},
                                    {1, 0, 3, 0.0976991f, Residency::miss, false},
                                    {1, 1, 0, 0.25f, Residency::speculative, false}});
    // Another batch, or another layer, reads for itself.
    trace.add({Phase::decode}, 1, {{2, 0, 3, 1.f, Residency::miss, false}});
    trace.add({Phase::decode}, 2, {{2, 0, 3, 1e-7f, Residency::miss, false}});
    CHECK(contents(dir.file("r")) == kRoutePreamble);  // held back until the token is complete
    trace.flush();
    CHECK(contents(dir.file("r")) == kRoutePreamble +
                                         "0,0,0,1,0,3,0.7,0,300,0\n"
                                         "0,0,0,1,1,1,0.3,1,0,0\n"
                                         "0,0,1,1,0,3,0.0976991,0,0,0\n"
                                         "0,0,1,1,1,0,0.25,2,0,0\n"
                                         "0,1,2,1,0,3,1,0,300,0\n"
                                         "0,1,2,2,0,3,1e-07,0,200,0\n");
}

void a_dropped_expert_is_not_charged() {
    const TempDir dir;
    RouteTrace trace(dir.file("r"), kRouteHead);
    RouteRow unknown;  // no weight given
    unknown.step = 9;
    // Dropped for the first token only: the second one reads it.
    trace.add({Phase::prefill}, 2,
              {{0, 1, 3, 0.1f, Residency::miss, true}, {1, 0, 3, 0.9f, Residency::miss, false}, unknown});
    trace.close();
    CHECK(contents(dir.file("r")) == kRoutePreamble +
                                         "0,0,0,2,1,3,0.1,0,0,1\n"
                                         "0,0,1,2,0,3,0.9,0,200,0\n"
                                         "0,0,9,2,0,0,nan,0,200,0\n");
}

void a_negative_nan_is_unknown_too() {
    const TempDir dir;
    RouteTrace trace(dir.file("r"), kRouteHead);
    trace.add({Phase::decode}, 1, {{0, 0, 0, -NAN, Residency::hit, false}});
    trace.close();
    CHECK(contents(dir.file("r")) == kRoutePreamble + "0,1,0,1,0,0,nan,1,0,0\n");
}

void a_path_cannot_break_the_preamble() {
    const TempDir dir;
    RouteTraceHead head = kRouteHead;
    head.model = "a\nturn,phase";
    RouteTrace(dir.file("r"), head).close();
    CHECK(contents(dir.file("r")).find("# model=a?turn,phase arch=") != std::string::npos);
}

void a_long_prompt_is_not_held_back_whole() {
    const TempDir dir;
    RouteTrace trace(dir.file("r"), kRouteHead);
    const std::vector<RouteRow> rows(1000);
    for (int i = 0; i < 60; ++i) {
        trace.add({Phase::prefill}, 1, rows);
    }
    const size_t before = contents(dir.file("r")).size();
    CHECK(before > (size_t{1} << 20));
    trace.close();
    const std::string text = contents(dir.file("r"));
    CHECK(text.size() > before);
    size_t lines = 0;
    for (const char c : text) {
        lines += c == '\n' ? 1 : 0;
    }
    CHECK(lines == 6 + 60 * 1000);
}

const RunTraceHead kRunHead = {"m.gguf", "qwen3moe", 48, 2, 4, true, false};

void an_io_trace_has_a_row_per_read() {
    const TempDir dir;
    IoTrace trace(dir.file("io"), kRunHead);
    const std::string preamble =
        "# io_trace v1\n"
        "# model=m.gguf arch=qwen3moe n_layer=48 n_threads=2 io_threads=4 o_direct=1 overlap=0\n"
        "turn,phase,step,layer,expert,proj,lane,spec,offset,req_bytes,read_bytes,latency_ns\n";
    CHECK(contents(dir.file("io")) == preamble);
    trace.write({Phase::prefill, 27}, {});
    CHECK(contents(dir.file("io")) == preamble);
    trace.write({Phase::decode, 29}, {{0, 87, 1, 3, false, 18446744073709551615u, 65536, 69632, 416800},
                                      {47, 5, 2, 0, true, 4096, 1, 4096, 7}});
    CHECK(contents(dir.file("io")) == preamble +
                                          "0,1,29,0,87,1,3,0,18446744073709551615,65536,69632,416800\n"
                                          "0,1,29,47,5,2,0,1,4096,1,4096,7\n");
    trace.close();
}

void a_compute_trace_quotes_what_would_break_a_column() {
    const TempDir dir;
    ComputeTrace trace(dir.file("c"), {"m.gguf", "gpt-oss", 36, 2, 0, false, true});
    trace.write({Phase::decode, 30}, {{-1, "GET_ROWS", "embd", 428500, 0},
                                      {0, "RMS_NORM", "norm-0", 19500, 2},
                                      {1, "a,b", "say \"x\"\n", 1, 3}});
    trace.write({Phase::decode, 31}, {{-1, "LAYER", "post", 5, 0}});
    trace.close();
    CHECK(contents(dir.file("c")) ==
          "# compute_trace v1\n"
          "# model=m.gguf arch=gpt-oss n_layer=36 n_threads=2 io_threads=0 o_direct=0 overlap=1\n"
          "turn,phase,step,seq,layer,op,name,wall_ns,majflt\n"
          "0,1,30,0,-1,GET_ROWS,embd,428500,0\n"
          "0,1,30,1,0,RMS_NORM,norm-0,19500,2\n"
          "0,1,30,2,1,\"a,b\",\"say \"\"x\"\"\n\",1,3\n"
          "0,1,31,0,-1,LAYER,post,5,0\n");
}

// Four lanes write while the main thread fetches: nothing is lost, nothing twice, and each lane's order stays.
void records_of_all_lanes_arrive() {
    constexpr uint32_t kLanes = 4;
    constexpr uint64_t kReads = 5000;
    IoTraceBuffer buffer;
    std::vector<std::thread> lanes;
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
        lanes.emplace_back([&buffer, lane] {
            for (uint64_t i = 0; i < kReads; ++i) {
                IoRecord record;
                record.lane = lane;
                record.offset = i;
                buffer.push(record);
            }
        });
    }
    std::vector<uint64_t> next(kLanes);
    std::vector<IoRecord> records;
    const auto fetch = [&] {
        buffer.take(records);
        for (const IoRecord & record : records) {
            CHECK(record.offset == next[record.lane]);
            ++next[record.lane];
        }
    };
    for (int i = 0; i < 100; ++i) {
        fetch();
    }
    for (std::thread & lane : lanes) {
        lane.join();
    }
    fetch();
    CHECK(next == std::vector<uint64_t>(kLanes, kReads));
    buffer.take(records);
    CHECK(records.empty());
}

void a_full_disk_is_an_io_error() {
    if (access("/dev/full", W_OK) != 0) {
        std::fprintf(stderr, "skipped: no /dev/full\n");
        return;
    }
    for (const auto & open : {+[] { RouteTrace("/dev/full", kRouteHead); }, +[] { IoTrace("/dev/full", kRunHead); },
                              +[] { ComputeTrace("/dev/full", kRunHead); }}) {
        std::string what = "(no error)";
        try {
            open();
        } catch (const Error & error) {
            CHECK(error.code() == ExitCode::io);
            what = error.what();
        }
        CHECK(what.find("trace file '/dev/full': No space left on device") != std::string::npos);
    }
}

}  // namespace

int main() {
    check::run("a route trace has its preamble before any row", a_route_trace_has_its_preamble_before_any_row);
    check::run("an expert is charged once per batch that reads it", an_expert_is_charged_once_per_batch_that_reads_it);
    check::run("a dropped expert is not charged", a_dropped_expert_is_not_charged);
    check::run("a negative NaN is unknown too", a_negative_nan_is_unknown_too);
    check::run("a path cannot break the preamble", a_path_cannot_break_the_preamble);
    check::run("a long prompt is not held back whole", a_long_prompt_is_not_held_back_whole);
    check::run("an I/O trace has a row per read", an_io_trace_has_a_row_per_read);
    check::run("a compute trace quotes what would break a column", a_compute_trace_quotes_what_would_break_a_column);
    check::run("records of all lanes arrive", records_of_all_lanes_arrive);
    check::run("a full disk is an I/O error", a_full_disk_is_an_io_error);
    return check::result();
}
