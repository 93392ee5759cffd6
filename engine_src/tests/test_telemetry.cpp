// JSON text, CSV rows and what happens when a file cannot take them.
#include "error.h"
#include "json.h"
#include "telemetry.h"

#include "check.h"
#include "temp_dir.h"

#include <unistd.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

namespace {

using moe::CallCost;
using moe::JsonObject;
using moe::PagingCost;
using moe::json_number;
using moe::json_string;

std::string contents(const std::string & path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

void strings_are_escaped() {
    CHECK(json_string("") == R"("")");
    CHECK(json_string("plain") == R"("plain")");
    CHECK(json_string("a\"b\\c/d") == R"("a\"b\\c/d")");
    CHECK(json_string("\n\r\t") == R"("\n\r\t")");
    CHECK(json_string(std::string("\0\x01\x1f\x7f", 4)) == R"("\u0000\u0001\u001f\u007f")");
    CHECK(json_string("gr\xC3\xBC\xC3\x9F \xE2\x82\xAC \xF0\x9F\x90\x8A") == "\"gr\xC3\xBC\xC3\x9F \xE2\x82\xAC \xF0\x9F\x90\x8A\"");
}

void invalid_utf8_is_replaced() {
    const std::string replacement = "\xEF\xBF\xBD";
    const auto quoted = [](const std::string & text) { return "\"" + text + "\""; };
    CHECK(json_string("a\xFFz") == quoted("a" + replacement + "z"));
    CHECK(json_string("\x80") == quoted(replacement));                                   // tail without a lead
    CHECK(json_string("\xC3") == quoted(replacement));                                   // cut off
    CHECK(json_string("\xC3(") == quoted(replacement + "("));
    CHECK(json_string("\xE2\x82") == quoted(replacement + replacement));
    CHECK(json_string("\xC0\xAF") == quoted(replacement + replacement));                 // overlong
    CHECK(json_string("\xE0\x80\x80") == quoted(replacement + replacement + replacement));
    CHECK(json_string("\xED\xA0\x80") == quoted(replacement + replacement + replacement));  // surrogate
    CHECK(json_string("\xF4\x90\x80\x80") == quoted(replacement + replacement + replacement + replacement));
    CHECK(json_string("\xF0\x9F\x90\"") == quoted(replacement + replacement + replacement + "\\\""));
}

void numbers_read_back() {
    CHECK(json_number(0) == "0");
    CHECK(json_number(1.5) == "1.5");
    CHECK(json_number(-0.25) == "-0.25");
    for (const double value : {0.1, 1.0 / 3.0, 123456.789012, 1e-300, 1e300, 12345678901234.5}) {
        CHECK(std::stod(json_number(value)) == value);
    }
    CHECK(json_number(std::nan("")) == "null");
    CHECK(json_number(std::numeric_limits<double>::infinity()) == "null");
    CHECK(JsonObject().number("big", std::numeric_limits<uint64_t>::max()).str() == R"({"big":18446744073709551615})");
}

void objects_keep_order_and_null() {
    const std::string text = JsonObject()
                                 .text("a", std::string("x"))
                                 .number("b", std::optional<uint64_t>())
                                 .text("c", std::optional<std::string>())
                                 .boolean("d", true)
                                 .raw("e", JsonObject().null("f").str())
                                 .str();
    CHECK(text == R"({"a":"x","b":null,"c":null,"d":true,"e":{"f":null}})");
    CHECK(JsonObject().str() == "{}");
}

CallCost plain_cost() {
    CallCost cost;
    cost.wall_ms = 12.5;
    cost.majflt = 1;
    cost.minflt = 2;
    cost.cpu_ms = 11;
    cost.invol_ctx = 3;
    return cost;
}

CallCost paged_cost() {
    CallCost cost = plain_cost();
    PagingCost paging;
    paging.io_ms = 4;
    paging.stall_ms = 3;
    paging.manage_ms = 0.5;
    paging.read_bytes = 4096;
    paging.requests = 10;
    paging.hits = 7;
    paging.misses = 3;
    paging.evictions = 2;
    paging.eviction_groups = {1, 0, 0, 1};
    cost.paging = paging;
    return cost;
}

void csv_has_the_contracts_columns() {
    CHECK(moe::csv_header() ==
          "token,wall_ms,io_ms,compute_ms,stall_ms,manage_ms,read_bytes,requests,hits,misses,evictions,"
          "spec_read_bytes,spec_experts,spec_useful,retained,routed,dropped,"
          "evict_stale_left,evict_stale_right,evict_current_left,evict_current_right,majflt,minflt,cpu_ms,invol_ctx");
    CHECK(moe::csv_row(0, plain_cost()) == "0,12.5,,12.5,,,,,,,,,,,,,,,,,,1,2,11,3");
    CHECK(moe::csv_row(7, paged_cost()) == "7,12.5,4,9,3,0.5,4096,10,7,3,2,,,,,,,1,0,0,1,1,2,11,3");
}

void json_says_null_for_not_measured() {
    CHECK(moe::cost_json(plain_cost()) ==
          R"({"wall_ms":12.5,"io_ms":null,"compute_ms":12.5,"stall_ms":null,"manage_ms":null,"read_bytes":null,)"
          R"("requests":null,"hits":null,"misses":null,"evictions":null,)"
              R"("spec_read_bytes":null,"spec_experts":null,"spec_useful":null,"retained":null,"routed":null,"dropped":null,)"
              R"("evict_stale_left":null,"evict_stale_right":null,"evict_current_left":null,"evict_current_right":null,)"
              R"("majflt":1,"minflt":2,"cpu_ms":11,"invol_ctx":3})");
    CHECK(moe::cost_json(paged_cost()).find(R"("evictions":2)") != std::string::npos);
    CHECK(moe::cost_json(paged_cost()).find(R"("dropped":null)") != std::string::npos);  // dropping is not on

    CallCost predicted = paged_cost();
    predicted.paging->foresight = moe::PagerCounters::Foresight{65536, 4, 3, 9};
    predicted.paging->drops = moe::PagerCounters::Drops{40, 6};
    predicted += predicted;
    CHECK(moe::cost_json(predicted).find(R"("spec_read_bytes":131072,"spec_experts":8,"spec_useful":6,"retained":18,)"
                                         R"("routed":80,"dropped":12)") != std::string::npos);
}

void costs_add_up() {
    CallCost sum;
    sum += plain_cost();
    CHECK(!sum.paging);
    CallCost paged;
    paged += paged_cost();
    paged += paged_cost();
    CHECK(paged.wall_ms == 25);
    CHECK(paged.compute_ms() == 18);
    CHECK(paged.paging->hits == 14 && paged.paging->misses == 6 && paged.paging->requests == 20);
    CHECK(paged.paging->read_bytes == 8192 && paged.paging->evictions == 4);
    CHECK(paged.paging->eviction_groups.stale_left == 2 && paged.paging->eviction_groups.total() == 4);
    CHECK(paged.majflt == 2 && paged.minflt == 4 && paged.invol_ctx == 6);
}

void lines_are_visible_at_once() {
    const TempDir dir;
    const std::string path = dir.file("out");
    moe::LineFile file(path, "CSV");
    file.write("one");
    CHECK(contents(path) == "one\n");
    file.write("two");
    CHECK(contents(path) == "one\ntwo\n");
    file.close();
    file.close();  // harmless
}

void an_old_file_is_replaced() {
    const TempDir dir;
    const std::string path = dir.file("out");
    std::ofstream(path) << "something long from an earlier run\n";
    moe::LineFile file(path, "CSV");
    file.write("new");
    CHECK(contents(path) == "new\n");
}

template <class Body>
std::string io_error(Body && body) {
    try {
        body();
    } catch (const moe::Error & error) {
        return error.code() == moe::ExitCode::io ? error.what() : "(another code)";
    }
    return "(no error)";
}

void failures_are_io_errors_with_a_reason() {
    const TempDir dir;
    const std::string missing = dir.file("no/such/dir/out");
    CHECK(io_error([&] { moe::LineFile file(missing, "CSV"); }) ==
          "cannot open CSV file '" + missing + "': No such file or directory");
    if (access("/dev/full", W_OK) == 0) {
        CHECK(io_error([] {
                  moe::LineFile file("/dev/full", "telemetry");
                  file.write("x");
              }) == "cannot write telemetry file '/dev/full': No space left on device");
    }
}

}  // namespace

int main() {
    check::run("strings are escaped", strings_are_escaped);
    check::run("invalid UTF-8 is replaced", invalid_utf8_is_replaced);
    check::run("numbers read back", numbers_read_back);
    check::run("objects keep order and null", objects_keep_order_and_null);
    check::run("CSV has the contract's columns", csv_has_the_contracts_columns);
    check::run("JSON says null for not measured", json_says_null_for_not_measured);
    check::run("costs add up", costs_add_up);
    check::run("lines are visible at once", lines_are_visible_at_once);
    check::run("an old file is replaced", an_old_file_is_replaced);
    check::run("failures are I/O errors with a reason", failures_are_io_errors_with_a_reason);
    return check::result();
}
