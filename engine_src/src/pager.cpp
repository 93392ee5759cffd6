#include "pager.h"

#include "catalog.h"
#include "dense_buffer.h"
#include "dense_mapping.h"
#include "executor.h"
#include "io_pool.h"
#include "load_scope.h"
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
          n_slots_(choose_slots()) {
        if (options.io_threads < 1 || options.io_threads > IoPool::kMaxLanes) {
            throw Error(ExitCode::usage, "I/O threads must be 1 to " + std::to_string(IoPool::kMaxLanes));
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
        if (options_.dense == DensePolicy::mmap) {
            prefetch_dense_mapping(catalog_);
        }
        io_.emplace(files_, options_.io_threads);
        executor_.emplace(catalog_, layout_, *io_, n_slots_, options_.cache_bytes != 0);
    }

    void set_threadpool(ggml_threadpool * pool, int n_threads) override {
        threadpool_ = pool;
        threadpool_size_ = n_threads;
    }

    PagerInfo info() const override {
        PagerInfo info;
        info.direct_io = files_.direct();
        info.direct_io_reason = files_.reason();
        info.slots = n_slots_;
        info.slot_bytes = layout_.stride();
        info.arena_bytes = n_slots_ * layout_.stride();
        // Reads go straight into the slots; the step buffer of anonymous dense weights is gone before there is an arena.
        info.io_buffer_bytes = matmul_scratch_bytes();
        info.thread_stack_bytes = static_cast<uint64_t>(options_.io_threads) * IoPool::kStackBytes;
        info.dense_anon_bytes = options_.dense == DensePolicy::anon ? dense_.bytes() : 0;
        info.expert_bytes = catalog_.expert_bytes();
        info.expert_bytes_max = catalog_.expert_bytes_max();
        info.n_moe_layer = catalog_.n_moe_layer();
        info.n_expert = catalog_.n_expert();
        return info;
    }

    PagerCounters counters() const override {
        PagerCounters counters;
        if (executor_) {
            const ExecutorCounters e = executor_->counters();
            const IoCounters io = io_->counters();
            counters.requests = e.requests;
            counters.hits = e.hits;
            counters.misses = e.misses;
            counters.evictions = e.evictions;
            counters.stall_ms = e.stall_ms;
            counters.manage_ms = e.manage_ms;
            counters.reads = io.reads;
            counters.read_bytes = io.read_bytes;
            counters.io_ms = io.io_ms;
        }
        return counters;
    }

    std::optional<Error> last_error() const override { return last_error_; }

private:
    ggml_status compute_node(ggml_tensor * node, ggml_backend_t cpu, int n_threads) noexcept override {
        try {
            if (threadpool_ != nullptr) {
                n_threads = std::min(n_threads, threadpool_size_);
            }
            ggml_backend_cpu_set_n_threads(cpu, n_threads);
            ggml_backend_cpu_set_threadpool(cpu, threadpool_);
            if (!executor_) {
                throw Error(ExitCode::other, "decoding before finish_loading()");
            }
            executor_->compute(node, cpu);
            last_error_.reset();
            return GGML_STATUS_SUCCESS;
        } catch (const Error & error) {
            last_error_ = error;
        } catch (const std::exception & error) {
            last_error_ = Error(ExitCode::other, error.what());
        }
        return GGML_STATUS_FAILED;
    }

    uint32_t top_k() const { return options_.expert_used != 0 ? options_.expert_used : catalog_.n_expert_used(); }

    uint64_t matmul_scratch_bytes() const {
        uint64_t most = 0;
        for (const MoeBlock & block : catalog_.blocks()) {
            for (const ExpertPart & part : block.parts) {
                most = std::max(most, ExpertMatmul::scratch_bytes(part.n_in, part.n_out, block.n_expert, n_slots_,
                                                                  options_.n_batch, top_k()));
            }
        }
        return most;
    }

    // As many slots as the arena's size allows: at least what one token needs in one layer, at most every expert.
    uint32_t choose_slots() const {
        const uint64_t least = std::min<uint64_t>(top_k(), catalog_.n_expert());
        const uint64_t wanted = options_.cache_bytes / layout_.stride();
        return static_cast<uint32_t>(std::min<uint64_t>(std::max(wanted, least), catalog_.n_keys()));
    }

    const PagerOptions options_;
    const Catalog catalog_;
    const ShardFiles files_;
    const SlotLayout layout_;
    DenseBufferType dense_;
    const uint32_t n_slots_;

    std::vector<llama_model_tensor_buft_override> overrides_;
    std::string dense_pattern_;
    std::optional<LoadScope> loading_;

    std::optional<IoPool> io_;
    std::optional<Executor> executor_;
    ggml_threadpool * threadpool_ = nullptr;
    int threadpool_size_ = 0;
    std::optional<Error> last_error_;
};

}  // namespace

std::unique_ptr<Pager> Pager::open(const PagerOptions & options) { return std::make_unique<PagerImpl>(options); }

}  // namespace moe
