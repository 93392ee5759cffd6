// A recorded routing, read, checked and mapped onto models of its own shape and of others.
#include "error.h"
#include "forced_routes.h"
#include "traces.h"

#include "check.h"
#include "temp_dir.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <list>
#include <map>
#include <set>
#include <string>
#include <vector>

using namespace moe;

namespace {

const std::string kPreamble =
    "# route_trace v1\n"
    "# model=/a n_expert=9/b.gguf arch=x n_layer=3 n_expert=4 n_expert_used=2\n"
    "# layer=0 expert_bytes=0 dense_bytes=7\n"
    "# layer=1 expert_bytes=300 dense_bytes=5\n"
    "# layer=2 expert_bytes=200 dense_bytes=5\n";
const std::string kHeader = "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes\n";
// A prompt of two tokens and one more; of the last layer only what llama.cpp computes of it.
const std::string kRows =
    "0,0,0,1,0,3,0.7,0,300\n"
    "0,0,0,1,1,1,0.3,0,300\n"
    "0,0,1,1,0,0,0.7,0,300\n"
    "0,0,1,1,1,1,0.3,0,0\n"
    "0,0,1,2,0,2,0.6,0,200\n"
    "0,0,1,2,1,3,0.4,0,200\n"
    "0,1,2,1,0,2,0.6,0,300\n"
    "0,1,2,1,1,3,nan,1,0\n"
    "0,1,2,2,0,0,0.6,0,200\n"
    "0,1,2,2,1,1,0.4,0,200\n";

std::vector<MoeBlock> model(uint32_t n_layer, uint32_t n_expert) {
    std::vector<MoeBlock> blocks(n_layer);
    for (uint32_t l = 0; l < n_layer; ++l) {
        blocks[l].layer = l + 1;
        blocks[l].n_expert = n_expert;
        blocks[l].first_key = l * n_expert;
    }
    return blocks;
}

std::string write(const TempDir & dir, const std::string & text) {
    const std::string path = dir.file("t.route.csv");
    std::ofstream(path, std::ios::binary) << text;
    return path;
}

std::vector<int32_t> route(const ForcedRoutes & forced, uint32_t block, uint64_t position) {
    const int32_t * experts = forced.route(block, position);
    return experts == nullptr ? std::vector<int32_t>() : std::vector<int32_t>(experts, experts + forced.top_k());
}

using Ids = std::vector<int32_t>;

void a_trace_of_the_same_shape_is_taken_as_it_is() {
    const TempDir dir;
    const std::string path = write(dir, kPreamble + kHeader + kRows);
    const ForcedRoutes forced = ForcedRoutes::read(path, model(2, 4), 2);
    CHECK(forced.exact());
    CHECK(forced.path() == path);
    CHECK(forced.layers() == 2 && forced.experts() == 4 && forced.top_k() == 2);
    CHECK(forced.n_prompt() == 2 && forced.n_positions() == 3);
    CHECK(route(forced, 0, 0) == Ids({3, 1}));
    CHECK(route(forced, 0, 1) == Ids({0, 1}));
    CHECK(route(forced, 0, 2) == Ids({2, 3}));
    CHECK(route(forced, 1, 0).empty());
    CHECK(route(forced, 1, 1) == Ids({2, 3}));
    CHECK(route(forced, 1, 2) == Ids({0, 1}));
    CHECK(route(forced, 0, 3).empty());
    CHECK(route(forced, 1, uint64_t{1} << 40).empty());
    CHECK(!forced.counts_slots() && forced.expert_bytes(0) == 300 && forced.expert_bytes(1) == 200);
}

void columns_are_found_by_name() {
    const TempDir dir;
    const std::string reordered =
        "dropped,expert,slot,layer,step,phase,turn,weight,residency,expert_bytes\r\n"
        "0,3,1,1,0,0,0,0.7,0,300\r\n"
        "0,1,0,1,0,0,0,0.7,0,300\r\n"
        "# a remark\r\n"
        "1,2,1,2,0,0,0,0.7,0,300\r\n"
        "0,0,0,2,0,0,0,0.7,0,300";
    const ForcedRoutes forced = ForcedRoutes::read(write(dir, kPreamble + reordered), model(2, 4), 2);
    CHECK(forced.n_prompt() == 1 && forced.n_positions() == 1);
    CHECK(route(forced, 0, 0) == Ids({1, 3}));
    CHECK(route(forced, 1, 0) == Ids({0, 2}));
}

void experts_are_spread_over_a_larger_set_and_kept_apart_in_a_smaller() {
    const TempDir dir;
    const std::string path = write(dir, kPreamble + kHeader + kRows);
    const ForcedRoutes larger = ForcedRoutes::read(path, model(2, 8), 2);
    CHECK(!larger.exact());
    CHECK(route(larger, 0, 0) == Ids({6, 2}));

    const ForcedRoutes smaller = ForcedRoutes::read(path, model(2, 2), 2);
    CHECK(!smaller.exact());
    CHECK(route(smaller, 0, 0) == Ids({1, 0}));  // 3 -> 1, 1 -> 0
    CHECK(route(smaller, 0, 1) == Ids({0, 1}));  // 0 -> 0, 1 -> 0, taken: 1
    CHECK(route(smaller, 0, 2) == Ids({1, 0}));  // 2 -> 1, 3 -> 1, taken: 0
}

// The last MoE layer has no more than the last token of a prompt, in any model.
void the_last_layer_follows_the_traces_last() {
    const TempDir dir;
    const std::string path = write(dir, kPreamble + kHeader + kRows);
    for (const uint32_t n_layer : {1u, 2u, 3u, 7u}) {
        const ForcedRoutes forced = ForcedRoutes::read(path, model(n_layer, 4), 2);
        CHECK(forced.exact() == (n_layer == 2));
        CHECK(forced.n_positions() == 3);
        for (uint32_t b = 0; b + 1 < n_layer; ++b) {
            CHECK(forced.expert_bytes(b) == 300);
            CHECK(route(forced, b, 0) == Ids({3, 1}));
        }
        CHECK(forced.expert_bytes(n_layer - 1) == 200);
        CHECK(route(forced, n_layer - 1, 2) == Ids({0, 1}));
        forced.check_run(2, 1);
    }
}

void layers_repeat_in_a_deeper_model() {
    const TempDir dir;
    std::string text = "# route_trace v1\n# model=m arch=x n_layer=3 n_expert=8 n_expert_used=1\n";
    std::string rows;
    for (int l = 0; l < 3; ++l) {
        text += "# layer=" + std::to_string(l) + " expert_bytes=" + std::to_string(100 + l) + " dense_bytes=0\n";
        rows += "0,0,0," + std::to_string(l) + ",0," + std::to_string(l) + ",1,0,0\n";
    }
    const std::string path = write(dir, text + kHeader + rows);
    const ForcedRoutes forced = ForcedRoutes::read(path, model(6, 8), 1);
    for (uint32_t b = 0; b < 6; ++b) {
        const int32_t source = b == 5 ? 2 : static_cast<int32_t>(b % 2);
        CHECK(route(forced, b, 0) == Ids({source}));
        CHECK(forced.expert_bytes(b) == static_cast<uint64_t>(100 + source));
    }
}

void the_second_set_of_a_layer_has_the_route_of_the_first() {
    const TempDir dir;
    std::vector<MoeBlock> blocks(4);
    for (uint32_t b = 0; b < 4; ++b) {
        blocks[b].layer = b / 2;
        blocks[b].n_expert = b % 2 == 0 ? 4 : 1;
    }
    const ForcedRoutes forced = ForcedRoutes::read(write(dir, kPreamble + kHeader + kRows), blocks, 2);
    CHECK(forced.exact());
    CHECK(route(forced, 0, 0) == Ids({3, 1}) && route(forced, 1, 0) == Ids({3, 1}));
    CHECK(route(forced, 2, 1) == Ids({2, 3}) && route(forced, 3, 1) == Ids({2, 3}));
}

template <class Body>
std::string refusal(Body && body) {
    try {
        body();
    } catch (const Error & error) {
        CHECK(error.code() == ExitCode::usage);
        const std::string what = error.what();
        CHECK(what.find('\n') == std::string::npos);
        CHECK(what.rfind("--forced-routes: ", 0) == 0);
        return what;
    }
    return "(none)";
}

bool contains(const std::string & text, const std::string & part) { return text.find(part) != std::string::npos; }

std::string with(std::string text, const std::string & from, const std::string & to) {
    const size_t at = text.find(from);
    if (at == std::string::npos) {
        throw std::runtime_error("the test replaces what is not there: " + from);
    }
    return text.replace(at, from.size(), to);
}

std::string with_all(std::string text, const std::string & from, const std::string & to) {
    while (contains(text, from)) {
        text = with(text, from, to);
    }
    return text;
}

void what_is_wrong_is_said_with_its_line() {
    const TempDir dir;
    const std::string good = kPreamble + kHeader + kRows;
    const auto refused = [&](const std::string & text) {
        return refusal([&] { ForcedRoutes::read(write(dir, text), model(2, 4), 2); });
    };
    CHECK(refused(good) == "(none)");
    const struct {
        const char * name;
        std::string text;
        const char * line;
        const char * what;
    } cases[] = {
        {"other file", "step,wall_ms\n1,2\n", ":1: ", "does not start with '# route_trace v1'"},
        {"other version", with(good, "trace v1", "trace v2"), ":1: ", "does not start with '# route_trace v1'"},
        {"no model line", with(good, "# model=", "# mode="), ":6: ", "no '# model=' line"},
        {"no counts", with(good, " n_expert_used=2", ""), ":2: ", "n_expert_used"},
        {"no counts but in the path", with(good, " n_expert=4", ""), ":2: ", "n_expert"},
        {"k above n", with(good, "used=2", "used=5"), ":2: ", "n_expert_used"},
        {"no bytes", with_all(good, "# layer=", "# l="), ":6: ", "the trace must say what its experts weigh"},
        {"bytes all zero", with(with(good, "=300", "=0"), "=200", "=0"), ":6: ", "what its experts weigh"},
        {"bytes malformed", with(good, "expert_bytes=300", "expert_bytes=3e2"), ":4: ", "expert_bytes="},
        {"slots of some layers", with(good, "dense_bytes=7\n# layer=1 expert_bytes=300 dense_bytes=5", "dense_bytes=7\n# layer=1 expert_bytes=300 dense_bytes=5 slot_bytes=304"), ":6: ", "slot_bytes for some layers only"},
        {"slots below experts", with(good, "dense_bytes=7\n# layer=1 expert_bytes=300 dense_bytes=5", "dense_bytes=7\n# layer=1 expert_bytes=300 dense_bytes=5 slot_bytes=30"), ":4: ", "slot_bytes below expert_bytes"},
        {"layer twice", with(good, "# layer=2", "# layer=1"), ":5: ", "layer 1 for the second time"},
        {"no header", kPreamble + kRows, ":6: ", "no column 'turn'"},
        {"column missing", with(good, ",slot,", ",rank,"), ":6: ", "no column 'slot'"},
        {"short row", with(good, ",nan,1,0\n", ",nan\n"), ":14: ", "7 columns, the header has 9"},
        {"empty line", with(good, kRows, "\n" + kRows), ":7: ", "1 columns, the header has 9"},
        {"no number", with(good, "0,0,0,1,1,1,", "0,0,0,1,1,1x,"), ":8: ", "'1x' in column 'expert' is not a number"},
        {"negative step", with(good, "0,0,0,1,0", "0,0,-1,1,0"), ":7: ", "'-1' in column 'step'"},
        {"phase", with(good, "0,1,2,1,0", "0,2,2,1,0"), ":13: ", "'2' in column 'phase' is not a number from 0 to 1"},
        {"expert out of range", with(good, "0,1,2,1,0,2", "0,1,2,1,0,4"), ":13: ",
         "'4' in column 'expert' is not a number from 0 to 3"},
        {"slot out of range", with(good, "0,1,2,1,1,3", "0,1,2,1,2,3"), ":14: ", "'2' in column 'slot'"},
        {"dense layer", with(good, "0,1,2,1,0,2", "0,1,2,0,0,2"), ":13: ",
         "layer 0, to which the preamble gives no expert_bytes"},
        {"unknown layer", with(good, "0,1,2,1,0,2", "0,1,2,9,0,2"), ":13: ", "layer 9, to which"},
        {"second turn", good + "1,1,3,1,0,0,1,1,0\n", ":17: ", "turn 1 after turn 0"},
        {"same row twice", good + "0,1,2,1,1,0,0.3,0,0\n", ":17: ",
         "step 2, layer 1, slot 1 stands in line 14 already"},
        {"same step in both phases", good + "0,1,0,1,0,0,0.3,0,0\n", ":17: ",
         "step 0, layer 1, slot 0 stands in line 7 already"},
        {"last slot missing", with(good, "0,1,2,1,1,3,nan,1,0\n", ""), ":13: ", "step 2, layer 1 has no slot 1"},
        {"first slot missing", with(good, "0,0,1,2,0,2,0.6,0,200\n", ""), ":11: ", "step 1, layer 2 has no slot 0"},
        {"cut off", good.substr(0, good.rfind("0,1,2,2,1")), ":15: ", "step 2, layer 2 has no slot 1"},
        {"expert twice", with(good, "0,0,1,2,1,3", "0,0,1,2,1,2"), ":12: ", "step 1, layer 2 has expert 2 twice"},
        {"steps missing", with_all(good, "\n0,1,2,", "\n0,1,9,"), ":13: ", "none of the rows is step 2"},
        {"prompt missing", kPreamble + kHeader + kRows.substr(kRows.find("0,1,2,1,0")), ":7: ",
         "none of the rows is step 0"},
    };
    for (const auto & c : cases) {
        const std::string what = refused(c.text);
        if (!contains(what, "t.route.csv" + std::string(c.line)) || !contains(what, c.what)) {
            std::fprintf(stderr, "%s: %s\n", c.name, what.c_str());
            CHECK(!"refused with the right words");
        }
    }
    CHECK(contains(refused(kPreamble + kHeader), "no routes"));
    CHECK(contains(refused(good + good), ":22: 'turn' in column 'turn'"));  // two traces in one file
    // Facts that come after the header are a remark: they must not change what the rows were checked against.
    CHECK(refused(good + "# model=m arch=x n_layer=3 n_expert=4 n_expert_used=1\n") == "(none)");
    CHECK(contains(refused(""), "no routes"));
}

void a_trace_that_does_not_fit_is_refused() {
    const TempDir dir;
    const std::string path = write(dir, kPreamble + kHeader + kRows);
    CHECK(contains(refusal([&] { ForcedRoutes::read(path, model(2, 4), 4); }),
                   "routes 2 experts per token, this run 4: give --expert-used 2"));
    CHECK(contains(refusal([&] { ForcedRoutes::read(path, model(2, 1), 2); }), "this model has only 1"));
    try {
        ForcedRoutes::read(dir.file("absent"), model(2, 4), 2);
        CHECK(!"an absent file was read");
    } catch (const Error & error) {
        CHECK(error.code() == ExitCode::io);
        CHECK(contains(error.what(), "cannot read route trace file '" + dir.file("absent") + "': No such file"));
    }
}

void a_run_must_fit_into_the_trace() {
    const TempDir dir;
    const ForcedRoutes forced = ForcedRoutes::read(write(dir, kPreamble + kHeader + kRows), model(2, 4), 2);
    forced.check_run(2, 1);
    forced.check_run(2, 0);
    forced.check_run(3, 0);  // a longer prompt takes what was recorded as decoding
    CHECK(contains(refusal([&] { forced.check_run(2, 2); }),
                   "has routes for 3 positions; a prompt of 2 tokens and --predict 2 need 4"));
    CHECK(contains(refusal([&] { forced.check_run(1, 1); }),
                   "no route of the last layer at position 0: give a prompt of at least 2 tokens"));
}

// A killed run: its last token lacks a layer.
void an_incomplete_last_token_does_not_count() {
    const TempDir dir;
    const std::string path = write(dir, kPreamble + kHeader + kRows.substr(0, kRows.find("0,1,2,2,0")));
    const ForcedRoutes forced = ForcedRoutes::read(path, model(2, 4), 2);
    CHECK(forced.n_positions() == 2);
    CHECK(route(forced, 0, 2) == Ids({2, 3}) && route(forced, 1, 2).empty());
    CHECK(contains(refusal([&] { forced.check_run(2, 1); }), "has routes for 2 positions"));
}

void what_was_written_reads_back() {
    const TempDir dir;
    RouteTraceHead head{"/m.gguf", "qwen3moe", 16, 3, {{0, 1}, {30, 1}, {20, 1}}, {0, 36, 24}};
    RouteTrace trace(dir.file("r"), head);
    const auto expert = [](uint64_t step, uint32_t layer, uint32_t slot) {
        return static_cast<uint32_t>((step * 5 + layer * 3 + slot * 7) % 16);
    };
    const auto add = [&](Phase phase, uint32_t layer, uint64_t first, uint64_t end) {
        std::vector<RouteRow> rows;
        for (uint64_t step = first; step < end; ++step) {
            for (uint32_t slot = 0; slot < 3; ++slot) {
                rows.push_back({step, slot, expert(step, layer, slot), 0.5f, Residency::miss, false});
            }
        }
        trace.add({phase}, layer, rows);
    };
    add(Phase::prefill, 1, 0, 10);
    add(Phase::prefill, 2, 9, 10);
    trace.flush();
    for (uint64_t step = 10; step < 30; ++step) {
        add(Phase::decode, 1, step, step + 1);
        add(Phase::decode, 2, step, step + 1);
        trace.flush();
    }
    trace.close();

    const ForcedRoutes forced = ForcedRoutes::read(dir.file("r"), model(2, 16), 3);
    CHECK(forced.exact());
    CHECK(forced.n_prompt() == 10 && forced.n_positions() == 30);
    // This engine's cache gives each a slot.
    CHECK(forced.counts_slots() && forced.expert_bytes(0) == 36 && forced.expert_bytes(1) == 24);
    for (uint64_t step = 0; step < 30; ++step) {
        for (uint32_t block = 0; block < 2; ++block) {
            Ids expected;
            for (uint32_t slot = 0; slot < 3 && (block == 0 || step >= 9); ++slot) {
                expected.push_back(static_cast<int32_t>(expert(step, block + 1, slot)));
            }
            CHECK(route(forced, block, step) == expected);
        }
    }
}

// Least recently used, accounted in the trace's bytes. A batch is one layer of the whole prompt or of one token.
class Lru {
public:
    explicit Lru(uint64_t budget) : budget_(budget) {}

    // `tokens`: the experts of a batch, token by token. Recency is that of the last use.
    void batch(const ForcedRoutes & forced, uint32_t block, const Ids & tokens) {
        const std::set<int32_t> requested(tokens.begin(), tokens.end());
        for (const int32_t expert : requested) {
            ++(where_.count({block, expert}) != 0 ? hits : misses);
        }
        for (const int32_t expert : tokens) {
            const Key key{block, expert};
            const auto it = where_.find(key);
            if (it != where_.end()) {
                order_.erase(it->second);
            } else {
                held_ += forced.expert_bytes(block);
            }
            order_.push_front(key);
            where_[key] = order_.begin();
        }
        while (held_ > budget_) {
            held_ -= forced.expert_bytes(order_.back().first);
            where_.erase(order_.back());
            order_.pop_back();
        }
    }

    uint64_t hits = 0;
    uint64_t misses = 0;

private:
    using Key = std::pair<uint32_t, int32_t>;
    const uint64_t budget_;
    uint64_t held_ = 0;
    std::list<Key> order_;  // most recent first
    std::map<Key, std::list<Key>::iterator> where_;
};

Lru replay(const ForcedRoutes & forced, uint32_t n_block, uint64_t budget_mib) {
    Lru lru(budget_mib << 20);
    const auto batch = [&](uint64_t first, uint64_t end) {
        for (uint32_t block = 0; block < n_block; ++block) {
            Ids tokens;
            for (uint64_t position = first; position < end; ++position) {
                const Ids ids = route(forced, block, position);
                tokens.insert(tokens.end(), ids.begin(), ids.end());
            }
            lru.batch(forced, block, tokens);
        }
    };
    batch(0, forced.n_prompt());
    for (uint64_t position = forced.n_prompt(); position < forced.n_positions(); ++position) {
        batch(position, position + 1);
    }
    return lru;
}

std::filesystem::path shared_dir() {
    if (const char * dir = std::getenv("MOE_SHARED_DIR")) {
        return dir;
    }
    return std::filesystem::path(__FILE__).parent_path().parent_path().parent_path().parent_path() / "shared";
}

void recorded(const char * name, uint32_t n_layer, uint32_t top_k, uint64_t n_prompt, uint64_t n_decode,
              uint64_t budget_mib, double hit_percent, uint64_t recorded_misses) {
    const std::filesystem::path path = shared_dir() / "data" / "routes" / name;
    if (!std::filesystem::exists(path)) {
        std::fprintf(stderr, "skipped: no %s (MOE_SHARED_DIR names the directory above data/)\n", path.c_str());
        return;
    }
    const ForcedRoutes forced = ForcedRoutes::read(path.string(), model(n_layer, 128), top_k);
    CHECK(forced.exact());
    CHECK(forced.layers() == n_layer && forced.experts() == 128);
    CHECK(forced.n_prompt() == n_prompt);
    CHECK(forced.n_positions() == n_prompt + n_decode);
    forced.check_run(n_prompt, n_decode);

    const Lru lru = replay(forced, n_layer, budget_mib);
    const double percent = 100.0 * static_cast<double>(lru.hits) / static_cast<double>(lru.hits + lru.misses);
    CHECK(std::abs(percent - hit_percent) < 0.05);
    CHECK(lru.misses == recorded_misses);  // rows of the trace that were charged with bytes
    CHECK(replay(forced, n_layer, 500).hits == 0);  // below one token's cycle
}

void qwen_replays_as_recorded() { recorded("qwen.route.csv", 48, 6, 28, 128, 4000, 74.9, 9929); }
void gpt_oss_replays_as_recorded() { recorded("gptoss.route.csv", 36, 2, 85, 64, 3000, 32.4, 4309); }

}  // namespace

int main() {
    check::run("a trace of the same shape is taken as it is", a_trace_of_the_same_shape_is_taken_as_it_is);
    check::run("columns are found by name", columns_are_found_by_name);
    check::run("experts are spread over a larger set and kept apart in a smaller",
               experts_are_spread_over_a_larger_set_and_kept_apart_in_a_smaller);
    check::run("the last layer follows the trace's last", the_last_layer_follows_the_traces_last);
    check::run("layers repeat in a deeper model", layers_repeat_in_a_deeper_model);
    check::run("the second set of a layer has the route of the first",
               the_second_set_of_a_layer_has_the_route_of_the_first);
    check::run("what is wrong is said with its line", what_is_wrong_is_said_with_its_line);
    check::run("a trace that does not fit is refused", a_trace_that_does_not_fit_is_refused);
    check::run("a run must fit into the trace", a_run_must_fit_into_the_trace);
    check::run("an incomplete last token does not count", an_incomplete_last_token_does_not_count);
    check::run("what was written reads back", what_was_written_reads_back);
    check::run("Qwen replays as recorded", qwen_replays_as_recorded);
    check::run("gpt-oss replays as recorded", gpt_oss_replays_as_recorded);
    return check::result();
}
