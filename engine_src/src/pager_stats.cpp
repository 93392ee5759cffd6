#include "pager_stats.h"

#include "json.h"

namespace moe {

namespace {

struct Field {
    const char * name;
    uint64_t & (*of)(PagerCounters &);
};

const Field fields[] = {
    {"requests", [](PagerCounters & c) -> uint64_t & { return c.requests; }},
    {"hits", [](PagerCounters & c) -> uint64_t & { return c.hits; }},
    {"misses", [](PagerCounters & c) -> uint64_t & { return c.misses; }},
    {"evictions", [](PagerCounters & c) -> uint64_t & { return c.evictions; }},
    {"evict_stale_left", [](PagerCounters & c) -> uint64_t & { return c.eviction_groups.stale_left; }},
    {"evict_stale_right", [](PagerCounters & c) -> uint64_t & { return c.eviction_groups.stale_right; }},
    {"evict_current_left", [](PagerCounters & c) -> uint64_t & { return c.eviction_groups.current_left; }},
    {"evict_current_right", [](PagerCounters & c) -> uint64_t & { return c.eviction_groups.current_right; }},
    {"reads", [](PagerCounters & c) -> uint64_t & { return c.reads; }},
    {"read_bytes", [](PagerCounters & c) -> uint64_t & { return c.read_bytes; }},
};

void add(PagerCounters & to, PagerCounters what) {
    for (const Field & field : fields) {
        field.of(to) += field.of(what);
    }
}

void write_fields(JsonObject & object, PagerCounters counters) {
    for (const Field & field : fields) {
        object.number(field.name, field.of(counters));
    }
}

std::string json_list(const std::vector<uint64_t> & numbers) {
    std::string list;
    for (const uint64_t number : numbers) {
        list += (list.empty() ? "" : ",") + std::to_string(number);
    }
    return "[" + list + "]";
}

}  // namespace

PagerStats::PagerStats(const std::string & path) : file_(path, "statistics") {}

void PagerStats::arena(const PagerInfo & info, const PagerOptions & options, uint32_t top_k) {
    file_.write(JsonObject()
                    .text("type", std::string("arena"))
                    .number("ram_budget_mb", options.ram_budget_mb)
                    .number("reserve_mb", options.reserve_mb)
                    .number("bytes", info.arena_bytes)
                    .raw("classes", info.classes_json())
                    .number("coverage", info.coverage)
                    .text("policy", options.evict)
                    .number("top_k", top_k)
                    .str());
}

void PagerStats::pass(const CallInfo & call, const PagerCounters & now) {
    PagerCounters before = counted_;
    PagerCounters delta = now;
    for (const Field & field : fields) {
        field.of(delta) -= field.of(before);
    }
    counted_ = now;
    const bool decoding = call.phase == Phase::decode;
    Sums & sums = decoding ? decode_ : prefill_;
    JsonObject line;
    line.text("type", std::string("pass"))
        .number("pass", prefill_.passes + decode_.passes)
        .text("phase", std::string(decoding ? "decode" : "prefill"))
        .number("tokens", call.n_tokens);
    write_fields(line, delta);
    file_.write(line.str());
    sums.passes += 1;
    sums.tokens += call.n_tokens;
    add(sums.counted, delta);
}

void PagerStats::close(const std::vector<uint64_t> & resident) {
    const auto phase = [](const Sums & sums) {
        JsonObject object;
        object.number("passes", sums.passes).number("tokens", sums.tokens);
        write_fields(object, sums.counted);
        return object.str();
    };
    PagerCounters both = prefill_.counted;
    add(both, decode_.counted);
    JsonObject total;
    total.text("type", std::string("total"))
        .number("passes", prefill_.passes + decode_.passes)
        .number("tokens", decode_.tokens)
        .number("prompt_tokens", prefill_.tokens);
    write_fields(total, both);
    file_.write(total.number("decode_read_bytes", decode_.counted.read_bytes)
                    .raw("resident_slots", json_list(resident))
                    .raw("prefill", phase(prefill_))
                    .raw("decode", phase(decode_))
                    .str());
    file_.close();
}

}  // namespace moe
