#include "report.h"

#include "json.h"
#include "version.h"

#include <unistd.h>

#include <ctime>

namespace moe {

namespace {

std::string model_json(const StartReport & report) {
    const ModelFacts & facts = report.facts;
    return JsonObject()
        .text("path", facts.path)
        .text("arch", facts.arch)
        .text("name", facts.name)
        .number("file_bytes", facts.file_bytes)
        .number("n_layer", llama_model_n_layer(report.model))
        .number("n_moe_layer", facts.n_moe_layer)
        .number("n_expert", facts.n_expert)
        .number("n_expert_used", facts.n_expert_used)
        .number("n_embd", llama_model_n_embd(report.model))
        .number("n_vocab", llama_vocab_n_tokens(llama_model_get_vocab(report.model)))
        .number("expert_bytes", facts.expert_bytes)
        .number("expert_bytes_max", facts.expert_bytes_max)
        .number("dense_bytes", facts.dense_bytes)
        .str();
}

const char * dense_name(DenseWeights dense) {
    switch (dense) {
        case DenseWeights::warm: return "warm";
        case DenseWeights::anon: return "anon";
        case DenseWeights::mmap: break;
    }
    return "mmap";
}

// What has no meaning in plain mode, or without the flag it belongs to, is null.
std::string config_json(const Options & o) {
    JsonObject config;
    const auto number = [&](const char * key, bool meant, auto value) {
        meant ? config.number(key, value) : config.null(key);
    };
    const auto boolean = [&](const char * key, bool meant, bool value) {
        meant ? config.boolean(key, value) : config.null(key);
    };
    const bool stream = o.moe_stream;
    const bool generates = !o.ppl_file;
    number("n_predict", generates, o.n_predict);
    config.number("n_ctx", o.n_ctx)
        .number("n_batch", o.n_batch)
        .number("threads", o.threads)
        .number("temp", 0)
        .number("seed", 0);
    const bool sized = stream && !o.ram_budget_mb;  // by --cache-mb
    number("cache_mb", sized && !o.cache_auto, o.cache_mb);
    boolean("cache_auto", sized, o.cache_auto);
    number("cache_floor_mb", stream && o.cache_auto, o.cache_floor_mb);
    number("cache_ceil_mb", stream && o.cache_auto, o.cache_ceil_mb);
    boolean("force_cache", sized, o.force_cache);
    config.number("ram_budget_mb", o.ram_budget_mb).number("reserve_mb", o.reserve_mb);
    stream ? config.text("evict", o.evict) : config.null("evict");
    boolean("overlap", stream, o.overlap);
    boolean("load_all", stream, o.load_all);
    number("io_threads", stream, o.io_threads);
    boolean("direct_io_requested", stream, o.direct_io);
    number("prefetch", stream, o.prefetch);
    boolean("predict_prefetch", stream, o.predict_prefetch);
    number("predict_spec_max", stream && o.predict_prefetch, o.predict_spec_max);
    number("predict_horizon", stream && o.predict_prefetch, o.predict_horizon);
    boolean("predict_log", stream, o.predict_log);
    config.number("drop_cold_experts", o.drop_cold_experts);
    boolean("drop_renorm", o.drop_cold_experts.has_value(), o.drop_renorm);
    boolean("drop_in_prefill", o.drop_cold_experts.has_value(), o.drop_in_prefill);
    config.text("forced_routes", o.forced_routes).text("given_text", o.given_text).text("ppl_file", o.ppl_file);
    config.number("ppl_chunks", o.ppl_chunks);
    config.text("moe_dump", o.moe_dump ? std::optional<std::string>("il=" + std::to_string(o.moe_dump->layer) + ":" +
                                                                    o.moe_dump->prefix)
                                       : std::nullopt);
    config.text("dense_weights", std::string(dense_name(o.dense_weights))).number("expert_used", o.expert_used);
    boolean("repack", !stream, o.repack);
    boolean("no_eog", generates, !o.stop_at_eog);
    return config.str();
}

std::string given_json(const std::optional<GivenText> & given) {
    if (!given) {
        return "null";
    }
    JsonObject object;
    object.number("tokens", given->tokens).number("agreed", given->agreed);
    if (given->tokens == 0) {
        return object.null("nll").str();
    }
    return object.number("nll", given->nll / static_cast<double>(given->tokens)).str();
}

std::string forced_json(const ForcedRoutes * forced) {
    if (forced == nullptr) {
        return "null";
    }
    return JsonObject()
        .text("path", forced->path())
        .number("layers", forced->layers())
        .number("experts", forced->experts())
        .number("top_k", forced->top_k())
        .boolean("exact", forced->exact())
        .str();
}

std::string direct_io_json(const std::optional<PagerInfo> & pager) {
    JsonObject object;
    if (!pager) {
        return object.null("effective").null("reason").str();
    }
    object.boolean("effective", pager->direct_io);
    if (pager->direct_io_reason.empty()) {
        return object.null("reason").str();
    }
    return object.text("reason", pager->direct_io_reason).str();
}

std::string arena_json(const std::optional<PagerInfo> & pager) {
    if (!pager) {
        return "null";
    }
    return JsonObject()
        .number("bytes", pager->arena_bytes)
        .number("slots", pager->slots)
        .number("slot_bytes", pager->classes.back().slot_bytes)
        .raw("classes", pager->classes_json())
        .number("coverage", pager->coverage)
        .number("capacity_bytes", pager->capacity_bytes)
        .number("cycle_bytes", pager->cycle.bytes)
        .str();
}

std::string budget_json(const std::optional<RamBudget> & budget) {
    if (!budget) {
        return "null";
    }
    return JsonObject()
        .number("ram_budget_bytes", budget->ram_budget_bytes)
        .number("reserve_bytes", budget->reserve_bytes)
        .number("reserve_measured_bytes", budget->reserve_measured_bytes)
        .str();
}

std::optional<double> rate(uint64_t tokens, double wall_ms) {
    return tokens > 0 && wall_ms > 0 ? std::optional<double>(1000.0 * static_cast<double>(tokens) / wall_ms)
                                     : std::nullopt;
}

}  // namespace

std::string start_line(const StartReport & report) {
    return JsonObject()
        .text("type", std::string("start"))
        .text("engine", std::string("moe-engine"))
        .text("version", engine_version())
        .text("build_id", engine_build_id())
        .text("llama_cpp", std::string(llama_version()))
        .text("system_info", std::string(llama_print_system_info()))
        .number("unix_s", static_cast<int64_t>(std::time(nullptr)))
        .number("pid", static_cast<int64_t>(getpid()))
        .raw("model", model_json(report))
        .text("mode", std::string(report.options.moe_stream ? "stream" : "plain"))
        .raw("config", config_json(report.options))
        .raw("direct_io", direct_io_json(report.pager))
        .raw("arena", arena_json(report.pager))
        .raw("forced_routes", forced_json(report.forced))
        .raw("budget", budget_json(report.budget))
        .raw("memory", report.plan.json())
        .number("load_s", report.load_s)
        .str();
}

std::string prefill_line(uint64_t n_prompt, const CallCost & cost) {
    JsonObject object;
    object.text("type", std::string("prefill")).number("n_prompt", n_prompt);
    add_cost(object, cost);
    return object.str();
}

std::string chunk_line(uint64_t chunk, const NllStatistics & so_far, const CallCost & cost) {
    JsonObject object;
    object.text("type", std::string("chunk"))
        .number("chunk", chunk)
        .number("tokens", so_far.tokens())
        .number("nll", so_far.mean())
        .number("perplexity", so_far.perplexity());
    add_cost(object, cost);
    return object.str();
}

std::string token_line(uint64_t token, int32_t id, const std::string & bytes, const CallCost & cost) {
    static const char digits[] = "0123456789abcdef";
    std::string hex;
    for (const char c : bytes) {
        const unsigned char byte = static_cast<unsigned char>(c);
        hex += digits[byte >> 4];
        hex += digits[byte & 15];
    }
    JsonObject object;
    object.text("type", std::string("token")).number("token", token).number("id", id).text("text_hex", hex);
    add_cost(object, cost);
    return object.str();
}

std::string summary_line(const SummaryReport & report) {
    CallCost total = report.prefill;
    total += report.decode;
    return JsonObject()
        .text("type", std::string("summary"))
        .number("tokens", report.tokens)
        .text("stopped_by", report.stopped_by)
        .number("decode_wall_ms", report.decode.wall_ms)
        .number("tok_s", rate(report.tokens, report.decode.wall_ms))
        .number("prefill_tok_s", rate(report.n_prompt, report.prefill.wall_ms))
        .number("load_s", report.load_s)
        .raw("decode", cost_json(report.decode))
        .raw("prefill", cost_json(report.prefill))
        .raw("total", cost_json(total))
        .text("ids_sha256", report.ids_sha256)
        .text("logits_sha256", report.logits_sha256)
        .number("anon_peak_bytes", report.anon_peak_bytes)
        .raw("given", given_json(report.given))
        .raw("perplexity", report.perplexity ? report.perplexity->json() : "null")
        .raw("prediction", report.prediction != nullptr ? report.prediction->json() : "null")
        .raw("predictor_disarmed", report.watchdog != nullptr ? report.watchdog->json() : "null")
        .str();
}

}  // namespace moe
