#include "executor.h"

#include "clock.h"
#include "error.h"

#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace moe {

namespace {

// The routed experts in the order in which the batch last uses them: what the last token needs is the last to be
// evicted.
std::vector<uint32_t> by_last_use(const Routing & routing) {
    std::vector<uint32_t> experts;
    std::vector<bool> seen(routing.first_pair.size(), false);
    for (size_t pair = routing.ids.size(); pair-- > 0;) {
        const auto expert = static_cast<uint32_t>(routing.ids[pair]);
        if (!seen[expert]) {
            seen[expert] = true;
            experts.push_back(expert);
        }
    }
    std::reverse(experts.begin(), experts.end());
    return experts;
}

}  // namespace

Executor::Executor(const Catalog & catalog, ExpertStore & store, const ExecutorOptions & options,
                   RoutingObserver * observer, ComputeTracer * trace)
    : catalog_(catalog), store_(store), options_(options), observer_(observer), trace_(trace) {}

Executor::~Executor() = default;

void Executor::compute(ggml_cgraph * graph, ggml_backend_t cpu) {
    const int64_t begin = now_ns();
    compute_ns_ = 0;
    stall_ns_ = 0;
    const int64_t store_waited_ns = store_.waited_ns();
    graph_ = graph;
    cpu_ = cpu;
    store_.begin_pass();
    try {
        run(graph);
    } catch (...) {
        end_passes();
        throw;
    }
    stall_ns_ += store_.waited_ns() - store_waited_ns;
    counters_.stall_ms += ns_to_ms(stall_ns_);
    counters_.manage_ms += ns_to_ms(now_ns() - begin - stall_ns_ - compute_ns_);
}

void Executor::run(ggml_cgraph * graph) {
    moe_ = MoeGraph::read(graph, catalog_, observer_ != nullptr ? observer_->wants() : MoeGraph::Wanted{});
    if (observer_ != nullptr) {
        observer_->on_graph(moe_);
    }
    int next = 0;  // first node that is not computed yet
    for (const MoeStop & stop : moe_.stops) {
        const MoeBlockNodes & nodes = moe_.blocks[stop.block];
        if (stop.kind != MoeStop::Kind::expert_matmul) {
            run_nodes(next, stop.node + 1);
            next = stop.node + 1;
            if (stop.kind == MoeStop::Kind::router_input) {
                observer_->on_router_input(nodes, stop.block);
            } else {
                observer_->on_routing(nodes, stop.block);
            }
            continue;
        }
        ggml_tensor * node = ggml_graph_node(graph, stop.node);
        const PartRef ref{stop.block, stop.part};
        if (!continues_pass(node, ref)) {
            run_nodes(next, stop.node);
            next = stop.node;
            end_passes();
            begin_pass(node, ref);
        }
        const bool patched = in_memory(ref.part) && matmul_.patch(node, pass_->routing, pass_->experts->resident,
                                                                  store_.part(ref));
        if (!patched) {
            run_nodes(next, stop.node);
            const bool watched = watcher_ != nullptr && watcher_->wants(*node);
            compute_part(node, ref);
            if (watched) {
                watcher_->computed(*node);
            }
            next = stop.node + 1;
        }
        finish_part(ref);
    }
    run_nodes(next, ggml_graph_n_nodes(graph));
}

// Patched nodes among them. Layers whose last matmul this computes are done with their experts.
void Executor::run_nodes(int begin, int end) {
    while (begin < end) {
        int stop = end;
        const ggml_tensor * watched = nullptr;
        for (int i = begin; watcher_ != nullptr && i < end; ++i) {
            if (const ggml_tensor * node = ggml_graph_node(graph_, i); watcher_->wants(*node)) {
                watched = node;
                stop = i + 1;
                break;
            }
        }
        compute_nodes(begin, stop);
        if (watched != nullptr) {
            watcher_->computed(*watched);
        }
        begin = stop;
    }
    matmul_.restore();
    for (const auto & pass : patched_) {
        store_.end(*pass->experts);
    }
    patched_.clear();
}

void Executor::compute_nodes(int begin, int end) {
    const int64_t start = now_ns();
    if (trace_ != nullptr) {
        trace_->run(*graph_, begin, end, cpu_);
    } else {
        ggml_cgraph view = ggml_graph_view(graph_, begin, end);
        const ggml_status status = ggml_backend_graph_compute(cpu_, &view);
        if (status != GGML_STATUS_SUCCESS) {
            throw Error(ExitCode::other, std::string("the CPU backend failed: ") + ggml_status_to_string(status));
        }
    }
    compute_ns_ += now_ns() - start;
}

bool Executor::continues_pass(const ggml_tensor * node, PartRef ref) const {
    return pass_ != nullptr && pass_->block == ref.block && (pass_->parts_done >> ref.part & 1) == 0 &&
           pass_->routing.equals(node->src[2]);
}

void Executor::begin_pass(const ggml_tensor * node, PartRef ref) {
    const MoeBlockNodes & nodes = moe_.blocks[ref.block];
    if (observer_ != nullptr) {
        observer_->on_weights(nodes, ref.block, node->src[2]);
    }
    auto pass = std::make_unique<Pass>();
    pass->block = ref.block;
    pass->routing = Routing::from_ids(node->src[2], catalog_.block(ref.block).n_expert);
    std::vector<uint32_t> experts;
    std::vector<Residency> residency;
    if (options_.load_all) {
        pass->experts = store_.begin_load_all(ref.block);
        experts = pass->routing.experts;
        residency.assign(experts.size(), Residency::miss);
        counters_.requests += pass->experts->streamed.size();
    } else {
        experts = by_last_use(pass->routing);
        pass->experts = store_.begin(ref.block, experts, ref.part, residency);
        counters_.requests += experts.size();
    }
    pass_ = std::move(pass);
    if (!options_.overlap && !pass_->experts->all_in_memory) {
        wait(pass_->experts->batch);
        pass_->experts->all_in_memory = true;
    }
    if (observer_ != nullptr) {
        observer_->on_experts(nodes, ref.block, experts, residency);
    }
}

// Whether the pass's experts can all be multiplied by without waiting.
bool Executor::in_memory(uint32_t part) {
    LayerExperts & experts = *pass_->experts;
    if (!experts.streamed.empty()) {
        return false;
    }
    if (experts.all_in_memory) {
        return true;
    }
    const std::vector<size_t> & requests = experts.requests[part];
    return std::all_of(requests.begin(), requests.end(), [&](size_t r) {
        return r == LayerExperts::kInMemory || experts.batch.ended(r);
    });
}

// One matmul on its own: first the experts that are there, then the others as their reads end.
void Executor::compute_part(ggml_tensor * node, PartRef ref) {
    LayerExperts & experts = *pass_->experts;
    const int64_t begin = now_ns();
    const uint64_t faults = trace_ != nullptr ? major_faults() : 0;
    if (!experts.all_in_memory) {
        std::vector<ExpertSlot> ready(experts.resident.begin(),
                                      experts.resident.begin() + static_cast<ptrdiff_t>(experts.n_hits));
        size_t first = SIZE_MAX;
        size_t last = 0;
        const std::vector<size_t> & requests = experts.requests[ref.part];
        for (size_t i = 0; i < requests.size(); ++i) {
            if (requests[i] == LayerExperts::kInMemory) {
                ready.push_back(experts.resident[experts.n_hits + i]);
            } else {
                first = std::min(first, requests[i]);
                last = std::max(last, requests[i] + 1);
            }
        }
        multiply(node, ref, ready);
        for (size_t left = first < last ? last - first : 0; left > 0;) {
            std::vector<ExpertSlot> arrived;
            for (const size_t request : wait_new(experts.batch, first, last)) {
                const auto it = std::find(requests.begin(), requests.end(), request);
                arrived.push_back(experts.resident[experts.n_hits + static_cast<size_t>(it - requests.begin())]);
            }
            if (arrived.empty()) {
                throw Error(ExitCode::other, std::string(node->name) + ": an expert's read was given up");
            }
            multiply(node, ref, arrived);
            left -= arrived.size();
        }
    } else {
        multiply(node, ref, experts.resident);
    }
    if (!experts.streamed.empty()) {
        compute_streamed(node, ref);
    }
    if (trace_ != nullptr) {
        trace_->add(*node, now_ns() - begin, major_faults() - faults);
    }
}

// The node's experts pass through the stream slots in groups, each reading its part while the group before it is
// computed. Only this node's part is read, so that over the whole pass every part is read once.
void Executor::compute_streamed(ggml_tensor * node, PartRef ref) {
    const LayerExperts & experts = *pass_->experts;
    const size_t n_banks = experts.stream_slots.size() >= 2 ? 2 : 1;
    const size_t group = experts.stream_slots.size() / n_banks;
    const size_t n_groups = (experts.streamed.size() + group - 1) / group;

    std::vector<ExpertSlot> members[2];
    std::unique_ptr<ReadBatch> batches[2];
    const auto start_reading = [&](size_t g) {
        const size_t bank = g % n_banks;
        const size_t first = g * group;
        const size_t last = std::min(first + group, experts.streamed.size());
        members[bank].clear();
        std::vector<ReadRequest> requests;
        for (size_t i = first; i < last; ++i) {
            const ExpertSlot s{experts.streamed[i], experts.stream_slots[bank * group + (i - first)]};
            members[bank].push_back(s);
            requests.push_back(store_.request(ref, s.expert, s.slot));
        }
        batches[bank] = store_.read(requests);
    };

    start_reading(0);
    for (size_t g = 0; g < n_groups; ++g) {
        if (n_banks == 2 && g + 1 < n_groups) {
            start_reading(g + 1);
        }
        const size_t bank = g % n_banks;
        wait(*batches[bank]);
        multiply(node, ref, members[bank]);
        if (n_banks == 1 && g + 1 < n_groups) {
            start_reading(g + 1);
        }
    }
}

void Executor::multiply(ggml_tensor * node, PartRef ref, const std::vector<ExpertSlot> & where) {
    if (where.empty()) {
        return;
    }
    const int64_t begin = now_ns();
    matmul_.run(node, pass_->routing, where, store_.part(ref), cpu_);
    compute_ns_ += now_ns() - begin;
}

void Executor::finish_part(PartRef ref) {
    pass_->parts_done |= uint64_t{1} << ref.part;
    const size_t n_parts = catalog_.block(ref.block).parts.size();
    if (pass_->parts_done == (uint64_t{1} << n_parts) - 1) {
        patched_.push_back(std::move(pass_));
    }
}

void Executor::end_passes() {
    matmul_.restore();
    for (const auto & pass : patched_) {
        store_.end(*pass->experts);
    }
    patched_.clear();
    if (pass_ != nullptr) {
        store_.end(*pass_->experts);  // of a graph that was abandoned half-way
        pass_.reset();
    }
}

void Executor::wait(ReadBatch & batch) {
    const int64_t begin = now_ns();
    batch.wait();
    stall_ns_ += now_ns() - begin;
}

std::vector<size_t> Executor::wait_new(ReadBatch & batch, size_t first, size_t last) {
    const int64_t begin = now_ns();
    std::vector<size_t> arrived = batch.wait_new(first, last);
    stall_ns_ += now_ns() - begin;
    return arrived;
}

}  // namespace moe
