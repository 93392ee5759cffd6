#include "expert_matmul.h"

#include "error.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace moe {

namespace {

// The kernel lists the rows of every expert in a table of n_experts x n_pairs entries of 8 bytes. With slots in
// the role of experts that table would grow with the arena (6,000 slots and 4,096 pairs: 200 MB), so slots are
// taken in runs whose table stays below this.
constexpr uint64_t kRowTableBytes = uint64_t{1} << 20;
constexpr uint64_t kRowTableEntry = 8;

// Rows copied out and back when a call covers only some of the node's pairs.
constexpr uint64_t kGatherBytes = uint64_t{8} << 20;

bool row_table_fits(uint64_t n_slots, uint64_t n_pairs) { return n_slots * n_pairs * kRowTableEntry <= kRowTableBytes; }

// Without keeping the old content, or holding it and the new at once.
void grow(std::vector<float> & buffer, size_t n) {
    if (buffer.size() < n) {
        buffer = {};
        buffer.resize(n);
    }
}

const PartRange & range_of(const PartSlots & slots, uint32_t slot) {
    return *std::find_if(slots.begin(), slots.end(), [&](const PartRange & r) { return r.has(slot); });
}

constexpr size_t kGraphNodes = 8;
constexpr size_t kGraphTensors = 8;

int32_t id_at(const ggml_tensor * ids, int64_t token, int64_t k) {
    int32_t id = 0;
    std::memcpy(&id,
                static_cast<const std::byte *>(ids->data) + static_cast<size_t>(token) * ids->nb[1] +
                    static_cast<size_t>(k) * ids->nb[0],
                sizeof(id));
    return id;
}

}  // namespace

Routing Routing::from_ids(const ggml_tensor * ids, uint32_t n_expert) {
    Routing r;
    r.n_used = ids->ne[0];
    r.n_tokens = ids->ne[1];
    r.ids.reserve(static_cast<size_t>(r.n_used * r.n_tokens));
    r.first_pair.assign(n_expert + 1, 0);
    for (int64_t token = 0; token < r.n_tokens; ++token) {
        for (int64_t k = 0; k < r.n_used; ++k) {
            const int32_t id = id_at(ids, token, k);
            if (id < 0 || static_cast<uint32_t>(id) >= n_expert) {
                throw Error(ExitCode::other, "routed expert " + std::to_string(id) + " of " + std::to_string(n_expert));
            }
            r.ids.push_back(id);
            ++r.first_pair[static_cast<size_t>(id) + 1];
        }
    }
    for (uint32_t e = 0; e < n_expert; ++e) {
        if (r.first_pair[e + 1] != 0) {
            r.experts.push_back(e);
        }
        r.first_pair[e + 1] += r.first_pair[e];
    }
    std::vector<uint32_t> next(r.first_pair.begin(), r.first_pair.end() - 1);
    r.pairs.resize(r.ids.size());
    for (size_t pair = 0; pair < r.ids.size(); ++pair) {
        r.pairs[next[static_cast<size_t>(r.ids[pair])]++] = static_cast<int32_t>(pair);
    }
    return r;
}

bool Routing::equals(const ggml_tensor * other_ids) const {
    if (other_ids->ne[0] != n_used || other_ids->ne[1] != n_tokens) {
        return false;
    }
    size_t pair = 0;
    for (int64_t token = 0; token < n_tokens; ++token) {
        for (int64_t k = 0; k < n_used; ++k, ++pair) {
            if (ids[pair] != id_at(other_ids, token, k)) {
                return false;
            }
        }
    }
    return true;
}

ExpertMatmul::ExpertMatmul() {
    ggml_init_params params{};
    params.mem_size = kGraphTensors * ggml_tensor_overhead() + ggml_graph_overhead_custom(kGraphNodes, false);
    params.no_alloc = true;
    ctx_.reset(ggml_init(params));
    if (!ctx_) {
        throw Error(ExitCode::memory, "cannot create a ggml context");
    }
}

namespace {

uint64_t row_table_bytes(uint64_t n_slots, uint64_t n_pairs) {
    return std::min(n_slots * n_pairs * kRowTableEntry, kRowTableBytes);
}

uint64_t gather_bytes(uint64_t row_floats, uint64_t n_tokens, uint64_t n_pairs) {
    const uint64_t row = row_floats * sizeof(float);
    return std::min(n_pairs * row, std::max(kGatherBytes, n_tokens * row));
}

}  // namespace

uint64_t ExpertMatmul::scratch_bytes(uint64_t n_in, uint64_t n_out, uint64_t n_expert,
                                     const std::vector<SlotRegion> & regions, uint64_t n_tokens, uint64_t n_used) {
    const uint64_t n_pairs = n_tokens * n_used;
    uint64_t n_slots = 0;
    size_t n_sizes = 0;
    for (const SlotRegion & region : regions) {
        n_slots = std::max<uint64_t>(n_slots, region.slots);
        n_sizes += region.slots > 0 ? 1 : 0;
    }
    if (n_sizes == 1 && row_table_fits(n_slots, n_pairs) && std::min(n_expert, n_pairs) <= n_slots) {
        return row_table_bytes(n_slots, n_pairs);  // one call covers any routing
    }
    return row_table_bytes(n_slots, n_pairs) + gather_bytes(n_in + n_out, n_tokens, n_pairs);
}

uint64_t ExpertMatmul::scratch_bytes_most(uint64_t n_in, uint64_t n_out, uint64_t n_slots_most, uint64_t n_tokens,
                                          uint64_t n_used) {
    const uint64_t n_pairs = n_tokens * n_used;
    return row_table_bytes(n_slots_most, n_pairs) + gather_bytes(n_in + n_out, n_tokens, n_pairs);
}

namespace {

std::vector<ExpertSlot> by_slot(std::vector<ExpertSlot> where, const Routing & routing) {
    where.erase(std::remove_if(where.begin(), where.end(),
                               [&](const ExpertSlot & s) { return routing.n_pairs(s.expert) == 0; }),
                where.end());
    std::sort(where.begin(), where.end(), [](const ExpertSlot & a, const ExpertSlot & b) { return a.slot < b.slot; });
    return where;
}

}  // namespace

bool ExpertMatmul::patch(ggml_tensor * node, const Routing & routing, const std::vector<ExpertSlot> & where,
                         const PartSlots & slots) {
    uint32_t low = UINT32_MAX;
    uint32_t high = 0;
    for (const ExpertSlot & s : where) {
        low = std::min(low, s.slot);
        high = std::max(high, s.slot);
    }
    const PartRange & range = range_of(slots, low);
    if (!range.has(high) || !row_table_fits(uint64_t{high} - low + 1, routing.n_pairs())) {
        return false;
    }
    if (n_patched_ == patches_.size()) {
        patches_.push_back(std::make_unique<Patch>());
    }
    Patch & p = *patches_[n_patched_++];
    p.node = node;
    p.weight = node->src[0];
    p.ids = node->src[2];

    p.numbers.resize(routing.n_pairs());
    for (const ExpertSlot & s : where) {
        for (uint32_t i = routing.first_pair[s.expert]; i < routing.first_pair[s.expert + 1]; ++i) {
            p.numbers[static_cast<size_t>(routing.pairs[i])] = static_cast<int32_t>(s.slot - low);
        }
    }
    p.slots = *p.weight;
    p.slots.data = range.at(low);
    p.slots.ne[2] = high - low + 1;
    p.slots.nb[2] = range.stride;
    p.slots.nb[3] = range.stride * static_cast<size_t>(p.slots.ne[2]);
    p.slot_numbers = ggml_tensor{};
    p.slot_numbers.type = GGML_TYPE_I32;
    p.slot_numbers.data = p.numbers.data();
    const int64_t ne[GGML_MAX_DIMS] = {routing.n_used, routing.n_tokens, 1, 1};
    size_t nb = sizeof(int32_t);
    for (int d = 0; d < GGML_MAX_DIMS; ++d) {
        p.slot_numbers.ne[d] = ne[d];
        p.slot_numbers.nb[d] = nb;
        nb *= static_cast<size_t>(ne[d]);
    }
    node->src[0] = &p.slots;
    node->src[2] = &p.slot_numbers;
    return true;
}

void ExpertMatmul::restore() {
    for (; n_patched_ > 0; --n_patched_) {
        Patch & p = *patches_[n_patched_ - 1];
        p.node->src[0] = p.weight;
        p.node->src[2] = p.ids;
    }
}

void ExpertMatmul::run(ggml_tensor * node, const Routing & routing, std::vector<ExpertSlot> where,
                       const PartSlots & slots, ggml_backend_t cpu) {
    where = by_slot(std::move(where), routing);
    const auto row_floats = static_cast<uint64_t>(node->src[1]->ne[0] + node->ne[0]);

    // All rows of an expert stay in one call: the kernel picks its method by their number.
    const ExpertSlot * const end = where.data() + where.size();
    for (const ExpertSlot * it = where.data(); it != end;) {
        Range range{it, it, &range_of(slots, it->slot), 0};
        while (range.end != end && range.slots->has(range.end->slot)) {
            const size_t n_pairs = range.n_pairs + routing.n_pairs(range.end->expert);
            const bool fits = row_table_fits(range.end->slot - range.begin->slot + 1, n_pairs) &&
                              n_pairs * row_floats * sizeof(float) <= kGatherBytes;
            if (range.end != range.begin && !fits) {
                break;
            }
            range.n_pairs = n_pairs;
            ++range.end;
        }
        run_gathered(node, routing, range, cpu);
        it = range.end;
    }
}

// The kernel has no way to skip a pair, so those of the range are copied out, computed as a batch of one-choice
// tokens, and copied back.
void ExpertMatmul::run_gathered(ggml_tensor * node, const Routing & routing, const Range & range, ggml_backend_t cpu) {
    const ggml_tensor * src = node->src[1];
    if (src->type != GGML_TYPE_F32) {
        throw Error(ExitCode::other, std::string(node->name) + ": input is not float32");
    }
    ggml_reset(ctx_.get());
    const auto n_in = static_cast<size_t>(src->ne[0]);
    const auto n_out = static_cast<size_t>(node->ne[0]);
    const auto rows = static_cast<int64_t>(range.n_pairs);
    const size_t in_bytes = n_in * sizeof(float);
    const size_t out_bytes = n_out * sizeof(float);
    grow(gathered_out_, range.n_pairs * n_out);
    slot_ids_.resize(range.n_pairs);

    const auto each_pair = [&](const auto & visit) {
        size_t row = 0;
        for (const ExpertSlot * s = range.begin; s != range.end; ++s) {
            for (uint32_t i = routing.first_pair[s->expert]; i < routing.first_pair[s->expert + 1]; ++i, ++row) {
                const int64_t pair = routing.pairs[i];
                visit(row, *s, static_cast<size_t>(pair / routing.n_used), static_cast<size_t>(pair % routing.n_used));
            }
        }
    };
    each_pair([&](size_t row, const ExpertSlot & s, size_t, size_t) {
        slot_ids_[row] = static_cast<int32_t>(s.slot - range.begin->slot);
    });

    ggml_tensor * input = nullptr;
    ggml_tensor * ids = nullptr;
    if (routing.n_tokens == 1 && src->ne[1] == 1) {
        // One row that all choices of the only token share.
        input = leaf(GGML_TYPE_F32, {src->ne[0], 1, 1}, {in_bytes, in_bytes}, src->data);
        ids = leaf(GGML_TYPE_I32, {rows, 1, 1}, {range.n_pairs * sizeof(int32_t), 0}, slot_ids_.data());
    } else {
        grow(gathered_in_, range.n_pairs * n_in);
        each_pair([&](size_t row, const ExpertSlot &, size_t token, size_t k) {
            const auto * from = static_cast<const std::byte *>(src->data) +
                                (k % static_cast<size_t>(src->ne[1])) * src->nb[1] + token * src->nb[2];
            std::memcpy(gathered_in_.data() + row * n_in, from, in_bytes);
        });
        input = leaf(GGML_TYPE_F32, {src->ne[0], 1, rows}, {in_bytes, in_bytes}, gathered_in_.data());
        ids = leaf(GGML_TYPE_I32, {1, rows, 1}, {sizeof(int32_t), 0}, slot_ids_.data());
    }
    compute(node, range, input, ids, gathered_out_.data(), cpu);

    each_pair([&](size_t row, const ExpertSlot &, size_t token, size_t k) {
        auto * to = static_cast<std::byte *>(node->data) + k * node->nb[1] + token * node->nb[2];
        std::memcpy(to, gathered_out_.data() + row * n_out, out_bytes);
    });
}

void ExpertMatmul::compute(const ggml_tensor * node, const Range & range, ggml_tensor * input, ggml_tensor * ids,
                           float * output, ggml_backend_t cpu) {
    const ggml_tensor * matrix = node->src[0];
    ggml_tensor * slots = leaf(matrix->type, {matrix->ne[0], matrix->ne[1], range.span()},
                               {matrix->nb[1], range.slots->stride}, range.slots->at(range.begin->slot));
    ggml_tensor * result = ggml_mul_mat_id(ctx_.get(), slots, input, ids);
    std::memcpy(result->op_params, node->op_params, sizeof(result->op_params));  // precision hints
    ggml_set_name(result, node->name);
    result->data = output;

    ggml_cgraph * graph = ggml_new_graph_custom(ctx_.get(), kGraphNodes, false);
    ggml_build_forward_expand(graph, result);
    const ggml_status status = ggml_backend_graph_compute(cpu, graph);
    if (status != GGML_STATUS_SUCCESS) {
        throw Error(ExitCode::other, std::string(node->name) + ": the CPU backend failed: " + ggml_status_to_string(status));
    }
}

// nb[0] is the type's own; nb[1] and nb[2] are given because slots and views have gaps.
ggml_tensor * ExpertMatmul::leaf(ggml_type type, const int64_t (&ne)[3], const size_t (&nb)[2], void * data) {
    ggml_tensor * t = ggml_new_tensor_3d(ctx_.get(), type, ne[0], ne[1], ne[2]);
    t->nb[1] = nb[0];
    t->nb[2] = nb[1] != 0 ? nb[1] : nb[0] * static_cast<size_t>(ne[1]);
    t->nb[3] = t->nb[2] * static_cast<size_t>(ne[2]);
    t->data = data;
    return t;
}

}  // namespace moe
