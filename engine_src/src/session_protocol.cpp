#include "session_protocol.h"

#include "json.h"

namespace moe {

namespace {

constexpr double mib = 1024.0 * 1024.0;

// A field of the paging; empty when nothing is paged.
template <class T>
std::optional<double> paged(const CallCost & cost, T PagingCost::* field, double unit = 1) {
    return cost.paging ? std::optional<double>(static_cast<double>((*cost.paging).*field) / unit) : std::nullopt;
}

std::optional<double> scaled(std::optional<double> value, double unit) {
    return value ? std::optional<double>(*value / unit) : std::nullopt;
}

std::optional<double> in_mib(const std::optional<uint64_t> & bytes) {
    return bytes ? std::optional<double>(static_cast<double>(*bytes) / mib) : std::nullopt;
}

std::optional<double> per_second(uint64_t tokens, double wall_ms) {
    return tokens > 0 && wall_ms > 0 ? std::optional<double>(1000.0 * static_cast<double>(tokens) / wall_ms)
                                     : std::nullopt;
}

}  // namespace

std::string ready_line(const SessionReady & ready) {
    return "BMOE_READY " + JsonObject()
                               .number("load_s", ready.load_s)
                               .text("arch", ready.arch)
                               .number("n_ctx", ready.n_ctx)
                               .text("think_ctl", std::string("none"))
                               .number("n_expert_used", ready.n_expert_used)
                               .str();
}

std::string begin_line(uint64_t id) { return "BMOE_BEGIN " + JsonObject().number("id", id).str(); }

std::string progress_line(const SessionProgress & progress) {
    const CallCost & cost = progress.cost;
    return "BMOE_PROGRESS " + JsonObject()
                                  .number("step", progress.step)
                                  .number("steps", progress.steps)
                                  .number("wall_ms", cost.wall_ms)
                                  .number("io_ms", paged(cost, &PagingCost::io_ms))
                                  .number("compute_ms", cost.compute_ms())
                                  .number("mgmt_ms", paged(cost, &PagingCost::manage_ms))
                                  .number("stall_ms", paged(cost, &PagingCost::stall_ms))
                                  .number("read_mb", paged(cost, &PagingCost::read_bytes, mib))
                                  .number("cache_hit_pct", progress.cache_hit_pct)
                                  .number("majflt", cost.majflt)
                                  .number("cpu_ms", cost.cpu_ms)
                                  .number("dense_resident_frac", -1)
                                  .null("delta_reasoning")
                                  .text("delta_text", progress.delta_text)
                                  .str();
}

std::string done_line(const SessionDone & done) {
    const CallCost & decode = done.decode;
    const CallCost & prefill = done.prefill;
    // Of no tokens there is no mean.
    const auto per_token = [&](std::optional<double> sum, double unit) {
        return done.tokens > 0 ? scaled(sum, unit * static_cast<double>(done.tokens)) : std::nullopt;
    };
    JsonObject object;
    object.number("id", done.id)
        .boolean("cancelled", done.cancelled)
        .number("tokens", done.tokens)
        .number("tok_s", per_second(done.tokens, decode.wall_ms))
        .number("prefill_s", prefill.wall_ms / 1000)
        .number("prefill_tps", per_second(done.n_prompt, prefill.wall_ms))
        .number("load_s", done.load_s)
        .number("cache_hit_pct", done.cache.hit_pct)
        .number("n_prompt", done.n_prompt)
        .number("n_past", done.n_past)
        .number("compute_s_tok", per_token(decode.compute_ms(), 1000))
        .number("io_s_tok", per_token(paged(decode, &PagingCost::io_ms), 1000))
        .number("cache_resident_mib", in_mib(done.cache.resident_bytes))
        .number("cache_budget_mib", in_mib(done.cache.budget_bytes))
        .number("read_mib", paged(decode, &PagingCost::read_bytes, mib))
        .number("stall_s_tok", per_token(paged(decode, &PagingCost::stall_ms), 1000))
        .number("mgmt_s_tok", per_token(paged(decode, &PagingCost::manage_ms), 1000))
        .number("majflt_tok", per_token(static_cast<double>(decode.majflt), 1))
        .number("cpu_s_tok", per_token(decode.cpu_ms, 1000));
    for (const char * unmeasured : {"token_demand_mib", "mtp_drafted", "mtp_accepted", "mtp_decodes",
                                    "mtp_draft_s_tok", "drafted_steps"}) {
        object.null(unmeasured);
    }
    object.number("loop_overhead_s_tok", per_token(done.loop_ms - decode.wall_ms, 1000))
        .null("reasoning")
        .text("text", done.text)
        .number("prefill_cpu_s", prefill.cpu_ms / 1000)
        .number("prefill_read_mib", paged(prefill, &PagingCost::read_bytes, mib))
        .number("prefill_io_s", paged(prefill, &PagingCost::io_ms, 1000))
        .number("prefill_stall_s", paged(prefill, &PagingCost::stall_ms, 1000))
        .number("prefill_mgmt_s", paged(prefill, &PagingCost::manage_ms, 1000));
    return "BMOE_DONE " + object.str();
}

std::string session_error_line(uint64_t id, bool fatal, const std::string & message) {
    return "BMOE_ERROR " + JsonObject().number("id", id).boolean("fatal", fatal).text("msg", message).str();
}

}  // namespace moe
