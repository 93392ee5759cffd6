#include "executor.h"

#include "clock.h"
#include "error.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace moe {

Executor::Executor(const Catalog & catalog, const SlotLayout & layout, IoPool & io, uint32_t n_slots, bool reuse)
    : catalog_(catalog),
      layout_(layout),
      io_(io),
      reuse_(reuse),
      arena_(n_slots, catalog.n_keys()),
      memory_(n_slots * layout.stride()) {}

ExecutorCounters Executor::counters() const {
    ExecutorCounters counters = counters_;
    counters.evictions = arena_.evictions();
    return counters;
}

void Executor::compute(ggml_tensor * node, ggml_backend_t cpu) {
    const PartRef * ref = catalog_.find_part(node->src[0]->name);
    if (ref == nullptr) {
        throw Error(ExitCode::other, std::string(node->src[0]->name) + " is no expert tensor of this model");
    }
    const int64_t begin = now_ns();
    compute_ns_ = 0;
    stall_ns_ = 0;
    try {
        run_node(node, *ref, cpu);
    } catch (...) {
        end_pass(false);
        throw;
    }
    counters_.stall_ms += ns_to_ms(stall_ns_);
    counters_.manage_ms += ns_to_ms(now_ns() - begin - stall_ns_ - compute_ns_);
}

void Executor::run_node(ggml_tensor * node, PartRef ref, ggml_backend_t cpu) {
    if (!continues_pass(node->src[2], ref)) {
        end_pass(reuse_);  // of a graph that was abandoned half-way
        begin_pass(ref.block, Routing::from_ids(node->src[2], catalog_.block(ref.block).n_expert));
    }
    if (!pass_.resident.empty()) {
        const int64_t begin = now_ns();
        matmul_.run(node, pass_.routing, pass_.resident, weights(ref), layout_.stride(), cpu);
        compute_ns_ += now_ns() - begin;
    }
    if (!pass_.streamed.empty()) {
        run_streamed(node, ref, cpu);
    }
    pass_.parts_done |= uint64_t{1} << ref.part;
    const size_t n_parts = catalog_.block(ref.block).parts.size();
    if (pass_.parts_done == (uint64_t{1} << n_parts) - 1) {
        end_pass(reuse_);
    }
}

bool Executor::continues_pass(const ggml_tensor * ids, PartRef ref) const {
    return pass_.active && pass_.block == ref.block && (pass_.parts_done >> ref.part & 1) == 0 &&
           pass_.routing.equals(ids);
}

void Executor::begin_pass(uint32_t block, Routing routing) {
    pass_.active = true;
    pass_.block = block;
    pass_.parts_done = 0;
    pass_.routing = std::move(routing);

    // Hits are pinned before anything is given away, else one miss could evict the next hit.
    std::vector<uint32_t> missing;
    for (const uint32_t expert : pass_.routing.experts) {
        const uint32_t slot = arena_.find(key(expert));
        if (slot == Arena::kNone) {
            missing.push_back(expert);
        } else {
            arena_.touch(slot);
            arena_.pin(slot);
            pass_.resident.push_back({expert, slot});
        }
    }
    const bool fits = pass_.routing.experts.size() <= arena_.n_slots();
    if (!fits) {
        // Half of the slots at least must be free to stream through.
        while (pass_.resident.size() > arena_.n_slots() / 2) {
            arena_.evict(pass_.resident.back().slot);
            missing.push_back(pass_.resident.back().expert);
            pass_.resident.pop_back();
        }
        std::sort(missing.begin(), missing.end());
    }
    counters_.requests += pass_.routing.experts.size();
    counters_.misses += missing.size();
    counters_.hits += pass_.routing.experts.size() - missing.size();

    if (fits) {
        load_missing(missing);
    } else {
        plan_streaming(missing);
    }
}

void Executor::load_missing(const std::vector<uint32_t> & missing) {
    const auto n_parts = static_cast<uint32_t>(catalog_.block(pass_.block).parts.size());
    std::vector<ExpertSlot> loading;
    for (const uint32_t expert : missing) {
        const uint32_t slot = arena_.acquire(key(expert));
        arena_.pin(slot);
        loading.push_back({expert, slot});
    }
    pass_.resident.insert(pass_.resident.end(), loading.begin(), loading.end());

    std::vector<ReadRequest> requests;
    for (uint32_t part = 0; part < n_parts; ++part) {
        for (const ExpertSlot & s : loading) {
            requests.push_back(request({pass_.block, part}, s.expert, s.slot));
        }
    }
    ReadBatch batch(io_);
    batch.submit(requests, ReadUrgency::demand);
    wait(batch);
}

// Nobody else's experts can stay: what is not pinned makes room for this layer's.
void Executor::plan_streaming(const std::vector<uint32_t> & missing) {
    pass_.streamed = missing;
    for (uint32_t slot = 0; slot < arena_.n_slots(); ++slot) {
        if (!arena_.pinned(slot)) {
            if (arena_.resident(slot)) {
                arena_.evict(slot);
            }
            pass_.stream_slots.push_back(slot);
        }
    }
}

// The node's experts pass through the stream slots in groups, each reading its part while the group before it is
// computed. Only this node's part is read, so that over the whole pass every part is read once.
void Executor::run_streamed(ggml_tensor * node, PartRef ref, ggml_backend_t cpu) {
    const size_t n_banks = pass_.stream_slots.size() >= 2 ? 2 : 1;
    const size_t group = pass_.stream_slots.size() / n_banks;
    const size_t n_groups = (pass_.streamed.size() + group - 1) / group;

    std::vector<ExpertSlot> members[2];
    std::optional<ReadBatch> batches[2];
    const auto start_reading = [&](size_t g) {
        const size_t bank = g % n_banks;
        const size_t first = g * group;
        const size_t last = std::min(first + group, pass_.streamed.size());
        members[bank].clear();
        std::vector<ReadRequest> requests;
        for (size_t i = first; i < last; ++i) {
            const ExpertSlot s{pass_.streamed[i], pass_.stream_slots[bank * group + (i - first)]};
            members[bank].push_back(s);
            requests.push_back(request(ref, s.expert, s.slot));
        }
        batches[bank].emplace(io_);
        batches[bank]->submit(requests, ReadUrgency::demand);
    };

    start_reading(0);
    for (size_t g = 0; g < n_groups; ++g) {
        if (n_banks == 2 && g + 1 < n_groups) {
            start_reading(g + 1);
        }
        const size_t bank = g % n_banks;
        wait(*batches[bank]);
        const int64_t begin = now_ns();
        matmul_.run(node, pass_.routing, members[bank], weights(ref), layout_.stride(), cpu);
        compute_ns_ += now_ns() - begin;
        if (n_banks == 1 && g + 1 < n_groups) {
            start_reading(g + 1);
        }
    }
}

// `keep` false: nothing of this pass is trusted, or wanted, any longer.
void Executor::end_pass(bool keep) {
    for (const ExpertSlot & s : pass_.resident) {
        arena_.unpin(s.slot);
        if (!keep) {
            arena_.discard(s.slot);
        }
    }
    pass_.resident.clear();
    pass_.streamed.clear();
    pass_.stream_slots.clear();
    pass_.active = false;
}

void Executor::wait(ReadBatch & batch) {
    const int64_t begin = now_ns();
    batch.wait();
    stall_ns_ += now_ns() - begin;
}

ReadRequest Executor::request(PartRef ref, uint32_t expert, uint32_t slot) const {
    const ExpertPart & part = catalog_.block(ref.block).parts[ref.part];
    const PartPlace & place = layout_.place(ref);
    return {part.shard, part.offset + expert * part.slice_bytes, part.slice_bytes,
            memory_.data() + slot * layout_.stride() + place.window, place.shift};
}

std::byte * Executor::weights(PartRef ref) const {
    const PartPlace & place = layout_.place(ref);
    return memory_.data() + place.window + place.shift;
}

}  // namespace moe
