#include "pager.h"

#include "cache_shape.h"
#include "catalog.h"
#include "dense_buffer.h"
#include "dense_mapping.h"
#include "expert_store.h"
#include "io_pool.h"
#include "json.h"
#include "load_scope.h"
#include "pager_stats.h"
#include "paging_device.h"
#include "shard_files.h"
#include "slot_layout.h"

#include "ggml-cpu.h"

#include <algorithm>
#include <vector>

namespace moe {

namespace {

class PagerImpl final : public Pager, private PagedModel {
public:
    explicit PagerImpl(const PagerOptions & options)
        : options_(options),
          catalog_(Catalog::read(options.model_path)),
          files_(catalog_.shards(), options.direct_io),
          layout_(catalog_),
          dense_(catalog_, files_),
          forced_(read_forced_routes()),
          shape_(shape_cache(layout_.blocks(), forced_ ? &*forced_ : nullptr,
                             {options.arena_bytes.value_or(options.cache_bytes), options.arena_bytes.has_value(), top_k()})) {
        if (options.arena_bytes && *options.arena_bytes < shape_.least_arena_bytes) {
            throw Error(ExitCode::memory, "an arena of " + std::to_string(*options.arena_bytes) +
                                              " bytes does not hold an expert of " +
                                              std::to_string(shape_.least_arena_bytes) + " bytes");
        }
        if (options.io_threads < 1 || options.io_threads > IoPool::kMaxLanes) {
            throw Error(ExitCode::usage, "I/O threads must be 1 to " + std::to_string(IoPool::kMaxLanes));
        }
        if (!options.measure_only) {
            open_traces();
        }
    }

    void configure(llama_model_params & params) override {
        overrides_.clear();
        overrides_.push_back({kExpertTensorPattern, expert_buffer_type()});
        if (options_.dense == DensePolicy::anon) {
            dense_pattern_ = dense_.pattern();
            overrides_.push_back({dense_pattern_.c_str(), dense_.handle()});
        }
        overrides_.push_back({nullptr, nullptr});
        params.tensor_buft_overrides = overrides_.data();
        params.load_mode = LLAMA_LOAD_MODE_MMAP;
        // The kernels of a repacked weight would be others than those of the experts in their slots.
        params.use_extra_bufts = false;
        // Would read every weight through the mapping.
        params.check_tensors = false;
        loading_.emplace(static_cast<PagedModel &>(*this));
    }

    void finish_loading(const llama_model * model) override {
        loading_.reset();
        if (model == nullptr) {
            throw Error(ExitCode::model, options_.model_path + ": llama.cpp could not load the model");
        }
        if (!dense_.failure().empty()) {
            throw Error(ExitCode::io, dense_.failure());
        }
        if (options_.dense != DensePolicy::anon) {
            prefetch_dense_mapping(catalog_);
        }
        if (options_.dense == DensePolicy::warm) {
            sweep_dense_mapping(catalog_);
        }
        io_.emplace(files_, options_.io_threads, io_trace_ ? record_reads() : IoPool::Observer());
        store_.emplace(catalog_, layout_, *io_, StoreOptions{shape_.arena, shape_.regions,
                                                           options_.arena_bytes || options_.cache_bytes != 0,
                                                           options_.arena_bytes.has_value(), options_.evict});
        if (needs_policy()) {
            RoutingOptions routing;
            routing.drop = options_.drop;
            routing.drop_in_prefill = options_.drop_in_prefill;
            routing.foresight = options_.foresight;
            routing.forced = forced_ ? &*forced_ : nullptr;
            routing.trace = route_trace_ ? &*route_trace_ : nullptr;
            policy_.emplace(catalog_, *store_, routing);
        }
        executor_.emplace(catalog_, *store_, options_.executor, policy_ ? &*policy_ : nullptr,
                          tracer_ ? &*tracer_ : nullptr);
        if (stats_) {
            stats_->arena(info(), options_, top_k());
        }
    }

    void set_threadpool(ggml_threadpool * pool, int n_threads) override {
        threadpool_ = pool;
        threadpool_size_ = n_threads;
    }

    void watch(NodeWatcher * watcher) override { executor_->watch(watcher); }

    void release_model() override {
        if (policy_) {
            policy_->stop_ranking();
        }
    }

    void begin_call(const CallInfo & call) override {
        call_ = call;
        if (policy_) {
            policy_->begin_call(call);
        }
    }

    void end_call() override {
        if (route_trace_) {
            route_trace_->flush();
        }
        if (io_trace_) {
            io_events_.take(io_records_);
            io_trace_->write(call_, io_records_);
            for (const IoRecord & record : io_records_) {
                traced_.reads += 1;
                traced_.read_bytes += record.read_bytes;
                traced_.speculative_read_bytes += record.speculative ? record.read_bytes : 0;
            }
        }
        if (compute_trace_) {
            compute_trace_->write(call_, tracer_->take());
        }
        if (stats_) {
            stats_->pass(call_, counters());
        }
    }

    void close_traces() override {
        if (route_trace_) {
            route_trace_->close();
        }
        if (io_trace_) {
            io_trace_->close();
        }
        if (compute_trace_) {
            compute_trace_->close();
        }
        if (stats_) {
            stats_->close(resident_slots());
        }
    }

    const ForcedRoutes * forced_routes() const override { return forced_ ? &*forced_ : nullptr; }

    const PredictionScore * prediction() const override { return policy_ ? policy_->foresight().score() : nullptr; }

    const ControlWatchdog * watchdog() const override {
        return policy_ && options_.foresight.predict ? &policy_->foresight().watchdog() : nullptr;
    }

    PagerInfo info() const override {
        PagerInfo info;
        info.direct_io = files_.direct();
        info.direct_io_reason = files_.reason();
        info.slots = shape_.arena.n_slots();
        info.arena_bytes = shape_.arena_bytes;
        info.least_arena_bytes = shape_.least_arena_bytes;
        info.coverage = shape_.coverage;
        for (const ExpertSize & size : shape_.classes) {
            const auto region = region_of(size);
            info.classes.push_back(
                {size.slot_bytes, region != shape_.regions.end() ? region->slots : 0, size.experts});
        }
        // Reads go straight into the slots; the step buffer of anonymous dense weights is gone before there is an arena.
        info.io_buffer_bytes = matmul_scratch_bytes(&shape_.regions) + trace_bytes();
        info.io_buffer_most_bytes = matmul_scratch_bytes(nullptr) + trace_bytes();
        info.thread_stack_bytes = static_cast<uint64_t>(options_.io_threads) * IoPool::kStackBytes +
                                  (ranks_ahead() ? RankingThread::kStackBytes : 0);
        info.dense_anon_bytes = options_.dense == DensePolicy::anon ? dense_.bytes() : 0;
        info.expert_bytes = catalog_.expert_bytes();
        info.expert_bytes_max = catalog_.expert_bytes_max();
        info.n_moe_layer = catalog_.n_moe_layer();
        info.n_expert = catalog_.n_expert();
        info.n_keys = catalog_.n_keys();
        info.capacity_bytes = std::min(options_.arena_bytes.value_or(options_.cache_bytes), shape_.whole_bytes);
        info.whole_bytes = shape_.whole_bytes;
        info.cycle = shape_.cycle;
        info.cache_slots = shape_.arena.slots;
        info.holds_cycle = shape_.holds_cycle;
        return info;
    }

    PagerCounters counters() const override {
        PagerCounters counters;
        if (!executor_) {
            return counters;
        }
        const ExecutorCounters e = executor_->counters();
        const StoreCounters store = store_->counters();
        IoCounters io = io_->counters();
        if (io_trace_) {
            // Speculation may be in flight: count what the trace has, so that both agree to the byte.
            io.reads = traced_.reads;
            io.read_bytes = traced_.read_bytes;
            io.speculative_read_bytes = traced_.speculative_read_bytes;
        }
        counters.requests = e.requests;
        counters.hits = store.hits;
        counters.misses = store.misses;
        counters.evictions = store.evictions.total();
        counters.eviction_groups = store.evictions;
        counters.resident_bytes = store.resident_bytes;
        counters.stall_ms = e.stall_ms;
        counters.manage_ms = e.manage_ms;
        counters.reads = io.reads;
        counters.read_bytes = io.read_bytes;
        counters.io_ms = io.io_ms;
        if (options_.foresight.prefetch > 0 || options_.foresight.predict) {
            counters.foresight = PagerCounters::Foresight{io.speculative_read_bytes, store.speculated,
                                                          store.speculated_useful, store.retained};
        }
        if (options_.drop) {
            counters.drops = policy_->drops();
        }
        return counters;
    }

    std::optional<Error> last_error() const override { return last_error_; }

private:
    ggml_status compute_graph(ggml_cgraph * graph, ggml_backend_t cpu, int n_threads) noexcept override {
        try {
            if (threadpool_ != nullptr) {
                n_threads = std::min(n_threads, threadpool_size_);
            }
            ggml_backend_cpu_set_n_threads(cpu, n_threads);
            ggml_backend_cpu_set_threadpool(cpu, threadpool_);
            if (!executor_) {
                throw Error(ExitCode::other, "decoding before finish_loading()");
            }
            executor_->compute(graph, cpu);
            last_error_.reset();
            return GGML_STATUS_SUCCESS;
        } catch (const Error & error) {
            last_error_ = error;
        } catch (const std::exception & error) {
            last_error_ = Error(ExitCode::other, error.what());
        }
        return GGML_STATUS_FAILED;
    }

    // Its memory; a cache that counts in another model's sizes has only one region.
    std::vector<SlotRegion>::const_iterator region_of(const ExpertSize & size) const {
        return std::find_if(shape_.regions.begin(), shape_.regions.end(),
                            [&](const SlotRegion & r) { return r.slot_bytes == size.slot_bytes; });
    }

    uint32_t top_k() const { return options_.expert_used != 0 ? options_.expert_used : catalog_.n_expert_used(); }

    uint64_t pairs_of_a_batch() const { return uint64_t{options_.n_batch} * top_k(); }

    // Beside the matmuls' buffers also the lists of who is routed where, of which some are held at a time. nullptr: for
    // whatever slots make it most.
    uint64_t matmul_scratch_bytes(const std::vector<SlotRegion> * regions) const {
        uint64_t most = 0;
        for (const MoeBlock & block : catalog_.blocks()) {
            for (const ExpertPart & part : block.parts) {
                // With overlap experts are multiplied by as they arrive: no call covers them all.
                const bool whole = regions != nullptr && !options_.executor.overlap;
                most = std::max(most, whole ? ExpertMatmul::scratch_bytes(part.n_in, part.n_out, block.n_expert, *regions,
                                                                            options_.n_batch, top_k())
                                              : ExpertMatmul::scratch_bytes_most(part.n_in, part.n_out, catalog_.n_keys(),
                                                                                 options_.n_batch, top_k()));
            }
        }
        constexpr uint64_t list_bytes_of_a_pair = 64;
        return most + pairs_of_a_batch() * list_bytes_of_a_pair;
    }

    // Of one decode, until it is written.
    uint64_t trace_bytes() const {
        uint64_t bytes = options_.route_trace.empty() ? 0 : RouteTrace::memory_bytes(pairs_of_a_batch());
        if (!options_.io_trace.empty()) {
            uint64_t reads = 0;
            for (const MoeBlock & block : catalog_.blocks()) {
                reads += std::min<uint64_t>(pairs_of_a_batch(), block.n_expert) * block.parts.size();
            }
            // Reading ahead comes on top of what is needed.
            bytes += IoTrace::memory_bytes(reads * (ranks_ahead() || options_.foresight.prefetch > 0 ? 2 : 1));
        }
        if (!options_.compute_trace.empty()) {
            constexpr uint64_t nodes_of_a_layer = 256;  // laguna has 66
            bytes += ComputeTrace::memory_bytes(catalog_.layer_bytes().size() * nodes_of_a_layer);
        }
        return bytes;
    }

    // Of the model's size classes, as in PagerInfo.
    std::vector<uint64_t> resident_slots() const {
        const std::vector<uint32_t> resident = store_->resident_slots();  // by region
        std::vector<uint64_t> slots;
        for (const ExpertSize & size : shape_.classes) {
            const auto region = region_of(size);
            const auto r = static_cast<size_t>(region - shape_.regions.begin());
            slots.push_back(r < resident.size() ? resident[r] : 0);
        }
        return slots;
    }

    bool ranks_ahead() const { return options_.foresight.predict || options_.foresight.log; }

    bool needs_policy() const {
        return options_.drop || ranks_ahead() || options_.foresight.prefetch > 0 || forced_ || route_trace_;
    }

    std::optional<ForcedRoutes> read_forced_routes() const {
        if (options_.forced_routes.empty()) {
            return std::nullopt;
        }
        return ForcedRoutes::read(options_.forced_routes, catalog_.blocks(), top_k());
    }

    // Of every layer of the model; empty where the cache counts other bytes.
    std::vector<uint64_t> slot_bytes_of_layers() const {
        std::vector<uint64_t> bytes(forced_ ? 0 : catalog_.layer_bytes().size());
        for (uint32_t b = 0; !forced_ && b < catalog_.blocks().size(); ++b) {
            uint64_t & layer = bytes[catalog_.block(b).layer];
            layer = layer != 0 ? layer : layout_.blocks()[b].slot_bytes;  // as for bytes, of the set that is routed
        }
        return bytes;
    }

    void open_traces() {
        if (!options_.route_trace.empty()) {
            route_trace_.emplace(options_.route_trace,
                                 RouteTraceHead{options_.model_path, options_.arch, catalog_.n_expert(), top_k(),
                                                catalog_.layer_bytes(), slot_bytes_of_layers()});
        }
        const RunTraceHead head{options_.model_path, options_.arch, static_cast<uint32_t>(catalog_.layer_bytes().size()),
                                options_.n_threads,  options_.io_threads, files_.direct(), options_.executor.overlap};
        if (!options_.io_trace.empty()) {
            io_trace_.emplace(options_.io_trace, head);
        }
        if (!options_.compute_trace.empty()) {
            compute_trace_.emplace(options_.compute_trace, head);
            tracer_.emplace(options_.compute_grain);
        }
        if (!options_.stats.empty()) {
            stats_.emplace(options_.stats);
        }
    }

    IoPool::Observer record_reads() {
        return [this](const IoEvent & event) {
            IoRecord record;
            record.layer = event.request.tag.layer;
            record.expert = event.request.tag.expert;
            record.part = event.request.tag.part;
            record.lane = static_cast<uint32_t>(event.lane);
            record.speculative = event.speculative;
            record.offset = event.request.offset;
            record.req_bytes = event.request.size;
            record.read_bytes = event.read_bytes;
            record.latency_ns = static_cast<uint64_t>(event.latency_ns);
            io_events_.push(record);
        };
    }

    const PagerOptions options_;
    const Catalog catalog_;
    const ShardFiles files_;
    const SlotLayout layout_;
    DenseBufferType dense_;
    const std::optional<ForcedRoutes> forced_;
    const CacheShape shape_;

    std::vector<llama_model_tensor_buft_override> overrides_;
    std::string dense_pattern_;
    std::optional<LoadScope> loading_;

    std::optional<RouteTrace> route_trace_;
    std::optional<IoTrace> io_trace_;
    std::optional<ComputeTrace> compute_trace_;
    std::optional<ComputeTracer> tracer_;
    std::optional<PagerStats> stats_;
    IoTraceBuffer io_events_;
    std::vector<IoRecord> io_records_;
    IoCounters traced_;  // of the records written: reads and bytes only

    std::optional<IoPool> io_;
    std::optional<ExpertStore> store_;
    std::optional<RoutingPolicy> policy_;
    std::optional<Executor> executor_;
    CallInfo call_;
    ggml_threadpool * threadpool_ = nullptr;
    int threadpool_size_ = 0;
    std::optional<Error> last_error_;
};

}  // namespace

std::string PagerInfo::classes_json() const {
    std::string list;
    for (const SlotClass & c : classes) {
        list += (list.empty() ? "" : ",") + JsonObject()
                                                .number("slot_bytes", c.slot_bytes)
                                                .number("slots", c.slots)
                                                .number("experts", c.experts)
                                                .str();
    }
    return "[" + list + "]";
}

std::unique_ptr<Pager> Pager::open(const PagerOptions & options) { return std::make_unique<PagerImpl>(options); }

}  // namespace moe
