// The executor on a layer's graph of our own, with reads that can be held back.
#include "executor.h"
#include "slot_layout.h"

#include "check.h"
#include "decoding.h"
#include "read_bench.h"

#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

using namespace moe;

namespace {

// Holds back the reads of one expert until the compute side has begun a matmul. A compute side that waits for all reads
// first would wait for ever, were it not for the time limit, which only a failing test reaches.
class Hold {
public:
    void expert(uint32_t e) {
        const std::lock_guard<std::mutex> lock(mutex_);
        held_ = e;
        begun_ = timed_out_ = false;
    }
    void on_read(const IoEvent & event) {
        std::unique_lock<std::mutex> lock(mutex_);
        if (event.request.tag.expert == held_ &&
            !begun_cv_.wait_for(lock, std::chrono::seconds(60), [this] { return begun_; })) {
            timed_out_ = true;
        }
    }
    void on_matmul() {
        const std::lock_guard<std::mutex> lock(mutex_);
        begun_ = true;
        begun_cv_.notify_all();
    }
    bool timed_out() {
        const std::lock_guard<std::mutex> lock(mutex_);
        return timed_out_;
    }

private:
    std::mutex mutex_;
    std::condition_variable begun_cv_;
    uint32_t held_ = UINT32_MAX;
    bool begun_ = false;
    bool timed_out_ = false;
};

// A CPU backend that notes which matmuls by experts it is given, and of how many rows.
struct SpyBackend {
    explicit SpyBackend(Hold & h) : hold(h) {
        backend.context = this;
        backend.device = cpu->device;
        backend.iface.get_name = [](ggml_backend_t) { return "spy"; };
        backend.iface.graph_compute = [](ggml_backend_t self, ggml_cgraph * graph) {
            auto & spy = *static_cast<SpyBackend *>(self->context);
            for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
                const ggml_tensor * node = ggml_graph_node(graph, i);
                if (node->op == GGML_OP_MUL_MAT_ID) {
                    spy.rows.push_back(ggml_nelements(node->src[2]));
                    spy.hold.on_matmul();
                }
            }
            return ggml_backend_graph_compute(spy.cpu, graph);
        };
    }
    ~SpyBackend() { ggml_backend_free(cpu); }

    Hold & hold;
    ggml_backend_t cpu = ggml_backend_cpu_init();
    ggml_backend backend{};
    std::vector<int64_t> rows;  // of each matmul, in the order of execution
};

// The experts of a layer as llama.cpp's graph has them, routed by hand.
class Layer {
public:
    explicit Layer(const MoeBlock & block) {
        ggml_init_params params{};
        params.mem_size = size_t{1} << 20;
        ctx_ = ggml_init(params);
        ids_ = ggml_new_tensor_2d(ctx_, GGML_TYPE_I32, 2, 1);
        ggml_tensor * x = ggml_new_tensor_3d(ctx_, GGML_TYPE_F32, block.parts[0].n_in, 1, 1);
        for (int64_t i = 0; i < x->ne[0]; ++i) {
            static_cast<float *>(x->data)[i] = 0.01F * static_cast<float>(i % 7);
        }
        ggml_tensor * gate = multiply(block, 0, x);
        ggml_tensor * up = multiply(block, 1, x);
        out_ = multiply(block, 2, ggml_mul(ctx_, gate, up));
        graph_ = ggml_new_graph(ctx_);
        ggml_build_forward_expand(graph_, out_);
    }
    ~Layer() { ggml_free(ctx_); }
    Layer(const Layer &) = delete;
    Layer & operator=(const Layer &) = delete;

    std::vector<float> run(Executor & executor, ggml_backend_t cpu, int32_t first, int32_t second) {
        route(first, second);
        executor.compute(graph_, cpu);
        const auto * values = static_cast<const float *>(out_->data);
        return {values, values + ggml_nelements(out_)};
    }

    // The first matmul, and then no more of the graph.
    void begin(Executor & executor, ggml_backend_t cpu, int32_t first, int32_t second) {
        route(first, second);
        ggml_cgraph start = ggml_graph_view(graph_, 0, 1);
        executor.compute(&start, cpu);
    }

private:
    void route(int32_t first, int32_t second) {
        static_cast<int32_t *>(ids_->data)[0] = first;
        static_cast<int32_t *>(ids_->data)[1] = second;
    }
    ggml_tensor * multiply(const MoeBlock & block, size_t part, ggml_tensor * x) {
        const ExpertPart & p = block.parts[part];
        ggml_set_no_alloc(ctx_, true);
        ggml_tensor * w = ggml_new_tensor_3d(ctx_, GGML_TYPE_F16, p.n_in, p.n_out, block.n_expert);
        ggml_set_no_alloc(ctx_, false);
        ggml_set_name(w, p.tensor.c_str());
        return ggml_mul_mat_id(ctx_, w, x, ids_);
    }

    ggml_context * ctx_ = nullptr;
    ggml_tensor * ids_ = nullptr;
    ggml_tensor * out_ = nullptr;
    ggml_cgraph * graph_ = nullptr;
};

void a_resident_expert_is_computed_while_another_is_read() {
    const TempDir dir;
    const Catalog catalog = Catalog::read(tiny::write(decoding::model(GGML_TYPE_F16, 1), dir.file("m")));
    const SlotLayout layout(catalog);
    const ShardFiles files(catalog.shards(), true);
    Layer layer(catalog.block(0));
    std::vector<float> results[2];
    for (const bool overlap : {false, true}) {
        Hold hold;
        SpyBackend spy(hold);
        IoPool io(files, 2, [&](const IoEvent & event) { hold.on_read(event); });
        ExpertStore store(catalog, layout, io, decoding::store_options(layout, 4));
        ExecutorOptions options;
        options.overlap = overlap;
        Executor executor(catalog, store, options, nullptr, nullptr);

        layer.run(executor, &spy.backend, 3, 5);
        spy.rows.clear();
        if (overlap) {
            hold.expert(6);
        }
        const double stall_ms = executor.counters().stall_ms;
        results[overlap ? 1 : 0] = layer.run(executor, &spy.backend, 5, 6);
        CHECK(!hold.timed_out());
        CHECK(executor.counters().stall_ms > stall_ms);
        CHECK(store.counters().hits == 1 && store.counters().misses == 3);
        if (overlap) {
            // The resident expert alone, then the other; what came meanwhile is computed in one piece.
            CHECK(spy.rows.size() >= 4 && spy.rows[0] == 1 && spy.rows[1] == 1);
        } else {
            CHECK((spy.rows == std::vector<int64_t>{2, 2, 2}));
        }
    }
    CHECK(!results[0].empty() && results[0] == results[1]);
}

// Its experts were on their way, and are not there because it was begun: only those are of which all was read before it
// was abandoned. Returns whether one was cut off; whoever abandons it may not be running until all has been read.
bool an_abandoned_graph_cuts_off_an_expert() {
    const TempDir dir;
    const Catalog catalog = Catalog::read(tiny::write(decoding::model(GGML_TYPE_F16, 1), dir.file("m")));
    const SlotLayout layout(catalog);
    const ShardFiles files(catalog.shards(), true);
    Layer layer(catalog.block(0));
    Gate gate;
    IoPool io(files, 1, std::ref(gate));
    ExpertStore store(catalog, layout, io, decoding::store_options(layout, 8));
    ExecutorOptions options;
    options.overlap = true;
    Executor executor(catalog, store, options, nullptr, nullptr);
    const std::unique_ptr<ggml_backend, decltype(&ggml_backend_free)> cpu(ggml_backend_cpu_init(), ggml_backend_free);

    gate.let_pass(2);  // both gate matrices
    layer.begin(executor, cpu.get(), 3, 5);
    gate.await_arrivals(3);
    std::thread lane([&] {
        gate.let_pass(1);
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        gate.open();
    });
    layer.run(executor, cpu.get(), 1, 2);
    lane.join();
    const std::vector<uint32_t> read = gate.experts();
    uint64_t cut_off = 0;
    for (const uint32_t expert : {3U, 5U}) {
        const bool whole = std::count(read.begin(), read.end(), expert) == 3;
        CHECK(store.resident(0, expert) == whole);
        cut_off += whole ? 0 : 1;
    }
    const std::vector<float> late = layer.run(executor, cpu.get(), 3, 5);
    CHECK(late == layer.run(executor, cpu.get(), 3, 5));
    CHECK(store.counters().misses == 4 + cut_off);
    CHECK(std::any_of(late.begin(), late.end(), [](float v) { return v != 0; }));
    return cut_off > 0;
}

void an_abandoned_graph_leaves_no_half_read_experts() {
    bool seen = false;
    for (int round = 0; round < 20 && !seen; ++round) {
        seen = an_abandoned_graph_cuts_off_an_expert();
    }
    CHECK(seen);
}

}  // namespace

int main() {
    decoding::quiet_log();
    check::run("a resident expert is computed while another is read",
               a_resident_expert_is_computed_while_another_is_read);
    check::run("an abandoned graph leaves no half-read experts", an_abandoned_graph_leaves_no_half_read_experts);
    return check::result();
}
