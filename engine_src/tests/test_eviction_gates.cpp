// Whole decodes under every eviction policy: the bits are those of plain, the counts add up, --stats tells them.
#include "gate.h"

#include "eviction.h"
#include "json_reader.h"

using namespace gate;

namespace {

// Two of five layers have experts several times as large as the others.
tiny::Model two_sizes() {
    tiny::Model m = model(GGML_TYPE_Q4_K, 5);
    m.n_large_layer = 2;
    m.large_type = GGML_TYPE_BF16;
    return m;
}

// With their plain runs, for all policies: those take longest where code is sanitized.
const Bench & one_size_bench() {
    static const Bench bench;
    return bench;
}
const Bench & two_sizes_bench() {
    static const Bench bench(two_sizes());
    return bench;
}

void check_groups(const Run & run) { CHECK(run.counters.eviction_groups.total() == run.counters.evictions); }

void every_policy_equals_plain(const std::string & policy) {
    const Bench & bench = one_size_bench();
    for (const uint64_t slots : {uint64_t{2}, kSmall, uint64_t{20}}) {
        PagerOptions options = bench.options(slots);
        options.evict = policy;
        const Run serial = run_paged(options);
        check_equal(bench.plain(), serial);
        check_counters(serial, 32);
        check_groups(serial);
        CHECK(serial.counters.evictions > 0);
        options.executor.overlap = true;
        const Run overlapped = run_paged(options);
        check_equal(bench.plain(), overlapped);
        CHECK(overlapped.counters.hits == serial.counters.hits);
        CHECK(overlapped.counters.evictions == serial.counters.evictions);
    }
}

void every_policy_equals_plain_with_read_ahead(const std::string & policy) {
    const Bench & bench = one_size_bench();
    // Less than a token's experts, else some policies keep all that the token before has used.
    PagerOptions options = bench.options(6);
    options.evict = policy;
    options.foresight.prefetch = 2;
    const Run previous = run_paged(options);
    check_equal(bench.plain(), previous);
    check_groups(previous);
    CHECK(previous.counters.foresight->experts > 0);
    options.foresight.prefetch = 0;
    options.foresight.predict = true;
    options.foresight.speculate_max = 2;
    options.foresight.horizon = 1;
    const Run predicted = run_paged(options);
    check_equal(bench.plain(), predicted);
    check_groups(predicted);
}

void every_policy_equals_plain_with_two_sizes(const std::string & policy) {
    const Bench & bench = two_sizes_bench();
    PagerOptions options = bench.options(0);
    options.evict = policy;
    const uint64_t whole = Pager::open(options)->info().whole_bytes;
    for (const uint64_t bytes : {whole / 4, whole / 2}) {
        options.arena_bytes = bytes;
        const Run run = run_paged(options);
        check_equal(bench.plain(), run);
        check_groups(run);
        CHECK(run.info.classes.size() == 2 && run.info.classes[0].slots > 0);
        CHECK(run.counters.evictions > 0);
    }
}

// Fewer slots than two tokens use: what gives way can always be told from the pass.
void groups_tell_where_experts_stood() {
    const Bench & bench = one_size_bench();
    PagerOptions options = bench.options(kSmall);
    for (const std::string & policy : eviction_policy_names()) {
        options.evict = policy;
        const EvictionCounts groups = run_paged(options).counters.eviction_groups;
        if (policy == "ls_pos") {
            CHECK(groups.stale_left > groups.stale_right);
        }
        if (policy == "ls") {
            CHECK(groups.stale_right > 0);
        }
    }
}

uint64_t number(const JsonFields & line, const std::string & key) {
    return std::stoull(std::get<JsonLiteral>(line.at(key)).text);
}
std::string text(const JsonFields & line, const std::string & key) { return std::get<std::string>(line.at(key)); }

void statistics_tell_every_pass_and_the_sums() {
    const Bench & bench = two_sizes_bench();
    PagerOptions options = bench.options(0);
    options.arena_bytes = Pager::open(options)->info().whole_bytes / 3;
    options.evict = "ls_pos";
    options.ram_budget_mb = 77;
    options.stats = bench.file("stats.jsonl");
    const Run run = run_paged(options);
    check_equal(bench.plain(), run);

    std::vector<JsonFields> lines;
    std::ifstream in(options.stats);
    for (std::string line; std::getline(in, line);) {
        lines.push_back(read_json_object(line));
    }
    constexpr size_t kPasses = 2 + kDecode;
    CHECK(lines.size() == kPasses + 2);
    const JsonFields & arena = lines.front();
    const JsonFields & total = lines.back();
    CHECK(text(arena, "type") == "arena" && text(arena, "policy") == "ls_pos" && text(total, "type") == "total");
    CHECK(number(arena, "ram_budget_mb") == 77 && std::holds_alternative<JsonNull>(arena.at("reserve_mb")));
    CHECK(number(arena, "bytes") == run.info.arena_bytes && number(arena, "top_k") == 2);

    const PagerCounters & c = run.counters;
    const std::map<std::string, uint64_t> counted = {{"requests", c.requests},
                                                     {"hits", c.hits},
                                                     {"misses", c.misses},
                                                     {"evictions", c.evictions},
                                                     {"evict_stale_left", c.eviction_groups.stale_left},
                                                     {"evict_stale_right", c.eviction_groups.stale_right},
                                                     {"evict_current_left", c.eviction_groups.current_left},
                                                     {"evict_current_right", c.eviction_groups.current_right},
                                                     {"reads", c.reads},
                                                     {"read_bytes", c.read_bytes}};
    for (const auto & [key, value] : counted) {
        uint64_t sum = 0;
        uint64_t decoding = 0;
        for (size_t i = 1; i <= kPasses; ++i) {
            CHECK(text(lines[i], "type") == "pass" && number(lines[i], "pass") == i - 1);
            CHECK(text(lines[i], "phase") == (i <= 2 ? "prefill" : "decode"));
            sum += number(lines[i], key);
            decoding += i <= 2 ? 0 : number(lines[i], key);
        }
        CHECK(sum == value && number(total, key) == value);
        CHECK(key != "read_bytes" || number(total, "decode_read_bytes") == decoding);
        CHECK(key != "evictions" || value > 0);
    }
    CHECK(number(lines[1], "tokens") == kBatch && number(lines[2], "tokens") == kPrompt - kBatch);
    CHECK(number(total, "tokens") == kDecode && number(total, "prompt_tokens") == kPrompt);

    // Every slot of either size is in use at the end: there are fewer than experts.
    std::string slots;
    for (const PagerInfo::SlotClass & size : run.info.classes) {
        slots += (slots.empty() ? "" : ",") + std::to_string(size.slots);
    }
    std::ifstream again(options.stats);
    const std::string all(std::istreambuf_iterator<char>(again), {});
    CHECK(all.find("\"resident_slots\":[" + slots + "]") != std::string::npos);
}

}  // namespace

int main() {
    quiet_log();
    for (const std::string & policy : eviction_policy_names()) {
        check::run((policy + " equals plain").c_str(), [&] { every_policy_equals_plain(policy); });
        check::run((policy + " equals plain with read-ahead").c_str(),
                   [&] { every_policy_equals_plain_with_read_ahead(policy); });
        check::run((policy + " equals plain with experts of two sizes").c_str(),
                   [&] { every_policy_equals_plain_with_two_sizes(policy); });
    }
    check::run("statistics tell every pass and the sums", statistics_tell_every_pass_and_the_sums);
    check::run("groups tell where experts stood", groups_tell_where_experts_stood);
    return check::result();
}
