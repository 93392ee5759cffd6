// The lines of a session: every field that clients know is there, and what was not measured is null, never 0.
#include "json_reader.h"
#include "session_protocol.h"

#include "check.h"

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

using namespace moe;

namespace {

JsonFields fields_of(const std::string & line, const std::string & tag) {
    CHECK(line.rfind(tag + " {", 0) == 0);
    CHECK(line.find('\n') == std::string::npos);
    return read_json_object(line.substr(tag.size() + 1));
}

bool is_null(const JsonFields & fields, const char * key) { return std::holds_alternative<JsonNull>(fields.at(key)); }

double number(const JsonFields & fields, const char * key) {
    return std::strtod(std::get<JsonLiteral>(fields.at(key)).text.c_str(), nullptr);
}

bool near(double a, double b) { return std::fabs(a - b) < 1e-9; }

CallCost cost(double wall_ms, bool paged) {
    CallCost c;
    c.wall_ms = wall_ms;
    c.majflt = 6;
    c.cpu_ms = 30;
    if (paged) {
        c.paging.emplace();
        c.paging->io_ms = 12;
        c.paging->stall_ms = 10;
        c.paging->manage_ms = 2;
        c.paging->read_bytes = uint64_t{3} << 19;  // 1.5 MiB
    }
    return c;
}

const std::vector<const char *> paged_progress = {"io_ms", "mgmt_ms", "stall_ms", "read_mb"};
const std::vector<const char *> paged_done = {"io_s_tok", "read_mib", "stall_s_tok", "mgmt_s_tok", "prefill_read_mib",
                                              "prefill_io_s", "prefill_stall_s", "prefill_mgmt_s"};

void ready_and_begin_and_errors() {
    const JsonFields ready = fields_of(ready_line({1.25, "qwen3moe", 512, 4}), "BMOE_READY");
    CHECK(ready.size() == 5 && number(ready, "load_s") == 1.25 && number(ready, "n_ctx") == 512);
    CHECK(std::get<std::string>(ready.at("think_ctl")) == "none" && number(ready, "n_expert_used") == 4);
    CHECK(begin_line(7) == R"(BMOE_BEGIN {"id":7})");
    CHECK(session_error_line(0, false, "no \"x\"\n") == R"(BMOE_ERROR {"id":0,"fatal":false,"msg":"no \"x\"\n"})");
}

void progress_of_a_paged_token() {
    const JsonFields line = fields_of(progress_line({3, 8, cost(40, true), 62.5, "\xC3\xBC\xFF"}), "BMOE_PROGRESS");
    CHECK(number(line, "step") == 3 && number(line, "steps") == 8);
    CHECK(near(number(line, "compute_ms"), 28) && near(number(line, "stall_ms"), 10));
    CHECK(near(number(line, "mgmt_ms"), 2) && near(number(line, "read_mb"), 1.5));
    CHECK(number(line, "cache_hit_pct") == 62.5 && number(line, "dense_resident_frac") == -1);
    CHECK(std::get<std::string>(line.at("delta_text")) == "\xC3\xBC\xEF\xBF\xBD");
    CHECK(is_null(line, "delta_reasoning"));
}

void progress_of_a_plain_token() {
    const JsonFields line = fields_of(progress_line({1, 8, cost(40, false), -1, ""}), "BMOE_PROGRESS");
    for (const char * key : paged_progress) {
        CHECK(is_null(line, key));
    }
    CHECK(number(line, "compute_ms") == 40 && number(line, "majflt") == 6);
}

void done_adds_up() {
    SessionDone done;
    done.id = 9;
    done.tokens = 3;
    done.n_prompt = 5;
    done.n_past = 20;
    done.prefill = cost(100, true);
    done.decode = cost(60, true);
    done.loop_ms = 75;
    done.cache = {50, uint64_t{4} << 20, uint64_t{8} << 20};
    done.text = "abc";
    const JsonFields line = fields_of(done_line(done), "BMOE_DONE");
    CHECK(!std::get<bool>(line.at("cancelled")));
    CHECK(near(number(line, "tok_s"), 50) && near(number(line, "prefill_tps"), 50));
    CHECK(near(number(line, "compute_s_tok"), 0.016) && near(number(line, "io_s_tok"), 0.004));
    CHECK(near(number(line, "majflt_tok"), 2) && near(number(line, "cpu_s_tok"), 0.01));
    CHECK(near(number(line, "loop_overhead_s_tok"), 0.005) && near(number(line, "read_mib"), 1.5));
    CHECK(number(line, "cache_resident_mib") == 4 && number(line, "cache_budget_mib") == 8);
    CHECK(near(number(line, "prefill_stall_s"), 0.01));
    for (const char * key : {"token_demand_mib", "mtp_drafted", "mtp_accepted", "mtp_decodes", "mtp_draft_s_tok",
                             "drafted_steps", "reasoning"}) {
        CHECK(is_null(line, key));
    }
}

void done_without_tokens_or_paging_has_no_means() {
    SessionDone done;
    done.cancelled = true;
    JsonFields line = fields_of(done_line(done), "BMOE_DONE");
    for (const char * key : {"tok_s", "prefill_tps", "compute_s_tok", "majflt_tok", "cpu_s_tok", "loop_overhead_s_tok",
                             "cache_resident_mib", "cache_budget_mib"}) {
        CHECK(is_null(line, key));
    }
    CHECK(std::get<bool>(line.at("cancelled")) && number(line, "cache_hit_pct") == -1);

    done.tokens = 2;
    done.decode = cost(10, false);
    line = fields_of(done_line(done), "BMOE_DONE");
    for (const char * key : paged_done) {
        CHECK(is_null(line, key));
    }
    CHECK(near(number(line, "compute_s_tok"), 0.005));
}

}  // namespace

int main() {
    check::run("ready, begin and errors", ready_and_begin_and_errors);
    check::run("progress of a paged token", progress_of_a_paged_token);
    check::run("progress of a plain token", progress_of_a_plain_token);
    check::run("done adds up", done_adds_up);
    check::run("done without tokens or paging has no means", done_without_tokens_or_paging_has_no_means);
    return check::result();
}
